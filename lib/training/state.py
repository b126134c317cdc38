"""What outlives a run whose process dies: the state that it goes on from, and a log of what each rank did.

The state is one file, whole or not at all, and without pickle:

    state.npz     model/words.weight            every tensor of the model
                  optimizer/0/exp_avg           every tensor of the optimizer, by number of parameter
                  json                          all else: where in the epoch, which step, learning rate, …

The log has a JSON line for each step of a rank, and some of them count no more:

    attempt 0    step 0  1  2  3  4 | 5  6 †          saved after step 4; a rank died in step 7
    attempt 1                         5  6  7  8      begins where the state was saved: 5 and 6 are done again

What attempt 0 did in steps 5 and 6 is lost with the weights.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

FORMAT = 1


def save_state(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    identity: Mapping[str, Any],
    **more: Any,
) -> None:
    """Write model, optimizer and whatever else JSON can hold. Written beside the file, then renamed onto it.

    identity: by name, what must be equal where the state is loaded: seed, checksum of the data, …
    Whoever is killed meanwhile leaves the old file as it was. One process may write at a time: rank 0.
    """
    path = Path(path)
    arrays = {f"model/{name}": _array(tensor) for name, tensor in model.state_dict().items()}
    moments, groups = optimizer.state_dict()["state"], optimizer.state_dict()["param_groups"]
    for number, values in moments.items():
        arrays |= {f"optimizer/{number}/{name}": _array(value) for name, value in values.items()}
    text = json.dumps({"format": FORMAT, "identity": {**identity}, "groups": groups, "more": more})
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with open(unfinished, "wb") as file:
            np.savez(file, allow_pickle=False, json=np.array(text), **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def load_state(
    path: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Read a state into model and optimizer, in place, and return the rest.

    Raises FileNotFoundError, and ValueError for a file that is damaged, has another identity or is of another model;
    model and optimizer are then as they were.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        info = json.loads(str(arrays.pop("json")))
        found, groups, there, more = info["format"], info["groups"], info["identity"], info["more"]
    except FileNotFoundError:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no training state ({reason}); remove it to begin anew") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, this program reads {FORMAT}; remove it to begin anew")
    for name in there.keys() | identity.keys():
        if there.get(name) != identity.get(name):
            raise ValueError(
                f"{path} was saved with {name}={there.get(name)!r}, this run has {name}={identity.get(name)!r}; "
                "choose another folder, or remove it to begin anew"
            )
    weights = {name.removeprefix("model/"): a for name, a in arrays.items() if name.startswith("model/")}
    _check(path, weights, model)
    moments: dict[int, dict[str, Any]] = {}
    for name, array in arrays.items():
        if name.startswith("optimizer/"):
            _, number, kind = name.split("/", 2)
            moments.setdefault(int(number), {})[kind] = torch.from_numpy(array)
    optimizer.load_state_dict({"state": moments, "param_groups": groups})  # refuses first, then copies
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    return dict(more)


def _array(value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    return np.asarray(value.detach().cpu() if isinstance(value, torch.Tensor) else value)


def _check(path: Path, weights: Mapping[str, np.ndarray[Any, np.dtype[Any]]], model: nn.Module) -> None:
    there = {name: array.shape for name, array in weights.items()}
    here = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise ValueError(
                f"{path} is of another model: {name} has shape {there.get(name, 'none')} in the file and "
                f"{here.get(name, 'none')} here; remove it to begin anew"
            )


# ---- the log of steps


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
            steps += [Step(**{**line, "rows": tuple(line["rows"])}) for line in map(json.loads, lines)]
    return sorted(steps, key=lambda step: (step.attempt, step.step, step.rank))


def next_attempt(folder: str | os.PathLike[str]) -> int:
    """Return one more than the highest attempt that has done a step; 0 for the first."""
    return 1 + max((step.attempt for step in read_steps(folder)), default=-1)


def surviving(steps: Iterable[Step]) -> list[Step]:
    """Return the steps that no later attempt has done again."""
    steps = list(steps)
    first: dict[int, int] = {}
    for step in steps:
        first[step.attempt] = min(step.step, first.get(step.attempt, step.step))
    return [s for s in steps if all(s.step < begin for n, begin in first.items() if n > s.attempt)]


def global_losses(steps: Iterable[Step]) -> list[float]:
    """Return the mean loss of each global batch, over the rows of all ranks; give it the steps that survived."""
    sums: dict[int, tuple[float, int]] = {}
    for step in steps:
        loss, rows = sums.get(step.step, (0.0, 0))
        sums[step.step] = loss + step.loss * len(step.rows), rows + len(step.rows)
    return [loss / rows for _, (loss, rows) in sorted(sums.items())]
