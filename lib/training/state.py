"""What outlives a run whose process dies: the state that it goes on from. One file, whole or not at all, no pickle:

state.npz     model/words.weight            every tensor of the model
              optimizer/0/exp_avg           every tensor of the optimizer, by number of parameter
              json                          all else: where in the epoch, which step, learning rate, …
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lib._values import whole_or_not_at_all

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
    arrays = {f"model/{name}": _array(tensor) for name, tensor in model.state_dict().items()}
    moments, groups = optimizer.state_dict()["state"], optimizer.state_dict()["param_groups"]
    for number, values in moments.items():
        arrays |= {f"optimizer/{number}/{name}": _array(value) for name, value in values.items()}
    text = json.dumps({"format": FORMAT, "identity": {**identity}, "groups": groups, "more": more})
    with whole_or_not_at_all(path, "unfinished") as unfinished, open(unfinished, "wb") as file:
        np.savez(file, allow_pickle=False, json=np.array(text), **arrays)
        file.flush()
        os.fsync(file.fileno())


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
