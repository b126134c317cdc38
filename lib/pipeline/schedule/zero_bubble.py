"""Backward in two halves, so that the weights' half fills the bubble: ZB-H1, and its interleaved form.

B = I + W       I: the gradient of the input, for which the rank before is waiting
                W: the gradient of the weights, for which only the optimizer is waiting

1F1B    rank 0  0F0 0F1 0F2  .   .   .   .  [ 0B0 ]     a gradient reaches rank 0 after n - 1 whole backwards,
ZB-H1   rank 0  0F0 0F1 0F2  .   .  0I0 0W0             or after n - 1 halves: each W waits until there is time
"""

from __future__ import annotations

from collections import deque

from lib.pipeline.schedule.action import Action, Schedule
from lib.pipeline.schedule.interleaved import alternate, looped
from lib.pipeline.schedule.slots import sizes, slotted


def zero_bubble_h1(micro_batches: int, partitions: int) -> Schedule:
    """Make ZB-H1: the order of 1F1B with its backward split, and rank j up to j weight gradients behind.

    A rank idles for (n-1)·(F+I-W) if m >= n and W is the least of the three; 1F1B: (n-1)·(F+I+W). With F = I = W that
    is a third. (In general it is (n-1)·max(F+I-W, F, I): a W that is larger than the gap does not fit.) A W needs its
    activation too, so each rank holds up to n: n - j ahead of their I, as in 1F1B, and j that wait for their W. So the
    peak is that of 1F1B, n at rank 0; but here the ranks after it hold as many.

    partitions: how many ranks, a stage each. Raises ValueError for a size below 1.
    Source: Qi et al. 2023, "Zero bubble pipeline parallelism", 2.1 (there B is what I is here).
    """
    m, n, _ = sizes(micro_batches, partitions)
    orders = []
    for j in range(n):
        forwards, inputs = [Action("F", j, i) for i in range(m)], [Action("I", j, i) for i in range(m)]
        orders.append(weights_behind(alternate(forwards, inputs, warm_up=n - 1 - j), at_most=j))
    return slotted(Schedule("zero_bubble_h1", orders))


def interleaved_zero_bubble(micro_batches: int, partitions: int, stages_per_rank: int) -> Schedule:
    """Make ZB-H1 with v stages a rank: rank j has the stages j, j + n, …, and is up to j weight gradients behind.

    The order of interleaved 1F1B, but a gradient comes back sooner and so the warm-up is n - 1 - j shorter. A rank
    idles as in ZB-H1, for stages that are v times smaller, and holds up to (v-1)·k + n activations in rounds of k.
    With one stage a rank it is ZB-H1. Orders are torch's ScheduleInterleavedZeroBubble wherever it takes the sizes; it
    refuses rounds that can't be even (m = 7, n = 3), here every m >= 1 will do.

    partitions: how many ranks. Raises ValueError for a size below 1. Source: torch; ideas as for `zero_bubble_h1` and
    `interleaved_one_f_one_b`.
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    orders = enumerate(looped(m, n, v, backward="I", hop=1))
    return slotted(
        Schedule("interleaved_zero_bubble", [weights_behind(order, at_most=j) for j, order in orders])
    )


def weights_behind(order: list[Action], at_most: int) -> list[Action]:
    """Return the order with a W for each I: the oldest one as soon as more than `at_most` are owed, the rest last."""
    owed: deque[Action] = deque()
    result = []
    for action in order:
        result.append(action)
        if action.op == "I":
            owed.append(action._replace(op="W"))
        if len(owed) > at_most:
            result.append(owed.popleft())
    return [*result, *owed]
