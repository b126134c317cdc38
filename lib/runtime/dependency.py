"""Order backward by edges that carry no data: phonies, and Fork and Join, which tie them to micro-batches.

forward            a ── Fork ───────── a      backward runs from right to left: Join before Fork,
                         └ phony ┐            so everything that follows b runs before anything
                   b ────────── Join ── b     that comes before a
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from lib.runtime.device import default_stream, use_stream
from lib.runtime.microbatch import Batch, Tensors
from lib.runtime.no_gradient import Passage, hand_on


@cache
def get_phony(device: torch.device, *, requires_grad: bool) -> Tensor:
    """Return the phony of a device, one with and one without gradient.

    An autograd function that returns one must detach it, or else autograd would write into the shared one.
    """
    # as a leaf of the default stream, and an ordinary tensor even when first asked for in inference mode
    with use_stream(default_stream(device)), torch.inference_mode(False):
        return torch.empty(0, device=device, requires_grad=requires_grad)


class Fork(Passage):
    """Return the tensors and a phony: backward reaches what lies before only after the phony's part."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensors:
        """Return aliases: autograd refuses an input as an output where another function did the same."""
        ctx.set_materialize_grads(False)
        phony = get_phony(tensors[0].device, requires_grad=False)
        return tuple(x.detach() for x in (*tensors, phony))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand the gradients on; the phony has none."""
        return hand_on(ctx, grads[:-1])


class Join(Passage):
    """Return the tensors (all arguments but the last); backward then also reaches what the phony came from."""

    @staticmethod
    def forward(ctx: Any, *tensors_and_phony: Tensor) -> Tensor | Tensors:
        """Return aliases of all but the phony."""
        ctx.set_materialize_grads(False)
        tensors = tuple(x.detach() for x in tensors_and_phony[:-1])
        return tensors[0] if len(tensors) == 1 else tensors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand the gradients on, and none to the phony."""
        return hand_on(ctx, (*grads, None))


def fork(input: Tensor) -> tuple[Tensor, Tensor]:
    """Branch a phony off from a tensor; without a gradient to follow, the tensor stays as it is."""
    batch = Batch(input)
    phony = fork_batch(batch)
    if phony is None:
        phony = get_phony(input.device, requires_grad=False)
    return batch.tensor, phony


def join(input: Tensor, phony: Tensor) -> Tensor:
    """Tie a phony to a tensor, which then requires grad if either of them does."""
    if (input.requires_grad or phony.requires_grad) and torch.is_grad_enabled():
        output: Tensor = Join.apply(input, phony)  # type: ignore[no-untyped-call]
        return output
    return input


def fork_batch(batch: Batch) -> Tensor | None:
    """Branch a phony off from all tensors of the batch that require grad, in place; None if there is none."""
    outputs = _lead_through(Fork, batch)
    if not outputs:
        return None
    return outputs[-1]


def join_batch(batch: Batch, phony: Tensor) -> bool:
    """Tie the phony to all tensors of the batch that require grad, in place; False if there is none."""
    return bool(_lead_through(Join, batch, phony))


def _lead_through(function: type[Fork | Join], batch: Batch, *phony: Tensor) -> Tensors:
    """Lead the tensors of the batch that require grad through one node, in place; return all that it returns.

    One node for all: so it does not matter which of them the loss uses. Masks and indices pass by.
    """
    if not torch.is_grad_enabled():
        return ()
    lanes = {k: x for k, x in enumerate(batch) if x.requires_grad}
    if not lanes:
        return ()
    outputs = function.apply(*lanes.values(), *phony)  # type: ignore[no-untyped-call]
    made: Tensors = (outputs,) if isinstance(outputs, Tensor) else outputs
    for k, x in zip(lanes, made, strict=False):  # Fork makes one more: the phony
        batch[k] = x
    return made
