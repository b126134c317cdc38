"""What outlives a run whose process dies: the state that it goes on from.

It is one file (see lib.training.state_file):

    model/words.weight            every tensor of the model
    optimizer/0/exp_avg           every tensor of the optimizer, by number of parameter
    group/0/lr                    a setting of the optimizer that is a tensor, by number of group
    json                          all else: the parameters' names, where in the epoch, which step, learning rate, …
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from lib.training.state_file import read_state_file, refuse_what_json_changes, write_state_file


def save_state(
    path: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer, identity: Mapping[str, Any], **more: Any
) -> None:
    """Write model, optimizer and whatever else JSON can hold. Written beside the file, then renamed onto it.

    identity: by name, what must be equal where the state is loaded: seed, checksum of the data, …; the name of the
    optimizer's class is one more. Whoever is killed meanwhile leaves the old file as it was. One process may write at a
    time: rank 0.

    Raises ValueError, and leaves the old file, for what would not come back equal: a tuple or NaN in `identity` or
    `more`, a dict whose keys are no strings, a sparse tensor, an optimizer's parameter that the model doesn't have.
    """
    of_optimizer = optimizer.state_dict()
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {
        "identity": {"optimizer": type(optimizer).__name__, **identity},
        "more": more,
        "parameters": _parameter_names(model, optimizer),
        "groups": [],
        "extra": {},
        "moments": {},
    }
    for name, value in model.state_dict().items():
        if isinstance(value, torch.Tensor):
            tensors[f"model/{name}"] = value
        else:  # what a module's get_extra_state returned
            values["extra"][name] = value
    for number, moments in of_optimizer["state"].items():
        for kind, value in moments.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer/{number}/{kind}"] = value
            else:
                values["moments"].setdefault(str(number), {})[kind] = value
    for number, group in enumerate(of_optimizer["param_groups"]):
        settings = {}
        for name, value in group.items():
            if isinstance(value, torch.Tensor):
                tensors[f"group/{number}/{name}"] = value
            else:  # Adam's betas are a tuple: load_state makes them one again
                settings[name] = list(value) if isinstance(value, tuple) else value
        values["groups"].append(settings)
    for number, settings in enumerate(values["groups"]):
        refuse_what_json_changes(f"group {number} of the optimizer", settings)
    write_state_file(path, tensors, values)


def load_state(
    path: str | os.PathLike[str], model: nn.Module, optimizer: Optimizer, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Read a state into model and optimizer, in place, and return the rest.

    Raises FileNotFoundError, and ValueError for a file that is damaged, has another identity or is of another model or
    optimizer: other names or shapes of parameters, another order, other groups, moments that are too many or would be
    rounded to other numbers. Whatever is raised, also by a module's own set_extra_state: model and optimizer are then
    as they were.
    """
    path = Path(path)
    tensors, values = read_state_file(path)
    try:
        there = values["identity"]
        more = dict(values["more"])
        weights = {**_below("model/", tensors), **values["extra"]}
        parameters = values["parameters"]
        moments = _moments(tensors, values["moments"])
        groups = _groups(values["groups"], tensors, optimizer)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no training state ({reason}); remove it to begin anew") from error
    _check_identity(path, there, {"optimizer": type(optimizer).__name__, **identity})
    _check_model(path, weights, model)
    _check_parameters(path, parameters, _parameter_names(model, optimizer))
    count = sum(len(group) for group in parameters)
    for number in sorted(moments):
        if number not in range(count):
            raise ValueError(f"{path} has moments of parameter {number}, and the optimizer has {count}")
    with _all_or_nothing(model, optimizer):
        optimizer.load_state_dict({"state": moments, "param_groups": groups})
        _check_moments(path, moments, optimizer)
        model.load_state_dict(weights)
    return more


def _parameter_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Return the names of the optimizer's parameters in the model, a list for each group.

    Raises ValueError for a parameter that the model doesn't have: it would not be saved.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                raise ValueError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is none of the model's: "
                    "give the optimizer model.parameters(), or a model that holds this one, too"
                )
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _below(folder: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    return {name.removeprefix(folder): tensor for name, tensor in tensors.items() if name.startswith(folder)}


def _moments(tensors: Mapping[str, torch.Tensor], plain: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return what the file has of each parameter, by number: tensors and plain values."""
    moments: dict[int, dict[str, Any]] = {int(number): dict(values) for number, values in plain.items()}
    for name, value in _below("optimizer/", tensors).items():
        number, kind = name.split("/", 1)
        moments.setdefault(int(number), {})[kind] = value
    return moments


def _groups(
    settings: list[dict[str, Any]], tensors: Mapping[str, torch.Tensor], optimizer: Optimizer
) -> list[dict[str, Any]]:
    """Return the file's groups; a list is a tuple, and a tensor where it is, as in the optimizer that is here."""
    groups = [dict(group) for group in settings]
    for name, value in _below("group/", tensors).items():
        number, setting = name.split("/", 1)
        groups[int(number)][setting] = value
    for group, here in zip(groups, optimizer.param_groups, strict=False):  # their number is compared with the names
        for name, value in group.items():
            its = here.get(name)
            if isinstance(its, tuple):
                group[name] = tuple(value)
            elif isinstance(its, torch.Tensor) and isinstance(value, torch.Tensor):
                group[name] = value.to(its.device)
    return groups


def _check_identity(path: Path, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise ValueError(
                f"{path} was saved with {name}={there.get(name)!r}, this run has {name}={here.get(name)!r}; "
                "choose another folder, or remove it to begin anew"
            )


def _check_model(path: Path, weights: Mapping[str, Any], model: nn.Module) -> None:
    def described(values: Mapping[str, Any]) -> dict[str, str]:
        return {
            name: f"has shape {tuple(value.shape)}, {value.dtype}," if isinstance(value, torch.Tensor) else "is"
            for name, value in values.items()
        }

    there = described(weights)
    here = described(model.state_dict())
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            raise ValueError(
                f"{path} is of another model: {name} {there.get(name, 'is not')} in the file and "
                f"{here.get(name, 'is not')} here; remove it to begin anew"
            )


def _check_parameters(path: Path, there: list[list[str]], here: list[list[str]]) -> None:
    """Compare the optimizer's parameters by name: moments belong to numbers, and numbers to an order."""
    their_sizes = [len(group) for group in there]
    our_sizes = [len(group) for group in here]
    if their_sizes != our_sizes:
        raise ValueError(
            f"{path} is of an optimizer with groups of {their_sizes} parameters, this one has {our_sizes}; "
            "build it as the one that was saved"
        )
    for theirs, ours in zip(chain(*there), chain(*here), strict=True):
        if theirs != ours:
            raise ValueError(
                f"{path} is of an optimizer that has {theirs} where this one has {ours}: its moments would go to other "
                "parameters; give it the same ones in the same order"
            )


def _check_moments(path: Path, moments: Mapping[int, Mapping[str, Any]], optimizer: Optimizer) -> None:
    """Compare what the optimizer took over with the file: torch turns moments into the parameter's kind of numbers."""
    taken = optimizer.state_dict()["state"]
    for number, values in moments.items():
        for kind, value in values.items():
            its = taken.get(number, {}).get(kind)
            if isinstance(value, torch.Tensor) and (not isinstance(its, torch.Tensor) or its.dtype != value.dtype):
                found = its.dtype if isinstance(its, torch.Tensor) else its
                raise ValueError(
                    f"{path} has {value.dtype} as {kind} of parameter {number}, which the optimizer turned into "
                    f"{found}: it would not go on as it was"
                )


@contextmanager
def _all_or_nothing(model: nn.Module, optimizer: Optimizer) -> Iterator[None]:
    """Put model and optimizer back as they were if anything is raised."""
    weights = {
        name: value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for name, value in model.state_dict().items()
    }
    # Loading gives the optimizer new dicts and lists; the old ones stay as they are.
    before = {"state": optimizer.state, "param_groups": optimizer.param_groups}
    try:
        yield
    except BaseException:
        optimizer.__setstate__(before)
        with torch.no_grad():
            for name, value in model.state_dict(keep_vars=True).items():
                if isinstance(value, torch.Tensor):
                    value.copy_(weights[name])
        with suppress(Exception):  # a set_extra_state that raises again must not hide what it raised first
            model.load_state_dict(weights)
        raise
