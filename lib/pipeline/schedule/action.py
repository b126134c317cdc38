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
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, cast

from lib._arguments import integer

Op: TypeAlias = Literal["F", "B", "I", "W"]
OPS: tuple[Op, ...] = ("F", "B", "I", "W")
_FORM = re.compile(r"(\d+)([FBIW])(\d+)")


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
        stage, micro_batch = (
            integer("stage", stage, at_least=0),
            integer("micro_batch", micro_batch, at_least=0),
        )
        return super().__new__(cls, op, stage, micro_batch)

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


Row: TypeAlias = tuple[Action | None, ...]


@dataclass(frozen=True, init=False)
class Schedule:
    """Hold, for each rank, its actions in order; None is an idle slot. Immutable.

    ranks: a sequence of rows. Raises ValueError for no rank, and TypeError for what is neither Action nor None.
    Whether the table can run at all is for `validate` to say.
    """

    name: str
    ranks: tuple[Row, ...]

    def __init__(self, name: str, ranks: Iterable[Sequence[Action | None]]) -> None:
        rows = tuple(tuple(row) for row in ranks)
        if not rows:
            raise ValueError(f"schedule {name!r} has no ranks; give one row of actions a rank")
        for r, row in enumerate(rows):
            for cell in row:
                if cell is not None and not isinstance(cell, Action):
                    raise TypeError(
                        f"rank {r} of schedule {name!r} holds {cell!r}, neither an Action nor None"
                    )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "ranks", rows)

    def actions(self, rank: int) -> list[Action]:
        """Return the actions of one rank in order, without the idle slots."""
        return [action for action in self.ranks[rank] if action is not None]

    def __iter__(self) -> Iterator[tuple[int, Action]]:
        """Yield (rank, action), rank by rank."""
        return ((rank, action) for rank in range(len(self.ranks)) for action in self.actions(rank))

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
        """Return the same orders without idle slots."""
        return Schedule(self.name, [self.actions(rank) for rank in range(len(self.ranks))])

    def to_text(self) -> str:
        """Return the table as aligned text: a line a rank, a dot for an idle slot."""
        cells = [[str(cell) if cell else "." for cell in row] for row in self.ranks]
        width = max((len(cell) for row in cells for cell in row), default=1)
        return "\n".join(
            f"rank {rank}  " + " ".join(f"{cell:>{width}}" for cell in row) for rank, row in enumerate(cells)
        )

    def __str__(self) -> str:
        return self.to_text()

    @classmethod
    def from_text(cls, name: str, text: str) -> Schedule:
        """Read what `to_text` wrote; the words `rank 0` may be left out. Raises ValueError for an unknown cell."""
        lines = [re.sub(r"^\s*rank\s+\d+\s", "", line).split() for line in text.splitlines() if line.strip()]
        return cls(
            name, [[None if cell in (".", "-") else Action.parse(cell) for cell in line] for line in lines]
        )

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as torch writes it, a row a rank, empty cells for idle slots; and write it whole to `path`."""
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(
            [["" if cell is None else str(cell) for cell in row] for row in self.ranks]
        )
        if path is not None:
            folder = Path(path).resolve().parent
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", newline="", dir=folder, delete=False
            ) as file:
                file.write(lines.getvalue())
            os.replace(file.name, path)
        return lines.getvalue()

    @classmethod
    def from_csv(cls, name: str, path: str | os.PathLike[str]) -> Schedule:
        """Read a table that `to_csv` or torch wrote. Raises ValueError for an unknown cell, with its row and column."""
        rows: list[list[Action | None]] = []
        with open(path, encoding="utf-8", newline="") as file:
            for r, row in enumerate(csv.reader(file)):
                rows.append([])
                for c, cell in enumerate(row):
                    try:
                        rows[-1].append(Action.parse(cell) if cell.strip() else None)
                    except ValueError as error:
                        raise ValueError(f"row {r}, column {c} of {os.fspath(path)}: {error}") from None
        return cls(name, rows)
