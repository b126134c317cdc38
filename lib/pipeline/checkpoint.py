"""Checkpointing: keep only the input of a partition, and compute its inside again in backward.

torch.utils.checkpoint does both in one autograd function, so it recomputes only once the gradient has arrived. Here
there are two, which share memory: Recompute and Checkpoint. In the graph Recompute hangs beside the output, so backward
can start it early, while the gradient is still being copied from the next device; Checkpoint then finds it done.

    forward     ── Checkpoint ───┬────────── Join ──        backward (right to left): Recompute, then Checkpoint
                                 └ Recompute ─┘
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

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


def enable_checkpointing() -> AbstractContextManager[None]:
    """Make is_checkpointing() true within a `with`."""
    return during(checkpointing=True)


def enable_recomputing() -> AbstractContextManager[None]:
    """Make is_recomputing() true within a `with`."""
    return during(recomputing=True)


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

    writes: whether the function changes in place what it gets, None if that is not known yet. While it may, it gets
    copies; its first call, on copies, tells.
    """

    def __init__(self, modules: Iterable[nn.Module] = (), writes: bool | None = None) -> None:
        self.writes = writes
        self.training = [(module, module.training) for module in modules]
        self.parameters: list[_Parameter] = []
        for module, _ in self.training:
            for name, parameter in module._parameters.items():
                if parameter is not None and not is_lazy(parameter):
                    version = parameter._version
                    self.parameters.append(_Parameter(module, name, parameter, version, parameter.untyped_storage()))

    def lend(self, batch: Batch) -> Batch:
        """Return what to call the function with."""
        if self.writes is False:
            return batch
        return Batch(tree_map(Tensor.clone, batch.value))

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
            self.writes = self.writes is True or any(written)  # who wrote once gets copies for good
            self._give_back(output, lent, batch, written)
        return output

    def _give_back(self, output: Batch, lent: Batch, batch: Batch, written: list[bool]) -> None:
        # Where the function hands on a copy as it came, the original takes its place: that one stands in the graph.
        # A copy that was written holds a value of its own.
        original = {id(x): y for x, y, new in zip(lent, batch, written, strict=True) if not new}
        output[:] = tuple(original.get(id(y), y) for y in output)

    def check(self) -> None:
        """Raise RuntimeError if a module was switched between train and eval, or a parameter replaced or changed."""
        switched = [module for module, training in self.training if module.training != training]
        changed = [parameter for parameter in self.parameters if parameter.has_changed()]
        names = [f"{type(module).__name__}.training" for module in switched]
        names += [f"{type(parameter.module).__name__}.{parameter.name}" for parameter in changed]
        if names:
            raise RuntimeError(
                f"{', '.join(names)} changed between forward and backward: the recomputation would not be what ran; "
                "change it before forward or after backward, or use checkpoint='never'"
            )


class _Parameter(NamedTuple):
    """A parameter as it was in forward."""

    module: nn.Module
    name: str
    parameter: Tensor
    version: int
    storage: torch.UntypedStorage

    def has_changed(self) -> bool:
        if getattr(self.module, self.name, None) is not self.parameter:
            return True  # replaced, also for the time of a torch.func.functional_call
        if self.parameter._version != self.version:
            return True  # written, as an optimizer does
        # `parameter.data = new` changes neither the object nor its version, only its memory
        same_memory: bool = self.parameter.untyped_storage()._cdata == self.storage._cdata
        return not same_memory


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
        device = batch[0].device
        self.function = function
        self.batch = batch
        self.atomic = batch.atomic
        self.modes = Modes.current()
        self.generators: list[Generator] = []
        if guard is None:
            guard = Guard(writes=False)
            self.generators.append(torch.default_generator)
        self.guard = guard
        if has_streams(device):
            self.generators.append(default_generator(device))
        self.rng_states: dict[Generator, Tensor] = {}
        # Checkpoint takes a phony as its first input, so that backward comes there even if no tensor of the batch
        # requires grad.
        if phony is None:
            phony = get_phony(device, requires_grad=True)
        self.phony: Tensor | None = phony
        self.recomputed: _Recomputed | None = None

    def checkpoint(self) -> Batch:
        """Compute without graph and return the output, which requires grad (its floating-point tensors)."""
        phony = self.phony
        self.phony = None  # the graph keeps this object: it would keep what the phony was forked from
        return Batch(Checkpoint.apply(phony, self, *self.batch))  # type: ignore[no-untyped-call]

    def recompute(self, batch: Batch) -> None:
        """Tie the recomputation to the output that checkpoint() returned, in place."""
        phony = fork_batch(batch)
        if phony is not None:
            phony = Recompute.apply(phony, self, *self.batch)  # type: ignore[no-untyped-call]
            join_batch(batch, phony)
        self.batch = Batch(())  # autograd keeps the input from now on, and lets it go after backward


class _Recomputed(NamedTuple):
    """What Recompute leaves for Checkpoint: the second forward, with its graph."""

    input: Tensors
    output: Tensors
    hidden: list[Tensor]  # the phonies of the skip tensors that it hid in portals


class Checkpoint(torch.autograd.Function):
    """Forward: compute without graph. Backward: go through the graph that Recompute has made."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, checkpointing: Checkpointing, *input: Tensor) -> TensorOrTensors:
        """Return the output. Of its tensors, those that can't have a gradient, and inputs without one, stay without."""
        ctx.set_materialize_grads(False)
        ctx.checkpointing = checkpointing
        checkpointing.rng_states = {generator: generator.get_state() for generator in checkpointing.generators}
        with enable_checkpointing():  # an autograd function's forward is without grad mode
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
        input, output, hidden = checkpointing.recomputed
        checkpointing.recomputed = None  # its memory is free as soon as backward is through it
        pairs = zip(output, grads, strict=True)
        wanted = [(y, grad) for y, grad in pairs if grad is not None and y.requires_grad]
        # The gradient of a skip tensor may wait inside though no output has one: a layer that popped it may have
        # ignored its own input. Backward reaches it by its phony.
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
        hidden: list[Tensor] = []
        with (
            checkpointing.modes.use(),
            restore_rng_states(checkpointing.rng_states),
            during(recomputing=True, hidden=hidden),
        ):
            batch = Batch(input[0] if checkpointing.atomic else input)
            output = checkpointing.guard.lend(batch).call(checkpointing.function)
        checkpointing.recomputed = _Recomputed(input, tuple(output), hidden)
        return (None,) * (2 + len(input))
