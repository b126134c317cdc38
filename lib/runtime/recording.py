"""What a run records of itself: spans of devices, and of a pipeline's micro-batches in their partitions.

    with Recorder() as recorder:
        with device_span(current_stream(x.device), "compute", "step 0", "compute"):
            other_model(x)                # returns long before a GPU is done
        model(x).mean().backward()        # a GPipe records itself
    recorder.trace()                      # seconds on the recorder's clock

A pipeline's lane is the partition, the label the operation and the micro-batch: "B2" in lane "partition 1" is B21 for
short. On a CPU a span is the time of the call. On an accelerator it lies between two events of a stream, which are read
when the recorder ends: the run itself is never waited for. Without a recorder, a span costs one look at a global
variable.

What notebooks call a recording is something else: results of another machine, support.recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch.autograd.graph import register_multi_grad_hook

from lib.runtime.device import AbstractStream, current_stream, on_accelerator, synchronize, timed_event, use_device
from lib.runtime.microbatch import Batch, TensorOrTensors
from lib.runtime.thread_state import PerThread, during
from lib.timeline import Recorder, current_recorder

_NOTHING: AbstractContextManager[None] = nullcontext()


class _Marked(NamedTuple):
    lane: str
    label: str
    kind: str
    device: torch.device
    start: torch.Event
    end: torch.Event


_unread: WeakKeyDictionary[Recorder, list[_Marked]] = WeakKeyDictionary()


def device_span(
    stream: AbstractStream, lane: str, label: str, kind: str, recorder: Recorder | None = None
) -> AbstractContextManager[None]:
    """Record what the body puts into `stream` as a span of the current recorder; nothing happens without one.

    For the CPUStream it is the time of the body itself. With a `recorder` of your own, ask for `read(recorder)` at the
    end; the current one does so itself.
    """
    recorder = current_recorder() if recorder is None else recorder
    if recorder is None:
        return _NOTHING
    if not on_accelerator(stream):
        return recorder.span(lane, label, kind)
    return _between_events(recorder, stream, lane, label, kind)


@contextmanager
def _between_events(recorder: Recorder, stream: torch.Stream, lane: str, label: str, kind: str) -> Iterator[None]:
    start = timed_event(stream)
    try:
        yield
    finally:
        marks = _unread.setdefault(recorder, [])
        if not marks and recorder is current_recorder():
            recorder.on_exit(lambda: read(recorder))
        marks.append(_Marked(lane, label, kind, stream.device, start, timed_event(stream)))


def read(recorder: Recorder) -> None:
    """Wait for the devices and add the spans whose events they have passed to the recorder."""
    marks = _unread.pop(recorder, [])
    for device in dict.fromkeys(mark.device for mark in marks):
        synchronize(device)
        meets, seconds = _meeting(recorder, device)
        for mark in marks:
            if mark.device == device:
                # the events lie before the meeting, and event.elapsed_time(later) is in milliseconds
                start, end = (seconds - event.elapsed_time(meets) / 1e3 for event in (mark.start, mark.end))
                recorder.add(mark.lane, mark.label, start, max(start, end), mark.kind)


def _meeting(recorder: Recorder, device: torch.device) -> tuple[torch.Event, float]:
    """Return an event and the second at which it happened, where the device's clock meets the recorder's.

    The host hears of an event some microseconds late; of several it takes the one that it asked for and heard of
    within the shortest time, and the middle of that time.
    """
    tries = []
    with use_device(device):
        stream = current_stream(device)
        for _ in range(8):
            asked = recorder.now()
            event = timed_event(stream)
            event.synchronize()
            heard = recorder.now()
            tries.append((heard - asked, (asked + heard) / 2, event))
    _, seconds, event = min(tries, key=lambda row: row[0])
    return event, seconds


# ---- spans of a pipeline run

LETTER = {"compute": "F", "copy": "C", "recompute": "R", "backward": "B"}


class Place(NamedTuple):
    """Name micro-batch i in partition j."""

    i: int
    j: int


_place: PerThread[Place | None] = PerThread(None)
_end_of_backward: PerThread[Callable[[], None] | None] = PerThread(None)  # ends the span that this thread has begun


def here() -> Place | None:
    """Return the place of the span that this thread is in; None if nothing is recorded."""
    return _place.value


def span(kind: str, place: Place | None, stream: AbstractStream) -> AbstractContextManager[None]:
    """Record a `with` as a span of this kind, if there is a recorder and a place."""
    return nullcontext() if place is None or current_recorder() is None else _span(kind, place, stream)


@contextmanager
def _span(kind: str, place: Place, stream: AbstractStream) -> Iterator[None]:
    _end_backward()
    with _of_partition(kind, place, stream), during({_place: place}):
        yield


def follow(input: TensorOrTensors, output: TensorOrTensors, place: Place, stream: AbstractStream) -> None:
    """Record the backward of what was computed from `input` to `output`, if something is recorded.

    That is no call: it is what the thread does from the first gradient of the output to the first of the input, the
    next span, or the end of the whole backward pass. Where nothing is checkpointed, autograd may go on with another
    partition in the midst of one: then the spans say who began when, not who worked when.
    """
    if current_recorder() is not None:
        begin = partial(_begin_backward, place, stream)
        for tensors, hook in (Batch(output), begin), (Batch(input), _end_backward):
            if made := [x for x in tensors if x.grad_fn is not None]:  # a leaf would keep its hook
                register_multi_grad_hook(made, hook, mode="any")


def _begin_backward(place: Place, stream: AbstractStream, _: object) -> None:
    _end_backward()
    if current_recorder() is not None:
        stack = ExitStack()
        stack.enter_context(_of_partition("backward", place, stream))
        _end_of_backward.value = stack.close  # ends it, once
        torch.autograd.Variable._execution_engine.queue_callback(stack.close)


def _end_backward(_: object = None) -> None:
    if _end_of_backward.value is not None:
        _end_of_backward.value()
        _end_of_backward.value = None


def _of_partition(kind: str, place: Place, stream: AbstractStream) -> AbstractContextManager[None]:
    return device_span(stream, f"partition {place.j}", f"{LETTER[kind]}{place.i}", kind)
