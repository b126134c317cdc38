"""Streams and events of a PretendGPU: what is put into them is written down there."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch

from lib.streams.races import HOST, Operation

EVERYTHING = "all that was launched"
"""What the host waits for where it waits for all streams."""
_PATIENCE = 20
"""So often a host asks for an event, and launches nothing in between: who asks on has begun to wait."""


class OwnsStreams(Protocol):
    """What streams and events ask of their PretendGPU."""

    forgets: frozenset[str]
    events: int
    operations: list[Operation]
    last: dict[str, str]

    def current_stream(self, index: int | None = None) -> PretendStream:
        """Return the stream in use on a device."""

    def use_stream(self, stream: PretendStream) -> AbstractContextManager[None]:
        """Make a stream the current one, and its device, within a `with`."""

    def issue(self, op: Operation) -> None:
        """Write down one operation."""

    def host_knows(self, event: int) -> bool:
        """Return whether the host has waited for an event."""


def need_own(gpu: object, other: PretendStream | PretendEvent) -> None:
    """Raise ValueError for what is of another PretendGPU: the events of both have numbers in common."""
    if other.gpu is not gpu:
        what = f"{other.name} is a stream" if isinstance(other, PretendStream) else f"event {other.number} is one"
        raise ValueError(f"{what} of another PretendGPU: make it anew for this one")


class PretendEvent:
    """Stand in for torch.Event."""

    def __init__(self, gpu: OwnsStreams, number: int | None = None, label: str = "") -> None:
        if number is None:
            gpu.events += 1
            number = gpu.events
        self.gpu = gpu
        self.number = number
        self.label = label
        self._asked = 0  # in a row,
        self._at = 0  # when so many operations were there

    def record(self, stream: PretendStream | None = None) -> None:
        """Put the event behind what is in the stream now; who waits from now on, waits for this.

        Raises ValueError for a stream of another PretendGPU.
        """
        stream = self.gpu.current_stream() if stream is None else stream
        need_own(self.gpu, stream)
        last = self.gpu.last.get(stream.name)
        self.label = f"{last} ({stream.name})" if last else stream.name
        self.gpu.issue(Operation("record", stream.name, self.label, self.number))

    def wait(self, stream: PretendStream | None = None) -> None:
        """Let a stream wait."""
        (self.gpu.current_stream() if stream is None else stream).wait_event(self)

    def synchronize(self) -> None:
        """Let the host wait."""
        self.gpu.issue(Operation("synchronize", HOST, self.label, self.number))

    def query(self) -> bool:
        """Return whether the host has waited for it, or for something after it: nothing else counts as done.

        A host that does nothing but ask is one that waits.
        """
        issued = len(self.gpu.operations)
        self._asked = self._asked + 1 if issued == self._at else 1
        self._at = issued
        if self._asked > _PATIENCE and not self.gpu.host_knows(self.number):
            self.synchronize()
        return self.gpu.host_knows(self.number)


class PretendStream:
    """Stand in for torch.Stream; as that one it is in use within a `with`."""

    def __init__(self, gpu: OwnsStreams, name: str, device: torch.device) -> None:
        self.gpu = gpu
        self.name = name
        self.device = device
        self._asked: PretendEvent | None = None  # the event of the last query, good until something is launched
        self._at = 0
        self._uses: list[AbstractContextManager[None]] = []  # a `with` may stand in another one of the same stream

    def __enter__(self) -> PretendStream:
        use = self.gpu.use_stream(self)
        use.__enter__()
        self._uses.append(use)
        return self

    def __exit__(self, *error: object) -> None:
        # not told of the error: that one ends the caller's `with`, and here there is nothing to do about it
        self._uses.pop().__exit__(None, None, None)

    def record_event(self, event: PretendEvent | None = None) -> PretendEvent:
        """Put an event behind what is in the stream now."""
        event = PretendEvent(self.gpu) if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: PretendEvent) -> None:
        """Let the stream wait. Raises ValueError for an event of another PretendGPU."""
        need_own(self.gpu, event)
        if "wait_event" not in self.gpu.forgets:
            self.gpu.issue(Operation("wait", self.name, event.label, event.number))

    def wait_stream(self, stream: PretendStream) -> None:
        """Let this stream wait for what is in the other one now."""
        if "wait_stream" not in self.gpu.forgets:
            self.follow(stream)

    def follow(self, stream: PretendStream) -> None:
        """Do what wait_stream does, and torch itself in a copy between devices; `forgets` is about calls by name."""
        need_own(self.gpu, stream)
        event = stream.record_event()
        self.gpu.issue(Operation("wait", self.name, event.label, event.number))

    def synchronize(self) -> None:
        """Let the host wait for what is in the stream now."""
        self.record_event().synchronize()

    def query(self) -> bool:
        """Return whether the host has waited for all that is in the stream."""
        if self._asked is None or len(self.gpu.operations) != self._at:
            self._asked = self.record_event()
            self._at = len(self.gpu.operations)
        return self._asked.query()

    def __repr__(self) -> str:
        return f"PretendStream({self.name!r})"
