"""The runs on which `save` and `load` of notebook 16 are tried, and the two as a process of its own has them."""

from __future__ import annotations

import linecache
import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.kit.source import module_text

#: A layer of 74 KB, and Adam's moments twice as much: more than any file object keeps in its buffer.
WIDTH = 96
FILE = "<state.py"
MORE: Any = {"step": 3, "dealer": {"epoch": 0, "consumed": 180}}
#: What another job may hand over; "model" and "optimizer" are numbers of them.
OTHER_MORE: Any = {
    "epochs": 2,
    "best": 0.1,
    "model": 1,
    "optimizer": 2,
    "dealers": {"left": {"rows": 60}, "right": {"rows": 0}},
}

Training = tuple[nn.Module, torch.optim.Optimizer]


def as_in_the_job(pair: tuple[Any, Any], name: str) -> Any:
    """Return save or load as a process of its own would have it, or as it is where there is no text of it.

    The two are executed apart: what one has kept in memory the other does not find, as after a restart.
    """
    return _executed(pair, f" for {name}")[name == "load"]


def in_one_process(pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return both as one process has them, where load may find what save has kept in memory."""
    return _executed(pair, "")


def _executed(pair: tuple[Any, Any], ending: str) -> tuple[Any, Any]:
    try:
        text = module_text(*pair)
    except ValueError:
        return pair
    file = f"{FILE}{ending}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "state"}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    write = space.get(pair[0].__name__, pair[0])
    read = space.get(pair[1].__name__, pair[1])
    return write, read


# ---- a small run: two groups of parameters, batch statistics, and a schedule of all that a group holds


def new_run(seed: int, momentum: bool = False) -> Training:
    """Return a model and its optimizer, with first weights of this seed; with momentum, a frozen layer in it."""
    random = torch.Generator().manual_seed(seed)
    first = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(first, nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)).double()
    for parameter in model.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    others = [*model.parameters()][2:]
    groups: list[dict[str, Any]] = [{"params": [*first.parameters()]}, {"params": others, "lr": 0.02}]
    if momentum:
        model[1].eval()
        return model, torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    return model, torch.optim.Adam(groups, lr=0.01)


def small_run() -> Training:
    """Return a state of 2 KB, which a file object can keep in its buffer as a whole."""
    model = nn.Linear(1, 1)
    for parameter in model.parameters():
        nn.init.ones_(parameter)  # the same file each time
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def go_on(run: Training, steps: range) -> None:
    """Train for these steps."""
    model, optimizer = run
    for step in steps:
        random = torch.Generator().manual_seed(step)
        rows = torch.randn(8, WIDTH, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:  # what a schedule does; OneCycleLR has one for these, too
            group["lr"] *= 0.8
            group["weight_decay"] += 0.001
            if "betas" in group:
                group["betas"] = tuple(0.99 * beta for beta in group["betas"])
            if "momentum" in group:
                group["momentum"] *= 0.99


def gradients(run: Training) -> list[torch.Tensor | None]:
    """Return copies of the gradients that a run has at the moment."""
    return [None if each.grad is None else each.grad.clone() for each in run[0].parameters()]


def equal(one: nn.Module, other: nn.Module) -> bool:
    """Compare weights and buffers."""
    return same_state(dict(one.state_dict()), dict(other.state_dict()))


def same_state(one: Any, other: Any) -> bool:
    """Compare what a state_dict holds; a list is as good as a tuple."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same_state(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, (list, tuple)):
        return (
            isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same_state, one, other))
        )
    return bool(one == other)


def same_numbers(due: Any, found: Any) -> bool:
    """Compare what `load` returns with what was saved: an int is no float, and neither is a tensor."""
    if isinstance(due, dict):
        same_keys = isinstance(found, dict) and found.keys() == due.keys()
        return same_keys and all(same_numbers(value, found[key]) for key, value in due.items())
    return isinstance(found, type(due)) and bool(found == due)


def dated_back(path: Path) -> bytes:
    """Give a file the date 0, so that whoever writes it anew is found out, and return what it holds."""
    os.utime(path, (0, 0))
    return path.read_bytes()


def done_to(path: Path, content: bytes) -> str:
    """Return what has been done to a file since it was dated back, "" if nothing."""
    if not path.exists():
        return "taken the file away"
    if path.read_bytes() != content:
        return "changed the file"
    return "written the file anew" if path.stat().st_mtime_ns else ""


def saved(write: Any, path: Path, run: Training, more: Any = MORE) -> Any:
    """Save, and return what `save` has left of its `more`, a dictionary of its own: an answer may write into it."""
    more = deepcopy(more)
    write(path, *run, more)
    return more
