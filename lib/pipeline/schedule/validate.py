"""What an action needs before it can start, and whether a table can run at all: the first illegal action, and why.

F at stage s      needs F at stage s-1
B (or I) at s     needs F at s, and B (or I) at stage s+1
W at s            needs I at s                                       all of the same micro-batch
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from lib._arguments import integer
from lib.pipeline.schedule.action import Action, Op, Schedule

Place: TypeAlias = tuple[int, int]  # rank, slot


class ScheduleError(ValueError):
    """A table that can't run. `rank`, `slot` and `action` say where; they are None if something is missing."""

    def __init__(self, reason: str, place: Place | None = None, action: Action | None = None) -> None:
        self.reason, self.action = reason, action
        self.rank: int | None = None if place is None else place[0]
        self.slot: int | None = None if place is None else place[1]
        super().__init__(reason if place is None else f"rank {self.rank}, slot {self.slot}: {reason}")


def needs(action: Action, stages: int, actions: Container[Action]) -> list[Action]:
    """Return what `action` has to wait for, in a schedule of `stages` stages that consists of `actions`."""
    if action.op == "F":
        return [action._replace(stage=action.stage - 1)] if action.stage else []
    if action.op == "W":
        return [action._replace(op="I")]
    needed = [action._replace(op="F")]
    if action.stage + 1 < stages:
        split = action._replace(op="I", stage=action.stage + 1)
        needed.append(split if split in actions else split._replace(op="B"))
    return needed


class Step(NamedTuple):
    """An action where it stands in the table, with what it needs."""

    rank: int
    slot: int
    action: Action
    needs: list[Action]


def validate(
    schedule: Schedule, *, stages: int | None = None, micro_batches: int | None = None, complete: bool = True
) -> None:
    """Refuse a table that can't run: ScheduleError (a ValueError) with the first illegal action and the reason.

    Legal: a stage stays on one rank; nothing is done twice; a backward is either B, or I and then W; every action
    has what it needs (see above) earlier on its own rank, or on another rank without a circle of waiting; nothing is
    missing. Only the order on each rank counts: idle slots are no promise about time.

    stages, micro_batches: how many there should be; by default as many as the table names. complete=False lets
    actions be missing that no other needs: a table that is still being filled.
    """
    stages = schedule.stages if stages is None else integer("stages", stages, at_least=1)
    if micro_batches is None:
        micro_batches = schedule.micro_batches
    else:
        micro_batches = integer("micro_batches", micro_batches, at_least=1)
    found = {step.action for step in in_order(schedule, stages, micro_batches)}
    if complete and (missing := _missing(found, stages, micro_batches)):
        more = f" and {len(missing) - 5} more" if missing[5:] else ""
        raise ScheduleError(f"schedule {schedule.name!r} lacks {', '.join(map(str, missing[:5]))}{more}")
    if complete and not found:
        raise ScheduleError(f"schedule {schedule.name!r} has no actions")


def in_order(
    schedule: Schedule, stages: int | None = None, micro_batches: int | None = None
) -> Iterator[Step]:
    """Yield all actions, each after what it needs. Raises ScheduleError as `validate` does, a deadlock at the end."""
    stages = schedule.stages if stages is None else stages
    micro_batches = schedule.micro_batches if micro_batches is None else micro_batches
    rows: list[deque[Step]] = [deque() for _ in schedule.ranks]
    for step in _checked(schedule, stages, micro_batches):
        rows[step.rank].append(step)
    done: set[Action] = set()
    going = True
    while going:
        going = False
        for row in rows:
            while row and done.issuperset(row[0].needs):
                step = row.popleft()
                yield step
                done.add(step.action)
                going = True
    if any(rows):
        raise _deadlock(rows, done)


def _checked(schedule: Schedule, stages: int, micro_batches: int) -> list[Step]:
    """Return the steps slot by slot, without the order among ranks; refuse what is wrong in any order."""
    places: dict[Action, Place] = {}
    home: dict[int, int] = {}
    for place, action in _cells(schedule):
        op, stage, i = action
        rank = home.setdefault(stage, place[0])
        others: tuple[Op, ...] = () if op == "F" else ("I", "W") if op == "B" else ("B",)
        twin = next((twin for other in others if (twin := action._replace(op=other)) in places), None)
        if stage >= stages:
            reason = f"is at stage {stage}, but the stages are 0..{stages - 1}"
        elif i >= micro_batches:
            reason = f"is of micro-batch {i}, but the micro-batches are 0..{micro_batches - 1}"
        elif place[0] != rank:
            reason = f"is at stage {stage}, which rank {rank} has; a stage stays on one rank"
        elif action in places:
            reason = f"has been done already, in slot {places[action][1]}"
        elif twin is not None:
            reason = f"does again what {twin} did; a backward is either B, or I and W"
        else:
            places[action] = place
            continue
        raise ScheduleError(f"{action} {reason}", place, action)
    steps = [Step(*place, action, needs(action, stages, places)) for action, place in places.items()]
    for rank, slot, action, needed in steps:
        for need in needed:
            if need not in places:
                reason = f"{action} needs {need}, which stands nowhere in the table"
                raise ScheduleError(reason, (rank, slot), action)
    return steps


def _cells(schedule: Schedule) -> Iterator[tuple[Place, Action]]:
    """Yield (place, action) slot by slot, so that what comes first is found first."""
    for slot, column in enumerate(zip(*schedule.ranks, strict=True)):
        for rank, action in enumerate(column):
            if action is not None:
                yield (rank, slot), action


def _deadlock(rows: Sequence[Sequence[Step]], done: set[Action]) -> ScheduleError:
    """Follow who waits for whom until a rank comes again; tell that circle from its first slot on."""
    at = {step.action: step for row in rows for step in row}

    def missing(step: Step) -> Step:
        return next(at[need] for need in step.needs if need not in done)

    head = min((row[0] for row in rows if row), key=_when)
    circle: list[Step] = []
    while head not in circle:
        circle.append(head)
        head = rows[missing(head).rank][0]
    circle = circle[circle.index(head) :]
    first = circle.index(min(circle, key=_when))
    circle = circle[first:] + circle[:first]
    told = f"{circle[0].action} needs "
    for step, following in zip(circle, circle[1:] + circle[:1], strict=True):
        need = missing(step)
        told += str(need.action)
        if need.rank == step.rank:
            told += f", which the same rank does only later, in slot {need.slot}"
        elif need != following:
            told += f", which rank {need.rank} does only after {following.action}"
        if following is not circle[0]:
            told += f"; {following.action} needs "
    return ScheduleError(told, circle[0][:2], circle[0].action)


def _when(step: Step) -> Place:
    return step.slot, step.rank


def _missing(found: set[Action], stages: int, micro_batches: int) -> list[Action]:
    missing: list[Action] = []
    for i in range(micro_batches):
        for stage in range(stages):
            split: tuple[Op, ...] = ("F", "I", "W") if Action("I", stage, i) in found else ("F", "B")
            missing += [action for op in split if (action := Action(op, stage, i)) not in found]
    return missing
