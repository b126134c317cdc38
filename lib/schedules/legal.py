"""Can a table run? Each action with what it needs, in an order in which all can be done; else the first fault, told.

F at stage s      needs F at stage s-1
B (or I) at s     needs F at s, and B (or I) at stage s+1
W at s            needs I at s                                       all of the same micro-batch
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from lib.arguments import integer
from lib.schedules.table import SPLIT, TWINS, WHOLE, Action, Schedule, expect_schedule

RankSlot: TypeAlias = tuple[int, int]  # rank, slot


class ScheduleError(ValueError):
    """A table that can't run. `rank`, `slot` and `action` say where; they are None if something is missing."""

    def __init__(self, reason: str, place: RankSlot | None = None, action: Action | None = None) -> None:
        self.reason = reason
        self.action = action
        self.rank: int | None = None
        self.slot: int | None = None
        told = reason
        if place is not None:
            self.rank, self.slot = place
            told = f"rank {self.rank}, slot {self.slot}: {reason}"
        super().__init__(told)


def needs(action: Action, stages: int, actions: Container[Action]) -> list[Action]:
    """Return what `action` has to wait for, in a schedule of `stages` stages that consists of `actions`."""
    if action.op == "F":
        if action.stage == 0:
            return []
        return [action._replace(stage=action.stage - 1)]
    if action.op == "W":
        return [action._replace(op="I")]
    needed = [action._replace(op="F")]
    if action.stage + 1 < stages:
        split = action._replace(op="I", stage=action.stage + 1)
        in_halves = split in actions or split._replace(op="W") in actions
        needed.append(split if in_halves else split._replace(op="B"))
    return needed


class Turn(NamedTuple):
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
    expect_schedule(schedule)
    n = schedule.stages if stages is None else integer("stages", stages, at_least=1)
    m = schedule.micro_batches if micro_batches is None else integer("micro_batches", micro_batches, at_least=1)
    found = {turn.action for turn in in_order(schedule, n, m)}
    if not complete:
        return
    missing = _missing(found, n, m)
    if missing:
        told = ", ".join(str(action) for action in missing[:5])
        if len(missing) > 5:
            told += f" and {len(missing) - 5} more"
        raise ScheduleError(f"schedule {schedule.name!r} lacks {told}")
    if not found:
        raise ScheduleError(f"schedule {schedule.name!r} has no actions")


def in_order(schedule: Schedule, stages: int | None = None, micro_batches: int | None = None) -> Iterator[Turn]:
    """Yield all actions, each after what it needs. Raises ScheduleError as `validate` does, a deadlock at the end."""
    expect_schedule(schedule)
    rows: list[deque[Turn]] = [deque() for _ in schedule.ranks]
    for turn in _checked(schedule, stages, micro_batches):
        rows[turn.rank].append(turn)
    done: set[Action] = set()
    for turn in playable(rows):
        done.add(turn.action)
        yield turn
    if any(rows):
        raise _deadlock(rows, done)


def playable(rows: Sequence[deque[Turn]]) -> Iterator[Turn]:
    """Take from the rows what can be done, each action after what it needs; what can't stays in them."""
    done: set[Action] = set()
    going = True
    while going:  # until no rank can do its next action
        going = False
        for row in rows:
            while row and done.issuperset(row[0].needs):
                done.add(row[0].action)
                yield row.popleft()
                going = True


def _checked(schedule: Schedule, stages: int | None, micro_batches: int | None) -> list[Turn]:
    """Return the turns slot by slot, without the order among ranks; refuse what is wrong in any order."""
    n = schedule.stages if stages is None else stages
    m = schedule.micro_batches if micro_batches is None else micro_batches
    places: dict[Action, RankSlot] = {}
    homes: dict[int, int] = {}
    for place, action in _slot_by_slot(schedule):
        reason = _wrong(action, place, n, m, homes, places)
        if reason is not None:
            raise ScheduleError(f"{action} {reason}", place, action)
        places[action] = place
    turns = [Turn(*place, action, needs(action, n, places)) for action, place in places.items()]
    for turn in turns:
        for need in turn.needs:
            if need not in places:
                reason = f"{turn.action} needs {need}, which stands nowhere in the table"
                raise ScheduleError(reason, turn[:2], turn.action)
    return turns


def _slot_by_slot(schedule: Schedule) -> Iterator[tuple[RankSlot, Action]]:
    """Yield where each action stands, so that of several faults the one that comes first is found first."""
    for slot, column in enumerate(zip(*schedule.ranks, strict=True)):
        for rank, action in enumerate(column):
            if action is not None:
                yield (rank, slot), action


def _wrong(
    action: Action, place: RankSlot, n: int, m: int, homes: dict[int, int], places: Mapping[Action, RankSlot]
) -> str | None:
    """Say what is wrong with an action, after those in `places`; None if nothing is. homes: the rank of each stage."""
    op, stage, i = action
    if stage >= n:
        return f"is at stage {stage}, but the stages are 0..{n - 1}"
    if i >= m:
        return f"is of micro-batch {i}, but the micro-batches are 0..{m - 1}"
    home = homes.setdefault(stage, place[0])
    if home != place[0]:
        return f"is at stage {stage}, which rank {home} has; a stage stays on one rank"
    if action in places:
        return f"has been done already, in slot {places[action][1]}"
    for other in TWINS[op]:
        twin = action._replace(op=other)
        if twin in places:
            return f"does again what {twin} did; a backward is either B, or I and W"
    return None


def _deadlock(rows: Sequence[Sequence[Turn]], done: set[Action]) -> ScheduleError:
    """Follow who waits for whom until a rank comes again; tell that circle from its first slot on."""
    at = {turn.action: turn for row in rows for turn in row}

    def missing(turn: Turn) -> Turn:
        return next(at[need] for need in turn.needs if need not in done)

    when = attrgetter("slot", "rank")
    # From the first rank that waits, on to the first action of the rank that has what it lacks, until one comes again.
    head = min((row[0] for row in rows if row), key=when)
    circle: list[Turn] = []
    while head not in circle:
        circle.append(head)
        head = rows[missing(head).rank][0]
    circle = circle[circle.index(head) :]  # without the ranks that only wait for it
    first = circle.index(min(circle, key=when))
    circle = circle[first:] + circle[:first]
    told = f"{circle[0].action} needs "
    for k, turn in enumerate(circle):
        following = circle[(k + 1) % len(circle)]
        need = missing(turn)
        told += str(need.action)
        if need.rank == turn.rank:
            told += f", which the same rank does only later, in slot {need.slot}"
        elif need != following:
            told += f", which rank {need.rank} does only after {following.action}"
        if following is not circle[0]:
            told += f"; {following.action} needs "
    return ScheduleError(told, circle[0][:2], circle[0].action)


def _missing(found: set[Action], stages: int, micro_batches: int) -> list[Action]:
    """Return what is not done, micro-batch by micro-batch; where an I has been done, the other half is missing."""
    missing = []
    for i in range(micro_batches):
        for stage in range(stages):
            split = Action("I", stage, i) in found
            every = [Action(op, stage, i) for op in (SPLIT if split else WHOLE)]
            missing += [action for action in every if action not in found]
    return missing


def slotted(schedule: Schedule) -> Schedule:
    """Return the same orders with None wherever a rank has to wait, if an action takes one slot and sending none.

    Every action stands in the first slot in which it can run. Idle slots in `schedule` are ignored.
    Raises ScheduleError for orders that can't run, as `validate` does.
    """
    expect_schedule(schedule)
    rows: list[list[Action | None]] = [[] for _ in schedule.ranks]
    ready: dict[Action, int] = {}  # from which slot on its result is there
    for rank, _, action, needed in in_order(schedule):
        row = rows[rank]
        start = max([len(row), *(ready[need] for need in needed)])
        idle = start - len(row)
        row += [None] * idle
        row.append(action)
        ready[action] = start + 1
    return Schedule(schedule.name, rows)
