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
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor

from lib.pipeline.dependency import fork_batch, get_phony, join_batch
from lib.pipeline.microbatch import Batch, Function, TensorOrTensors, Tensors
from lib.pipeline.thread_state import Modes, during, this_thread


def is_checkpointing() -> bool:
    """Return whether this forward runs in a checkpoint: without graph, to be computed again."""
    return this_thread.checkpointing


def is_recomputing() -> bool:
    """Return whether this forward is the second one, in backward: what must happen once only, should not happen now.

    if not is_recomputing():
        self.calls += 1
    """
    return this_thread.recomputing


enable_checkpointing = partial(during, checkpointing=True)
enable_recomputing = partial(during, recomputing=True)

RNGStates: TypeAlias = dict[Generator, Tensor]


def save_rng_states(generators: Iterable[Generator]) -> RNGStates:
    """Return where these generators of random numbers stand."""
    return {generator: generator.get_state() for generator in generators}


@contextmanager
def restore_rng_states(states: RNGStates) -> Iterator[None]:
    """Draw from these states within a `with`; afterwards the generators stand where they stood before."""
    before = save_rng_states(states)
    for generator, state in states.items():
        generator.set_state(state)
    try:
        yield
    finally:
        for generator, state in before.items():
            generator.set_state(state)


def checkpoint(function: Function, input: TensorOrTensors) -> TensorOrTensors:
    """Return function(input) and recompute it in backward, as torch.utils.checkpoint does."""
    checkpointing = Checkpointing(function, Batch(input))
    output = checkpointing.checkpoint()
    checkpointing.recompute(output)
    return output.value


class Checkpointing:
    """Tie `function(batch)` to the graph as a Checkpoint, and its recomputation as a Recompute.

    Modes of the thread (autocast) and random numbers are the same both times. owns_random: those of a CPU are so by
    themselves (lib.pipeline.random_state). phony: ties the Checkpoint to what must go backward later.
    """

    def __init__(
        self, function: Function, batch: Batch, *, owns_random: bool = False, phony: Tensor | None = None
    ) -> None:
        device = batch[0].device
        self.function, self.batch, self.atomic, self.modes = function, batch, batch.atomic, Modes.current()
        # a phony as first input, so that backward comes here even if no tensor of the batch requires grad
        self.phony: Tensor | None = get_phony(device, requires_grad=True) if phony is None else phony
        self.generators = [] if owns_random else [torch.default_generator]
        if device.type == "cuda":
            self.generators.append(torch.cuda.default_generators[device.index])
        self.rng_states: RNGStates = {}
        self.recomputed: tuple[Tensors, Tensors] | None = None  # outputs and inputs of the second forward

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
        checkpointing.rng_states = save_rng_states(checkpointing.generators)
        fixed = {k: (x, x._version) for k, x in enumerate(input) if not x.requires_grad}
        with enable_checkpointing():  # an autograd function's forward is without grad mode
            output = checkpointing.call(input)
        for k, (x, version) in fixed.items():  # autograd itself refuses a change of those that require grad
            if x._version != version:
                raise RuntimeError(
                    f"tensor {k} of the input was changed in place: a recomputation would begin with the changed one, "
                    "and the gradients be wrong; use inplace=False (or clone it first), or checkpoint='never'"
                )
        without = {id(x) for x, _ in fixed.values()}
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
        pairs = [(y, grad) for y, grad in zip(output, grads, strict=True) if y.requires_grad]
        wanted = [(y, grad) for y, grad in pairs if grad is not None]
        # none: the gradient of a skip tensor may wait inside, for a layer that popped it and ignored its input
        wanted = wanted or [(y, torch.zeros_like(y)) for y, _ in pairs]
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
        input = tuple(x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors)
        again = restore_rng_states(checkpointing.rng_states)
        with checkpointing.modes.use(), again, enable_recomputing():
            output = checkpointing.call(input)
        checkpointing.recomputed = tuple(Batch(output)), input
        return (None,) * (2 + len(input))
