"""Checkpointing: keep only the input of a partition, and compute its inside again in backward.

torch.utils.checkpoint does both in one autograd function, so it recomputes only once the gradient has arrived. Here
there are two, which share memory: Recompute and Checkpoint. In the graph Recompute hangs beside the output, so backward
can start it early, while the gradient is still being copied from the next device; Checkpoint then finds it done.

    forward     ── Checkpoint ───┬────────── Join ──        backward (right to left): Recompute, then Checkpoint
                                 └ Recompute ─┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from lib.pipeline.portal import Portal
from lib.pipeline.watch import ModuleWatch
from lib.runtime.dependency import fork_batch, get_phony, join_batch
from lib.runtime.device import default_generator, has_streams
from lib.runtime.microbatch import Batch, Function, TensorOrTensors, Tensors
from lib.runtime.no_gradient import Passage, hand_on, leads_back
from lib.runtime.sharing import Lending, nothing_shared
from lib.runtime.thread_state import Modes, PerThread, Values, during, goes_along


class Phase(Enum):
    """Which call of a function this is: a checkpoint makes two."""

    ONLY = "with the graph in which it stands"
    FIRST = "without a graph, to be computed again: Checkpoint"
    SECOND = "in backward, with a graph of its own: Recompute"


phase_here: PerThread[Phase] = PerThread(Phase.ONLY)


class HiddenPhony(NamedTuple):
    """The way back to a skip tensor that was hidden in a portal."""

    phony: Tensor
    portal: Portal


hidden_phonies: PerThread[list[HiddenPhony] | None] = PerThread(None)
"""Of the skip tensors that the first or the second call hides in portals; None where nobody asks for them."""

_recomputing: PerThread[bool] = goes_along(PerThread(False))  # into a pipeline inside a layer that is recomputed


def in_phase(phase: Phase, hidden: list[HiddenPhony] | None = None) -> Values:
    """Return what holds `during` a call: its phase, and the list that takes its hidden phonies."""
    values: dict[PerThread[Any], Any] = {phase_here: phase, hidden_phonies: hidden}
    if phase is Phase.SECOND:
        values[_recomputing] = True
    return values


def is_checkpointing() -> bool:
    """Return whether this forward runs in a checkpoint: without graph, to be computed again."""
    return phase_here.value is Phase.FIRST


def is_recomputing() -> bool:
    """Return whether this forward is the second one, in backward: what must happen once only, should not happen now.

    if not is_recomputing():
        self.calls += 1
    """
    return _recomputing.value


def enable_checkpointing() -> AbstractContextManager[None]:
    """Make is_checkpointing() true within a `with`."""
    return during(in_phase(Phase.FIRST))


def enable_recomputing() -> AbstractContextManager[None]:
    """Make is_recomputing() true within a `with`."""
    return during(in_phase(Phase.SECOND))


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


def checkpoint(function: Function, input: TensorOrTensors) -> TensorOrTensors:
    """Return function(input) and recompute it in backward. Raises RuntimeError if it changes its input in place."""
    checkpointing = Checkpointing(function, Batch(input))
    output = checkpointing.checkpoint()
    checkpointing.recompute(output)
    return output.value


class Checkpointing:
    """Tie `function(batch)` to the graph as a Checkpoint, and its recomputation as a Recompute.

    Modes of the thread (autocast) and random numbers are the same both times. lending: how the function gets its input;
    by default to write into it is refused. watch: has to find the function's modules as they were, before they compute
    again. owns_random_numbers: on a CPU the function draws the same by itself (lib.runtime.random_state); if not, the
    process's generator is put back for the recomputation. phony: ties the Checkpoint to what must go backward later.
    shared, shared_after: as of Lending.call.
    """

    def __init__(
        self,
        function: Function,
        batch: Batch,
        *,
        lending: Lending | None = None,
        watch: ModuleWatch | None = None,
        owns_random_numbers: bool = False,
        phony: Tensor | None = None,
        shared: Sequence[int] = (),
        shared_after: Callable[[], Sequence[int]] = nothing_shared,
    ) -> None:
        device = batch[0].device
        self.function = function
        self.batch = batch
        self.atomic = batch.atomic
        self.modes = Modes.current()
        self.lending = Lending(writes=False) if lending is None else lending
        self.watch = watch
        self.shared = shared
        self.shared_after = shared_after
        self.generators: list[Generator] = []
        if not owns_random_numbers:
            self.generators.append(torch.default_generator)
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
    hidden: list[HiddenPhony]  # of the skip tensors that it hid in portals


class Checkpoint(Passage):
    """Forward: compute without graph. Backward: go through the graph that Recompute has made."""

    @staticmethod
    def forward(ctx: Any, phony: Tensor, checkpointing: Checkpointing, *input: Tensor) -> TensorOrTensors:
        """Return the output. Of its tensors, those that can't have a gradient, and inputs without one, stay without."""
        ctx.set_materialize_grads(False)
        ctx.checkpointing = checkpointing
        checkpointing.rng_states = {generator: generator.get_state() for generator in checkpointing.generators}
        hidden: list[HiddenPhony] = []
        # An autograd function's forward is without grad mode.
        with during(in_phase(Phase.FIRST, hidden)):
            batch = Batch(input[0] if checkpointing.atomic else input)
            output = checkpointing.lending.call(
                checkpointing.function, batch, checkpointing.shared, checkpointing.shared_after
            )
        # What comes out as it went in has no gradient, unless one of a hidden tensor needs it to come back here.
        without = set() if hidden else {id(x) for x in input if not x.requires_grad}
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
        wanted = [(y, grad) for y, grad in pairs if grad is not None and leads_back(y)]
        # The gradient of a skip tensor may wait inside though no output has one: a layer that popped it may have
        # ignored its own input. Backward reaches it by its phony.
        wanted += [(phony, torch.zeros_like(phony)) for phony, portal in hidden if portal.grad is not None]
        if wanted:
            torch.autograd.backward([y for y, _ in wanted], [grad for _, grad in wanted])
        to_phony, *to_input = hand_on(ctx, (None, *(x.grad for x in input)))
        return to_phony, None, *to_input


class Recompute(Passage):
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
        if checkpointing.watch is not None:
            checkpointing.watch.check()
        input = tuple(x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors)
        hidden: list[HiddenPhony] = []
        with (
            checkpointing.modes.use(),
            restore_rng_states(checkpointing.rng_states),
            during(in_phase(Phase.SECOND, hidden)),
        ):
            batch = Batch(input[0] if checkpointing.atomic else input)
            output = checkpointing.lending.lend(batch).call(checkpointing.function)
        checkpointing.recomputed = _Recomputed(input, tuple(output), hidden)
        return (None,) * (2 + len(input))
