"""Spans of a pipeline run: what computes, is copied, recomputed and goes backward, per partition and micro-batch.

    recorder = Recorder()
    with recorder:
        loss = model(x).mean()
        loss.backward()
    recorder.trace()

The lane is the partition, the label the operation and the micro-batch: "B2" in lane "partition 1" is B21 for short. On
a CPU a span is the time of the call; on CUDA it lies between two events of a stream, which are read when the recorder
is left. Off, a span costs one look at a global variable.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lib import recorder as recording
from lib.pipeline.dependency import lanes_of, replace
from lib.pipeline.microbatch import Batch
from lib.pipeline.stream import AbstractStream, get_device, is_cuda

LETTER = {"compute": "F", "copy": "C", "recompute": "R", "backward": "B"}


class Place(NamedTuple):
    """Name micro-batch i in partition j."""

    i: int
    j: int


class _Here(threading.local):
    place: Place | None = None


_here = _Here()
_nothing: AbstractContextManager[None] = nullcontext()
_sections: dict[
    int, _Open
] = {}  # by thread: the backward pass of a partition that has begun and not yet ended
_zeros: WeakKeyDictionary[recording.Recorder, dict[torch.device, tuple[Any, float]]] = WeakKeyDictionary()
_lock = threading.Lock()


def here() -> Place | None:
    """Return the place of the span that this thread is in; None if nothing is recorded."""
    return _here.place


def span(kind: str, place: Place | None, stream: AbstractStream) -> AbstractContextManager[None]:
    """Record a `with` as a span of this kind, if there is a recorder and a place."""
    return _nothing if place is None or recording.current is None else _span(kind, place, stream)


@contextmanager
def _span(kind: str, place: Place, stream: AbstractStream) -> Iterator[None]:
    _end_section()
    outside, _here.place = _here.place, place
    begun = _Open(kind, place, stream)
    try:
        yield
    finally:
        _here.place = outside
        begun.end()


class _Open:
    """A span that has begun. Its ends are seconds, or events of the device's current stream."""

    def __init__(self, kind: str, place: Place, stream: AbstractStream) -> None:
        assert recording.current is not None
        self.recorder, self.kind, self.place = recording.current, kind, place
        self.device = get_device(stream) if is_cuda(stream) else None
        self.start = self._now()

    def _now(self) -> Any:
        if self.device is None:
            return self.recorder.now()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with _lock:
            if self.device not in _zeros.setdefault(
                self.recorder, {}
            ):  # where the event's clock meets the recorder's
                zero = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                torch.cuda.synchronize(self.device)
                zero.record(torch.cuda.current_stream(self.device))
                zero.synchronize()
                _zeros[self.recorder][self.device] = zero, self.recorder.now()
        event.record(torch.cuda.current_stream(self.device))
        return event

    def end(self) -> None:
        end = self._now()
        if self.device is None:
            self._add(self.start, end)
        else:
            self.recorder.on_exit(partial(self._read, self.device, end))

    def _read(self, device: torch.device, end: Any) -> None:
        end.synchronize()
        zero, seconds = _zeros[self.recorder][device]
        start, end = (seconds + zero.elapsed_time(event) / 1000 for event in (self.start, end))
        self._add(start, max(start, end))

    def _add(self, start: float, end: float) -> None:
        lane, label = f"partition {self.place.j}", f"{LETTER[self.kind]}{self.place.i}"
        self.recorder.add(lane, label, start, end, self.kind)


def _end_section() -> None:
    if _sections and (open_one := _sections.pop(threading.get_ident(), None)):
        open_one.end()


def _end_sections() -> None:
    while _sections:
        _sections.popitem()[1].end()


class Boundary(torch.autograd.Function):
    """Where backward enters a partition that is not checkpointed (at its output), or leaves it (at its input).

    Such a backward is no call that could be timed: it is what the thread does from here to its next boundary, span, or
    the end of the whole backward pass. Where nothing is checkpointed, autograd may go on with another partition in the
    midst of one, by the numbers of their nodes: then the spans say who began when, not who worked when.
    """

    @staticmethod
    def forward(
        ctx: Any, place: Place, stream: AbstractStream, enters: bool, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Return aliases."""
        ctx.set_materialize_grads(False)
        ctx.place, ctx.stream, ctx.enters = place, stream, enters
        return tuple(x.detach() for x in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        """Begin or end the span."""
        _end_section()
        if ctx.enters and recording.current is not None:
            _sections[threading.get_ident()] = _Open("backward", ctx.place, ctx.stream)
            torch.autograd.Variable._execution_engine.queue_callback(_end_sections)
        return None, None, None, *grads


def boundary(batch: Batch, place: Place, stream: AbstractStream, *, enters: bool) -> None:
    """Put a Boundary behind (`enters`) or before a partition, in place, while something is recorded."""
    if recording.current is not None and (lanes := lanes_of(batch)):
        tensors = Boundary.apply(place, stream, enters, *(batch[lane] for lane in lanes))  # type: ignore[no-untyped-call]
        replace(batch, lanes, tensors)
