"""Where stashed tensors wait to be popped: in a dictionary, or in portals that lead to another partition."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lib.pipeline.checkpoint import is_checkpointing
from lib.pipeline.dependency import fork_batch, join, join_batch, replace
from lib.pipeline.microbatch import Batch
from lib.pipeline.phony import get_phony
from lib.pipeline.skip.namespace import Key, Namespace
from lib.pipeline.skip.portal import Portal
from lib.pipeline.stream import AbstractStream

if TYPE_CHECKING:
    from lib.pipeline.skip.layout import SkipLayout


class SkipTracker:
    """Keep stashed tensors as they are: all that layers on one device need."""

    def __init__(self) -> None:
        self.tensors: dict[Key, Tensor | None] = {}

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Keep a stashed tensor. `batch` is the output of the layer that stashed it."""
        self.tensors[(ns, name)] = tensor

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Return a tensor to pop, or raise KeyError. `batch` is the input of the layer that pops it."""
        return self.tensors.pop((ns, name))


class SkipTrackerThroughPotals(SkipTracker):
    """Lead a skip tensor that changes partition through a portal; one tracker for each micro-batch of a pipeline.

    (The name is torchgpipe's.) Phonies tie a portal to all tensors of the micro-batch that require grad: the first one
    may be an integer mask, which can't hold a tie.
    """

    def __init__(self, skip_layout: SkipLayout) -> None:
        super().__init__()
        self.skip_layout = skip_layout
        self.portals: dict[Key, Portal] = {}

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Hide a stashed tensor in a portal, if it is popped elsewhere."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().save(batch, ns, name, tensor)
        portal = self.portals.get((ns, name))
        if portal is None:
            # blue now, orange later; once more orange if the partition that pops is going to be recomputed
            portal = self.portals[(ns, name)] = Portal(tensor, tensor_life=3 if is_checkpointing() else 2)
        else:
            # recomputed: orange has had its share, only this blue is left
            portal.put_tensor(tensor, tensor_life=1)
        phony = portal.blue()
        portal.hides_grad = phony.requires_grad
        if phony.requires_grad and not join_batch(batch, phony):
            lanes = [lane for lane, x in enumerate(batch) if x.is_floating_point() or x.is_complex()]
            if not lanes:
                raise _no_way_back(name, "stashes it returns")
            replace(batch, lanes, [join(batch[lane], phony) for lane in lanes])
        return None

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Show a hidden tensor in the partition that pops it."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().load(batch, ns, name)
        portal, phony = self.portals[(ns, name)], _fork(batch)
        if portal.hides_grad and torch.is_grad_enabled() and not phony.requires_grad:
            raise _no_way_back(name, "pops it takes")
        return portal.orange(phony)

    def copy(
        self,
        batch: Batch,
        prev_stream: AbstractStream,
        next_stream: AbstractStream,
        ns: Namespace | None,
        name: str,
    ) -> None:
        """Move a hidden tensor to the partition that pops it, as part of the way of `batch` to that partition."""
        phony = self.portals[(ns, name)].copy(prev_stream, next_stream, _fork(batch))
        if phony.requires_grad:
            join_batch(batch, phony)


def _fork(batch: Batch) -> Tensor:
    phony = fork_batch(batch)
    return get_phony(batch[0].device, requires_grad=False) if phony is None else phony


def _no_way_back(name: str, layer: str) -> RuntimeError:
    return RuntimeError(
        f"the gradient of skip tensor '{name}' has no way back: the layer that {layer} no tensor that could carry a "
        "gradient; let a floating-point tensor go beside it, or pop it in the partition that stashes it"
    )


_of_thread = threading.local()


@contextmanager
def use_skip_tracker(skip_tracker: SkipTracker) -> Iterator[None]:
    """Make `skip_tracker` the one of the current thread inside the block."""
    before = getattr(_of_thread, "tracker", None)
    _of_thread.tracker = skip_tracker
    try:
        yield
    finally:
        _of_thread.tracker = before


def current_skip_tracker() -> SkipTracker:
    """Return the tracker of the current thread; a thread outside of a pipeline gets a plain one of its own."""
    tracker: SkipTracker | None = getattr(_of_thread, "tracker", None)
    if tracker is None:
        tracker = _of_thread.tracker = SkipTracker()
    return tracker
