"""One stage of a pipeline with an explicit backward: a small graph for each micro-batch, and who asks walks it.

activation ── detach ──> input ── module ──> output ── detach ──> activation of the next stage
gradient  <───────────── input.grad <─────── output <──────────── gradient from the next stage
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lib.pipeline.dependency import join
from lib.pipeline.microbatch import Batch, check
from lib.pipeline.phony import get_phony
from lib.pipeline.split_backward import backward_input


class Parcel(NamedTuple):
    """What one stage hands to another: activations or gradients, without graph.

    wanted: of which activations a gradient is wanted back. atomic: one tensor, not a tuple. Of the gradients, None
    stands for one that there is not.
    """

    tensors: Sequence[Tensor | None]
    wanted: Sequence[bool] = ()
    atomic: bool = True

    @classmethod
    def of(cls, batch: Batch) -> Parcel:
        """Pack activations."""
        return cls([x.detach() for x in batch], [x.requires_grad for x in batch], batch.atomic)


class Stage:
    """Run a module forward and back, micro-batch by micro-batch, in any order; one thread at a time.

    loss: what the last stage makes of its output, loss(output, i): there backward begins.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Any, int], Tensor] | None = None) -> None:
        self.module, self.loss = module, loss
        self._graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # micro-batch: inputs, outputs
        self._later: dict[int, Callable[[], None]] = {}

    @property
    def live(self) -> int:
        """How many micro-batches are held: forward is done, and not yet all of backward."""
        return len(self._graphs) + len(self._later)

    def forward(self, i: int, parcel: Parcel) -> Parcel:
        """Compute micro-batch i; return its activation, or the loss."""
        inputs = []
        for x, wanted in zip(parcel.tensors, parcel.wanted, strict=True):
            assert x is not None
            inputs.append(x.detach().requires_grad_(wanted))
        # a leaf may not be changed in place (nn.ReLU(inplace=True)); what comes out of a function may
        given = tuple(join(x, get_phony(x.device, requires_grad=False)) for x in inputs)
        value = self.module(given[0] if parcel.atomic else given)
        if self.loss is not None:
            value = self.loss(value, i)
        check(value)
        batch = Batch(value)
        self._graphs[i] = inputs, list(batch)
        return Parcel.of(batch)

    def backward(self, i: int, grads: Sequence[Tensor | None]) -> Parcel:
        """Walk the whole graph of micro-batch i: B. Weights get their share, the inputs' gradients are returned."""
        inputs, outputs = self._graphs.pop(i)
        if used := self._used(outputs, grads):
            torch.autograd.backward([y for y, _ in used], [g for _, g in used])
        return Parcel([x.grad for x in inputs])

    def backward_input(self, i: int, grads: Sequence[Tensor | None]) -> Parcel:
        """Do the part that the stage before waits for: I."""
        inputs, outputs = self._graphs.pop(i)
        used = self._used(outputs, grads)
        found, self._later[i] = backward_input([y for y, _ in used], [g for _, g in used], inputs)
        return Parcel(found)

    def backward_weight(self, i: int) -> None:
        """Do the rest: W."""
        self._later.pop(i)()

    def _used(  # a stage that needs no gradients, or whose output is not used, has nothing to do
        self, outputs: Sequence[Tensor], grads: Sequence[Tensor | None]
    ) -> list[tuple[Tensor, Tensor | None]]:
        if self.loss is not None:
            return [(outputs[0], None)]
        return [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad and g is not None]
