"""Predictions and exercises of notebook 14, schedules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

from support.checks import Verdict, check_function, guess, not_attempted
from support.n14 import checks as answers
from support.n14.figures import all_schedules, time_and_memory

# ---- Right answers and famous wrong ones to the exercises of notebook 14.

Order: TypeAlias = Callable[[int, int, int, int], list[str]]
Points: TypeAlias = Mapping[str, tuple[float, float]]
Choose: TypeAlias = Callable[[Points, float], str | None]

# ---- exercise 1: tables placed by hand, m = 4, n = 3

RIGHT = """
rank 0  0F0 0F1 0F2 .   .   0B0 0F3 0B1 0B2 0B3
rank 1  .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 1B3
rank 2  .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
GPIPE = """
rank 0  0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
rank 1  1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
rank 2  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
"""
ONE_SHORT = """
rank 0  0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
rank 1  1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
rank 2  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
DEADLOCK = """
rank 0  0F0 0B0 0F1 0F2 0F3 0B1 0B2 0B3
rank 1  1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
rank 2  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
LACKS = RIGHT.replace("0B3", "").replace("1B3", "").replace("2B3", "")

# ---- exercise 2: the order of a rank that may hold `limit`


def true_order(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Go min(n - rank, limit, m) forwards ahead, then one backward, one forward in turn."""
    return _order(rank, micro_batches, min(partitions - rank, limit))


def _order(rank: int, m: int, ahead: int) -> list[str]:
    ahead = min(ahead, m)
    order = [f"{rank}F{i}" for i in range(ahead)]
    for i in range(m):
        order.append(f"{rank}B{i}")
        if i + ahead < m:
            order.append(f"{rank}F{i + ahead}")
    return order


def without_limit(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Ignore the limit (wrong)."""
    return _order(rank, micro_batches, partitions - rank)


def same_for_all(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Let every rank go as far ahead as rank 0 (wrong)."""
    return _order(rank, micro_batches, min(partitions, limit))


def one_short(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Go one forward too few ahead (wrong)."""
    return _order(rank, micro_batches, max(1, min(partitions - 1 - rank, limit)))


def all_first(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Do all forwards first, as GPipe (wrong)."""
    return _order(rank, micro_batches, micro_batches)


def forward_first(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """After the warm-up do a forward before each backward: one too many is held (wrong)."""
    return _order(rank, micro_batches, min(partitions - rank, limit) + 1)


def beyond(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Do not stop at the last micro-batch (wrong)."""
    ahead = min(partitions - rank, limit)
    order = [f"{rank}F{i}" for i in range(ahead)]
    for i in range(micro_batches):
        order += [f"{rank}B{i}"] + [f"{rank}F{i + ahead}"] * (i + ahead < max(micro_batches, ahead))
    return order


ORDER_MISTAKES: dict[str, Order] = {
    "The limit is not in it: rank 0 still holds n.": without_limit,
    "Every rank goes as far ahead as rank 0; rank j needs n - j only, its gradient comes back sooner.": same_for_all,
    "One forward too few ahead: the rank then waits for its first gradient.": one_short,
    "All forwards first: that is GPipe, and holds m.": all_first,
    "A forward before each backward: one more is held than allowed. Let go first.": forward_first,
    "There are only m micro-batches, also to go ahead with.": beyond,
}

# ---- exercise 3: the fastest within a limit


def true_choose(points: Points, limit: float) -> str | None:
    """Return the fastest that holds at most `limit`, of equally fast ones the smallest; None if there is none."""
    allowed = {name: point for name, point in points.items() if point[1] <= limit}
    return min(allowed, key=lambda name: allowed[name], default=None)


def ignores_limit(points: Points, limit: float) -> str | None:
    """Take the fastest of all (wrong)."""
    return min(points, key=lambda name: points[name], default=None)


def smallest(points: Points, limit: float) -> str | None:
    """Take the smallest (wrong)."""
    allowed = {name: point for name, point in points.items() if point[1] <= limit}
    return min(allowed, key=lambda name: allowed[name][::-1], default=None)


def strictly_below(points: Points, limit: float) -> str | None:
    """Leave out the one that just fits (wrong)."""
    allowed = {name: point for name, point in points.items() if point[1] < limit}
    return min(allowed, key=lambda name: allowed[name], default=None)


def fullest(points: Points, limit: float) -> str | None:
    """Take the one that uses most of the memory (wrong)."""
    allowed = {name: point for name, point in points.items() if point[1] <= limit}
    return max(allowed, key=lambda name: (allowed[name][1], -allowed[name][0]), default=None)


CHOICE_MISTAKES: dict[str, Choose] = {
    "The fastest of all: does it fit?": ignores_limit,
    "The smallest that fits is not always the fastest that fits.": smallest,
    "One that holds exactly the limit still fits.": strictly_below,
    "More memory used is not more speed.": fullest,
}


# ---- Checks of notebook 14: predictions; 1F1B placed by hand, a rank's order under a limit, the choice of a
# schedule.

# ---- predictions


def guess_last_rank(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 1: the activations that the last rank holds in 1F1B."""
    held = live_activations(one_f_one_b(micro_batches, partitions))[-1]
    return guess(my_guess, held, what="what the last rank holds", unit="activation" + "s" * (held != 1))


def guess_interleaved(my_guess: object, micro_batches: int, partitions: int, stages_per_rank: int) -> Verdict:
    """Comment on the guess of section 3: the idle share of interleaved 1F1B, in per cent."""
    share = round(100 * bubble_share(micro_batches, partitions, stages_per_rank))
    return guess(my_guess, share, what="the idle share", unit="%", tolerance=0.04)


def guess_half(my_guess: object, share: float) -> Verdict:
    """Comment on the guess of section 4: which share of the work of B is in I, in per cent."""
    return guess(my_guess, round(100 * share), what="the share of I", unit="%")


def guess_zero_bubble(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 5: the ticks that a rank idles in ZB-H1; forward, I and W take one each."""
    trace = simulate(zero_bubble_h1(micro_batches, partitions))
    idle = round(trace.makespan - trace.busy("rank 0"), 6)
    return guess(my_guess, idle, what="the idle time of a rank", unit="ticks")


# ---- exercise 1: 1F1B by hand

SIZE = 4, 3


def check_table(text: str) -> Verdict:
    """Check exercise 1: any legal table that holds as little as 1F1B on every rank, and is as fast."""
    what, (m, n) = f"1F1B by hand, m = {SIZE[0]}, n = {SIZE[1]}", SIZE
    if not isinstance(text, str) or "..." in text:
        return not_attempted(what)
    try:
        table = Schedule.from_text("yours", text)
        if len(table.ranks) != n:
            return Verdict("wrong", f"{what}: there are {len(table.ranks)} rows; one for each of {n} ranks.")
        validate(table, stages=n, micro_batches=m)
    except ScheduleError as error:
        return Verdict("wrong", f"{what}: it can't run. {error}.")
    except ValueError as error:
        return Verdict("wrong", f"{what}: {error}.")
    if split := [str(action) for _, action in table if action.op in "IW"]:
        return Verdict("wrong", f"{what}: {split[0]} is half of a backward; here a backward is whole, B.")
    wanted, ticks = one_f_one_b(m, n), simulate(table).makespan
    peaks, least = live_activations(table), live_activations(wanted)
    is_gpipe = table.compact().ranks == gpipe(m, n).compact().ranks
    for rank, (peak, limit) in enumerate(zip(peaks, least, strict=True)):
        if peak > limit:
            why = " That is GPipe: all forwards first." if is_gpipe else ""
            text = f"it runs, but rank {rank} holds {peak} at once; {limit} are enough there."
            return Verdict("wrong", f"{what}: {text}{why}")
    best = simulate(wanted).makespan
    if ticks > best:
        text = f"it runs and holds {', '.join(map(str, peaks))}, but takes {ticks:g} ticks; {best:g} are possible."
        return Verdict("wrong", f"{what}: {text} Which rank could go further ahead?")
    return Verdict(
        "right", f"{what}: {ticks:g} ticks, as GPipe; held {', '.join(map(str, peaks))} instead of {m}."
    )


# ---- exercise 2: a rank's order under a limit


def check_order(answer: Order) -> Verdict:
    """Check exercise 2 for few and many micro-batches, and limits below and above n."""
    cases: list[dict[str, Any]] = [
        {"rank": rank, "micro_batches": m, "partitions": n, "limit": limit}
        for m, n, limit in ((7, 3, 3), (6, 4, 2), (5, 4, 9), (2, 4, 3), (4, 1, 1), (3, 3, 1))
        for rank in range(n)
    ]
    return check_function(answer, answers.true_order, cases, what="order", mistakes=answers.ORDER_MISTAKES)


# ---- exercise 3: the fastest that fits


def check_choose(answer: Choose) -> Verdict:
    """Check exercise 3 with the schedules of several sizes and prices of a message."""
    cases: list[dict[str, Any]] = []
    for m, n, communicate in ((8, 4, 0.0), (8, 2, 0.25), (12, 4, 0.1)):
        points = time_and_memory(all_schedules(m, n, tight=True), communicate)
        sizes = sorted({held for _, held in points.values()})
        cases += [{"points": points, "limit": limit} for limit in (*sizes, sizes[-1] + 1, sizes[0] - 0.5)]
    return check_function(answer, answers.true_choose, cases, what="choose", mistakes=answers.CHOICE_MISTAKES)
