"""What packed rows, an index and a file dataset do when they are tried: a function says what is wrong, or ""."""

from __future__ import annotations

import builtins
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from support.kit.raised import in_case
from support.kit.values import NO_RETURN, kind_of
from support.n05.runs import held_and_most, positions, written
from support.n05.solved import index_of

# ---- what the exercises have in common

ROWS = ['img/000000000.jpg "a dog"', 'img/000000001.jpg "Ärger im Café"', "", 'img/000000003.jpg "犬"', "x"]
MANY = [f"row {number:05} " + "." * (number % 40) for number in range(3000)]
TEXT = sum(map(len, MANY))
_SPACED = ["  a row with spaces ", "another\t"]


def difference_told(got: Any, wanted: Any, where: str) -> str:
    """Say that something differs from what it should be, "" if it does not."""
    if got == wanted:
        return ""
    seen = f"your code {NO_RETURN}" if got is None else f"it is {got!r}"
    return f"{where} should be {wanted!r}, {seen}."


def rows_fault(dataset: Any, name: str) -> str:
    """Compare a dataset of ROWS with them, item by item."""
    fault = difference_told(len(dataset), len(ROWS), f"of {len(ROWS)} rows, len({name})")
    for number, row in enumerate(ROWS):
        fault = fault or difference_told(dataset[number], row, f"of {ROWS}, {name}[{number}]")
    return fault


def is_kept(read: Callable[[], str]) -> bool:
    """Tell whether anybody but us refers to the string that `read` returns, as a cache of rows does."""
    row = read()
    fresh = "".join(["a row ", "of nobody else"])
    return sys.getrefcount(row) > sys.getrefcount(fresh)


def _all_read(dataset: Any) -> Any:
    """Read every row, singly and in batches if it has any, and return the dataset: does it keep them?"""
    _ = [dataset[number] for number in range(len(dataset))]
    if hasattr(dataset, "__getitems__"):
        dataset.__getitems__([*range(len(dataset))])
    return dataset


def _fault_of_width(array: Any, name: str) -> str:
    """Say whether an array of places in the text or the file could not count as far as the real ones go."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return ""
    return f"{name} of the type {array.dtype} cannot count to 17.2 GB, the real text (32 bits end at 2.1 or 4.3)."


# ---- exercise 1: MyPacked


def fault_of_packed(make: Any) -> str:
    """Pack rows with letters of several bytes, then many rows: what is kept of them?"""
    with in_case(f"for the rows {ROWS}"):
        rows = [*ROWS]
        packed = make(rows)
        if rows != ROWS:
            return f"after packing, the caller's list was changed: it had {len(ROWS)} rows, now it is {rows}."
        for what in ("data", "offsets"):
            array = getattr(packed, what, None)
            if not isinstance(array, np.ndarray):
                return f"self.{what} is {type(array).__name__}, not one numpy array."
        bounds = [0, *accumulate(len(row.encode()) for row in ROWS)]
        fault = (
            difference_told(packed.offsets.tolist(), bounds, f"of {ROWS}, self.offsets")
            or _fault_of_width(packed.offsets, "self.offsets")
            or rows_fault(packed, "packed")
        )
        if not fault:
            make(["other rows"])
            fault = rows_fault(packed, "after other rows were packed, too, the first packed")
    if fault:
        return fault
    if packed.data.tobytes() != "".join(ROWS).encode():
        return "self.data is not the UTF-8 text of all rows, one after another and nothing else."
    if packed.data.dtype != np.uint8:
        return f"self.data has the type {packed.data.dtype}, not uint8."
    with in_case(f"for the rows {_SPACED}"):
        spaced = make([*_SPACED])
        fault = difference_told([spaced[0], spaced[1]], _SPACED, f"the rows of {_SPACED}, packed,")
    if fault:
        return fault
    with in_case("for no rows, as a rank may have in a mini-epoch"):
        nothing = make([])
        fault = difference_told(
            (len(nothing), nothing.offsets.tolist()), (0, [0]), "of [], len and self.offsets"
        )
    if fault:
        return fault
    with in_case(f"for {len(MANY)} rows"):
        _, kept, _ = held_and_most(lambda: _all_read(make([row[:1] + row[1:] for row in MANY])))
    if kept > TEXT + 9 * len(MANY) + 20_000:
        most = f"{kept / len(MANY):.0f} bytes are kept for each row, text and offset need {TEXT / len(MANY) + 8:.0f}"
        return f"when all rows have been read, {most}: keep the two arrays only."
    return _fault_of_access(make([*MANY]))


def _fault_of_access(packed: Any) -> str:
    """Say whether reading one row of many copies more than it, or keeps it."""
    _, _, peak = held_and_most(lambda: packed[17])
    if peak > TEXT / 4:
        return f"for one row of {len(MANY[17])} bytes {peak / 1e3:.0f} kB are in memory: copy its own bytes only."
    return "packed[17] is a string that is kept somewhere." if is_kept(lambda: packed[17]) else ""


# ---- exercise 2: index_of

#: Rows of a file, and bytes of a block: also blocks that end within a row and within a letter.
_FILES: tuple[tuple[list[str], int], ...] = (
    (ROWS, 1 << 20),
    (ROWS, 7),
    (ROWS[:1], 3),
    (["Ä", "b"], 1),
    ([], 4),
)


def fault_of_index(index: Any) -> str:
    """Index small files in blocks of several sizes, then a large one: what is in memory meanwhile?"""
    for rows, block in _FILES:
        file = f"a file of {len(rows)} rows, read in blocks of {block} bytes"
        with written(rows) as path:
            wanted = [place + 1 for place, byte in enumerate(Path(path).read_bytes()) if byte == ord("\n")]
            with in_case(f"for {file}"):
                got = index(path, block)
        if not isinstance(got, np.ndarray):
            return f"the index is one numpy array, not {kind_of(got)}."
        fault = difference_told(list(map(int, got)), wanted, f"the index of {file},")
        if fault:
            return fault
    return _fault_of_width(got, "the index") or _fault_of_large_index(index)


def _fault_of_large_index(index: Any) -> str:
    rows = [row.ljust(300, ".") for row in MANY]
    case = f"for a file of {len(rows)} rows, read in blocks of 4096 bytes"
    with written(rows) as path, _joins_counted() as joined, in_case(case):
        _, kept, peak = held_and_most(lambda: index(path, 4096))
    if peak > 20 * len(MANY) + 40_000:
        needed = "the bounds of all rows and a few blocks take less than 100"
        return f"of 900 kB, with block = 4096, {peak / 1e3:.0f} kB were in memory at a time, and {needed}."
    if sum(joined) > 4 * 8 * len(MANY):
        return "the bounds found so far are copied anew with every block."
    if kept > 16 * len(MANY):
        return f"{kept / len(MANY):.0f} bytes a row stay in memory, and a bound has 8."
    return _fault_of_long_row(index)


def _fault_of_long_row(index: Any) -> str:
    case = "for a row of 300 kB, read in blocks of 4096 bytes"
    with written(["x" * 300_000, "y"]) as path, in_case(case):
        _, _, peak = held_and_most(lambda: index(path, 4096))
    if peak > 100_000:
        why = "a row may be longer than a block, and blocks are all that is read"
        return f"{case}, {peak / 1e3:.0f} kB were in memory at a time: {why}."
    return ""


@contextmanager
def _joins_counted() -> Iterator[list[int]]:
    """Note how many bytes each array has that numpy joins from others, or makes for them to be copied into."""
    joined: list[int] = []

    def counted(name: str) -> Callable[..., Any]:
        join = vars(np)[name]

        @wraps(join)
        def joining(*arguments: Any, **named: Any) -> Any:
            made = join(*arguments, **named)
            joined.append(made.nbytes)
            return made

        return joining

    with ExitStack() as stack:
        for name in ("append", "concatenate", "hstack", "insert", "resize", "empty", "zeros"):
            stack.enter_context(mock.patch.object(np, name, counted(name)))
        yield joined


# ---- exercise 3: MyFileDataset


def fault_of_file(make: Any) -> str:
    """Read a small file, then a large one: what is held, in which order is it read, how often is it opened?"""
    with written(ROWS) as path, in_case(f"for a file of {len(ROWS)} rows"):
        dataset = make(path, index_of(path))
        fault = rows_fault(dataset, "dataset") or _fault_of_indices(dataset)
        with written(["other rows"]) as elsewhere:
            other = make(elsewhere, index_of(elsewhere))
            fault = fault or rows_fault(dataset, "while another file is open, too, dataset")
            del other
    # descriptors first: an answer that leaves files open would soon leave none for others
    return (
        fault
        or _fault_of_descriptors(make)
        or _fault_of_long_text(make)
        or _fault_of_large_file(make)
        or _fault_of_no_rows(make)
    )


def _fault_of_indices(dataset: Any) -> str:
    """Ask with an array of indices, and say whether a list of them comes back as it was."""
    batch = [3, 0, 3]
    wanted = [ROWS[number] for number in batch]
    asked = [*batch]
    got = dataset.__getitems__(asked)
    if asked != batch:
        return f"after dataset.__getitems__({batch}) the list of indices is {asked}, and it belongs to the caller."
    fault = difference_told(got, wanted, f"dataset.__getitems__({batch})")
    if fault:
        return fault
    with in_case(f"for the indices np.array({batch})"):
        array = np.array(batch)
        case = f"dataset.__getitems__(np.array({batch}))"
        fault = difference_told(dataset.__getitems__(array), wanted, case)
        if array.tolist() != batch:
            return f"after {case} the array of indices is {array.tolist()}, and it belongs to the caller."
    return fault


def _fault_of_long_text(make: Any) -> str:
    with written(["y" * 9_000, "z"]) as path, in_case("for a row of 9,000 letters"):
        got = make(path, index_of(path))[0]
    return "" if got == "y" * 9_000 else f"of a row of 9,000 letters {len(got):,} come back."


def _fault_of_large_file(make: Any) -> str:
    asked = [2900, 40, 1033, 2900, 7]
    with written(MANY) as path, in_case(f"for a file of {len(MANY)} rows"):
        bounds = index_of(path)
        _all_read(make(path, bounds))  # what is imported or made once only is no row
        dataset, begun, _ = held_and_most(lambda: make(path, bounds))
        _, kept, _ = held_and_most(lambda: _all_read(make(path, bounds)))
        fault = _fault_of_one_row(dataset)
        if fault:
            return fault
        with _reads_noted() as reads:
            got, _, at_once = held_and_most(lambda: dataset.__getitems__(asked))
        row_is_kept = is_kept(lambda: dataset[17]) or is_kept(lambda: dataset.__getitems__([17])[0])
    if begun > TEXT / 8:
        what = "a copy of the bounds, or the text. Keep `bounds` as it is, mapped, and read a row when it is wanted"
        return f"before any row is read, {begun // 1000} kB are held: {what}."
    if kept > TEXT / 8:
        return f"when all rows have been read, {kept / TEXT:.0%} of the bytes of their text are held: keep no row."
    if row_is_kept:
        return "the string of row 17 is kept somewhere after it has been read: keep no row."
    fault = difference_told(got, [MANY[number] for number in asked], f"dataset.__getitems__({asked})")
    if fault:
        return fault
    places = [place for place, _ in reads]
    if any(a >= b for a, b in pairwise(places)):
        return f"the batch {asked} is read at the places {places}: not front to back, each row once."
    return _fault_of_bytes(asked, sum(size for _, size in reads), at_once)


def _fault_of_one_row(dataset: Any) -> str:
    """Say whether one row takes more than two bounds and its own bytes."""
    own = len(MANY[17])
    with _reads_noted() as reads:
        _, _, at_once = held_and_most(lambda: dataset[17])
    read = sum(size for _, size in reads)
    if own + 64 < read < TEXT / 8:
        return f"for row 17, which has {own} bytes, you read {read}: the bounds say how many."
    if at_once > TEXT / 8 and read <= own + 64:
        return (
            f"for row 17, which has {own} bytes, {at_once} are in memory at a time: look up its two bounds, and copy "
            "nothing that grows with the file."
        )
    return ""


def _fault_of_bytes(asked: Sequence[int], read: int, at_once: int) -> str:
    """Say whether a batch reads much else than its rows: a page around each would be no fault."""
    own = sum(len(MANY[number]) for number in {*asked})
    most = own + 4096 * len({*asked})
    between = "read its rows, not all that lies between the first and the last"
    if read > most:
        return f"for the batch {asked}, whose rows have {own} bytes, you read {read} bytes: {between}."
    if at_once > most:
        return f"for the batch {asked}, whose rows have {own} bytes, {at_once} are in memory: {between}."
    return ""


@contextmanager
def _reads_noted() -> Iterator[list[tuple[int, int]]]:
    """Note at which place os.pread and os.preadv read, and how many bytes."""
    reads: list[tuple[int, int]] = []
    pread = os.pread
    preadv = getattr(os, "preadv", None)

    def noted(file: int, size: int, place: int) -> bytes:
        reads.append((int(place), int(size)))
        return pread(file, size, place)

    def noted_into(file: int, buffers: Any, place: int, *flags: int) -> int:
        reads.append((int(place), sum(map(len, buffers))))
        return preadv(file, buffers, place, *flags) if preadv else 0

    with mock.patch.object(os, "pread", noted), mock.patch.object(os, "preadv", noted_into, create=True):
        yield reads


@contextmanager
def _opens_and_seeks_noted() -> Iterator[list[str]]:
    """Note each call that opens a file or moves the position of one: "open" or "seek"."""
    calls: list[str] = []

    def noted(what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def calling(*arguments: Any, **named: Any) -> Any:
            calls.append(what)
            return call(*arguments, **named)

        return calling

    with (
        mock.patch.object(builtins, "open", noted("open", open)),
        mock.patch.object(io, "open", noted("open", io.open)),
        mock.patch.object(os, "open", noted("open", os.open)),
        mock.patch.object(os, "lseek", noted("seek", os.lseek)),
    ):
        yield calls


def _fault_of_descriptors(make: Any) -> str:
    with written(ROWS) as path, in_case(f"for a file of {len(ROWS)} rows"):
        dataset = make(path, index_of(path))
        before = positions(path)
        with _opens_and_seeks_noted() as first:
            dataset[0]
        with _opens_and_seeks_noted() as singly:
            _ = [dataset[number] for number in range(len(ROWS))]
        with _opens_and_seeks_noted() as together:
            dataset.__getitems__([*range(len(ROWS))])
        after = positions(path)
    again = "open it once, opening costs more than reading 44 bytes"
    if "open" in singly or (before and "open" in first):
        return f"the file is opened again for each row: {again}."
    if "open" in together:
        return f"the file is opened again for each batch: {again}."
    if any(before[file] != after[file] for file in before if file in after):
        return "an access moved the position of the open file."
    if "seek" in first + singly + together:
        return "an access moves the position of an open file, and a forked process may read before it is put back."
    return ""


def _fault_of_no_rows(make: Any) -> str:
    with written(ROWS) as path, in_case("for a batch of no rows"):
        return difference_told(make(path, index_of(path)).__getitems__([]), [], "dataset.__getitems__([])")
