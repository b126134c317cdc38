"""Play: what tasks would do, one after the other in each lane, as soon as their inputs are there."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from lib.timeline.trace import Span, Trace


class Work(NamedTuple):
    """Name one task for `play`: `label` takes `seconds` in `lane`, after the tasks whose labels are in `after`.

    message: seconds that what it needs takes on the way from another lane; no lane is busy with it.
    """

    lane: str
    label: str
    seconds: float
    after: Collection[str] = ()
    kind: str = "compute"
    message: float = 0.0


def play(tasks: Iterable[Work], lanes: Iterable[str] = ()) -> Trace:
    """Predict when tasks run: each lane does its own in the order given, each as soon as its inputs are there.

    This is the law of data flow, start = max(lane free, inputs there + message): it holds for processes, for CUDA
    streams and for threads that wait for nothing else. seconds may be ticks of a model's clock. lanes: as in Trace.
    Raises ValueError for a task that stands before one that it needs, or for a label that comes twice.
    """
    ended: dict[str, Span] = {}
    free: dict[str, float] = {}
    for task in tasks:
        if task.label in ended:
            raise ValueError(f"two tasks are labelled {task.label!r}: a label is what others wait for")
        missing = [label for label in task.after if label not in ended]
        if missing:
            raise ValueError(f"{task.label!r} needs {missing[0]!r}, which does not stand before it")
        start = free.get(task.lane, 0.0)
        for label in task.after:
            needed = ended[label]
            there = needed.end
            if needed.lane != task.lane:
                there += task.message
            start = max(start, there)
        span = Span(task.lane, task.label, start, start + task.seconds, task.kind)
        ended[task.label] = span
        free[task.lane] = span.end
    return Trace(ended.values(), lanes)
