"""What `load` of notebook 16 makes of a damaged file, and of one that others have put at `path`."""

from __future__ import annotations

import os
import re
import shutil
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from support.kit.judged import Fault
from support.kit.raised import named
from support.n16.state_runs import (
    MORE,
    OTHER_MORE,
    Training,
    dated_back,
    done_to,
    equal,
    go_on,
    new_run,
    same_state,
    saved,
)


def fault_of_damage(write: Any, read: Any, path: Path) -> str:
    """Take the file alone into another folder, and damage it there."""
    run = new_run(6)
    go_on(run, range(2))
    saved(write, path, run)
    folder = path.parent / "elsewhere"
    folder.mkdir()
    alone = folder / path.name
    shutil.copy(path, alone)
    try:
        read(alone, *new_run(5))
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
        flipped = bytes([content[place] ^ 1])  # a digit stays one
        damaged.append(("with one byte changed", content[:place] + flipped + content[place + 1 :]))
    # Of the entries of an archive's directory; torch.load reads nothing of what is marked as a folder.
    for entry in re.finditer(rb"PK\x01\x02.{34}(.)", content, re.DOTALL):
        marked = bytes([content[entry.start(1)] ^ 16])
        damaged.append(
            ("with one byte changed", content[: entry.start(1)] + marked + content[entry.end(1) :])
        )
    for what, bad in damaged:
        alone.write_bytes(bad)
        model, optimizer = new_run(5)
        before, begun = new_run(5)
        dated_back(alone)
        try:
            found = read(alone, model, optimizer)
        except Exception:  # it refuses the file, in whatever words
            if not equal(model, before) or not same_state(optimizer.state_dict(), begun.state_dict()):
                return f"load refuses a file {what}, but only after it has changed model or optimizer."
            if done := done_to(alone, bad):
                return f"load refuses a file {what}, and has {done}: it is to leave it as it is."
            continue
        if equal(model, before):
            return f"load neither loads a file {what} nor refuses it: it returns {found}."
        wrong = {
            "weights": not equal(model, run[0]),
            "optimizer": not same_state(optimizer.state_dict(), run[1].state_dict()),
            "return value": found != MORE,
        }
        if any(wrong.values()):
            parts = " and ".join(part for part, is_wrong in wrong.items() if is_wrong)
            return f"load takes a file {what}, and goes on with wrong values without a word: {parts}."
    return ""


def put_beside(path: Path, left: dict[str, bytes]) -> None:
    """Put files beside path, each a new one: a name that lies there may be another of the file at path."""
    for name, content in left.items():
        (path.parent / name).unlink(missing_ok=True)
        (path.parent / name).write_bytes(content)


def fault_behind_a_kill(read: Any, path: Path, left: dict[str, bytes]) -> str:
    """Take the file at path away, and cut it off; what a killed save has left beside it is whole, but not for load."""
    put_beside(path, left)
    whole = path.read_bytes()
    said = ""
    for what in ("not there", "cut off"):
        path.unlink()
        if what == "cut off":
            path.write_bytes(whole[:-9])
        run = new_run(7)
        with suppress(Exception):  # it refuses the file, in whatever words
            read(path, *run)
        if equal(run[0], new_run(4)[0]):
            said = (
                f"the file at path is {what}, and load takes the state that a killed save has left beside it."
            )
        path.write_bytes(whole)
    return said


def fault_of_another_file(write: Any, read: Any, path: Path) -> str:
    """Put an older file at path, beside what saves have left there, and load it into a run that has begun."""
    older = new_run(8)
    go_on(older, range(2))
    saved(write, path, older)
    content = path.read_bytes()
    newer = new_run(9)
    go_on(newer, range(4))
    saved(write, path, newer, OTHER_MORE)
    begun = path.read_bytes()
    path.write_bytes(content)
    run = new_run(7)
    go_on(run, range(2, 5))
    put_back = "an older file is put back at path, and load"
    try:
        found = read(path, *run)
    except Exception as error:
        return f"{put_back} raises {named(error)}.".replace(f"{path.parent}{os.sep}", "")
    if equal(run[0], newer[0]):
        return f"{put_back} gives the newer state, which is not what stands there."
    wrong = {
        "weights": not equal(run[0], older[0]),
        "optimizer": not same_state(run[1].state_dict(), older[1].state_dict()),
        "return value": found != MORE,
    }
    for part in (each for each, is_wrong in wrong.items() if is_wrong):
        return f"{put_back}, into a run that has trained already, gives another state than it holds: {part}."
    path.write_bytes(begun[:-9])
    try:
        read(path, *run)
    except Exception:  # it refuses the file, in whatever words
        return ""
    return "save twice, cut off the file at path, and load raises no error: whoever restarts is not told."


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
