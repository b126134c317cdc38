"""Checkpointing: keep only the input of a partition, and compute its inside again in backward.

torch.utils.checkpoint does both in one autograd function, so it recomputes only once the gradient has arrived. Here
there are two, which share memory: Recompute and Checkpoint. In the graph Recompute hangs beside the output, so backward
can start it early, while the gradient is still being copied from the next device; Checkpoint then finds it done.

    forward     ── Checkpoint ───┬────────── Join ──        backward (right to left): Recompute, then Checkpoint
                                 └ Recompute ─┘
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.pipeline import tracing
from lib.pipeline.dependency import fork_batch, join_batch
from lib.pipeline.microbatch import Batch, Function, TensorOrTensors, Tensors
from lib.pipeline.modes import Modes
from lib.pipeline.phony import get_phony
from lib.pipeline.stream import current_stream


class _Phase(threading.local):
    checkpointing = False
    recomputing = False


_phase = _Phase()


def is_checkpointing() -> bool:
    """Return whether this forward runs in a checkpoint: without graph, to be computed again."""
    return _phase.checkpointing


def is_recomputing() -> bool:
    """Return whether this forward is the second one, in backward: what must happen once only, should not happen now.

    if not is_recomputing():
        self.calls += 1
    """
    return _phase.recomputing


@contextmanager
def _in_phase(checkpointing: bool, recomputing: bool) -> Iterator[None]:
    before = _phase.checkpointing, _phase.recomputing
    _phase.checkpointing, _phase.recomputing = checkpointing, recomputing
    try:
        yield
    finally:
        _phase.checkpointing, _phase.recomputing = before


def enable_checkpointing() -> AbstractContextManager[None]:
    """Make is_checkpointing() true within a `with`."""
    return _in_phase(True, _phase.recomputing)


def enable_recomputing() -> AbstractContextManager[None]:
    """Make is_recomputing() true within a `with`."""
    return _in_phase(_phase.checkpointing, True)


RNGStates: TypeAlias = tuple[Tensor | None, Tensor | None]
"""The states of the process's generators, CPU and CUDA; None for one that is not drawn from."""


def save_rng_states(device: torch.device, *, cpu: bool = True) -> RNGStates:
    """Return the present states of the generators that a layer on `device` draws from."""
    on_cuda = device.type == "cuda"
    return torch.get_rng_state() if cpu else None, torch.cuda.get_rng_state(device) if on_cuda else None


@contextmanager
def restore_rng_states(device: torch.device, states: RNGStates) -> Iterator[None]:
    """Draw from these states within a `with`; afterwards the generators stand where they stood before."""
    before = save_rng_states(device, cpu=states[0] is not None)
    _set_rng_states(device, states)
    try:
        yield
    finally:
        _set_rng_states(device, before)


def _set_rng_states(device: torch.device, states: RNGStates) -> None:
    cpu, cuda = states
    if cpu is not None:
        torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state(cuda, device)


def checkpoint(function: Function, input: TensorOrTensors) -> TensorOrTensors:
    """Return function(input) and recompute it in backward, as torch.utils.checkpoint does."""
    checkpointing = Checkpointing(function, Batch(input))
    output = checkpointing.checkpoint()
    checkpointing.recompute(output)
    return output.value


class Checkpointing:
    """Tie `function(batch)` to the graph as a Checkpoint, and its recomputation as a Recompute.

    owns_random: the function draws from generators of its own (lib.pipeline.random_state), so the state of the CPU's
    need not be kept here. The modes of the thread (autocast) are those of the first time in the second as well.
    create_graph=True is not supported: RuntimeError.
    """

    def __init__(
        self,
        function: Function,
        batch: Batch,
        *,
        modes: Modes | None = None,
        owns_random: bool = False,
        place: tracing.Place | None = None,
    ) -> None:
        self.function, self.batch, self.atomic, self.place = function, batch, batch.atomic, place
        self.modes, self.owns_random = modes or Modes.current(), owns_random
        self.rng_states: RNGStates = None, None
        self.recomputed: tuple[Tensors, Tensors] | None = None  # outputs and inputs of the second forward
        self.phony: Tensor | None = None  # ties Checkpoint to a micro-batch that must go backward later

    def checkpoint(self) -> Batch:
        """Compute without graph and return the output, which requires grad (its floating-point tensors)."""
        # with a phony as its first input, so that backward comes here even if no tensor of the batch requires grad
        phony = get_phony(self.batch[0].device, requires_grad=True) if self.phony is None else self.phony
        return Batch(Checkpoint.apply(phony, self, *self.batch))  # type: ignore[no-untyped-call]

    def recompute(self, batch: Batch) -> None:
        """Tie the recomputation to the output that checkpoint() returned, in place."""
        phony = fork_batch(batch)
        if phony is not None:
            phony = Recompute.apply(phony, self, *self.batch)  # type: ignore[no-untyped-call]
            join_batch(batch, phony)
        self.batch = Batch(())  # autograd keeps the input from now on, and lets it go after backward

    def call(self, input: Tensors) -> TensorOrTensors:
        """Return the function of these tensors, given to it as the batch held them."""
        return self.function(input[0] if self.atomic else input)


class Checkpoint(torch.autograd.Function):
    """Forward: compute without graph. Backward: go through the graph that Recompute has made."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, checkpointing: Checkpointing, *input: Tensor) -> TensorOrTensors:
        """Return the output. Of its tensors, those that can't have a gradient, and inputs without one, stay without."""
        ctx.set_materialize_grads(False)
        ctx.checkpointing = checkpointing
        device = input[0].device
        checkpointing.rng_states = save_rng_states(device, cpu=not checkpointing.owns_random)
        versions = [x._version for x in input]
        with enable_checkpointing():  # an autograd function's forward is without grad mode
            output = checkpointing.call(input)
        for k, (x, version) in enumerate(zip(input, versions, strict=True)):
            if (
                x._version != version and not x.requires_grad
            ):  # one that requires grad is refused by autograd itself
                raise RuntimeError(
                    f"tensor {k} of the input was changed in place: a recomputation would begin with the changed one, "
                    "and the gradients be wrong; use inplace=False (or clone it first), or checkpoint='never'"
                )
        if without := {id(x) for x in input if not x.requires_grad}:
            ctx.mark_non_differentiable(*[y for y in Batch(output) if id(y) in without])
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs; those of the parameters are accumulated on the way."""
        checkpointing: Checkpointing = ctx.checkpointing
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph=True does not reach into a checkpoint: use checkpoint='never'")
        assert checkpointing.recomputed is not None, "Recompute precedes Checkpoint"
        (output, input), checkpointing.recomputed = checkpointing.recomputed, None
        wanted = [
            (y, grad) for y, grad in zip(output, grads, strict=True) if y.requires_grad and grad is not None
        ]
        if (
            not wanted
        ):  # the gradient of a skip tensor may wait inside, for a layer that popped it and ignored its input
            wanted = [(y, torch.zeros_like(y)) for y in output if y.requires_grad]
        if wanted:
            with tracing.span("backward", checkpointing.place, current_stream(wanted[0][1].device)):
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
        input = tuple(x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors)
        device = input[0].device
        with (
            checkpointing.modes.use(),
            restore_rng_states(device, checkpointing.rng_states),
            tracing.span("recompute", checkpointing.place, current_stream(device)),
            enable_recomputing(),
        ):
            output = checkpointing.call(input)
        checkpointing.recomputed = tuple(Batch(output)), input
        return (None,) * (2 + len(input))
