"""Spans of a CUDA stream: two events around the work, read when the recorder ends. The run itself is never waited for.

with Recorder() as recorder:
    with device_span(torch.cuda.current_stream(), "compute", "step 0", "compute"):
        model(x)                      # returns long before the GPU is done
recorder.trace()                      # seconds on the recorder's clock
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from lib import recorder as recording
from lib.pipeline.stream import AbstractStream, as_cuda, get_device, is_cuda

_NOTHING: AbstractContextManager[None] = nullcontext()


class _Marked(NamedTuple):
    lane: str
    label: str
    kind: str
    device: torch.device
    start: Any
    end: Any


_unread: WeakKeyDictionary[recording.Recorder, list[_Marked]] = WeakKeyDictionary()


def device_span(
    stream: AbstractStream, lane: str, label: str, kind: str, recorder: recording.Recorder | None = None
) -> AbstractContextManager[None]:
    """Record what the body puts into `stream` as a span of the current recorder; nothing happens without one.

    For the CPUStream it is the time of the body itself. With a `recorder` of your own, ask for `read(recorder)` at the
    end; the current one does so itself.
    """
    recorder = recording.current if recorder is None else recorder
    if recorder is None:
        return _NOTHING
    return (
        _between_events(recorder, stream, lane, label, kind)
        if is_cuda(stream)
        else recorder.span(lane, label, kind)
    )


@contextmanager
def _between_events(
    recorder: recording.Recorder, stream: AbstractStream, lane: str, label: str, kind: str
) -> Iterator[None]:
    start = _event(stream)
    try:
        yield
    finally:
        marks = _unread.setdefault(recorder, [])
        if not marks and recorder is recording.current:
            recorder.on_exit(lambda: read(recorder))
        marks.append(_Marked(lane, label, kind, get_device(stream), start, _event(stream)))


def _event(stream: AbstractStream) -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(as_cuda(stream))
    return event


def read(recorder: recording.Recorder) -> None:
    """Wait for the devices and add the spans whose events they have passed to the recorder."""
    marks = _unread.pop(recorder, [])
    for device in dict.fromkeys(mark.device for mark in marks):
        torch.cuda.synchronize(device)
        meets, seconds = _meeting(recorder, device)
        for mark in marks:
            if mark.device == device:
                # the events lie before the meeting, and event.elapsed_time(later) is in milliseconds
                start, end = (seconds - event.elapsed_time(meets) / 1e3 for event in (mark.start, mark.end))
                recorder.add(mark.lane, mark.label, start, max(start, end), mark.kind)


def _meeting(recorder: recording.Recorder, device: torch.device) -> tuple[Any, float]:
    """Return an event and the second at which it happened, where the device's clock meets the recorder's.

    The host hears of an event some microseconds late; of several it takes the one that it asked for and heard of
    within the shortest time, and the middle of that time.
    """
    tries = []
    with torch.cuda.device(device):
        stream = torch.cuda.current_stream(device)
        for _ in range(8):
            asked = recorder.now()
            event = _event(stream)
            event.synchronize()
            heard = recorder.now()
            tries.append((heard - asked, (asked + heard) / 2, event))
    _, seconds, event = min(tries, key=lambda row: row[0])
    return event, seconds
