"""Predictions and exercises of notebook 00, start here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from lib.timeline import Span, Trace
from support.checks import Exercise, Guess, cases

guess_speedup = Guess(
    "the speed-up that a model without friction predicts", lambda threads: float(threads), unit="×"
)
"""The ratio of two times; the truth is that of a model in which threads do not disturb."""
guess_python_speedup = Guess("the speed-up that one lock for all threads allows", lambda: 1.0, unit="×")
"""Threads that run Python: the interpreter's lock lets one of them run at a time."""

Rows: TypeAlias = Sequence[tuple[str, float, float]]


def _idle_share(spans: Rows) -> float:
    return Trace(Span(lane, "", start, end) for lane, start, end in spans).bubble


check_makespan = Exercise(
    "makespan",
    reference=lambda times: Trace(Span("a", "", start, end) for start, end in times).makespan,
    cases=cases(
        "times",
        [[(0, 2)], [(0, 2), (2, 5)], [(1, 2), (4, 6)], [(3, 9), (4, 5)], [(5, 6), (0, 1), (2, 8)]],
    ),
    mistakes={
        "You added the durations up: that counts overlapping work twice and waiting not at all.": lambda times: (
            sum(end - start for start, end in times)
        ),
        "You took the last end: this timeline does not begin at 0.": lambda times: max(
            end for _, end in times
        ),
        "You took the first and last span of the list: spans need not be in order.": lambda times: (
            times[-1][1] - times[0][0]
        ),
    },
)
"""Exercise 1: the time from the first start to the last end."""

check_idle_share = Exercise(
    "idle share",
    reference=_idle_share,
    cases=[
        {"spans": [("a", 0, 4), ("b", 0, 4)]},
        {"spans": [("a", 0, 2), ("b", 2, 4)]},
        {"spans": [("a", 0, 1), ("a", 1, 4), ("b", 0, 1)]},
        {"spans": [("a", 2, 4), ("b", 3, 6), ("c", 4, 5)]},
        {"spans": [("a", 0, 1), ("b", 1, 2), ("c", 2, 3), ("d", 3, 4)]},
    ],
    mistakes={
        "You divided by the makespan alone: several lanes could have worked all that time.": lambda spans: (
            _idle_share(spans) * len({lane for lane, _, _ in spans})
        ),
        "That is the busy share; the idle share is the rest.": lambda spans: 1 - _idle_share(spans),
    },
)
"""Exercise 2: the share of lanes × makespan in which nothing ran."""
