"""Checks of notebook 00: what a timeline says, in two numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lib.checks.base import Verdict, check_function, guess
from lib.timeline import Span, Trace

Times = Sequence[tuple[float, float]]
Rows = Sequence[tuple[str, float, float]]

TIMES: list[Times] = [
    [(0, 2)],
    [(0, 2), (2, 5)],
    [(1, 2), (4, 6)],
    [(3, 9), (4, 5)],
    [(5, 6), (0, 1), (2, 8)],
]

ROWS: list[Rows] = [
    [("a", 0, 4), ("b", 0, 4)],
    [("a", 0, 2), ("b", 2, 4)],
    [("a", 0, 1), ("a", 1, 4), ("b", 0, 1)],
    [("a", 2, 4), ("b", 3, 6), ("c", 4, 5)],
    [("a", 0, 1), ("b", 1, 2), ("c", 2, 3), ("d", 3, 4)],
]


def _trace(rows: Rows) -> Trace:
    return Trace(Span(lane, "", start, end) for lane, start, end in rows)


def true_makespan(times: Times) -> float:
    """Return the time from the first start to the last end."""
    return _trace([("a", start, end) for start, end in times]).makespan


def true_idle_share(spans: Rows) -> float:
    """Return the share of lanes × makespan in which nothing ran."""
    return _trace(spans).bubble


def sum_of_durations(times: Times) -> float:
    """Add the durations up, as if nothing overlapped and nothing waited (wrong)."""
    return sum(end - start for start, end in times)


def last_end(times: Times) -> float:
    """Take the last end, as if every timeline began at 0 (wrong)."""
    return max(end for _, end in times)


def last_in_list(times: Times) -> float:
    """Take the first and the last span in the list's order (wrong)."""
    return times[-1][1] - times[0][0]


def idle_not_shared(spans: Rows) -> float:
    """Divide the idle time by the makespan alone (wrong)."""
    return true_idle_share(spans) * len({lane for lane, _, _ in spans})


def busy_share(spans: Rows) -> float:
    """Return the share that was busy (wrong)."""
    return 1 - true_idle_share(spans)


def check_makespan(answer: Callable[[Times], float]) -> Verdict:
    """Check exercise 1."""
    mistakes = {
        "You added the durations up: that counts overlapping work twice and waiting not at all.": sum_of_durations,
        "You took the last end: this timeline does not begin at 0.": last_end,
        "You took the first and last span of the list: spans need not be in order.": last_in_list,
    }
    cases = [{"times": times} for times in TIMES]
    return check_function(answer, true_makespan, cases, what="makespan", mistakes=mistakes)


def check_idle_share(answer: Callable[[Rows], float]) -> Verdict:
    """Check exercise 2."""
    mistakes = {
        "You divided by the makespan alone: several lanes could have worked all that time.": idle_not_shared,
        "That is the busy share; the idle share is the rest.": busy_share,
    }
    cases = [{"spans": rows} for rows in ROWS]
    return check_function(answer, true_idle_share, cases, what="idle share", mistakes=mistakes)


def guess_speedup(my_guess: object, threads: int) -> Verdict:
    """Comment on the guessed ratio of two times; the truth is that of a model in which threads do not disturb."""
    return guess(
        my_guess, float(threads), what="the speed-up that a model without friction predicts", unit="×"
    )


def guess_python_speedup(my_guess: object) -> Verdict:
    """Comment on the guess for threads that run Python: the interpreter's lock lets one of them run at a time."""
    return guess(my_guess, 1.0, what="the speed-up that one lock for all threads allows", unit="×")
