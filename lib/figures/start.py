"""Figures of notebook 00: work shared between lanes, and what a lane that has run out of work looks like."""

from __future__ import annotations

from matplotlib.figure import Figure

from lib.show.explore import switch, whole
from lib.show.timeline import draw_timeline
from lib.timeline import Span, Trace

SHARED_WORK_CONTROLS = dict(
    tasks=whole(1, 16, 8, "tasks"),
    workers=whole(1, 6, 3, "workers"),
    longest=whole(1, 8, 4, "clocks of the longest task"),
    longest_first=switch(False, "longest task first"),
)


def share_work(tasks: int, workers: int, longest: int, longest_first: bool) -> Trace:
    """Give each task to the worker that is free first; all tasks take one clock but one, which takes `longest`."""
    lengths = [1] * (tasks - 1)
    lengths = [longest, *lengths] if longest_first else [*lengths, longest]
    free = [0] * workers
    spans = []
    for number, length in enumerate(lengths):
        worker = free.index(min(free))
        spans.append(Span(f"worker {worker}", str(number), free[worker], free[worker] + length, "compute"))
        free[worker] += length
    return Trace(spans, lanes=[f"worker {worker}" for worker in range(workers)])


def draw_shared_work(tasks: int, workers: int, longest: int, longest_first: bool) -> Figure:
    """Draw `share_work` as a timeline with its idle time hatched."""
    trace = share_work(tasks, workers, longest, longest_first)
    alone = tasks - 1 + longest
    finding = (
        f"{tasks} tasks on {workers} worker{'s' * (workers != 1)}: {trace.makespan:g} clocks instead of {alone}, "
        f"{trace.bubble:.0%} idle"
    )
    return draw_timeline(predicted=trace, title=finding, unit="clock", bubbles=True)
