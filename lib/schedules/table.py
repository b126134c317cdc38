"""Action and Schedule: one table type that the simulator predicts, the executor runs and torch can read.

    rank 0   0F0  0F1  0F2   .    .   0B0  0B1  0B2        an action is stage, operation, micro-batch: 0F2
    rank 1    .   1F0  1F1  1F2  1B0  1B1  1B2   .         a dot is an idle slot

operations   F forward · B backward, whole · I backward for the input only · W backward for the weights only
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Literal, NamedTuple, TypeAlias, cast

from lib.arguments import integer
from lib.files import whole_or_not_at_all

Op: TypeAlias = Literal["F", "B", "I", "W"]
OPS: tuple[Op, ...] = ("F", "B", "I", "W")
# What is done to a micro-batch at a stage: a backward is whole, or in two halves.
WHOLE: tuple[Op, ...] = ("F", "B")
SPLIT: tuple[Op, ...] = ("F", "I", "W")
# So these would do work again that has been done.
TWINS: dict[Op, tuple[Op, ...]] = {"F": (), "B": ("I", "W"), "I": ("B",), "W": ("B",)}
_FORM = re.compile(r"([0-9]+)([FBIW])([0-9]+)")
# What torch's tables hold besides: two actions done as one, and what it does between actions.
_TOGETHER = re.compile(r"\((.*)\)OVERLAP_F_B")
_NO_WORK = re.compile(r"[0-9]+(UNSHARD|RESHARD|REDUCE_GRAD|(SEND|RECV)_[FB][0-9]+)")


class _Action(NamedTuple):
    op: Op
    stage: int
    micro_batch: int


class Action(_Action):
    """Name one piece of work: `op` on `micro_batch` at `stage`. It prints, and is read, as torch does: `2B1`.

    Raises ValueError for an unknown op or a negative number.
    """

    __slots__ = ()

    def __new__(cls, op: Op, stage: int, micro_batch: int) -> Action:
        """Check the three; see the class."""
        if op not in OPS:
            raise ValueError(f"op must be one of {', '.join(OPS)}, not {op!r}")
        stage = integer("stage", stage, at_least=0)
        return super().__new__(cls, op, stage, integer("micro_batch", micro_batch, at_least=0))

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.micro_batch}"

    def __repr__(self) -> str:
        return str(self)

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read `2B1`: stage 2, backward, micro-batch 1. Raises ValueError for anything else."""
        found = _FORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} is no action; write stage, one of F B I W, micro-batch: 2B1")
        return cls(cast(Op, found[2]), int(found[1]), int(found[3]))


def _read(cell: str) -> list[Action | None]:
    """Return what stands in a cell: mostly one action, or None. Of torch's others only the work is read, in order."""
    cell = cell.strip()
    if cell in ("", ".", "-", "None"):
        return [None]
    together = _TOGETHER.fullmatch(cell)
    if together is not None:
        return [Action.parse(part) for part in together[1].split(";")]
    if _NO_WORK.fullmatch(cell):
        return []
    return [Action.parse(cell)]


Row: TypeAlias = tuple[Action | None, ...]


@dataclass(frozen=True, init=False)
class Schedule:
    """Hold, for each rank, its actions in order; None is an idle slot. Immutable.

    ranks: a sequence of rows. Shorter rows end in idle slots, so that all are as long as the longest: column k is
    slot k of every rank. Raises ValueError for no rank, TypeError for a cell that is neither Action nor None.
    Whether the table can run at all is for `validate` to say.
    """

    name: str
    ranks: tuple[Row, ...]

    def __init__(self, name: str, ranks: Iterable[Iterable[Action | None]]) -> None:
        rows = [tuple(row) for row in ranks]
        if not rows:
            raise ValueError(f"schedule {name!r} has no ranks; give one row of actions a rank")
        for r, row in enumerate(rows):
            for cell in row:
                if cell is not None and not isinstance(cell, Action):
                    raise TypeError(f"rank {r} of schedule {name!r} holds {cell!r}, neither an Action nor None")
        # One form for every table, whoever made or read it: it ends with the last slot in which anything is done.
        done_in = [slot for row in rows for slot, cell in enumerate(row) if cell is not None]
        slots = max(done_in, default=-1) + 1
        ranks = []
        for row in rows:
            idle = (None,) * (slots - len(row))  # none, if the row is too long
            ranks.append((row + idle)[:slots])
        object.__setattr__(self, "name", name)  # the dataclass is frozen
        object.__setattr__(self, "ranks", tuple(ranks))

    def actions(self, rank: int) -> list[Action]:
        """Return the actions of one rank in order, without the idle slots."""
        return [action for action in self.ranks[rank] if action is not None]

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        """Yield (rank, action), rank by rank."""
        return ((rank, action) for rank in range(len(self.ranks)) for action in self.actions(rank))

    @property
    def slots(self) -> int:
        """The number of columns: up to the last slot in which anything is done."""
        return len(self.ranks[0])

    @cached_property
    def stages(self) -> int:
        """The number of stages: one more than the highest that is named."""
        return 1 + max((action.stage for _, action in self), default=-1)

    @cached_property
    def micro_batches(self) -> int:
        """The number of micro-batches: one more than the highest that is named."""
        return 1 + max((action.micro_batch for _, action in self), default=-1)

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank of each stage: the first that works on it."""
        found: dict[int, int] = {}
        for rank, action in self:
            found.setdefault(action.stage, rank)
        return found

    def compact(self) -> Schedule:
        """Return the same orders with nothing idle between two actions of a rank."""
        return Schedule(self.name, [self.actions(rank) for rank in range(len(self.ranks))])

    def to_text(self) -> str:
        """Return the table as aligned text: a line a rank, a dot for an idle slot."""
        cells = [[str(cell) if cell else "." for cell in row] for row in self.ranks]
        width = max((len(cell) for row in cells for cell in row), default=1)
        head = len(f"rank {len(cells) - 1}")
        lines = []
        for rank, row in enumerate(cells):
            begin = f"rank {rank}".ljust(head)
            actions = " ".join(cell.rjust(width) for cell in row)
            lines.append(f"{begin}  {actions}".rstrip())
        return "\n".join(lines)

    __str__ = to_text

    @classmethod
    def from_text(cls, name: str, text: str) -> Schedule:
        """Read what `to_text` wrote; the words `rank 0` may be left out. Raises ValueError for an unknown cell."""
        rows = []
        for line in text.splitlines():
            if line.strip():
                words = re.sub(r"^\s*rank\s+[0-9]+:?(\s|$)", "", line).split()
                rows.append([cell for word in words for cell in _read(word)])
        return cls(name, rows)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as torch writes it: a row a rank, an empty cell for an idle slot.

        path: where to write it as well; the file appears whole or not at all.
        """
        rows = [[str(cell or "") for cell in row] for row in self.ranks]
        lines = io.StringIO()
        # a table without slots still has its ranks: one empty cell each, for a row of none would be a blank line
        csv.writer(lines, lineterminator="\n").writerows(row or [""] for row in rows)
        text = lines.getvalue()
        if path is not None:
            with whole_or_not_at_all(path) as file:
                file.write_text(text, encoding="utf-8", newline="")
        return text

    @classmethod
    def from_csv(cls, name: str, path: str | os.PathLike[str]) -> Schedule:
        """Read a table that `to_csv` or torch wrote; blank lines don't count.

        Of torch's files only the work is read: (0F4;7B0)OVERLAP_F_B becomes 0F4, 7B0, and what it sends, receives,
        gathers or reduces between actions takes no slot. Raises ValueError for an unknown cell, with row and column.
        """
        rows: list[list[Action | None]] = []
        with open(path, encoding="utf-8-sig", newline="") as file:
            for r, row in enumerate(csv.reader(file)):
                cells: list[Action | None] = []
                for c, cell in enumerate(row):
                    try:
                        cells += _read(cell)
                    except ValueError as error:
                        raise ValueError(f"row {r}, column {c} of {os.fspath(path)}: {error}") from None
                if row:  # not a blank line
                    rows.append(cells)
        return cls(name, rows)


# ---- can a table run?
#
# F at stage s      needs F at stage s-1
# B (or I) at s     needs F at s, and B (or I) at stage s+1
# W at s            needs I at s                                       all of the same micro-batch

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
        needed.append(split if split in actions else split._replace(op="B"))
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
