"""Skip tensors by their names, and what holds them from the layer that stashes one to the layer that pops it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID, uuid4

from torch import Tensor

from lib.runtime.microbatch import Batch
from lib.runtime.thread_state import PerThread, during


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


tracker_here: PerThread[SkipTracker | None] = PerThread(None)
"""The tracker that the layers of this thread stash to and pop from; None before the first of them runs."""


def use_skip_tracker(skip_tracker: SkipTracker) -> AbstractContextManager[None]:
    """Make `skip_tracker` the one of the current thread inside the block."""
    return during({tracker_here: skip_tracker})


def current_skip_tracker() -> SkipTracker:
    """Return the tracker of the current thread; outside of a pipeline each thread has a plain one of its own."""
    if tracker_here.value is None:
        tracker_here.value = SkipTracker()
    return tracker_here.value
