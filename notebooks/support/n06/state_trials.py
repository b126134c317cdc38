"""How `save` and `load` of notebook 06 are tried: killed at every moment, and given damaged files."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.kit.raised import in_case, named
from support.n06.drawn import chain, drawn_values


class _Killed(BaseException):
    """Stands for the kill: nothing that an answer does with errors catches it."""


def _go_on(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        torch.autograd.backward(model(drawn_values(8, 6, seed=step)).square().mean())
        optimizer.step()


def _new(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = chain(seed)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def _equal(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def _watch(path: Path, write: Callable[[], object], kill: bool = False) -> tuple[list[bytes | None], bool]:
    """Call `write` and look at the file before every line of Python that runs in it, the libraries' included.

    Returns what the file held, None where it was not there, and whether another one lay beside it.
    kill: end the call as soon as another lies beside it.
    """
    seen: list[bytes | None] = []
    last: object = ""
    beside = False
    for left in set(path.parent.iterdir()) - {path}:  # by an earlier call
        left.unlink()

    def look(*_: object) -> Any:
        nonlocal last, beside
        now = None
        with suppress(FileNotFoundError):
            found = path.stat()
            now = (found.st_ino, found.st_size, found.st_mtime_ns)
        if now != last:
            last = now
            seen.append(path.read_bytes() if now else None)
        beside = beside or bool(set(os.listdir(path.parent)) - {path.name})
        if kill and beside:
            raise _Killed
        return look

    tracer = sys.gettrace()
    sys.settrace(look)
    try:
        write()
    except _Killed:
        pass
    finally:
        sys.settrace(tracer)
    return seen, beside


MORE: Any = {"step": 3, "dealer": {"epoch": 0, "consumed": 180}}


def fault_of_state(pair: tuple[Any, Any]) -> str:
    """Load into other first weights and go on; save again, watched and killed; load files that are damaged."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        write, read = pair
        return (
            _fault_of_loading(write, read, path)
            or _fault_of_saving(write, path)
            or _fault_of_damage(read, path)
        )


def _fault_of_loading(write: Any, read: Any, path: Path) -> str:
    first = _new(0)
    again = _new(1)
    other = _new(1)
    _go_on(*first, range(3))
    with in_case("the first save"):
        write(path, *first, MORE)
    if not path.exists():
        there = ", ".join(sorted(each.name for each in path.parent.iterdir())) or "nothing"
        return f"save(path, …) has left no file at path, {path.name}; in its folder lies {there}."
    with in_case("load after the first save"):
        found = read(path, *again)
    if not _equal(first[0], again[0]):
        still = ": they are still those from before" if _equal(again[0], other[0]) else ""
        return f"after load the weights and buffers are not those that were saved{still}."
    if found != MORE:
        return f"load should return {MORE}, it returned {found}."
    for run in (first, again):
        _go_on(*run, range(3, 6))
    if not _equal(first[0], again[0]):
        return "load gives the right weights, but three steps later they are not those of a run nothing disturbed."
    return ""


def _fault_of_saving(write: Any, path: Path) -> str:
    old = path.read_bytes()
    run = _new(3)
    with in_case("save where an older file stands"):
        seen, beside = _watch(path, lambda: write(path, *run, MORE))
    new = path.read_bytes()
    bad = [content for content in seen if content not in (old, new)]
    if bad:
        held = "is not there" if bad[0] is None else f"has {len(bad[0]):,} bytes of {len(new):,}"
        though = ", though the new one lies beside it" if beside else ""
        return f"save again, and for a moment the file at path {held}{though}; a kill then costs the state."
    if not beside:
        return "the new file is not written in path's folder: only inside one file system is renaming one operation."
    with in_case("save, killed while it writes"):
        _watch(path, lambda: write(path, *_new(4), MORE), kill=True)
    if path.read_bytes() != new:
        return "killed while it wrote the new file, save has put the unfinished one in the place of the old."
    try:
        write(path, *run, MORE)
    except Exception as error:
        return f"after a kill has left an unfinished file, save raises {named(error)}."
    return ""


def _fault_of_damage(read: Any, path: Path) -> str:
    content = path.read_bytes()
    saved, _ = _new(3)
    sizes = 0, len(content) // 2, len(content) - 1
    damaged = [("that was cut off", content[:size]) for size in sizes]
    for place in range(len(content) // 3, len(content), len(content) // 40):
        flipped = bytes([content[place] ^ 64])
        damaged.append(("with one byte changed", content[:place] + flipped + content[place + 1 :]))
    for what, bad in damaged:
        path.write_bytes(bad)
        model, optimizer = _new(5)
        before, _ = _new(5)
        try:
            found = read(path, model, optimizer)
        except Exception:  # it refuses the file, in whatever words
            if not _equal(model, before) or optimizer.state:
                return f"load refuses a file {what}, but only after it has changed model or optimizer."
        else:
            if found != MORE or not _equal(model, saved):
                return f"load takes a file {what}, and goes on with wrong values without a word."
    return ""
