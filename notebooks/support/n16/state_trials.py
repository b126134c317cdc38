"""How `save` and `load` of notebook 16 are tried: watched at every moment, interrupted, and given damaged files.

What a kill leaves is what lies on the disk at that moment. So nobody is killed here: the folder is looked at before
every line of Python that runs inside `save`, the libraries' included.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from support.kit.judged import Fault
from support.kit.raised import in_case, named
from support.kit.source import module_text
from support.n16.state_damage import (
    fault_behind_a_kill,
    fault_of_another_file,
    fault_of_damage,
    put_beside,
)
from support.n16.state_runs import (
    FILE,
    MORE,
    OTHER_MORE,
    Training,
    as_in_the_job,
    dated_back,
    done_to,
    equal,
    go_on,
    gradients,
    in_one_process,
    new_run,
    same_numbers,
    same_state,
    saved,
    small_run,
)
from support.n16.warm import on_ranks

FILE_OF_ITS_OWN = {
    "is not defined": "save and load go into a file of their own, which imports io, os, zlib and torch: import or "
    "define anything else inside the function."
}
FOLDER_MADE = "save makes a folder of its own; the folder of path is the only one that it may use."


class _Interrupted(BaseException):
    """Stands for the stop button: nothing that an answer does with errors catches it."""


class _FolderMade(BaseException):
    """There is a folder beside the file."""


class _NotEnded(BaseException):
    """It waits for something that a kill has left."""


#: Seconds: whoever takes longer behind a kill, and ten times as long as without one, waits for something.
PATIENCE = 10.0


def fault_of_state(pair: tuple[Any, Any]) -> str:
    """Load into other first weights, and in another process; save again, watched, and behind a kill; load damage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        with in_case("save and load in a file of their own", FILE_OF_ITS_OWN):
            write = as_in_the_job(pair, "save")
            read = as_in_the_job(pair, "load")
        return (
            _fault_of_loading(write, read, path)
            or _fault_of_loading_elsewhere(pair, write, read, path)
            or _fault_of_saving(write, path, new_run(3))
            or _fault_of_saving(write, path, small_run(), alone=False)
            or _fault_of_another_name(write, path)
            or _fault_of_many_saves(write, read, path)
            or _fault_of_the_first_save(write, path)
            or _fault_of_what_is_left(write, read, path)
            or fault_of_damage(write, read, path)
            or _fault_of_loading_at_once(read, path)
            or fault_of_another_file(*in_one_process(pair), path)
        )


# ---- what is asked of them


def _fault_of_loading(write: Any, read: Any, path: Path) -> str:
    for momentum, due in ((False, MORE), (True, OTHER_MORE)):
        first = new_run(0, momentum)
        again = new_run(1, momentum)
        other = new_run(1, momentum)
        go_on(first, range(3))
        before = gradients(first)
        with in_case("the first save" if due is MORE else f"save with {due} as more", FILE_OF_ITS_OWN):
            more = saved(write, path, first, due)
        if not same_state(gradients(first), before):
            return "save has changed the model's gradients: whoever adds up those of several steps goes on with others."
        if not same_state(more, due):
            new = ", ".join(str(key) for key in more if key not in due)
            now = f"it now has {new}, too" if new else f"it is now {more}"
            return f"save has changed the dictionary more, which belongs to its caller: {now}."
        if not path.exists():
            there = ", ".join(sorted(each.name for each in path.parent.iterdir())) or "nothing"
            return f"save(path, …) has left no file at path, {path.name}; in its folder lies {there}."
        if path.is_symlink():
            return "save has left a link at path, and the file at path is all that a restarted job will have."
        behind = "load after the first save" if due is MORE else f"load after a save with {due} as more"
        content = dated_back(path)
        with in_case(behind, FILE_OF_ITS_OWN):
            found = read(path, *again)
        if done := done_to(path, content):
            return f"load has {done}: all ranks load it, and so does the next restart."
        if isinstance(found, dict) and found.keys() != due.keys():
            held = f"a dictionary with {', '.join(map(str, found))}" if found else "an empty dictionary"
            return f"load should return {due}, it returned {held}."
        if not equal(first[0], again[0]):
            return _other_weights(first[0], again[0], other[0])
        if not same_numbers(due, found):
            return f"load should return {due}, it returned {found!r}."
        if not again[1].state:
            return "after load the optimizer has no state of its own."
        for was, group in zip(first[1].param_groups, again[1].param_groups, strict=True):
            for name in was:
                if name != "params" and not same_state(was[name], group.get(name)):
                    return Fault(
                        f"{name} of a group of parameters was {_short(was[name])} when the state was saved; "
                        f"after load it is {_short(group.get(name))}.",
                        ("param_groups", name),
                    )
        for run in (first, again):
            go_on(run, range(3, 6))
        if not equal(first[0], again[0]):
            return "load gives the right weights, but three steps later they are not those of a run nothing disturbed."
        path.unlink()
        saved(write, path, new_run(2))  # the older file
    return ""


def _other_weights(due: nn.Module, found: nn.Module, before: nn.Module) -> str:
    if equal(found, before):
        return "after load the weights and buffers are not those that were saved: they are still those from before."
    now = found.state_dict()
    others = [name for name, value in due.state_dict().items() if not same_state(value, now[name])]
    return f"after load these are not as they were saved: {', '.join(others)}."


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _fault_of_loading_elsewhere(pair: tuple[Any, Any], write: Any, read: Any, path: Path) -> str:
    """Load a small state here, and in a process that was not copied from this one, as a restarted job does."""
    try:
        text = module_text(*pair)
    except ValueError:
        return ""
    file = path.with_name("small.pt")
    with in_case("save of a small state", FILE_OF_ITS_OWN):
        saved(write, file, small_run())
    with in_case("load of a small state", FILE_OF_ITS_OWN):
        found = read(file, *small_run())
    if found != MORE:
        return f"load of a small state should return {MORE}, it returned {found!r}."
    if not path.exists():
        return f"save or load of {file.name} has removed a file beside it, {path.name}."
    given = {"text": text, "name": pair[1].__name__, "file": str(file)}
    (stand,) = on_ranks(loaded_elsewhere, 1, given)
    if stand.how == "done" and stand.value == MORE:
        return ""
    told = f"it returns {stand.value}" if stand.how == "done" else f"it raises {stand.value}"
    said = f"this process loads what it has saved, and in a new process load does not: {told}."
    return said.replace(f"{file.parent}{os.sep}", "")


def loaded_elsewhere(dist: Any, text: str, name: str, file: str) -> Any:
    """Load a state of `small_run`, as a rank of its own."""
    from pathlib import Path

    space: dict[str, Any] = {"__name__": "state"}
    exec(text, space)
    model = nn.Linear(1, 1)
    return space[name](Path(file), model, torch.optim.SGD(model.parameters(), lr=0.1))


def _fault_of_loading_at_once(read: Any, path: Path) -> str:
    """Load twice, watched: ranks that load at once would both write what both loads write beside path."""
    names = _written_beside(read, path)
    if names:  # most loads write nothing, and need no second look
        names &= _written_beside(read, path)
    for name in sorted(names):
        if str(os.getpid()) not in name:
            return f"load writes {name} beside path, and all ranks load at once: one reads what another has begun."
    return ""


def _written_beside(read: Any, path: Path) -> set[str]:
    _empty_but_for(path)
    try:
        return set(_watch(path, lambda: read(path, *new_run(7)))[1])
    except _FolderMade:
        return set()


def _watch(
    path: Path, write: Callable[[], object], patience: float = inf
) -> tuple[list[tuple[bytes | None, bool]], dict[str, bytes]]:
    """Call `write`, and look at the folder before every line of Python that runs in it, the libraries' included.

    In the answer's own lines it looks before every operation. Returns what the file held, None where it was not there,
    each with whether another lay beside it; and of each file that lay beside it the most that it ever held.
    """
    seen: list[tuple[bytes | None, bool]] = []
    left: dict[str, bytes] = {}
    last: object = ""

    def look(frame: FrameType, *_: object) -> Any:
        nonlocal last
        # One line may open a file and fill it.
        frame.f_trace_opcodes = frame.f_code.co_filename.startswith(FILE)
        now = None
        with suppress(FileNotFoundError):
            found = path.stat()
            now = (found.st_ino, found.st_size, found.st_mtime_ns)
        names = set(os.listdir(path.parent)) - {path.name}
        if any((path.parent / name).is_dir() for name in names - left.keys()):
            raise _FolderMade
        if (now, bool(names)) != last:
            last = (now, bool(names))
            seen.append((path.read_bytes() if now else None, bool(names)))
        for name in names:
            if (path.parent / name).stat().st_size > len(left.get(name, b"")) or name not in left:
                left[name] = (path.parent / name).read_bytes()
        return look

    _traced(look, write, patience)
    return seen, left


def _traced(look: Any, write: Callable[[], object], patience: float = inf) -> None:
    late = time.monotonic() + patience

    def look_in_time(*event: Any) -> Any:
        if time.monotonic() > late:
            raise _NotEnded
        look(*event)
        return look_in_time

    tracer = sys.gettrace()
    sys.settrace(look_in_time)
    try:
        write()
    except _Interrupted:
        pass
    finally:
        sys.settrace(tracer)


def _fault_of_saving(write: Any, path: Path, run: Training, alone: bool = True) -> str:
    """Save where an older file stands, alone or with what the save before has left beside it."""
    old = path.read_bytes()
    file = path.stat().st_ino
    if alone:
        _empty_but_for(path)
    with in_case("save where an older file stands", FILE_OF_ITS_OWN):
        try:
            seen, left = _watch(path, lambda: saved(write, path, run))
        except _FolderMade:
            return FOLDER_MADE
    new = path.read_bytes()
    written_over = path.stat().st_ino == file
    for content, beside in seen:
        if content in (old, new):
            continue
        held = "is not there" if content is None else f"has {len(content):,} bytes of {len(new):,}"
        though = ", though another file lies beside it" if beside else ""
        early = left and not beside and not written_over
        named_first = "; it has got its name before all of it was written" if early else ""
        said = f"save again, and for a moment the file at path {held}{though}{named_first}"
        copied = beside and new in left.values()
        known_by = ("moment", content is None, bool(content), beside, written_over, copied)
        return Fault(f"{said}; a kill then leaves no whole file there.", known_by)
    if written_over:
        said = "save again, and it writes over the file at path; a kill halfway leaves neither the old nor the new."
        return Fault(said, ("moment", False, False, False, True, False))
    if not left:
        return "the new file is not written in path's folder: only inside one file system is renaming one operation."
    return ""


def _fault_of_another_name(write: Any, path: Path) -> str:
    """Save twice where the name has no ending, in a folder of its own."""
    last = path.parent / "job" / "last"
    last.parent.mkdir()
    case = f"where path is named {last.name}"
    with in_case(case, FILE_OF_ITS_OWN):
        saved(write, last, small_run())
    if not last.exists():
        return f"{case}, save leaves no file at path."
    fault = _fault_of_saving(write, last, small_run())
    return Fault(f"{case}: {fault}", getattr(fault, "known_by", fault)) if fault else ""


def _fault_of_many_saves(write: Any, read: Any, path: Path) -> str:
    """Save and load again and again: a checksum may begin with zeros."""
    _empty_but_for(path)
    run = small_run()
    with in_case("one of a hundred saves and loads in a row", FILE_OF_ITS_OWN), patch("os.fsync"):
        for step in range(100):
            saved(write, path, run, {**MORE, "step": step})
            read(path, *run)
    return ""


def _fault_of_the_first_save(write: Any, path: Path) -> str:
    """Watch a save where no file stands yet: whoever begins with `if path.exists()` does so behind a kill, too."""
    old = path.read_bytes()
    path.unlink()
    _empty_but_for(path)
    with in_case("the first save", FILE_OF_ITS_OWN):
        try:
            seen, _ = _watch(path, lambda: saved(write, path, new_run(3)))
        except _FolderMade:
            return FOLDER_MADE
    new = path.read_bytes()
    path.write_bytes(old)
    for content, _ in seen:
        if content not in (None, new):
            return (
                f"the first save, and for a moment the file at path has {len(content):,} bytes of {len(new):,}; after "
                "a kill there is a file, and no restart can load it."
            )
    return ""


def _empty_but_for(path: Path) -> None:
    for other in set(path.parent.iterdir()) - {path}:
        if other.is_dir():
            shutil.rmtree(other)
        else:
            other.unlink()


def _fault_of_what_is_left(write: Any, read: Any, path: Path) -> str:
    """Interrupt a save; then put back what a kill would have left, save again, and load."""
    _empty_but_for(path)
    old = path.read_bytes()

    def stop(*_: object) -> Any:
        if set(os.listdir(path.parent)) - {path.name}:
            raise _Interrupted
        return stop

    with in_case("save, interrupted while it writes", FILE_OF_ITS_OWN):
        _traced(stop, lambda: saved(write, path, new_run(4)))
    if path.read_bytes() != old:
        return "interrupted while it wrote the new file, save has put the unfinished one in the place of the old."
    _empty_but_for(path)
    _, of_another = _watch(path, lambda: saved(write, path, new_run(4)))
    _empty_but_for(path)
    begun = time.monotonic()
    _, left = _watch(path, lambda: saved(write, path, new_run(5)))
    patience = max(PATIENCE, 10 * (time.monotonic() - begun))
    halves = {name: content[: len(content) // 2] for name, content in left.items()}
    summed = any(0 < len(content) <= 64 and content != left.get(name) for name, content in of_another.items())
    return (
        _fault_of_loading_behind_a_kill(
            read, path, of_another, "a whole file of another state", summed, patience
        )
        or _fault_of_loading_behind_a_kill(read, path, halves, "half a file", summed, patience)
        or fault_behind_a_kill(read, path, of_another)
        or _fault_of_litter(write, read, path, left, 0.5, patience)
        or _fault_of_litter(write, read, path, left, 2, patience)
    )


def _fault_of_loading_behind_a_kill(
    read: Any, path: Path, left: dict[str, bytes], what: str, summed: bool, patience: float
) -> str:
    """Load where the whole file of a run lies at path, and beside it what a killed save has left.

    summed: whether a file of a few bytes is among what lies beside it, and is another for another state.
    """
    put_beside(path, left)
    run = new_run(7)
    begun = f"a kill has left {what} beside the whole one at path, and load"
    try:
        _traced(lambda *_: None, lambda: read(path, *run), patience)
    except _NotEnded:
        return f"{begun} has not ended after {patience:.0f} seconds."
    except Exception as error:
        said = f"{begun} raises {named(error)}.".replace(f"{path.parent}{os.sep}", "")
        return Fault(said, ("behind a kill", what, summed))
    return "" if equal(run[0], new_run(5)[0]) else f"{begun} gives another state than that at path."


def _fault_of_litter(
    write: Any, read: Any, path: Path, left: dict[str, bytes], share: float, patience: float
) -> str:
    """Save, watched, and load where a kill has left so much of each file; a larger state leaves more."""
    put_beside(path, {name: (2 * content)[: int(share * len(content))] for name, content in left.items()})
    begun = "half a file" if share < 1 else "a longer file"
    old = path.read_bytes()
    try:
        seen, _ = _watch(path, lambda: saved(write, path, new_run(6)), patience)
    except _FolderMade:
        return FOLDER_MADE
    except _NotEnded:
        return f"after a kill has left an unfinished file, save has not ended after {patience:.0f} seconds."
    except Exception as error:
        said = f"after a kill has left an unfinished file, save raises {named(error)}."
        return said.replace(f"{path.parent}{os.sep}", "")
    new = path.read_bytes()
    run = new_run(7)
    try:
        read(path, *run)
    except Exception as error:
        said = f"behind a kill that has left {begun}, and one more save, load raises {named(error)}."
        behind = any(new.startswith(content[: len(content) // 2]) for content in left.values())
        return Fault(said.replace(f"{path.parent}{os.sep}", ""), ("litter", share, behind))
    if not equal(run[0], new_run(6)[0]):
        return "behind a kill and one more save, load gives another state."
    for found, _ in seen:
        if found not in (old, new):
            held = "is not there" if found is None else f"has {len(found):,} bytes of {len(new):,}"
            return Fault(
                f"behind a kill that has left {begun}, save again, and for a moment the file at path {held}.",
                ("litter", "moment", share),
            )
    return ""
