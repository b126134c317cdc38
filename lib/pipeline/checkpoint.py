"""Checkpointing: keep only the input of a partition, and compute its inside again in backward.

torch.utils.checkpoint does both in one autograd function, so it recomputes only once the gradient has arrived. Here
there are two, which share memory: Recompute and Checkpoint. In the graph Recompute hangs beside the output, so backward
can start it early, while the gradient is still being copied from the next device; Checkpoint then finds it done.

    forward     ── Checkpoint ───┬────────── Join ──        backward (right to left): Recompute, then Checkpoint
                                 └ Recompute ─┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from lib.runtime.dependency import fork_batch, get_phony, join_batch
from lib.runtime.device import default_generator, has_streams
from lib.runtime.microbatch import Batch, Function, TensorOrTensors, Tensors, check
from lib.runtime.thread_state import Modes, during, this_thread


def is_checkpointing() -> bool:
    """Return whether this forward runs in a checkpoint: without graph, to be computed again."""
    return this_thread.checkpointing


def is_recomputing() -> bool:
    """Return whether this forward is the second one, in backward: what must happen once only, should not happen now.

    if not is_recomputing():
        self.calls += 1
    """
    return this_thread.recomputing


@contextmanager
def restore_rng_states(states: dict[Generator, Tensor]) -> Iterator[None]:
    """Draw from these states within a `with`; afterwards the generators stand where they stood before."""
    before = {generator: generator.get_state() for generator in states}
    for generator, state in states.items():
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in before.items():
            generator.set_state(state)


class Guard:
    """Keep the input of a function for its recomputation, and look whether modules are still as they were in forward.

    writes: whether the function changes in place what it gets. It then gets copies; its first call, on copies, tells.
    """

    def __init__(self, modules: Iterable[nn.Module] = (), writes: bool | None = None) -> None:
        self.writes, self.training = writes, [(part, part.training) for part in modules]
        found = [(part, name, p) for part, _ in self.training for name, p in part._parameters.items() if p is not None]
        # the storage as well: `p.data = new` changes nothing else
        self.parameters = [(*x, x[2]._version, x[2].untyped_storage()) for x in found if not is_lazy(x[2])]

    def lend(self, batch: Batch) -> Batch:
        """Return what to call the function with."""
        return batch if self.writes is False else Batch(tree_map(Tensor.clone, batch.value))

    def call(self, function: Function, batch: Batch) -> Batch:
        """Return function(batch); what it hands on as it came is the batch's, not a copy. Raises TypeError for none."""
        lent = self.lend(batch)
        before = [x._version for x in lent]
        output = lent.call(function)
        check(output.value)
        written = [x._version != version for x, version in zip(lent, before, strict=True)]
        if self.writes is False and any(written):
            raise RuntimeError(
                f"tensor {written.index(True)} of the input was changed in place: a recomputation would begin with the "
                "changed one, and the gradients be wrong; use inplace=False (or clone it first), or checkpoint='never'"
            )
        if lent is not batch:
            self.writes = self.writes or any(written)
            originals = {id(x): y for x, y, new in zip(lent, batch, written, strict=True) if not new}
            output[:] = tuple(originals.get(id(y), y) for y in output)
        return output

    def check(self) -> None:
        """Raise RuntimeError if a module was switched between train and eval, or a parameter replaced or changed."""
        changed = [f"{type(part).__name__}.training" for part, training in self.training if part.training != training]
        for part, name, p, version, memory in self.parameters:
            same = p._version == version and p.untyped_storage()._cdata == memory._cdata
            if not same or getattr(part, name, None) is not p:
                changed.append(f"{type(part).__name__}.{name}")
        if changed:
            raise RuntimeError(
                f"{', '.join(changed)} changed between forward and backward: the recomputation would not be what ran; "
                "change it before forward or after backward, or use checkpoint='never'"
            )


def checkpoint(function: Function, input: TensorOrTensors) -> TensorOrTensors:
    """Return function(input) and recompute it in backward. Raises RuntimeError if it changes its input in place."""
    checkpointing = Checkpointing(function, Batch(input))
    output = checkpointing.checkpoint()
    checkpointing.recompute(output)
    return output.value


class Checkpointing:
    """Tie `function(batch)` to the graph as a Checkpoint, and its recomputation as a Recompute.

    Modes of the thread (autocast) and random numbers are the same both times. guard: that of a pipeline's partition,
    whose random numbers on a CPU are so by themselves (lib.runtime.random_state); by default a change of the input in
    place is refused. phony: ties the Checkpoint to what must go backward later.
    """

    def __init__(
        self, function: Function, batch: Batch, *, guard: Guard | None = None, phony: Tensor | None = None
    ) -> None:
        device, self.guard = batch[0].device, guard or Guard(writes=False)
        self.function, self.batch, self.atomic, self.modes = function, batch, batch.atomic, Modes.current()
        # a phony as first input, so that backward comes here even if no tensor of the batch requires grad
        self.phony: Tensor | None = get_phony(device, requires_grad=True) if phony is None else phony
        self.generators = [] if guard else [torch.default_generator]
        if has_streams(device):
            self.generators.append(default_generator(device))
        self.rng_states: dict[Generator, Tensor] = {}
        # of the second forward: outputs, inputs, and the phonies of the skip tensors that it hid
        self.recomputed: tuple[Tensors, Tensors, list[Tensor]] | None = None

    def checkpoint(self) -> Batch:
        """Compute without graph and return the output, which requires grad (its floating-point tensors)."""
        phony, self.phony = self.phony, None
        return Batch(Checkpoint.apply(phony, self, *self.batch))  # type: ignore[no-untyped-call]

    def recompute(self, batch: Batch) -> None:
        """Tie the recomputation to the output that checkpoint() returned, in place."""
        phony = fork_batch(batch)
        if phony is not None:
            phony = Recompute.apply(phony, self, *self.batch)  # type: ignore[no-untyped-call]
            join_batch(batch, phony)
        self.batch = Batch(())  # autograd keeps the input from now on, and lets it go after backward


class Checkpoint(torch.autograd.Function):
    """Forward: compute without graph. Backward: go through the graph that Recompute has made."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, checkpointing: Checkpointing, *input: Tensor) -> TensorOrTensors:
        """Return the output. Of its tensors, those that can't have a gradient, and inputs without one, stay without."""
        ctx.set_materialize_grads(False)
        ctx.checkpointing = checkpointing
        checkpointing.rng_states = {x: x.get_state() for x in checkpointing.generators}
        with during(checkpointing=True):  # an autograd function's forward is without grad mode
            batch = Batch(input[0] if checkpointing.atomic else input)
            output = checkpointing.guard.call(checkpointing.function, batch)
        without = {id(x) for x in input if not x.requires_grad}
        ctx.mark_non_differentiable(*[y for y in output if id(y) in without])
        return output.value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs; those of the parameters are accumulated on the way."""
        checkpointing: Checkpointing = ctx.checkpointing
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True does not reach into a checkpoint: use checkpoint='never'")
        assert checkpointing.recomputed is not None, "Recompute precedes Checkpoint"
        (output, input, hidden), checkpointing.recomputed = checkpointing.recomputed, None
        pairs = zip(output, grads, strict=True)
        wanted = [(y, grad) for y, grad in pairs if grad is not None and y.requires_grad]
        # the gradient of a skip tensor may wait inside though no output has one: who popped it may ignore its input
        wanted += [(phony, torch.zeros_like(phony)) for phony in hidden]
        if wanted:
            torch.autograd.backward([y for y, _ in wanted], [grad for _, grad in wanted])
        return None, None, *(x.grad for x in input)


class Recompute(torch.autograd.Function):
    """Forward: keep the inputs. Backward: compute again, this time with a graph."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, checkpointing: Checkpointing, *input: Tensor) -> Tensor:
        """Return the phony."""
        ctx.set_materialize_grads(False)
        ctx.checkpointing = checkpointing
        ctx.save_for_backward(*input)
        return phony.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        """Leave the outputs and inputs of the second forward where Checkpoint takes them."""
        checkpointing: Checkpointing = ctx.checkpointing
        checkpointing.guard.check()
        input = tuple(x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors)
        again, hidden = restore_rng_states(checkpointing.rng_states), list[Tensor]()
        with checkpointing.modes.use(), again, during(recomputing=True, hidden=hidden):
            batch = Batch(input[0] if checkpointing.atomic else input)
            output = checkpointing.guard.lend(batch).call(checkpointing.function)
        checkpointing.recomputed = tuple(output), input, hidden
        return (None,) * (2 + len(input))
