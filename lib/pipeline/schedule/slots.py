"""From orders to a table that can be drawn: put every action into the first slot in which it can run."""

from __future__ import annotations

from lib._arguments import integer
from lib.pipeline.schedule.action import Action, Schedule
from lib.pipeline.schedule.validate import in_order


def slotted(schedule: Schedule) -> Schedule:
    """Return the same orders with None wherever a rank has to wait, if an action takes one slot and sending none.

    Rows come out equally long: column k is what all ranks do at clock k. Idle slots in `schedule` are ignored.
    Raises ScheduleError for orders that can't run, as `validate` does.
    """
    rows: list[list[Action | None]] = [[] for _ in schedule.ranks]
    ready: dict[Action, int] = {}  # from which slot on its result is there
    for rank, _, action, needed in in_order(schedule):
        row = rows[rank]
        start = max([len(row), *(ready[need] for need in needed)])
        row += [None] * (start - len(row)) + [action]
        ready[action] = start + 1
    length = max(map(len, rows))
    return Schedule(schedule.name, [row + [None] * (length - len(row)) for row in rows])


def sizes(micro_batches: object, partitions: object, stages_per_rank: object = 1) -> tuple[int, int, int]:
    """Return the sizes of a schedule as integers, m, n and v; raises ValueError for one that is below 1."""
    return (
        integer("micro_batches", micro_batches, at_least=1),
        integer("partitions", partitions, at_least=1),
        integer("stages_per_rank", stages_per_rank, at_least=1),
    )
