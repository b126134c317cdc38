"""Spans of a pipeline run: what computes, is copied, recomputed and goes backward, per partition and micro-batch.

    with recorder:
        model(x).mean().backward()
    recorder.trace()

The lane is the partition, the label the operation and the micro-batch: "B2" in lane "partition 1" is B21 for short. On
a CPU a span is the time of the call; on CUDA it lies between two events of a stream (lib.pipeline.spans). Off, a span
costs one look at a global variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch.autograd.graph import register_multi_grad_hook

from lib import recorder as recording
from lib.pipeline.microbatch import Batch, TensorOrTensors
from lib.pipeline.modes import during, this_thread
from lib.pipeline.spans import device_span
from lib.pipeline.stream import AbstractStream

LETTER = {"compute": "F", "copy": "C", "recompute": "R", "backward": "B"}


class Place(NamedTuple):
    """Name micro-batch i in partition j."""

    i: int
    j: int


def here() -> Place | None:
    """Return the place of the span that this thread is in; None if nothing is recorded."""
    return None if this_thread.place is None else Place(*this_thread.place)


def span(kind: str, place: Place | None, stream: AbstractStream) -> AbstractContextManager[None]:
    """Record a `with` as a span of this kind, if there is a recorder and a place."""
    return nullcontext() if place is None or recording.current is None else _span(kind, place, stream)


@contextmanager
def _span(kind: str, place: Place, stream: AbstractStream) -> Iterator[None]:
    _end_backward()
    end = _begin(kind, place, stream)
    try:
        with during(place=place):
            yield
    finally:
        end()


def follow(input: TensorOrTensors, output: TensorOrTensors, place: Place, stream: AbstractStream) -> None:
    """Record the backward of what was computed from `input` to `output`, if something is recorded.

    That is no call: it is what the thread does from the first gradient of the output to the first of the input, the
    next span, or the end of the whole backward pass. Where nothing is checkpointed, autograd may go on with another
    partition in the midst of one: then the spans say who began when, not who worked when.
    """
    if recording.current is not None:
        begin = partial(_begin_backward, place, stream)
        for tensors, hook in (Batch(output), begin), (Batch(input), _end_backward):
            if made := [x for x in tensors if x.grad_fn is not None]:  # a leaf would keep its hook
                register_multi_grad_hook(made, hook, mode="any")


def _begin_backward(place: Place, stream: AbstractStream, _: object) -> None:
    _end_backward()
    if recording.current is not None:
        this_thread.end_backward = end = _begin("backward", place, stream)
        torch.autograd.Variable._execution_engine.queue_callback(end)


def _end_backward(_: object = None) -> None:
    if this_thread.end_backward is not None:
        this_thread.end_backward()
        this_thread.end_backward = None


def _begin(kind: str, place: Place, stream: AbstractStream) -> Callable[[], None]:
    """Begin a span, and return what ends it, once."""
    stack = ExitStack()
    stack.enter_context(device_span(stream, f"partition {place.j}", f"{LETTER[kind]}{place.i}", kind))
    return stack.close
