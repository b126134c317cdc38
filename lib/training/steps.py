"""What each rank did in each step, a JSON line at a time, and which steps survived.

    attempt 0    step 0  1  2  3  4 | 5  6 †          saved after step 4; a rank died in step 7
    attempt 1                         5  6  7  8      begins where the state was saved: 5 and 6 are done again

What attempt 0 did in steps 5 and 6 is lost with the weights: those lines stay in the log, and count no more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    step: counted from the start of training, the same for all ranks. rows: numbers of the rows in the meta file. loss:
    mean over these rows, 0.0 if there are none. start, end: in seconds of `time.time()`, one clock for all ranks of a
    machine: right for drawing, not for measuring, for a clock that is set jumps.
    """

    attempt: int
    world_size: int
    rank: int
    epoch: int
    mini_epoch: int
    step: int
    rows: tuple[int, ...]
    loss: float
    start: float
    end: float


class StepLog:
    """Append a rank's steps to FOLDER/rank{r}.jsonl, each as it is done: a kill later takes none of them away."""

    def __init__(self, folder: str | os.PathLike[str], rank: int) -> None:
        self._path = Path(folder) / f"rank{rank}.jsonl"

    def write(self, step: Step) -> None:
        """Append one line."""
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(step)) + "\n")


def read_steps(folder: str | os.PathLike[str]) -> list[Step]:
    """Return the steps of all ranks and attempts, in order of attempt, step and rank.

    A last line that is cut short, by a kill, is left out. Raises FileNotFoundError for a folder that does not exist.
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"no folder {os.fspath(folder)!r}: nothing was trained there")
    steps = []
    for path in Path(folder).glob("rank*.jsonl"):
        if re.fullmatch(r"rank\d+\.jsonl", path.name):
            lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # complete ones end in a newline
            steps += [_step(json.loads(line)) for line in lines]
    return sorted(steps, key=lambda step: (step.attempt, step.step, step.rank))


def _step(line: Mapping[str, Any]) -> Step:
    return Step(**{**line, "rows": tuple(line["rows"])})


def next_attempt(folder: str | os.PathLike[str]) -> int:
    """Return one more than the highest attempt that has done a step; 0 for the first."""
    return 1 + max((step.attempt for step in read_steps(folder)), default=-1)


def surviving(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that no later attempt has done again."""
    steps = list(steps)
    first: dict[int, int] = {}
    for step in steps:
        first[step.attempt] = min(step.step, first.get(step.attempt, step.step))
    return [
        step for step in steps if all(step.step < begin for n, begin in first.items() if n > step.attempt)
    ]


def global_losses(steps: Iterable[Step]) -> list[float]:
    """Return the mean loss of each global batch, over the rows of all ranks; give it the steps that survived."""
    sums: dict[int, tuple[float, int]] = {}
    for step in steps:
        loss, rows = sums.get(step.step, (0.0, 0))
        sums[step.step] = loss + step.loss * len(step.rows), rows + len(step.rows)
    return [loss / rows for _, (loss, rows) in sorted(sums.items())]
