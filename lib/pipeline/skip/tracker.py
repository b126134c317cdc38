"""Where stashed tensors wait to be popped: in a dictionary, or in portals that lead to another partition."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID, uuid4

import torch
from torch import Tensor

from lib.pipeline.checkpoint import is_checkpointing
from lib.pipeline.dependency import fork_batch, join, join_batch
from lib.pipeline.microbatch import Batch
from lib.pipeline.skip.portal import Portal
from lib.pipeline.stream import AbstractStream

if TYPE_CHECKING:
    from lib.pipeline.skip.layout import SkipLayout


@dataclass(frozen=True, slots=True)
class Namespace:
    """Different from every other namespace, equal to its own copies, pickled ones as well.

    Layers that are built alike can then be used twice: `Encoder().isolate(ns1), Encoder().isolate(ns2)`.
    """

    id: UUID = field(default_factory=uuid4)


Key: TypeAlias = tuple[Namespace | None, str]
"""A skip tensor: its namespace, None if it is not isolated, and its name."""


class SkipTracker:
    """Keep stashed tensors as they are: all that layers on one device need."""

    def __init__(self) -> None:
        self.tensors: dict[Key, Tensor | None] = {}

    def save(self, batch: Batch, ns: Namespace | None, name: str, tensor: Tensor | None) -> None:
        """Keep a stashed tensor. `batch` is the output of the layer that stashed it."""
        self.tensors[ns, name] = tensor

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Return a tensor to pop, or raise RuntimeError. `batch` is the input of the layer that pops it."""
        if (ns, name) not in self.tensors:
            raise RuntimeError(f"'{name}' has not been stashed")
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
        if (ns, name) in self.portals:  # recomputed: orange has had its share, only this blue is left
            self.portals[ns, name].put_tensor(tensor, tensor_life=1)
        else:  # blue now, orange later; once more orange if the partition that pops is going to be recomputed
            self.portals[ns, name] = Portal(tensor, tensor_life=3 if is_checkpointing() else 2)
        phony = self.portals[ns, name].blue()
        if phony is not None and phony.requires_grad and not join_batch(batch, phony):
            lanes = [lane for lane, x in enumerate(batch) if x.is_floating_point() or x.is_complex()]
            if not lanes:
                raise _no_way_back(name, "stashes it returns")
            for lane in lanes:
                batch[lane] = join(batch[lane], phony)
        return None

    def load(self, batch: Batch, ns: Namespace | None, name: str) -> Tensor | None:
        """Show a hidden tensor in the partition that pops it."""
        if not self.skip_layout.requires_copy(ns, name):
            return super().load(batch, ns, name)
        portal, phony = self.portals[ns, name], fork_batch(batch)
        if portal.hides_grad and phony is None and torch.is_grad_enabled():
            raise _no_way_back(name, "pops it takes")
        return portal.orange(phony)

    def copy(
        self, batch: Batch, prev: AbstractStream, next: AbstractStream, ns: Namespace | None, name: str
    ) -> None:
        """Move a hidden tensor to the partition that pops it, as part of the way of `batch` to that partition."""
        phony = self.portals[ns, name].copy(prev, next, fork_batch(batch))
        if phony is not None:
            join_batch(batch, phony)


def _no_way_back(name: str, layer: str) -> RuntimeError:
    return RuntimeError(
        f"the gradient of skip tensor '{name}' has no way back: the layer that {layer} no tensor that could carry a "
        "gradient; let a floating-point tensor go beside it, or pop it in the partition that stashes it"
    )


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.tracker = SkipTracker()  # outside of a pipeline each thread has a plain one of its own


_of_thread = _OfThread()


@contextmanager
def use_skip_tracker(skip_tracker: SkipTracker) -> Iterator[None]:
    """Make `skip_tracker` the one of the current thread inside the block."""
    before, _of_thread.tracker = _of_thread.tracker, skip_tracker
    try:
        yield
    finally:
        _of_thread.tracker = before


def current_skip_tracker() -> SkipTracker:
    """Return the tracker of the current thread."""
    return _of_thread.tracker
