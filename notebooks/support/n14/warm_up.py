"""Schedules of one stage a rank: as many forwards first as one likes, and split backwards whose W's are put off."""

from __future__ import annotations

from collections.abc import Sequence

from lib.schedules import Schedule, live_activations
from support.n14.solved import Task, alternate, forwards_ahead, table


def with_warm_up(name: str, micro_batches: int, ahead: Sequence[int]) -> Schedule:
    """Return the schedule in which rank j does ahead[j] forwards, then a backward and a forward in turn."""
    both = [[[(op, j, i) for i in range(micro_batches)] for op in "FB"] for j in range(len(ahead))]
    return table(name, [alternate(f, b, first) for (f, b), first in zip(both, ahead, strict=True)])


def put_off(schedule: Schedule) -> Schedule:
    """Return the schedule with its backwards in halves: no rank holds more than the fullest one did before.

    A rank may owe as many W's as it holds fewer activations than that one. Of 1F1B this makes ZB-H1.
    """
    held = live_activations(schedule)
    orders = []
    for rank, holds in enumerate(held):
        order = list[Task]()
        owed = list[Task]()
        for op, stage, i in schedule.actions(rank):
            if op == "F":
                order.append((op, stage, i))
                continue
            order.append(("I", stage, i))
            owed.append(("W", stage, i))
            if len(owed) > max(held) - holds:
                order.append(owed.pop(0))
        orders.append(order + owed)
    return table(f"{schedule.name}, split", orders)


def warmed_up(micro_batches: int, partitions: int, message: float) -> Schedule:
    """Return 1F1B with the warm-up that a message of so many ticks asks for; F takes 1 tick, B 2."""
    ahead = [forwards_ahead(j, partitions, 1, 2, message) for j in range(partitions)]
    return with_warm_up("1F1B, warmed up", micro_batches, ahead)
