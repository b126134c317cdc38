"""Several stages a rank, in a loop: interleaved 1F1B (depth first) and looped BFS (breadth first).

    n = 2 ranks, v = 2 stages a rank          rank 0: stages 0 and 2          rank 1: stages 1 and 3

    rank 0  0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 …   interleaved: n micro-batches through all stages, then the next n
    rank 0  0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 …   looped BFS: all micro-batches through a stage, then the next stage

A stage is v times smaller, so the pipeline fills and drains in steps that are v times shorter: the bubble shrinks from
(n-1)/(m+n-1) to (n-1)/(v·m+n-1). The price: v times as much to send.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from lib.pipeline.schedule.action import Action, Op, Schedule
from lib.pipeline.schedule.slots import sizes, slotted


def interleaved_one_f_one_b(micro_batches: int, partitions: int, stages_per_rank: int) -> Schedule:
    """Make interleaved 1F1B: rank j has the stages j, j + n, …; one forward and one backward in turn, depth first.

    The bubble is (n-1)/(v·m+n-1) if m >= n micro-batches make even rounds (see `round_size`); else it can be larger.
    Rank j holds up to (v-1)·k + 2(n-1-j) + 1 activations of a stage in rounds of k: v·n + n - 1 at rank 0 if k = n,
    where 1F1B holds n that are v times as large. Orders are torch's ScheduleInterleaved1F1B wherever it takes the
    sizes; it refuses rounds that can't be even (m = 7, n = 3), here every m >= 1 will do.

    partitions: how many ranks. Raises ValueError for a size below 1.
    Source: Narayanan et al. 2021, "Efficient large-scale language model training on GPU clusters", 2.2.
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    return slotted(Schedule("interleaved_one_f_one_b", looped(m, n, v, backward="B", hop=2)))


def looped_bfs(micro_batches: int, partitions: int, stages_per_rank: int) -> Schedule:
    """Make looped BFS: rank j sends all micro-batches through its stages j, j + n, … in turn; then all of it backwards.

    It is GPipe with v stages a rank: the bubble is (n-1)/(v·m+n-1) if m >= n, and every rank holds all v·m activations
    at once. What it is for: a stage has all its forwards in one run and all its backwards in another, so that weights
    which are sharded over data ranks are gathered twice a step, not for every round, and the gradient is summed once.
    Orders are torch's ScheduleLoopedBFS, whose backward starts at the last micro-batch.

    partitions: how many ranks. Raises ValueError for a size below 1.
    Source: Lamy-Poirier 2022, "Breadth-first pipeline parallelism".
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    orders = []
    for rank in range(n):
        work = [(stage, i) for stage in range(rank, n * v, n) for i in range(m)]
        orders.append([Action("F", *item) for item in work] + [Action("B", *item) for item in reversed(work)])
    return slotted(Schedule("looped_bfs", orders))


def looped(m: int, n: int, v: int, backward: Op, hop: int) -> list[list[Action]]:
    """Return the order of each rank: a warm-up of forwards, then a forward and a backward in turn, then the rest.

    warm-up: the last rank runs ahead by v - 1 rounds, for its first backward is that of its last stage. Each rank in
    front of it runs ahead by `hop` more: the slots until what it sends one rank on has come back as a gradient.

    Rounds are planned full, and micro-batches from m on are struck out at the end. That keeps a table legal, since no
    micro-batch waits for another. (Rounds of n with a short one at the end, the obvious way, deadlock: m 5, n 4, v 3.)
    """
    size = round_size(m, n)
    orders = []
    for rank in range(n):
        stages = range(rank, n * v, n)
        forwards, backwards = in_rounds("F", stages, m, size), in_rounds(backward, stages[::-1], m, size)
        order = alternate(forwards, backwards, warm_up=(v - 1) * size + hop * (n - 1 - rank))
        orders.append([action for action in order if action.micro_batch < m])
    return orders


def round_size(m: int, n: int) -> int:
    """Return how many micro-batches pass a stage before the rank turns to its next stage: n, or a few more.

    m micro-batches make m // n rounds (at least one), as even as can be: 10 of them on 4 ranks go as 5 and 5.
    """
    return ceil(m / max(1, m // n))


def in_rounds(op: Op, stages: Sequence[int], m: int, size: int) -> list[Action]:
    """Return one op of a rank, depth first: `size` micro-batches through its stages in turn, then the next `size`."""
    rounds = [range(first, first + size) for first in range(0, m, size)]
    return [Action(op, stage, i) for one_round in rounds for stage in stages for i in one_round]


def alternate(forwards: list[Action], backwards: list[Action], warm_up: int) -> list[Action]:
    """Return `warm_up` forwards, then a forward and a backward in turn, then the backwards that are left."""
    order = forwards[:warm_up]
    for k, backward in enumerate(backwards, start=warm_up):
        order += [*forwards[k : k + 1], backward]
    return order
