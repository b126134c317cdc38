"""What a recorded run took, clock by clock; lanes are "partition j", labels F0, F1, …

slowest_tasks   the slowest task of each clock
gaps            what each clock but the first takes beyond its slowest task
"""

from __future__ import annotations

from itertools import pairwise

from lib.pipeline import clock_cycles
from lib.timeline import Span, Trace


def slowest_tasks(trace: Trace, m: int, n: int) -> list[float]:
    """Return by clock the seconds of its slowest task."""
    return [max(span.duration for span in clock) for clock in _clocks(trace, m, n)]


def gaps(trace: Trace, m: int, n: int) -> list[float]:
    """Return by clock, from clock 1 on, the seconds from the end of the one before to its own, less its slowest task.

    A task that starts late makes a gap only if its clock ends later for it.
    """
    ends = [max(span.end for span in clock) for clock in _clocks(trace, m, n)]
    longest = slowest_tasks(trace, m, n)[1:]
    return [end - before - seconds for (before, end), seconds in zip(pairwise(ends), longest, strict=True)]


def _clocks(trace: Trace, m: int, n: int) -> list[list[Span]]:
    found = {(span.label, span.lane): span for span in trace}
    return [[found[f"F{i}", f"partition {j}"] for i, j in clock] for clock in clock_cycles(m, n)]
