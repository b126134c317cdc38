"""The schedules with one stage a rank: model parallelism, GPipe and 1F1B.

3 micro-batches, 2 partitions, every action one slot

model_parallel   0F0  .   .  0B0 0F1  .   .  0B1 0F2  .   .  0B2        one rank works at a time
                  .  1F0 1B0  .   .  1F1 1B1  .   .  1F2 1B2
gpipe            0F0 0F1 0F2  .   .  0B0 0B1 0B2                        all forward, then all backward
                  .  1F0 1F1 1F2 1B0 1B1 1B2
one_f_one_b      0F0 0F1  .  0B0 0F2 0B1  .  0B2                        backward as soon as it can be:
                  .  1F0 1B0 1F1 1B1 1F2 1B2                            the same bubble, n activations instead of m
"""

from __future__ import annotations

from lib.pipeline.schedule.action import Action, Schedule
from lib.pipeline.schedule.slots import sizes, slotted


def bubble_share(micro_batches: int, partitions: int, stages_per_rank: int = 1) -> float:
    """Return (n-1)/(v·m + n-1): the idle share of GPipe, of 1F1B, and of their looped kin with v stages a rank.

    It holds for stages that all cost the same, whatever forward and backward cost: a rank works for v·m of these
    costs, and waits for n-1 while the pipeline fills and drains.
    """
    m, n, v = sizes(micro_batches, partitions, stages_per_rank)
    return (n - 1) / (v * m + n - 1)


def model_parallel(micro_batches: int, partitions: int) -> Schedule:
    """Make the baseline that is no pipeline: each micro-batch goes forward and back before the next one starts.

    One rank works at a time, so the bubble is (n-1)/n, and one activation lives on each. micro_batches=1 is the plain
    model, cut over devices; more add up their gradients, which changes the memory and not the bubble.

    partitions: how many ranks, a stage each. Raises ValueError for a size below 1.
    """
    m, n, _ = sizes(micro_batches, partitions)
    orders = [[Action(op, j, i) for i in range(m) for op in ("F", "B")] for j in range(n)]
    return slotted(Schedule("model_parallel", orders))


def gpipe(micro_batches: int, partitions: int) -> Schedule:
    """Make GPipe: all micro-batches forward, then all backward, first in first out. Orders are torch's ScheduleGPipe.

    The bubble is (n-1)/(m+n-1); each rank holds all m activations. torchgpipe and `lib.pipeline.GPipe` go back in the
    opposite order, last micro-batch first, as autograd does: with equal stages that changes neither number.

    partitions: how many ranks, a stage each. Raises ValueError for a size below 1.
    Source: Huang et al. 2019, "GPipe: Efficient training of giant neural networks using pipeline parallelism".
    """
    m, n, _ = sizes(micro_batches, partitions)
    orders = [[Action(op, j, i) for op in ("F", "B") for i in range(m)] for j in range(n)]
    return slotted(Schedule("gpipe", orders))


def one_f_one_b(micro_batches: int, partitions: int) -> Schedule:
    """Make 1F1B: rank j goes n-j micro-batches ahead, then does one backward and one forward in turn.

    The bubble is GPipe's, (n-1)/(m+n-1); rank j holds at most min(m, n-j) activations. Orders are what torch's
    Schedule1F1B executes wherever it takes the sizes; it wants m >= n, here every m >= 1 will do. (The table that torch
    builds for it is wrong: it counts the last rank's forwards from 1, so that 2F0 is missing for n = 3.)

    partitions: how many ranks, a stage each. Raises ValueError for a size below 1.
    Source: Narayanan et al. 2021, "Memory-efficient pipeline-parallel DNN training" (there PipeDream-Flush).
    """
    m, n, _ = sizes(micro_batches, partitions)
    orders: list[list[Action]] = []
    for j in range(n):
        ahead = min(m, n - j)
        orders.append([Action("F", j, i) for i in range(ahead)])
        for i in range(m):
            orders[j].append(Action("B", j, i))
            if ahead + i < m:
                orders[j].append(Action("F", j, ahead + i))
    return slotted(Schedule("one_f_one_b", orders))
