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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, cast

from lib.arguments import integer
from lib.files import whole_or_not_at_all

Op: TypeAlias = Literal["F", "B", "I", "W"]
OPS: tuple[Op, ...] = ("F", "B", "I", "W")
KINDS = {"F": "forward", "B": "backward", "I": "input", "W": "weight"}  # as spans of a timeline call them
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
        found = _FORM.fullmatch(str(text).strip())
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


def expect_schedule(given: object) -> None:
    """Refuse what is no Schedule: TypeError, with the call that was forgotten if it is a maker."""
    if isinstance(given, Schedule):
        return
    if callable(given):
        name = getattr(given, "__name__", "maker")
        raise TypeError(f"expected a Schedule, not the function {name} that makes one: call it, {name}(m, n)")
    raise TypeError(f"expected a Schedule, such as one_f_one_b(m, n) or Schedule.from_text(name, text), not {given!r}")
