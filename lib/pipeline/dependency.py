"""Fork and join: make backward of one micro-batch wait for backward of another, by an edge that carries no data.

    forward            a ── Fork ───────── a      backward runs from right to left: Join before Fork,
                             └ phony ┐            so everything that follows b runs before anything
                       b ────────── Join ── b     that comes before a

All tensors of a micro-batch that require grad are led through the same node, so it does not matter which of them the
loss uses. Tensors without a gradient (masks, indices) pass by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lib.pipeline.microbatch import Batch, Tensors
from lib.pipeline.phony import get_phony


class Fork(torch.autograd.Function):
    """Return the tensors and a phony: backward reaches what lies before only after the phony's part."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return aliases: autograd refuses an input as an output where another function did the same."""
        ctx.set_materialize_grads(False)
        phony = get_phony(tensors[0].device, requires_grad=False)
        return *(x.detach() for x in tensors), phony.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand the gradients on; the phony has none."""
        return grads[:-1]


class Join(torch.autograd.Function):
    """Return the tensors (all arguments but the last); backward then also reaches what the phony came from."""

    @staticmethod
    def forward(ctx: Any, *tensors_and_phony: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return aliases of all but the phony."""
        ctx.set_materialize_grads(False)
        tensors = tuple(x.detach() for x in tensors_and_phony[:-1])
        return tensors[0] if len(tensors) == 1 else tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand the gradients on, and none to the phony."""
        return *grads, None


def fork(input: Tensor) -> tuple[Tensor, Tensor]:
    """Branch a phony off from a tensor; without a gradient to follow, the tensor stays as it is."""
    if input.requires_grad and torch.is_grad_enabled():
        output, phony = Fork.apply(input)  # type: ignore[no-untyped-call]
        return output, phony
    return input, get_phony(input.device, requires_grad=False)


def join(input: Tensor, phony: Tensor) -> Tensor:
    """Tie a phony to a tensor, which then requires grad if either of them does."""
    if (input.requires_grad or phony.requires_grad) and torch.is_grad_enabled():
        output: Tensor = Join.apply(input, phony)  # type: ignore[no-untyped-call]
        return output
    return input


def fork_batch(batch: Batch) -> Tensor | None:
    """Branch a phony off from all tensors of the batch that require grad, in place; None if there is none."""
    lanes = lanes_of(batch)
    if not lanes:
        return None
    forked: Tensors = Fork.apply(*[batch[lane] for lane in lanes])  # type: ignore[no-untyped-call]
    replace(batch, lanes, forked[:-1])
    return forked[-1]


def join_batch(batch: Batch, phony: Tensor) -> bool:
    """Tie the phony to all tensors of the batch that require grad, in place; False if there is none."""
    lanes = lanes_of(batch)
    if lanes:
        joined = Join.apply(*[batch[lane] for lane in lanes], phony)  # type: ignore[no-untyped-call]
        replace(batch, lanes, [joined] if len(lanes) == 1 else joined)
    return bool(lanes)


def lanes_of(batch: Batch) -> Sequence[int]:
    """Return the indices of the tensors that require grad; none where grad mode is off."""
    if not torch.is_grad_enabled():
        return ()
    if batch.atomic:
        return (0,) if batch.tensor.requires_grad else ()
    return [lane for lane, x in enumerate(batch) if x.requires_grad]


def replace(batch: Batch, lanes: Sequence[int], tensors: Sequence[Tensor]) -> None:
    """Put tensors into these lanes of the batch."""
    for lane, x in zip(lanes, tensors, strict=True):
        batch[lane] = x
