"""How `save` and `load` of notebook 16 are tried: watched at every moment, interrupted, and given damaged files.

What a kill leaves is what lies on the disk at that moment. So nobody is killed here: the folder is looked at before
every line of Python that runs inside `save`, the libraries' included.
"""

from __future__ import annotations

import linecache
import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from support.kit.judged import Fault
from support.kit.raised import in_case, named
from support.kit.source import module_text
from support.n16.warm import on_ranks

WIDTH = (
    96  # a layer of 74 KB, and Adam's moments twice as much: more than any file object keeps in its buffer
)
FILE_OF_ITS_OWN = {
    "is not defined": "save and load go into a file of their own, which imports io, os, zlib and torch: import or "
    "define anything else inside the function."
}
FILE = "<state.py"
FOLDER_MADE = "save makes a folder of its own; the folder of path is the only one that it may use."
MORE: Any = {"step": 3, "dealer": {"epoch": 0, "consumed": 180}}


class _Interrupted(BaseException):
    """Stands for the stop button: nothing that an answer does with errors catches it."""


class _FolderMade(BaseException):
    """There is a folder beside the file."""


Training = tuple[nn.Module, torch.optim.Optimizer]


def fault_of_state(pair: tuple[Any, Any]) -> str:
    """Load into other first weights, and in another process; save again, watched, and behind a kill; load damage."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.pt"
        write = as_in_the_job(pair, "save")
        read = as_in_the_job(pair, "load")
        return (
            _fault_of_loading(write, read, path)
            or _fault_of_loading_elsewhere(pair, write, path)
            or _fault_of_saving(write, path, _new(3))
            or _fault_of_saving(write, path, _small())
            or _fault_of_the_first_save(write, path)
            or _fault_of_what_is_left(write, read, path)
            or _fault_of_damage(write, read, path)
        )


def as_in_the_job(pair: tuple[Any, Any], name: str) -> Any:
    """Return save or load as a process of its own would have it, or as it is where there is no text of it.

    The two are executed apart: what one has kept in memory the other does not find, as after a restart.
    """
    answer = pair[0] if name == "save" else pair[1]
    try:
        text = module_text(*pair)
    except ValueError:
        return answer
    file = f"{FILE} for {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "state"}
    exec(compile(text, file, "exec"), space)
    return space.get(answer.__name__, answer)


# ---- a small run: two groups of parameters, batch statistics, and a schedule of all that a group holds


def _new(seed: int, momentum: bool = False) -> Training:
    random = torch.Generator().manual_seed(seed)
    first = nn.Linear(WIDTH, WIDTH)
    model = nn.Sequential(first, nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 3)).double()
    for parameter in model.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    others = [*model.parameters()][2:]
    groups: list[dict[str, Any]] = [{"params": [*first.parameters()]}, {"params": others, "lr": 0.02}]
    if momentum:
        return model, torch.optim.SGD(groups, lr=0.01, momentum=0.9)
    return model, torch.optim.Adam(groups, lr=0.01)


def _small() -> Training:
    """Return a state of 2 KB, which a file object can keep in its buffer as a whole."""
    model = nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _go_on(run: Training, steps: range) -> None:
    model, optimizer = run
    for step in steps:
        random = torch.Generator().manual_seed(step)
        rows = torch.randn(8, WIDTH, generator=random, dtype=torch.float64)
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        for group in optimizer.param_groups:  # what a schedule does; OneCycleLR has one for the betas, too
            group["lr"] *= 0.8
            group["weight_decay"] += 0.001
            if "betas" in group:
                group["betas"] = tuple(0.99 * beta for beta in group["betas"])


def _equal(one: nn.Module, other: nn.Module) -> bool:
    return _same(dict(one.state_dict()), dict(other.state_dict()))


def _same(one: Any, other: Any) -> bool:
    """Compare what a state_dict holds; a list is as good as a tuple."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(_same(value, other[key]) for key, value in one.items())
        )
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


# ---- what is asked of them


def _fault_of_loading(write: Any, read: Any, path: Path) -> str:
    for momentum in (False, True):
        first = _new(0, momentum)
        again = _new(1, momentum)
        other = _new(1, momentum)
        _go_on(first, range(3))
        with in_case("the first save", FILE_OF_ITS_OWN):
            more = _saved(write, path, first)
        if not _same(more, MORE):
            new = ", ".join(str(key) for key in more if key not in MORE)
            now = f"it now has {new}, too" if new else f"it is now {more}"
            return f"save has changed the dictionary more, which belongs to its caller: {now}."
        if not path.exists():
            there = ", ".join(sorted(each.name for each in path.parent.iterdir())) or "nothing"
            return f"save(path, …) has left no file at path, {path.name}; in its folder lies {there}."
        with in_case("load after the first save", FILE_OF_ITS_OWN):
            found = read(path, *again)
        if not path.exists():
            return "load has taken the file away: all ranks load it, and so does the next restart."
        if isinstance(found, dict) and found.keys() != MORE.keys():
            return f"load should return {MORE}, it returned a dictionary with {', '.join(map(str, found))}."
        if not _equal(first[0], again[0]):
            still = ": they are still those from before" if _equal(again[0], other[0]) else ""
            return f"after load the weights and buffers are not those that were saved{still}."
        if found != MORE:
            return f"load should return {MORE}, it returned {found}."
        if not again[1].state:
            return "after load the optimizer has no state of its own: it begins as on the first day."
        for saved, group in zip(first[1].param_groups, again[1].param_groups, strict=True):
            for name in saved:
                if name != "params" and not _same(saved[name], group.get(name)):
                    return Fault(
                        f"{name} of a group of parameters was {_short(saved[name])} when the state was saved; "
                        f"after load it is {_short(group.get(name))}.",
                        ("param_groups", name),
                    )
        for run in (first, again):
            _go_on(run, range(3, 6))
        if not _equal(first[0], again[0]):
            return "load gives the right weights, but three steps later they are not those of a run nothing disturbed."
        path.unlink()
        _saved(write, path, _new(2))  # the older file
    return ""


def _saved(write: Any, path: Path, run: Training) -> Any:
    """Save, and return what `save` has left of its `more`, a dictionary of its own: an answer may write into it."""
    more = deepcopy(MORE)
    write(path, *run, more)
    return more


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_short, value))})"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _fault_of_loading_elsewhere(pair: tuple[Any, Any], write: Any, path: Path) -> str:
    """Load in a process that was not copied from this one, as a restarted job does."""
    try:
        text = module_text(*pair)
    except ValueError:
        return ""
    file = path.with_name("small.pt")
    with in_case("save of a small state", FILE_OF_ITS_OWN):
        _saved(write, file, _small())
    given = {"text": text, "name": pair[1].__name__, "file": str(file)}
    (stand,) = on_ranks(loaded_elsewhere, 1, given)
    if stand.how == "done" and stand.value == MORE:
        return ""
    told = f"it returns {stand.value}" if stand.how == "done" else f"it raises {stand.value}"
    said = f"this process loads what it has saved, and in a new process load does not: {told}."
    return said.replace(f"{file.parent}{os.sep}", "")


def loaded_elsewhere(dist: Any, text: str, name: str, file: str) -> Any:
    """Load a state of `_small`, as a rank of its own."""
    from pathlib import Path

    space: dict[str, Any] = {"__name__": "state"}
    exec(text, space)
    model = nn.Linear(1, 1)
    return space[name](Path(file), model, torch.optim.SGD(model.parameters(), lr=0.1))


def _watch(
    path: Path, write: Callable[[], object]
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

    _traced(look, write)
    return seen, left


def _traced(look: Any, write: Callable[[], object]) -> None:
    tracer = sys.gettrace()
    sys.settrace(look)
    try:
        write()
    except _Interrupted:
        pass
    finally:
        sys.settrace(tracer)


def _fault_of_saving(write: Any, path: Path, run: Training) -> str:
    old = path.read_bytes()
    _empty_but_for(path)
    with in_case("save where an older file stands", FILE_OF_ITS_OWN):
        try:
            seen, left = _watch(path, lambda: _saved(write, path, run))
        except _FolderMade:
            return FOLDER_MADE
    new = path.read_bytes()
    for content, beside in seen:
        if content in (old, new):
            continue
        held = "is not there" if content is None else f"has {len(content):,} bytes of {len(new):,}"
        though = ", though another file lies beside it" if beside else ""
        named_first = "; it has got its name before all of it was written" if left and not beside else ""
        said = f"save again, and for a moment the file at path {held}{though}{named_first}"
        known_by = ("moment", content is None, bool(content), beside, bool(left))
        return Fault(f"{said}; a kill then leaves no whole file there.", known_by)
    if not left:
        return "the new file is not written in path's folder: only inside one file system is renaming one operation."
    return ""


def _fault_of_the_first_save(write: Any, path: Path) -> str:
    """Watch a save where no file stands yet: whoever begins with `if path.exists()` does so behind a kill, too."""
    old = path.read_bytes()
    path.unlink()
    _empty_but_for(path)
    with in_case("the first save", FILE_OF_ITS_OWN):
        try:
            seen, _ = _watch(path, lambda: _saved(write, path, _new(3)))
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
        _traced(stop, lambda: _saved(write, path, _new(4)))
    if path.read_bytes() != old:
        return "interrupted while it wrote the new file, save has put the unfinished one in the place of the old."
    _empty_but_for(path)
    _, left = _watch(path, lambda: _saved(write, path, _new(5)))
    return (
        _fault_of_loading_behind_a_kill(read, path, left)
        or _fault_of_litter(write, read, path, left, 0.5)
        or _fault_of_litter(write, read, path, left, 2)
    )


def _fault_of_loading_behind_a_kill(read: Any, path: Path, left: dict[str, bytes]) -> str:
    """Load where the whole file of a run lies at path, and half of each file that a save begins lies beside it."""
    for name, content in left.items():
        (path.parent / name).write_bytes(content[: len(content) // 2])
    run = _new(7)
    begun = "a kill has left half a file beside the whole one at path, and load"
    try:
        read(path, *run)
    except Exception as error:
        said = f"{begun} raises {named(error)}.".replace(f"{path.parent}{os.sep}", "")
        return Fault(said, ("behind a kill", said, len(left)))
    return "" if _equal(run[0], _new(5)[0]) else f"{begun} gives another state than that of the whole one."


def _fault_of_litter(write: Any, read: Any, path: Path, left: dict[str, bytes], share: float) -> str:
    """Save and load where a kill has left so much of each file that a save begins; a larger state leaves more."""
    for name, content in left.items():
        (path.parent / name).write_bytes((2 * content)[: int(share * len(content))])
    begun = "half a file" if share < 1 else "a longer file"
    try:
        _saved(write, path, _new(6))
    except Exception as error:
        said = f"after a kill has left an unfinished file, save raises {named(error)}."
        return said.replace(f"{path.parent}{os.sep}", "")
    run = _new(7)
    try:
        read(path, *run)
    except Exception as error:
        said = f"behind a kill that has left {begun}, and one more save, load raises {named(error)}."
        now = path.read_bytes()
        behind = any(now.startswith(content[: len(content) // 2]) for content in left.values())
        return Fault(said.replace(f"{path.parent}{os.sep}", ""), ("litter", share, behind))
    return "" if _equal(run[0], _new(6)[0]) else "behind a kill and one more save, load gives another state."


def _fault_of_damage(write: Any, read: Any, path: Path) -> str:
    """Take the file alone into another folder, and damage it there."""
    run = _new(6)
    _go_on(run, range(2))
    _saved(write, path, run)
    folder = path.parent / "elsewhere"
    folder.mkdir()
    alone = folder / path.name
    shutil.copy(path, alone)
    try:
        read(alone, *_new(5))
    except Exception as error:
        return Fault(
            f"the file at path, copied alone into another folder, can't be loaded: {type(error).__name__}. What a "
            "state consists of must change in one operation, so it is one file.",
            "alone",
        )
    content = alone.read_bytes()
    sizes = (0, 3, len(content) // 2, len(content) - 1)
    damaged = [("that was cut off", content[:size]) for size in sizes]
    everywhere = [*range(6), *range(len(content) // 3, len(content), len(content) // 40)]
    for place in [*_places_of_parts(content, run), *everywhere]:
        flipped = bytes([content[place] ^ 64])
        damaged.append(("with one byte changed", content[:place] + flipped + content[place + 1 :]))
    for what, bad in damaged:
        alone.write_bytes(bad)
        model, optimizer = _new(5)
        before, _ = _new(5)
        try:
            found = read(alone, model, optimizer)
        except Exception:  # it refuses the file, in whatever words
            if not _equal(model, before) or optimizer.state:
                return f"load refuses a file {what}, but only after it has changed model or optimizer."
            continue
        if _equal(model, before):
            return f"load neither loads a file {what} nor refuses it: it returns {found}, and the job begins anew."
        wrong = {
            "weights": not _equal(model, run[0]),
            "optimizer": not _same(optimizer.state_dict(), run[1].state_dict()),
            "return value": found != MORE,
        }
        if any(wrong.values()):
            parts = " and ".join(part for part, is_wrong in wrong.items() if is_wrong)
            return f"load takes a file {what}, and goes on with wrong values without a word: {parts}."
    return ""


def _places_of_parts(content: bytes, run: Training) -> list[int]:
    """Return where in a file a weight, the moments, a learning rate and `consumed` stand, as far as we find them."""
    model, optimizer = run
    weight = next(model.parameters())
    moments = optimizer.state[weight]
    numbers = [
        each.detach().numpy().tobytes()[:64] for each in (weight, moments["exp_avg"], moments["exp_avg_sq"])
    ]
    rate = optimizer.param_groups[0]["lr"]
    numbers += [struct.pack(">d", rate), struct.pack("<d", rate)]
    places = [content.index(each) + 3 for each in numbers if each in content]
    name = content.find(b"consumed")
    behind = range(name + 8, name + 24) if name >= 0 else ()
    return [place for place in (*places, *behind) if place < len(content)]
