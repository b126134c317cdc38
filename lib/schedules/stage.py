"""A stage: a module that goes forward and back, micro-batch by micro-batch, cut off from the stages beside it.

    activation ── detach ──> input ── module ──> output ── detach ──> activation of the next stage
    gradient  <───────────── input.grad <─────── output <──────────── gradient from the next stage

So each micro-batch has a small graph of its own here, and its backward is a call of its own: whoever asks for it walks
this graph and no other, in whatever thread that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lib.runtime.dependency import get_phony, join
from lib.runtime.microbatch import Batch, check
from lib.runtime.no_gradient import leads_back
from lib.runtime.sharing import Crossing, sharing
from lib.schedules.split_backward import Grads, backward_input


class Parcel(NamedTuple):
    """What one stage hands to another: activations or gradients, without graph.

    wanted: of which activations a gradient is wanted back. atomic: one tensor, not a tuple. shared: which of them had
    memory in common with another one where they were made. Of the gradients, None stands for one that there is not.
    """

    tensors: Sequence[Tensor | None]
    wanted: Sequence[bool] = ()
    atomic: bool = True
    shared: Sequence[int] = ()

    @classmethod
    def of(cls, batch: Batch) -> Parcel:
        """Pack activations."""
        tensors = list(batch)
        wanted = [x.requires_grad for x in tensors]
        return cls([x.detach() for x in tensors], wanted, batch.atomic, sharing(tensors))


class Stage:
    """Run a module forward and back, micro-batch by micro-batch, in any order; one thread at a time.

    loss: what the last stage makes of its output, loss(output, i): there backward begins.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Any, int], Tensor] | None = None) -> None:
        self.module = module
        self.loss = loss
        self._graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # micro-batch: inputs, outputs
        self._later: dict[int, Callable[[], None]] = {}  # micro-batch: its W

    @property
    def live(self) -> int:
        """How many micro-batches are held: forward is done, and not yet all of backward."""
        return len(self._graphs) + len(self._later)

    def forward(self, i: int, parcel: Parcel) -> Parcel:
        """Compute micro-batch i: F. Return its activation, or the loss.

        Raises RuntimeError if the module changes in place what another tensor of the parcel has as well.
        """
        inputs = []
        for x, wanted in zip(parcel.tensors, parcel.wanted, strict=True):
            assert x is not None
            inputs.append(x.detach().requires_grad_(wanted))
        # a leaf may not be changed in place (nn.ReLU(inplace=True)); what comes out of a function may
        given = tuple(join(x, get_phony(x.device, requires_grad=False)) for x in inputs)
        crossing = Crossing()
        crossing.note_input(given, shared=parcel.shared)
        value = self.module(given[0] if parcel.atomic else given)
        crossing.refuse_writes()
        if self.loss is not None:
            value = self.loss(value, i)
        check(value)
        batch = Batch(value)
        self._graphs[i] = inputs, list(batch)
        return Parcel.of(batch)

    def backward(self, i: int, grads: Grads) -> Parcel:
        """Walk the whole graph of micro-batch i: B. Weights get their share, the inputs' gradients are returned."""
        inputs, outputs = self._graphs.pop(i)
        ends, arriving = self._used(outputs, grads)
        if ends:
            torch.autograd.backward(ends, arriving)
        return Parcel([x.grad for x in inputs])

    def backward_input(self, i: int, grads: Grads) -> Parcel:
        """Do the part that the stage before waits for: I."""
        inputs, outputs = self._graphs.pop(i)
        ends, arriving = self._used(outputs, grads)
        found, self._later[i] = backward_input(ends, arriving, inputs)
        return Parcel(found)

    def backward_weight(self, i: int) -> None:
        """Do the rest: W."""
        later = self._later.pop(i)
        later()

    def _used(self, outputs: Sequence[Tensor], grads: Grads) -> tuple[list[Tensor], list[Tensor | None]]:
        """Return the outputs from which backward starts, and what arrives at them.

        There are none where a stage needs no gradients or nothing of its output is used: then it has nothing to do.
        """
        if self.loss is not None:
            return [outputs[0]], [None]
        ends: list[Tensor] = []
        arriving: list[Tensor | None] = []
        for y, g in zip(outputs, grads, strict=True):
            if g is not None and leads_back(y):
                ends.append(y)
                arriving.append(g)
        return ends, arriving
