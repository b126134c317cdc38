"""Portals: the way of a skip tensor from the partition that stashes it to the one that pops it.

A Portal hides the tensor from the autograd graph on the one and shows it again on the other: the partitions between
neither see nor keep it, and its gradient goes back through the portal. Its three functions run in this order:

    forward     Blue  ->  Copy  ->  Orange          Blue: hide.  Copy: to the other device.  Orange: show.
    backward    Blue  <-  Copy  <-  Orange          Orange puts the gradient into the portal, Blue takes it out.

A phony leads from each of them straight to the next, and not along the micro-batch: a layer between may let go of that
(x.detach(), an argmax), and backward must come to Blue all the same.

    partition that stashes     Blue's phony goes to Copy; or one forked from its Checkpoint does, which comes to Blue
    partition that pops        Orange takes what Copy returns; or its Checkpoint does, where it is computed again

The tracker that ties all this is lib.pipeline.portal_tracker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lib.pipeline.copy import Copy
from lib.runtime import recording
from lib.runtime.dependency import get_phony
from lib.runtime.device import AbstractStream, current_stream, get_device, wait_stream
from lib.runtime.no_gradient import Passage, hand_on


class _Step(Passage):
    """Call `there` in forward and `back` in backward, which has the gradient of what `there` has returned."""

    @classmethod
    def run(cls, there: Callable[[], Any], back: Callable[[Tensor | None], Any], input: Tensor | None) -> Tensor:
        output: Tensor = cls.apply(there, back, input)  # type: ignore[no-untyped-call]
        return output

    @staticmethod
    def forward(
        ctx: Any, there: Callable[[], Tensor], back: Callable[[Tensor | None], Any], input: Tensor | None
    ) -> Tensor:
        ctx.set_materialize_grads(False)  # no gradient is none, and not zeros
        ctx.back = back
        return there().detach()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *hand_on(ctx, (ctx.back(*grad),))


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
        self.way_back: Tensor | None = None  # the phony that the next function takes, None where there is no gradient
        self.put_tensor(tensor, tensor_life)

    def put_tensor(self, tensor: Tensor | None, tensor_life: int) -> None:
        """Hold `tensor` for `tensor_life` uses."""
        self.tensor_life = tensor_life
        self.tensor = tensor if tensor_life > 0 else None

    def check_tensor_life(self) -> None:
        """Raise RuntimeError if the tensor has been used up."""
        if self.tensor_life <= 0:
            raise RuntimeError("tensor in portal has been removed")

    def use_tensor(self) -> Tensor | None:
        """Return the tensor, and let it go if this was the last use. Raises RuntimeError if it has been used up."""
        self.check_tensor_life()
        tensor = self.tensor
        self.put_tensor(tensor, self.tensor_life - 1)
        return tensor

    def put_grad(self, grad: Tensor | None) -> None:
        """Hold the gradient of the tensor."""
        self.grad = grad

    def use_grad(self) -> Tensor:
        """Return the gradient and let it go."""
        if self.grad is None:
            raise RuntimeError("grad in portal has been removed or never set")
        grad = self.grad
        self.grad = None
        return grad

    def blue(self) -> Tensor | None:
        """Hide the tensor; return a phony to join to the output of the partition."""
        tensor = self.use_tensor()
        return None if tensor is None else self.hide(tensor)

    def hide(self, tensor: Tensor) -> Tensor:
        """Return the phony through which the gradient in the portal comes to a tensor, without holding that tensor."""

        def there() -> Tensor:
            return get_phony(tensor.device, requires_grad=False)

        def back(_: Tensor | None) -> Tensor | None:
            # none, where whoever popped the tensor made no use of it
            return None if self.grad is None else self.use_grad()

        return PortalBlue.run(there, back, tensor)

    def copy(self, prev: AbstractStream, next: AbstractStream, phony: Tensor | None) -> Tensor | None:
        """Move the tensor to the device of the `next` stream; takes the phony of the way back, returns the next one."""
        place = recording.here()
        maker = current_stream(get_device(prev))
        user = current_stream(get_device(next))

        def there() -> Tensor:
            (self.tensor,) = Copy.apply(prev, next, self.tensor)  # type: ignore[no-untyped-call]
            return get_phony(get_device(next), requires_grad=False)

        def back(_: Tensor | None) -> None:
            if self.grad is not None:
                wait_stream(next, user)  # it has been computed there
                with recording.span("copy", place, next):
                    (self.grad,) = Copy.apply(next, prev, self.grad)  # type: ignore[no-untyped-call]
                # Blue takes it there. Autograd has no tensor to go by between the two: phonies have no gradient.
                wait_stream(maker, prev)

        if self.tensor is None:
            return None
        return PortalCopy.run(there, back, phony)

    def orange(self, phony: Tensor | None) -> Tensor | None:
        """Show the tensor again; `phony` leads back to the copy."""
        if self.tensor is None:
            return self.use_tensor()
        return PortalOrange.run(self.use_tensor, self.put_grad, phony)
