"""Predictions and exercises of notebook 14, schedules."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from lib.schedules import (
    Schedule,
    ScheduleError,
    bubble_share,
    gpipe,
    live_activations,
    one_f_one_b,
    zero_bubble_h1,
)
from lib.schedules.simulate import simulate
from lib.schedules.table import validate
from support.checks import Exercise, Guess, Verdict, cases, not_attempted
from support.n14.figures import all_schedules, time_and_memory

# ---- predictions


def _last_rank(micro_batches: int, partitions: int) -> int:
    return live_activations(one_f_one_b(micro_batches, partitions))[-1]


def _ticks_idle(micro_batches: int, partitions: int) -> float:
    trace = simulate(zero_bubble_h1(micro_batches, partitions))
    return round(trace.makespan - trace.busy("rank 0"), 6)


guess_last_rank = Guess("what the last rank holds", _last_rank, unit="activation")
"""Section 1: the activations that the last rank holds in 1F1B: one, for any m and n."""
guess_interleaved = Guess(
    "the idle share", lambda m, n, v: round(100 * bubble_share(m, n, v)), unit="%", tolerance=0.04
)
"""Section 3: the idle share of interleaved 1F1B, in per cent, with v stages a rank."""
guess_half = Guess("the share of I", lambda share: round(100 * share), unit="%")
"""Section 4: which share of the work of B is in I, in per cent."""
guess_zero_bubble = Guess("the idle time of a rank", _ticks_idle, unit="ticks")
"""Section 5: the ticks that a rank idles in ZB-H1; forward, I and W take one each."""


# ---- exercise 1: 1F1B by hand

SIZE = 4, 3


def _check_table(exercise: Exercise, text: object) -> Verdict:
    """Accept any legal table that holds as little as 1F1B on every rank, and is as fast."""
    m, n = SIZE
    if not isinstance(text, str) or "..." in text:
        return not_attempted(exercise.what)
    try:
        table = Schedule.from_text("yours", text)
        if len(table.ranks) != n:
            return exercise.wrong(f"there are {len(table.ranks)} rows; one for each of {n} ranks.")
        validate(table, stages=n, micro_batches=m)
    except ScheduleError as error:
        return exercise.wrong(f"it can't run. {error}.")
    except ValueError as error:
        return exercise.wrong(f"{error}.")
    if split := [str(action) for _, action in table if action.op in "IW"]:
        return exercise.wrong(f"{split[0]} is half of a backward; here a backward is whole, B.")
    wanted, ticks = one_f_one_b(m, n), simulate(table).makespan
    peaks, least = live_activations(table), live_activations(wanted)
    for rank, (peak, limit) in enumerate(zip(peaks, least, strict=True)):
        if peak > limit:
            said = f"it runs, but rank {rank} holds {peak} at once; {limit} are enough there."
            known = (
                why
                for why, wrong in exercise.mistakes.items()
                if Schedule.from_text("", wrong).compact().ranks == table.compact().ranks
            )
            return exercise.wrong(" ".join([said, *known]))
    best = simulate(wanted).makespan
    if ticks > best:
        said = f"it runs and holds {', '.join(map(str, peaks))}, but takes {ticks:g} ticks; {best:g} are possible."
        return exercise.wrong(f"{said} Which rank could go further ahead?")
    return exercise.right(f"{ticks:g} ticks, as GPipe; held {', '.join(map(str, peaks))} instead of {m}.")


check_table = Exercise(
    f"1F1B by hand, m = {SIZE[0]}, n = {SIZE[1]}",
    reference=one_f_one_b(*SIZE).to_text(),
    judge=_check_table,
    mistakes={"That is GPipe: all forwards first.": gpipe(*SIZE).to_text()},
)
"""Exercise 1: a table as a text, a row a rank."""


# ---- exercise 2: a rank's order under a limit

Order: TypeAlias = Callable[[int, int, int, int], list[str]]


def _going(ahead_of: Callable[[int, int, int, int], int], stops: bool = True) -> Order:
    """Make an answer: ahead_of(rank, m, n, limit) forwards, no more than m; then in turn one backward, one forward."""

    def order(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
        ahead = ahead_of(rank, micro_batches, partitions, limit)
        if stops:
            ahead = min(ahead, micro_batches)
        actions = [f"{rank}F{i}" for i in range(ahead)]
        for i in range(micro_batches):
            actions.append(f"{rank}B{i}")
            if i + ahead < micro_batches:
                actions.append(f"{rank}F{i + ahead}")
        return actions

    return order


check_order = Exercise(
    "order",
    reference=_going(lambda rank, m, n, limit: min(n - rank, limit)),
    cases=cases(
        "rank micro_batches partitions limit",
        (
            (rank, m, n, limit)
            for m, n, limit in ((7, 3, 3), (6, 4, 2), (5, 4, 9), (2, 4, 3), (4, 1, 1), (3, 3, 1))
            for rank in range(n)
        ),
    ),
    mistakes={
        "The limit is not in it: rank 0 still holds n.": _going(lambda rank, m, n, limit: n - rank),
        "Every rank goes as far ahead as rank 0; rank j needs n - j only, its gradient comes back sooner.": _going(
            lambda rank, m, n, limit: min(n, limit)
        ),
        "One forward too few ahead: the rank then waits for its first gradient.": _going(
            lambda rank, m, n, limit: max(1, min(n - 1 - rank, limit))
        ),
        "All forwards first: that is GPipe, and holds m.": _going(lambda rank, m, n, limit: m),
        "A forward before each backward: one more is held than allowed. Let go first.": _going(
            lambda rank, m, n, limit: min(n - rank, limit) + 1
        ),
        "There are only m micro-batches, also to go ahead with.": _going(
            lambda rank, m, n, limit: min(n - rank, limit), stops=False
        ),
    },
)
"""Exercise 2 for few and many micro-batches, and limits below and above n."""


# ---- exercise 3: the fastest that fits

Points: TypeAlias = Mapping[str, tuple[float, float]]


def _least(
    key: Callable[[float, float], Any] = lambda time, held: (time, held),
    fits: Callable[[float, float], bool] = operator.le,
) -> Callable[[Points, float], str | None]:
    """Make an answer: the name with the least key(time, held), of those that fit; None if there is none."""

    def choose(points: Points, limit: float) -> str | None:
        allowed = {name: point for name, point in points.items() if fits(point[1], limit)}
        return min(allowed, key=lambda name: key(*allowed[name]), default=None)

    return choose


def _choices() -> Iterator[dict[str, Any]]:
    """Yield the schedules of several sizes and prices of a message, with limits around what they hold."""
    for m, n, communicate in ((8, 4, 0.0), (8, 2, 0.25), (12, 4, 0.1)):
        points = time_and_memory(all_schedules(m, n, tight=True), communicate)
        sizes = sorted({held for _, held in points.values()})
        yield from cases(
            "points limit", [(points, limit) for limit in (*sizes, sizes[-1] + 1, sizes[0] - 0.5)]
        )


check_choose = Exercise(
    "choose",
    reference=_least(),
    cases=_choices,
    mistakes={
        "The fastest of all: does it fit?": _least(fits=lambda held, limit: True),
        "The smallest that fits is not always the fastest that fits.": _least(
            lambda time, held: (held, time)
        ),
        "One that holds exactly the limit still fits.": _least(fits=operator.lt),
        "More memory used is not more speed.": _least(lambda time, held: (-held, time)),
    },
)
"""Exercise 3: the fastest within a limit, of equally fast ones the smallest."""
