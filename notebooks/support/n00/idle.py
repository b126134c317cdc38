"""Well-known ways to get the idle share of a timeline wrong, for exercise 2 of notebook 00."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from typing import Any, TypeAlias

from lib.timeline import Span, Trace
from support.kit.values import kind_of, near
from support.n00.solved import my_idle_share
from support.n00.told import told_by_digits

SpanRows: TypeAlias = Sequence[tuple[str, float, float]]
idle_share: Callable[[SpanRows, Sequence[str]], float] = my_idle_share
#: A timeline at a clock's seconds, in a tuple of lanes of which one's name is a part of the other's.
LATE_SPANS: tuple[SpanRows, Sequence[str]] = (
    [
        ("rank 10", 1_800_000_001.25, 1_800_000_002),
        ("rank 1", 1_800_000_001.5, 1_800_000_005),
        ("rank 10", 1_800_000_000, 1_800_000_001),
    ],
    ("rank 1", "rank 10"),
)


def another_share(got: Any, expected: float, case: Mapping[str, Any]) -> str:
    """Say which share was expected, and with which digits another differs; "" if it is the same but for rounding."""
    if near(got, expected, 1e-9):
        return ""
    if isinstance(got, bool) or not isinstance(got, Number):
        return f"a number expected, not {kind_of(got)}"
    right, mine = told_by_digits(expected, got)
    nearly = ", as if rounded or computed in single precision" if near(got, expected, 1e-5) else ""
    return f"expected {right}, got {mine}{nearly}"


def otherwise(answer: Callable[[float, float, int], float]) -> Callable[[SpanRows, Sequence[str]], float]:
    """Make an idle share of seconds worked, makespan and number of lanes."""

    def share(spans: SpanRows, lanes: Sequence[str]) -> float:
        worked = sum(end - start for _, start, end in spans)
        return answer(worked, last_end(spans) - first_start(spans), len(lanes))

    return share


def first_start(spans: SpanRows) -> float:
    """Return when the first span starts."""
    return min(start for _, start, _ in spans)


def last_end(spans: SpanRows) -> float:
    """Return when the last span ends."""
    return max(end for _, _, end in spans)


def from_to(begin: Callable[..., float], end: Callable[..., float]) -> Callable[..., float]:
    """Make the idle share of a makespan from one to the other."""

    def share(spans: SpanRows, lanes: Sequence[str]) -> float:
        worked = sum(end - start for _, start, end in spans)
        return 1 - worked / (len(lanes) * (end(spans) - begin(spans)))

    return share


def own_makespans(spans: SpanRows, lanes: Sequence[str]) -> float:
    """Return the idle share of makespans that each lane has for itself."""
    own = [[(start, end) for name, start, end in spans if name == lane] for lane in lanes]
    ends = [(max(end for _, end in lane) - min(start for start, _ in lane)) for lane in own if lane]
    return 1 - sum(end - start for _, start, end in spans) / sum(ends)


def of_a_lane(choose: Callable[..., float]) -> Callable[[SpanRows, Sequence[str]], float]:
    """Make the idle share of one lane, the one that has worked most or least."""

    def share(spans: SpanRows, lanes: Sequence[str]) -> float:
        worked = [sum(end - start for name, start, end in spans if name == lane) for lane in lanes]
        return otherwise(lambda _, makespan, count: 1 - choose(worked) / makespan)(spans, lanes)

    return share


def nobody_at_all(spans: SpanRows, lanes: Sequence[str]) -> float:
    """Return the share of the makespan in which no lane works."""
    trace = Trace(Span("all", "", start, end) for _, start, end in spans)
    return trace.bubble


def rounded_share(spans: SpanRows, lanes: Sequence[str]) -> float:
    """Return the right share, to one digit."""
    return round(idle_share(spans, lanes), 1)


def longest_span(spans: SpanRows, lanes: Sequence[str]) -> float:
    """Return the idle share of a makespan as long as the longest span."""
    worked = sum(end - start for _, start, end in spans)
    return 1 - worked / (len(lanes) * max(end - start for _, start, end in spans))
