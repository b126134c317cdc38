"""Predictions of notebook 14, schedules."""

from __future__ import annotations

from lib.schedules import Schedule, bubble_share, gpipe, zbv
from lib.schedules.simulate import simulate
from support.kit.exact import exact_number
from support.kit.guess import Tried
from support.n14.solved import fill_holes, forwards_ahead, table
from support.n14.warm_up import with_warm_up


def in_a_row(schedule: Schedule, steps: int) -> Schedule:
    """Return so many steps one after another: a rank begins the next as soon as it has done its part of the last."""
    m = schedule.micro_batches
    rows = (schedule.actions(rank) for rank in range(len(schedule.ranks)))
    again = [
        [a._replace(micro_batch=a.micro_batch + step * m) for step in range(steps) for a in row]
        for row in rows
    ]
    return Schedule(schedule.name, again)


def _ahead(m: int, n: int, message: float) -> int:
    """Return the fewest forwards of rank 0 with which a step is as short as GPipe's; the other ranks do as ours."""
    others = [forwards_ahead(j, n, 1, 2, message) for j in range(1, n)]
    least = simulate(gpipe(m, n), communicate=message).makespan + 1e-9

    def ticks(first: int) -> float:
        return simulate(with_warm_up("", m, [first, *others]), communicate=message).makespan

    return next(first for first in range(others[0], m + 1) if ticks(first) <= least)


def _one_more(m: int, n: int) -> float:
    """Return the share in per cent that a rank idles in one more step of ZB-V, when no rank waits between steps."""
    ends = [simulate(in_a_row(zbv(m, n), steps), 0.5, 1).makespan for steps in (2, 3)]
    return round(100 * (1 - 3 * m / (ends[1] - ends[0])), 6)


guess_floor = exact_number(
    "the shortest step with one stage a rank",
    lambda m, n: simulate(table("", fill_holes(m, n))).makespan,
    "ticks",
    said={
        24: "that is the work of a rank, but the last rank can't begin at 0",
        30: "that is what splitting alone gives",
        28: "a first micro-batch needs 3 ticks to the last rank, not 4",
        33: "that is 1F1B",
        26: "the first micro-batch passes three ranks before the last one, not two",
    },
    tried=Tried(right=27, wrong=24, known=(8, 4)),
)
"""Section 2: the ticks below which no order of m = 8, n = 4 comes, with a stage a rank."""
guess_ahead = exact_number(
    "what rank 0 does before its first backward",
    _ahead,
    "forwards",
    said={
        4: "that is 1F1B's",
        5: "to round up once for the whole way gives that, but each pair of neighbours needs whole rounds",
        8: "that works, and fewer are enough",
        32: "that is GPipe's: it works, and holds all 32",
    },
    tried=Tried(right=7, wrong=5, known=(32, 4, 0.25)),
)
"""Section 5: the forwards of rank 0 before its first backward, m = 32, n = 4, message 0.25."""
HALVED = "that is half of 27: the idle time is halved, but the step gets shorter, too"
guess_interleaved = exact_number(
    "the idle share",
    lambda m, n, v: 100 * bubble_share(m, n, v),
    "%",
    said={
        13: HALVED,
        14: HALVED,
        27: "that is 1F1B's",
        19: "that is the idle time by the work; the share is of the whole step",
    },
    whole=True,
    tried=Tried(right=16, wrong=13.6, known=(8, 4, 2)),
)
"""Section 6: the idle share of interleaved 1F1B, in whole per cent, with v stages a rank."""
guess_next_step = exact_number(
    "the idle share of a further step",
    _one_more,
    "%",
    said=dict.fromkeys((6, 5.9, 5.88), "so it is, if every rank waits for all others"),
    tried=Tried(right=0, wrong=6, known=(8, 4)),
)
"""Section 10: the idle share of each further step of ZB-V when the steps follow each other, in per cent."""
