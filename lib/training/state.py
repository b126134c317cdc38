"""What outlives a run whose process dies: the state that it goes on from.

It is one file, whole or not at all, and without pickle:

    state.npz     model/words.weight            every tensor of the model
                  optimizer/0/exp_avg           every tensor of the optimizer, by number of parameter
                  json                          all else: where in the epoch, which step, learning rate, …

What numpy has no numbers for, as bfloat16, is saved as integers of as many bytes, and json says which those are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from lib.files import whole_or_not_at_all

FORMAT = 2


def save_state(
    path: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer, identity: Mapping[str, Any], **more: Any
) -> None:
    """Write model, optimizer and whatever else JSON can hold. Written beside the file, then renamed onto it.

    identity: by name, what must be equal where the state is loaded: seed, checksum of the data, …; the name of the
    optimizer's class is one more. Whoever is killed meanwhile leaves the old file as it was. One process may write at a
    time: rank 0.
    """
    values = {f"model/{name}": tensor for name, tensor in model.state_dict().items()}
    of_optimizer = optimizer.state_dict()
    groups = of_optimizer["param_groups"]
    for number, moment in of_optimizer["state"].items():
        values |= {f"optimizer/{number}/{name}": value for name, value in moment.items()}
    arrays = {}
    dtypes = {}
    for name, value in values.items():
        tensor = torch.as_tensor(value).detach().cpu()
        try:
            arrays[name] = tensor.numpy()
        except TypeError:  # numpy has no such numbers
            same_size = getattr(torch, f"int{8 * tensor.itemsize}")
            arrays[name] = tensor.view(same_size).numpy()
            dtypes[name] = str(tensor.dtype).removeprefix("torch.")
    identity = {"optimizer": type(optimizer).__name__, **identity}
    text = json.dumps({"format": FORMAT, "identity": identity, "groups": groups, "more": more, "dtypes": dtypes})
    with whole_or_not_at_all(path, "unfinished") as unfinished, open(unfinished, "wb") as file:
        np.savez(file, allow_pickle=False, json=np.array(text), **arrays)
        file.flush()
        os.fsync(file.fileno())


def load_state(
    path: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Read a state into model and optimizer, in place, and return the rest.

    Raises FileNotFoundError, and ValueError for a file that is damaged, has another identity or is of another model
    or optimizer; model and optimizer are then as they were.
    """
    path = Path(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        info = json.loads(str(arrays.pop("json")))
        found = info["format"]
        groups = info["groups"]
        there = info["identity"]
        more = info["more"]
        values = {name: torch.from_numpy(array) for name, array in arrays.items()}
        for name, dtype in info.get("dtypes", {}).items():
            values[name] = values[name].view(getattr(torch, dtype))
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and json say in a dozen ways that a file is damaged
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no training state ({reason}); remove it to begin anew") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, this program reads {FORMAT}; remove it to begin anew")
    identity = {"optimizer": type(optimizer).__name__, **identity}
    for name in sorted(there.keys() | identity.keys()):
        if there.get(name) != identity.get(name):
            raise ValueError(
                f"{path} was saved with {name}={there.get(name)!r}, this run has {name}={identity.get(name)!r}; "
                "choose another folder, or remove it to begin anew"
            )
    weights = {name.removeprefix("model/"): value for name, value in values.items() if name.startswith("model/")}
    _check(path, weights, model)
    moments: dict[int, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith("optimizer/"):
            _, number, kind = name.split("/", 2)
            moments.setdefault(int(number), {})[kind] = value
    optimizer.load_state_dict({"state": moments, "param_groups": groups})  # refuses first, then copies
    model.load_state_dict(weights)
    return dict(more)


def _check(path: Path, weights: Mapping[str, torch.Tensor], model: nn.Module) -> None:
    def described(tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        return {name: f"has shape {tuple(tensor.shape)}, {tensor.dtype}," for name, tensor in tensors.items()}

    there = described(weights)
    here = described(model.state_dict())
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise ValueError(
                f"{path} is of another model: {name} {there.get(name, 'is not')} in the file and "
                f"{here.get(name, 'is not')} here; remove it to begin anew"
            )
