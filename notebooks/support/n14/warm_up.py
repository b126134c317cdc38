"""A schedule of one stage a rank whose ranks do as many forwards first as one likes."""

from __future__ import annotations

from collections.abc import Sequence

from lib.schedules import Schedule
from support.n14.solved import alternate, forwards_ahead, table


def with_warm_up(name: str, micro_batches: int, ahead: Sequence[int]) -> Schedule:
    """Return the schedule in which rank j does ahead[j] forwards, then a backward and a forward in turn."""
    both = [[[(op, j, i) for i in range(micro_batches)] for op in "FB"] for j in range(len(ahead))]
    return table(name, [alternate(f, b, first) for (f, b), first in zip(both, ahead, strict=True)])


def halved(schedule: Schedule) -> Schedule:
    """Return the schedule with each B done as an I and its W at once."""
    orders = []
    for rank in range(len(schedule.ranks)):
        order = list[tuple[str, int, int]]()
        for op, stage, i in schedule.actions(rank):
            order += [(half, stage, i) for half in ("IW" if op == "B" else op)]
        orders.append(order)
    return table(f"{schedule.name}, split", orders)


def warmed_up(micro_batches: int, partitions: int, message: float) -> Schedule:
    """Return 1F1B with the warm-up that a message of so many ticks asks for; F takes 1 tick, B 2."""
    ahead = [forwards_ahead(j, partitions, 1, 2, message) for j in range(partitions)]
    return with_warm_up("1F1B, warmed up", micro_batches, ahead)
