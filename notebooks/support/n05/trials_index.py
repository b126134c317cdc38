"""What an index does when it is tried: which bounds, which reads, what is in memory and what is copied meanwhile."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from support.captions import HEADER
from support.kit.raised import in_case
from support.kit.values import kind_of
from support.n05.runs import held_and_most, only_new_objects, written
from support.n05.trials import FAR, MANY, ROWS, difference_told, fault_of_far, fault_of_width, random_rows
from support.n05.watched import watching

#: Rows of a file, and bytes of a block: also blocks that end within a row and within a letter.
_FILES: tuple[tuple[list[str], int], ...] = (
    (ROWS, 1 << 20),
    (ROWS, 7),
    (ROWS[:1], 3),
    (["Ä", "b"], 1),
    (["a\r", "\rb"], 3),  # a newline alone ends a line
    ([], 4),
)


@only_new_objects()
def fault_of_index(index: Any) -> str:
    """Index small files in blocks of several sizes, then a large one: what is in memory meanwhile?"""
    generator = random.Random(7)
    more = [(random_rows(generator), generator.randrange(1, 40)) for _ in range(20)]
    for rows, block in (*_FILES, *more):
        fault = _fault_of_small_file(index, rows, block)
        if fault:
            return fault
    return (
        _fault_of_small_file(index, ["ab", "c"], 3, header="#\n")
        or _fault_of_pieces(index)
        or _fault_of_large_index(index)
        or _fault_of_long_row(index)
        or _fault_of_copies(index)
        or _fault_of_far_places(index)
    )


def _fault_of_small_file(index: Any, rows: Sequence[str], block: int, header: str = HEADER) -> str:
    headed = f" with the header {header.strip()!r}" if header != HEADER else ""
    file = f"a file of {len(rows)} rows{headed}, read in blocks of {block} bytes"
    with written(rows, header) as path:
        wanted = _bounds_of(path)
        with in_case(f"for {file}"), watching(path, index) as watch:
            got = index(path, block)
    if not isinstance(got, np.ndarray):
        return f"the index is one numpy array, not {kind_of(got)}."
    if got.ndim != 1:
        return f"the index of {file} has the shape {got.shape}, not ({len(wanted)},)."
    fault = difference_told(list(map(int, got)), wanted, f"the index of {file},") or fault_of_width(
        got, "the index"
    )
    sizes = [size for _, size in watch.reads]
    if not fault and -1 in sizes:
        return f"for {file}, you read all that is left of it at once."
    if not fault and max(sizes, default=0) > block:
        return (
            f"for {file}, one of your reads brings up to {max(sizes):,} bytes: read `block` bytes at a time."
        )
    return fault


def _bounds_of(path: str) -> list[int]:
    return [place + 1 for place, byte in enumerate(Path(path).read_bytes()) if byte == ord("\n")]


def _fault_of_large_index(index: Any) -> str:
    rows = [row.ljust(300, ".") for row in MANY]
    case = f"for a file of {len(rows)} rows, read in blocks of 4096 bytes"
    with written(rows) as path, _joins_counted() as joined, in_case(case):
        _, kept, peak = held_and_most(lambda: index(path, 4096))
    if peak > 25 * len(MANY) + 40_000:
        needed = "the bounds of all rows and a few blocks take less than 115"
        return f"of 900 kB, with block = 4096, {peak / 1e3:.0f} kB were in memory at a time, and {needed}."
    if sum(joined) > 8 * 8 * len(MANY):  # of arrays that double: six times
        return _COPIED
    if kept > 16 * len(MANY):
        return f"{kept / len(MANY):.0f} bytes a row stay in memory, and a bound has 8."
    return ""


_COPIED = "the bounds found so far are copied anew with every block."


def _fault_of_long_row(index: Any) -> str:
    case = "for a row of 300 kB, read in blocks of 4096 bytes"
    with written(["x" * 300_000, "y"]) as path, in_case(case):
        _, _, peak = held_and_most(lambda: index(path, 4096))
    if peak > 100_000:
        why = "a row may be longer than a block, and blocks are all that is read"
        return f"{case}, {peak / 1e3:.0f} kB were in memory at a time: {why}."
    return ""


def _fault_of_pieces(index: Any) -> str:
    """Say whether a file is read in far more pieces than it has blocks; twice is no fault."""
    rows = [row.ljust(300, ".") for row in MANY]
    file = f"for a file of {len(rows)} rows, read"
    with written(rows) as path, watching(path, index) as watch:
        size = Path(path).stat().st_size
        for block in (5_000, 1 << 20):
            case = f"{file} in blocks of {block} bytes"
            watch.clear()
            with in_case(case):
                index(path, block)
            if watch.mapped > block + mmap.PAGESIZE:  # a map begins with a page
                return f"{case}, you map {watch.mapped:,} bytes of it at once: map or read `block` bytes at a time."
            blocks = -(-size // block)
            if len(watch.reads) > 2 * blocks + 10:
                return f"{case}, of which it has {blocks}, you read {len(watch.reads):,} pieces."
        case = f"{file} without saying how large a block is"
        with in_case(case):
            found = len(index(path)) - 1
    return difference_told(found, len(rows), f"{case}: the number of rows")


def _fault_of_copies(index: Any) -> str:
    """Say whether what has been collected is a new object after each block, whatever joins it."""
    rows = ["x"] * 60_000
    with (
        written(rows) as path,
        in_case(f"for a file of {len(rows):,} short rows"),
        watching(path, index) as watch,
    ):
        watch.locals.looking = True
        index(path, 1_000)
    return _COPIED if watch.locals.anew > watch.locals.looks / 8 > 0 else ""


def _fault_of_far_places(index: Any) -> str:
    """Say whether bounds wrap beyond 32 bits. Each block says that it is longer than it is."""
    with written(ROWS) as path:
        near = _bounds_of(path)
        case = f"for a file of {len(near)} lines, whose blocks say that they are {FAR / 1e12:.0f} TB longer"
        try:
            with watching(path, index, far=FAR):
                got = index(path, 7)
        except OverflowError as error:
            with in_case(case):
                raise error
        except Exception:  # what compares its place with the file's real size can't be told so
            return ""
    return fault_of_far(got, near, f"{case}, the index")


@contextmanager
def _joins_counted() -> Iterator[list[int]]:
    """Note how many bytes each array of bounds has that numpy joins, or makes for them to be copied into."""
    joined: list[int] = []

    def counted(name: str) -> Callable[..., Any]:
        join = vars(np)[name]

        @wraps(join)
        def joining(*arguments: Any, **named: Any) -> Any:
            made = join(*arguments, **named)
            joined.append(made.nbytes if made.dtype.itemsize == 8 else 0)  # else it is text, or a mask of it
            return made

        return joining

    with ExitStack() as stack:
        for name in ("append", "concatenate", "hstack", "insert", "resize", "empty", "zeros"):
            stack.enter_context(mock.patch.object(np, name, counted(name)))
        yield joined
