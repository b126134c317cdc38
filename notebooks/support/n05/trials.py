"""What packed rows do when they are tried, and what trials have in common: a function says what is wrong, or ""."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import getitem
from traceback import walk_tb
from typing import Any

import numpy as np

from support.kit.raised import in_case
from support.kit.values import NO_RETURN
from support.n05.runs import held_and_most, only_new_objects
from support.n05.watched import FarBytes

# ---- what the exercises have in common

ROWS = ['img/000000000.jpg "a dog"', 'img/000000001.jpg "Ärger im Café"', "", 'img/000000003.jpg "犬"', "x"]
MANY = [f"row {number:05} " + "." * (number % 40) for number in range(3000)]
TEXT = sum(map(len, MANY))
SHORT = [f"{number % 1000:03}" for number in range(20_000)]  # a row's offset is most of what is kept of it
_SPACED = ["  a row with spaces ", "another\t"]


def difference_told(got: Any, wanted: Any, where: str) -> str:
    """Say that something differs from what it should be, "" if it does not."""
    if got == wanted:
        return ""
    seen = f"your code {NO_RETURN}" if got is None else f"it is {got!r}"
    return f"{where} should be {wanted!r}, {seen}."


def rows_fault(dataset: Any, name: str, when: str = "", rows: Sequence[str] = ROWS) -> str:
    """Compare a dataset of `rows` with them, item by item; when: what is said before."""
    fault = difference_told(len(dataset), len(rows), f"{when}of {len(rows)} rows, len({name})")
    for number, row in enumerate(rows):
        fault = fault or difference_told(dataset[number], row, f"{when}of {[*rows]}, {name}[{number}]")
    return fault


#: Letters of one to four bytes. At \v, \x85 and \u2028 str.splitlines ends a line, and a meta file does not; a zero, an
#: accent by itself and the mark of an order of bytes are letters as well.
_LETTERS = "ab Äé犬🙂\v\x85\u2028\0\u0301\ufeff"


def random_rows(generator: random.Random, most: int = 12) -> list[str]:
    """Return a few rows of letters that take one to four bytes each; some have none."""
    return [
        "".join(generator.choices(_LETTERS, k=generator.randrange(9)))
        for _ in range(generator.randrange(most))
    ]


def length_fault(dataset: Any, failed: str) -> str:
    """Say whether a dataset counts rows that it has not; after a load that failed it may have no length either."""
    size = 0
    try:
        size = len(dataset)
        _ = size and dataset[0]
    except Exception:
        return f"after {failed}, len is {size}, and there is no item 0." if size else ""
    return ""


def is_kept(read: Callable[[], str]) -> bool:
    """Tell whether anybody but us refers to the string that `read` returns, as a cache of rows does."""
    row = read()
    fresh = "".join(["a row ", "of nobody else"])
    return sys.getrefcount(row) > sys.getrefcount(fresh)


def all_read(dataset: Any) -> Any:
    """Read every row, singly and in batches if it has any, and return the dataset: does it keep them?"""
    _ = [dataset[number] for number in range(len(dataset))]
    if hasattr(dataset, "__getitems__"):
        dataset.__getitems__([*range(len(dataset))])
    return dataset


def fault_of_width(array: Any, name: str) -> str:
    """Say whether an array of places in the text or the file could not count as far as the real ones go."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return ""
    if array.dtype.kind not in "iu":
        return f"{name} has the type {array.dtype}, not one of integers of 64 bits."
    return f"{name} of the type {array.dtype} cannot count to 17.2 GB, the real text (32 bits end at 2.1 or 4.3)."


# ---- exercise 1: MyPacked


@only_new_objects()
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
            or _fault_of_types(packed, "")
            or rows_fault(packed, "packed")
        )
        if not fault:
            make(["other rows"])
            fault = rows_fault(packed, "packed", "after other rows were packed, too, ")
    if fault:
        return fault
    if packed.data.tobytes() != "".join(ROWS).encode():
        return "self.data is not the UTF-8 text of all rows, one after another and nothing else."
    with in_case(f"for the rows {_SPACED}"):
        spaced = make([*_SPACED])
        fault = difference_told([spaced[0], spaced[1]], _SPACED, f"the rows of {_SPACED}, packed,")
    if fault:
        return fault
    with in_case("for no rows, as a rank may have in a mini-epoch"):
        nothing = make([])
        fault = difference_told(
            (len(nothing), nothing.offsets.tolist()), (0, [0]), "of [], len and self.offsets"
        ) or _fault_of_types(nothing, "of no rows, ")
    if fault:
        return fault
    return (
        _fault_of_access(make([*MANY]))
        or _fault_of_what_is_kept(make)
        or _fault_of_random_rows(make)
        or _fault_of_far_rows(make)
    )


def _fault_of_types(packed: Any, of: str) -> str:
    if packed.data.dtype != np.uint8:
        return f"{of}self.data has the type {packed.data.dtype}, not uint8."
    return fault_of_width(packed.offsets, f"{of}self.offsets")


def _fault_of_what_is_kept(make: Any) -> str:
    """Say whether more than two arrays is kept of many rows; what grows has an eighth of its bytes free."""
    with in_case(f"for {len(SHORT):,} rows"):
        _, kept, _ = held_and_most(lambda: all_read(make([row[:1] + row[1:] for row in SHORT])))
    letters = len(SHORT[0])
    if kept <= (letters * 1.125 + 8.5) * len(SHORT) + 4_000:
        return ""
    most = f"{kept / len(SHORT):.1f} bytes are kept for each row, text and offset need {letters + 8}"
    return f"when all rows have been read, {most}: keep the two arrays only."


def _fault_of_access(packed: Any) -> str:
    """Say whether reading one row of many copies more than it, or keeps it."""
    for number in (17, len(MANY) - 17):  # one near either end
        read: Callable[[], Any] = partial(getitem, packed, number)
        _, _, peak = held_and_most(read)
        if peak > TEXT / 4:
            only = "take its two offsets and its own bytes only"
            return f"for one row of {len(MANY[number])} bytes {peak / 1e3:.0f} kB are in memory: {only}."
        if is_kept(read):
            return f"packed[{number}] is a string that is kept somewhere."
    return ""


def _fault_of_random_rows(make: Any) -> str:
    generator = random.Random(5)
    for _ in range(20):
        rows = random_rows(generator)
        with in_case(f"for the rows {rows}"):
            packed = make([*rows])
            bounds = [0, *accumulate(len(row.encode()) for row in rows)]
            fault = difference_told(packed.offsets.tolist(), bounds, f"of {rows}, self.offsets")
            fault = fault or rows_fault(packed, "packed", rows=rows)
        if fault:
            return fault
    return ""


#: So many bytes more than it has is a block or a row said to have. No memory has room for them: who makes some gets a
#: MemoryError at once. A few hundred are still exact in a float of 64 bits.
FAR = 2**48 + 12_345


class _FarRow(str):
    """A row whose bytes say that they are longer than they are."""

    more = FAR

    def encode(self, *arguments: Any, **named: Any) -> FarBytes:
        encoded = FarBytes(super().encode(*arguments, **named))
        encoded.more = self.more
        return encoded


class _FarRowOf32Bits(_FarRow):
    """A row whose length fits in 32 bits. What wraps of four or five is no length, and no place of fewer.

    There must be so many that no memory has room for them.
    """

    more = 2**30 + 2**26


def _fault_of_far_rows(make: Any) -> str:
    """Say whether offsets wrap."""
    try:
        return _fault_of_rows_so_far(make, _FarRow, ROWS)
    except OverflowError:  # lengths may be kept in 32 bits, as no row is so long
        kind = _FarRowOf32Bits
        rows = ROWS * 2**16
        with in_case(f"for {len(rows):,} rows whose bytes say that they are {kind.more / 1e9:.1f} GB each"):
            return _fault_of_rows_so_far(make, kind, rows)


def _fault_of_rows_so_far(make: Any, kind: type[_FarRow], rows: Sequence[str]) -> str:
    near = [0, *accumulate(len(row.encode()) for row in rows)]
    case = f"for {len(rows):,} rows whose bytes say that they are {kind.more / 1e12:.3g} TB each"
    try:
        packed = make([*map(kind, rows)])
    except OverflowError:
        raise
    except Exception as error:  # who makes room for each row first, or copies it to its place, can't go on
        return _fault_of_wrapped(error, kind, near, case)
    return fault_of_far(packed.offsets, near, f"{case}, self.offsets", kind.more)


def _fault_of_wrapped(error: Exception, kind: type[_FarRow], near: Sequence[int], case: str) -> str:
    """Say which place had wrapped when this was raised. One that is not filled in yet is none."""
    beyond = [rows * kind.more for rows in range(1, len(ROWS) + 1) if rows * kind.more >= 2**32]
    wrapped = {(real + far) % 2**31 for real in near for far in beyond}
    for place in _numbers_at(error, len(near)):
        if abs(place) < 2**32 and place % 2**31 in wrapped:
            return f"{case}, an offset is {place:,}: it went through a number that is too small."
    return ""


def _numbers_at(error: Exception, most: int) -> Iterator[int]:
    """Return the whole numbers of short arrays and lists that had a name, or were offsets, where this was raised."""
    for frame, _ in walk_tb(error.__traceback__):
        for value in [*frame.f_locals.values()]:
            for held in (value, getattr(value, "offsets", None)):
                if isinstance(held, np.ndarray) and held.size <= most:
                    held = held.ravel().tolist()
                if isinstance(held, (list, tuple)) and len(held) <= most:
                    yield from (one for one in held if type(one) is int)


def fault_of_far(got: Any, near: Sequence[int], where: str, far: int = FAR) -> str:
    """Say which of these places has wrapped, or was rounded. far: how much longer each row or block is said to be.

    Who counts real bytes here and lengths there is some whole `far` from the near place, which is right as well.
    """
    for number, (place, real) in enumerate(zip(map(int, got), near, strict=False)):
        if (place - real) % far:
            return f"{where}[{number}] is {place:,}: it went through a number that is too small."
    return ""
