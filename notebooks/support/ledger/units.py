"""When the units of a schedule end, where a unit is one action or a pair that nothing can part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from lib.schedules import Action, Schedule
from lib.schedules.legal import needs

Unit: TypeAlias = "tuple[Action, ...]"


def singles(order: Sequence[Action]) -> list[Unit]:
    """Return the actions of an order, each for itself: what it hands on leaves when it ends."""
    return [(action,) for action in order]


def in_pairs(order: Sequence[Action]) -> list[Unit]:
    """Return an order in which a forward and the whole backward behind it are one, if they don't need each other."""
    units: list[Unit] = []
    for action in order:
        before = units[-1] if units else ()
        pairs = len(before) == 1 and before[0].op == "F" and action.op == "B" and before[0][1:] != action[1:]
        if pairs:
            units[-1] = (before[0], action)
        else:
            units.append((action,))
    return units


def end_of_units(schedule: Schedule, rows: Sequence[Sequence[Unit]], ticks: Mapping[str, float]) -> float:
    """Return when the last unit ends: one starts with all its inputs, and hands on all its results at its end.

    rows: the units of each rank, in order. ticks: what F, B, I and W take. Raises ValueError if the ranks wait for each
    other for ever.
    """
    there = {action for _, action in schedule}
    ends: dict[Action, float] = {}
    free = [0.0] * len(rows)
    left = [list(row) for row in rows]
    while any(left):
        before = len(ends)
        for rank, row in enumerate(left):
            while row:
                needed = [need for action in row[0] for need in needs(action, schedule.stages, there)]
                from_others = [need for need in needed if need not in row[0]]
                if not all(need in ends for need in from_others):
                    break
                start = max([free[rank], *(ends[need] for need in from_others)])
                free[rank] = start + sum(ticks[action.op] for action in row[0])
                ends |= dict.fromkeys(row.pop(0), free[rank])
        if len(ends) == before:
            raise ValueError(f"the ranks of {schedule.name} wait for each other for ever")
    return max(free)
