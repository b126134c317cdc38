"""A portal hides a tensor from the autograd graph on one partition and shows it again on another.

It takes no part in the graph between, so the partitions between neither see nor keep it. Its gradient goes back through
the portal. Phonies tie the three functions to the way of the micro-batch itself, so that they run in this order:

    forward     Blue  ->  Copy  ->  Orange          Blue: hide.  Copy: to the other device.  Orange: show.
    backward    Blue  <-  Copy  <-  Orange          Orange puts the gradient into the portal, Blue takes it out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lib.pipeline import tracing
from lib.pipeline.copy import Copy
from lib.pipeline.phony import get_phony
from lib.pipeline.stream import AbstractStream, get_device


class Portal:
    """Hold a tensor for a known number of uses (`tensor_life`), then let it go; hold its gradient for one."""

    def __init__(self, tensor: Tensor | None, tensor_life: int) -> None:
        self.grad: Tensor | None = None
        self.hides_grad = False  # whether the tensor required grad when it was hidden
        self.put_tensor(tensor, tensor_life)

    def put_tensor(self, tensor: Tensor | None, tensor_life: int) -> None:
        """Hold `tensor` for `tensor_life` uses: blue() and orange() are one each, copy() is none.

        Without checkpointing there are two: blue, orange. With it a third follows when the popping partition is
        recomputed (orange); the recomputation of the stashing partition then puts the tensor in anew, for its own blue.
        """
        self.tensor_life = tensor_life
        self.tensor = tensor if tensor_life > 0 else None

    def check_tensor_life(self) -> None:
        """Raise RuntimeError if the tensor has been used up."""
        if self.tensor_life <= 0:
            raise RuntimeError("tensor in portal has been removed")

    def use_tensor(self) -> Tensor | None:
        """Return the tensor, and let it go if this was the last use."""
        self.check_tensor_life()
        tensor = self.tensor
        self.put_tensor(tensor, self.tensor_life - 1)
        return tensor

    def put_grad(self, grad: Tensor) -> None:
        """Hold the gradient of the tensor."""
        self.grad = grad

    def use_grad(self) -> Tensor:
        """Return the gradient and let it go."""
        if self.grad is None:
            raise RuntimeError("grad in portal has been removed or never set")
        grad, self.grad = self.grad, None
        return grad

    def blue(self) -> Tensor:
        """Hide the tensor; return a phony to join to the micro-batch."""
        tensor = self.use_tensor()
        return _NO_PHONY if tensor is None else _apply(PortalBlue, self, tensor)

    def copy(self, prev_stream: AbstractStream, next_stream: AbstractStream, phony: Tensor) -> Tensor:
        """Move the hidden tensor to the device of `next_stream`; takes a forked phony, returns one to join."""
        return _NO_PHONY if self.tensor is None else _apply(PortalCopy, self, prev_stream, next_stream, phony)

    def orange(self, phony: Tensor) -> Tensor | None:
        """Show the tensor again; `phony` is forked from the micro-batch."""
        self.check_tensor_life()
        return self.use_tensor() if self.tensor is None else _apply(PortalOrange, self, phony)


_NO_PHONY = get_phony(torch.device("cpu"), requires_grad=False)  # what None needs


def _apply(function: type[torch.autograd.Function], *arguments: object) -> Tensor:
    output: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


class PortalBlue(torch.autograd.Function):
    """The tensor leaves the graph; in backward its gradient enters."""

    @staticmethod
    def forward(ctx: Any, portal: Portal, tensor: Tensor) -> Tensor:
        """Return a phony on the device of the tensor."""
        ctx.portal = portal
        return get_phony(tensor.device, requires_grad=False).detach()

    @staticmethod
    def backward(ctx: Any, *grad_phony: Tensor) -> tuple[None, Tensor | None]:
        """Return the gradient from the portal; there is none if what was popped did not reach the loss."""
        return None, None if ctx.portal.grad is None else ctx.portal.use_grad()


class PortalCopy(torch.autograd.Function):
    """The hidden tensor moves; in backward its gradient moves the other way."""

    @staticmethod
    def forward(
        ctx: Any, portal: Portal, prev_stream: AbstractStream, next_stream: AbstractStream, phony: Tensor
    ) -> Tensor:
        """Return a phony on the next device."""
        ctx.portal, ctx.streams, ctx.place = portal, (prev_stream, next_stream), tracing.here()
        (portal.tensor,) = Copy.apply(prev_stream, next_stream, portal.tensor)  # type: ignore[no-untyped-call]
        return get_phony(get_device(next_stream), requires_grad=False).detach()

    @staticmethod
    def backward(ctx: Any, *grad_phony: Tensor) -> tuple[None, None, None, None]:
        """Move the gradient in the portal, if there is one."""
        (prev_stream, next_stream), portal = ctx.streams, ctx.portal
        if portal.grad is not None:
            with tracing.span("copy", ctx.place, next_stream):
                (portal.grad,) = Copy.apply(next_stream, prev_stream, portal.grad)  # type: ignore[no-untyped-call]
        return None, None, None, None


class PortalOrange(torch.autograd.Function):
    """The tensor enters the graph again; in backward its gradient leaves it."""

    @staticmethod
    def forward(ctx: Any, portal: Portal, phony: Tensor) -> Tensor:
        """Return the tensor."""
        ctx.portal = portal
        tensor = portal.use_tensor()
        assert tensor is not None
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        """Put the gradient into the portal."""
        ctx.portal.put_grad(*grads)
        return None, None
