"""Portals: the way of a skip tensor from the partition that stashes it to the one that pops it.

A Portal hides the tensor from the autograd graph on the one and shows it again on the other: the partitions between
neither see nor keep it, and its gradient goes back through the portal. Phonies tie the three functions of a portal to
the way of the micro-batch itself, so that they run in this order:

    forward     Blue  ->  Copy  ->  Orange          Blue: hide.  Copy: to the other device.  Orange: show.
    backward    Blue  <-  Copy  <-  Orange          Orange puts the gradient into the portal, Blue takes it out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lib.pipeline.checkpoint import is_checkpointing
from lib.pipeline.copy import Copy
from lib.pipeline.skip import Key, Namespace, SkipLayout, SkipTracker
from lib.runtime import recording
from lib.runtime.dependency import fork_batch, get_phony, join, join_batch
from lib.runtime.device import AbstractStream, get_device
from lib.runtime.microbatch import Batch
from lib.runtime.thread_state import this_thread


class _Step(torch.autograd.Function):
    """Call `there` in forward and `back` in backward, which has the gradient of what `there` has returned."""

    @classmethod
    def run(cls, there: Callable[[], Any], back: Callable[[Tensor], Any], input: Tensor | None) -> Tensor:
        output: Tensor = cls.apply(there, back, input)  # type: ignore[no-untyped-call]
        return output

    @staticmethod
    def forward(ctx: Any, there: Callable[[], Tensor], back: Callable[[Tensor], Any], input: Tensor | None) -> Tensor:
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

    def put_grad(self, grad: Tensor) -> None:
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
        """Hide the tensor; return a phony to join to the micro-batch."""
        tensor = self.use_tensor()
        if tensor is None:
            return None

        def there() -> Tensor:
            return get_phony(tensor.device, requires_grad=False)

        def back(_: Tensor) -> Tensor | None:
            # none, where whoever popped the tensor made no use of it
            return None if self.grad is None else self.use_grad()

        phony = PortalBlue.run(there, back, tensor)
        self.hides_grad = phony.requires_grad
        return phony

    def copy(self, prev: AbstractStream, next: AbstractStream, phony: Tensor | None) -> Tensor | None:
        """Move the tensor to the device of the `next` stream; takes a forked phony, returns one to join."""
        place = recording.here()

        def there() -> Tensor:
            (self.tensor,) = Copy.apply(prev, next, self.tensor)  # type: ignore[no-untyped-call]
            return get_phony(get_device(next), requires_grad=False)

        def back(_: Tensor) -> None:
            if self.grad is not None:
                with recording.span("copy", place, next):
                    (self.grad,) = Copy.apply(next, prev, self.grad)  # type: ignore[no-untyped-call]

        if self.tensor is None:
            return None
        return PortalCopy.run(there, back, phony)

    def orange(self, phony: Tensor | None) -> Tensor | None:
        """Show the tensor again; `phony` is forked from the micro-batch."""
        if self.tensor is None:
            return self.use_tensor()
        return PortalOrange.run(self.use_tensor, self.put_grad, phony)


class SkipTrackerThroughPortals(SkipTracker):
    """Lead a skip tensor that changes partition through a portal; one tracker for each micro-batch of a pipeline.

    Phonies tie a portal to all tensors of the micro-batch that require grad: the first one may be an integer mask,
    which can't hold a tie.
    """

    def __init__(self, skip_layout: SkipLayout) -> None:
        super().__init__()
        self.skip_layout = skip_layout
        self.portals: dict[Key, Portal] = {}

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Hide a stashed tensor in a portal, if it is popped elsewhere."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().save(batch, ns, name, tensor)
        if (ns, name) in self.portals:
            # This is the recomputation: orange has had its share, only this blue is left.
            self.portals[ns, name].put_tensor(tensor, tensor_life=1)
        else:
            # Blue now, orange later; once more orange if the partition that pops is going to be recomputed.
            self.portals[ns, name] = Portal(tensor, tensor_life=3 if is_checkpointing() else 2)
        phony = self.portals[ns, name].blue()
        if phony is None or not phony.requires_grad:
            return None  # there is no gradient that would have to find its way back
        if this_thread.hidden is not None:
            this_thread.hidden.append(phony)  # backward reaches it even if no output of the partition is used
        if not join_batch(batch, phony):
            self._join_to_what_can_have_a_gradient(batch, phony, name)
        return None

    def _join_to_what_can_have_a_gradient(self, batch: Batch, phony: Tensor, name: str) -> None:
        lanes = [lane for lane, x in enumerate(batch) if x.is_floating_point() or x.is_complex()]
        if not lanes:
            raise _no_way_back(name, "stashes it returns")
        for lane in lanes:
            batch[lane] = join(batch[lane], phony)

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Show a hidden tensor in the partition that pops it."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().load(batch, ns, name)
        portal = self.portals[ns, name]
        phony = fork_batch(batch)
        if portal.hides_grad and phony is None and torch.is_grad_enabled():
            raise _no_way_back(name, "pops it takes")
        return portal.orange(phony)

    def copy(self, batch: Batch, prev: AbstractStream, next: AbstractStream, ns: Namespace | None, name: str) -> None:
        """Move a hidden tensor to the partition that pops it, as part of the way of `batch` to that partition."""
        phony = self.portals[ns, name].copy(prev, next, fork_batch(batch))
        if phony is not None:
            join_batch(batch, phony)


SkipTrackerThroughPotals = SkipTrackerThroughPortals  # as torchgpipe spells it


def _no_way_back(name: str, layer: str) -> RuntimeError:
    return RuntimeError(
        f"the gradient of skip tensor '{name}' has no way back: the layer that {layer} no tensor that could carry a "
        "gradient; let a floating-point tensor go beside it, or pop it in the partition that stashes it"
    )
