"""PipeDream: 1F1B that never flushes. No bubble once it is full; the price is counted in updates: staleness.

A rank updates its weights after each of its backwards, and goes on to the next batch at once. So between the forward
of a batch and its backward the weights move, and the rank has to keep the old ones (weight stashing) for the
gradient to be one of the function that the forward computed.
"""

from __future__ import annotations

from collections.abc import Mapping

from lib.pipeline.schedule.action import Action, Schedule
from lib.pipeline.schedule.simple import one_f_one_b


def pipedream(micro_batches: int, partitions: int) -> Schedule:
    """Make PipeDream's asynchronous 1F1B: a stream of `micro_batches` batches, each with an update of its own.

    The orders are those of `one_f_one_b`, but nothing ends with the table: a stream has one start and one end, so its
    bubble (n-1)/(m+n-1) goes to 0. Schedules that flush pay it for every batch: compare pipedream(k·m, n) with k times
    one_f_one_b(m, n). It is made to be simulated; the executor leaves updates to its caller.

    partitions: how many ranks, a stage each. Raises ValueError for a size below 1.
    Source: Narayanan et al. 2019, "PipeDream: Generalized pipeline parallelism for DNN training" (SOSP).
    """
    return Schedule("pipedream", one_f_one_b(micro_batches, partitions).ranks)


def staleness(schedule: Schedule) -> Mapping[Action, int]:
    """Return, for each backward, how many updates its stage has made since that batch's forward.

    An update follows every B, or every W if the backward is split. In PipeDream's steady state it is n-1-j on rank j,
    which so keeps n-j versions of its weights. Raises KeyError for a backward without a forward before it: `validate`.
    """
    updates: dict[int, int] = {}
    seen: dict[tuple[int, int], int] = {}
    found: dict[Action, int] = {}
    for _, action in schedule:
        op, stage, i = action
        if op == "F":
            seen[stage, i] = updates.get(stage, 0)
        elif op != "I":
            found[action] = updates.get(stage, 0) - seen[stage, i]
            updates[stage] = updates.get(stage, 0) + 1
    return found
