"""A portal hides a tensor from the autograd graph on one partition and shows it again on another.

The partitions between neither see nor keep it, and its gradient goes back through the portal. Phonies tie the three
functions to the way of the micro-batch itself, so that they run in this order:

    forward     Blue  ->  Copy  ->  Orange          Blue: hide.  Copy: to the other device.  Orange: show.
    backward    Blue  <-  Copy  <-  Orange          Orange puts the gradient into the portal, Blue takes it out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lib.pipeline import tracing
from lib.pipeline.copy import Copy
from lib.pipeline.phony import get_phony
from lib.pipeline.stream import AbstractStream, get_device


class _Step(torch.autograd.Function):
    """Call `there` in forward and `back` in backward, which has the gradient of what `there` has returned."""

    @staticmethod
    def forward(
        ctx: Any, there: Callable[[], Tensor], back: Callable[[Tensor], Any], input: Tensor | None
    ) -> Tensor:
        ctx.back = back
        return there().detach()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[None, None, Tensor | None]:
        return None, None, ctx.back(*grad)


class PortalBlue(_Step):
    """The tensor leaves the graph; in backward its gradient enters."""


class PortalCopy(_Step):
    """The tensor goes to another device; in backward its gradient comes from there."""


class PortalOrange(_Step):
    """The tensor enters the graph; in backward its gradient leaves."""


class Portal:
    """Hold a tensor for `tensor_life` uses, then let it go; hold its gradient for one.

    blue() and orange() are one use each, copy() is none. None needs no step of autograd, and gets no phony.
    """

    def __init__(self, tensor: Tensor | None, tensor_life: int) -> None:
        self.grad: Tensor | None = None
        self.hides_grad = False  # whether there was a graph to hide
        self.put_tensor(tensor, tensor_life)

    def put_tensor(self, tensor: Tensor | None, tensor_life: int) -> None:
        """Hold `tensor` for `tensor_life` uses."""
        self.tensor, self.tensor_life = tensor if tensor_life > 0 else None, tensor_life

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

    def blue(self) -> Tensor | None:
        """Hide the tensor; return a phony to join to the micro-batch."""
        tensor = self.use_tensor()
        if tensor is None:
            return None
        phony = partial(get_phony, tensor.device, requires_grad=False)
        tied = _step(PortalBlue, phony, lambda _: None if self.grad is None else self.use_grad(), tensor)
        self.hides_grad = tied.requires_grad
        return tied

    def copy(self, prev: AbstractStream, next: AbstractStream, phony: Tensor | None) -> Tensor | None:
        """Move the tensor to the device of the `next` stream; takes a forked phony, returns one to join."""
        place = tracing.here()

        def there() -> Tensor:
            (self.tensor,) = Copy.apply(prev, next, self.tensor)  # type: ignore[no-untyped-call]
            return get_phony(get_device(next), requires_grad=False)

        def back(_: Tensor) -> None:
            if self.grad is not None:
                with tracing.span("copy", place, next):
                    (self.grad,) = Copy.apply(next, prev, self.grad)  # type: ignore[no-untyped-call]

        return None if self.tensor is None else _step(PortalCopy, there, back, phony)

    def orange(self, phony: Tensor | None) -> Tensor | None:
        """Show the tensor again; `phony` is forked from the micro-batch."""
        return (
            self.use_tensor()
            if self.tensor is None
            else _step(PortalOrange, self.use_tensor, self.put_grad, phony)
        )


def _step(
    kind: type[_Step], there: Callable[[], Any], back: Callable[[Tensor], Any], input: Tensor | None
) -> Tensor:
    output: Tensor = kind.apply(there, back, input)  # type: ignore[no-untyped-call]
    return output
