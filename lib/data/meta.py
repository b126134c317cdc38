"""Meta files: a text file with one row a sample, of which any rows can be had without reading the rest.

# image          caption                    a line that begins with # is a header
img/0001.png "a handwritten seven"          row 0
img/0002.png "a handwritten one"            row 1
"""

from __future__ import annotations

import hashlib
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lib.arguments import integers
from lib.data.meta_index import Stamp, open_index
from lib.data.meta_text import FEW, Bytes, copy_row, copy_rows
from lib.data.permutation import Ids

CHUNK = 1 << 15  # rows at a time: what is computed for them stays in the cache
Offsets: TypeAlias = npt.NDArray[np.uint32] | npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.uint32] | None
Told: TypeAlias = Callable[[int], object]


class Packed:
    """Rows as one array of bytes: `packed[i]` is row i as a str, `packed.rows([…])` many, `packed.nbytes` the price.

    data: the rows' UTF-8, one after another, as they lie in the file. offsets: where each begins; one more than rows.
    places: item i is the row at places[i] of them; None if that is i. No array of them is an array of Python objects:
    workers that are forked share all of it, and reading changes nothing that they share. stamp: what tells these rows
    from others, that of the MetaFile if they are all of its rows, in its order; else it is made of the rows themselves.
    """

    def __init__(self, data: Bytes, offsets: Offsets, places: Places = None, stamp: str = "") -> None:
        self.data = data
        self.offsets = offsets
        self.places = places
        self._stamp = stamp
        # an item of a memoryview is a Python int at once, that of an array a numpy scalar, at three times the price
        self._data = data.data
        self._offsets = offsets.data
        self._places: Sequence[int] | memoryview = range(len(offsets) - 1) if places is None else places.data

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> str:
        """Return an item; a negative index counts from the end. Raises IndexError."""
        try:
            place = self._places[index]
        except IndexError:
            raise IndexError(f"item {index} is out of range: there are {len(self)}") from None
        offsets = self._offsets
        return str(self._data[offsets[place] : offsets[place + 1]], "utf-8", "surrogateescape")

    def rows(self, indices: Sequence[int] | Ids, allow: Told | None = None) -> list[str]:
        """Return many items, which is faster than one by one. allow: as in MetaFile.rows. Raises IndexError."""
        index = integers("indices", indices)
        try:
            place = index if self.places is None else self.places[index]
            begin = self.offsets[:-1][place].tolist()
            end = self.offsets[1:][place].tolist()
        except IndexError as error:
            raise IndexError(f"{error}: there are {len(self)} items") from None
        if allow is not None:
            allow(sum(end) - sum(begin))
        data = self._data
        return [str(data[a:b], "utf-8", "surrogateescape") for a, b in zip(begin, end, strict=True)]

    @property
    def stamp(self) -> str:
        """What tells these rows, in this order, from others; the first time it may take a second a GB."""
        if not self._stamp:
            digest = hashlib.blake2b(digest_size=16)
            for array in (self.data, self.offsets, self.places):
                if array is not None:
                    digest.update(f"{array.dtype} {len(array)} ".encode())
                    digest.update(array.data)
            self._stamp = digest.hexdigest()
        return self._stamp

    @property
    def nbytes(self) -> int:
        """All bytes held."""
        of_places = 0 if self.places is None else self.places.nbytes
        return self.data.nbytes + self.offsets.nbytes + of_places

    def __reduce__(self) -> tuple[Any, ...]:
        return Packed, (self.data, self.offsets, self.places, self._stamp)


class MetaFile:
    r"""Open a text file of rows; `len` of it, `rows(ids)` and `packed(ids)`, any rows in any order.

    A line that begins with `#` is a header and a line of blanks is nothing, wherever they stand; every other is a row,
    without its line end (LF or CRLF; only these end a line). Bytes that are no UTF-8 become the surrogates \udc80 …
    \udcff, from which `row.encode("utf-8", "surrogateescape")` makes the same bytes again: nothing is lost.

    Where the rows begin is read from an index file, path + ".idx" or the one given by index. It is written, at some GB
    a second, when it is missing or that of another text (size, date or a sample of the content differ).

    May be used by many threads, in forked workers, and be pickled (the file is then opened again). Close it, or use
    `with`. Raises OSError where the text cannot be read or the index not be written, ValueError for an index that
    is damaged or a file that is none, which names it and the way out: damage to a row's place is found when that row
    is read. `rows` and `packed` raise RuntimeError if the text has changed since.

    Example:
        with MetaFile("captions.txt") as meta_file:
            last, first = meta_file.rows([len(meta_file) - 1, 0])
    """

    def __init__(self, path: str | os.PathLike[str], index: str | os.PathLike[str] | None = None) -> None:
        if not isinstance(path, (str, os.PathLike)):
            raise TypeError(f"path must be a string or a Path, not {path!r}: give MetaFile the name of a text file")
        self.path = Path(path)
        self.index_path = Path(f"{self.path}.idx" if index is None else index)
        if not stat.S_ISREG(os.stat(self.path).st_mode):
            raise ValueError(
                f"{self.path} is not a regular file: a meta file is a text file that can be read anywhere in it"
            )
        self._file = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self._close = weakref.finalize(self, os.close, self._file)
        self._index = open_index(self._file, self.path, self.index_path)
        self._close_index = weakref.finalize(self, os.close, self._index.file)
        self._status = _status(self._file)
        self.stamp = "-".join(f"{part:x}" for part in astuple(Stamp.of(self._file)))  # tells it from another text

    def __len__(self) -> int:
        return self._index.rows

    def __repr__(self) -> str:
        return f"MetaFile({str(self.path)!r}): {len(self)} rows"

    def rows(self, ids: Sequence[int] | Ids, allow: Told | None = None) -> list[str]:
        """Return rows as strings, in the order asked for; twice what is asked for twice.

        ids: a list, an integer array or a CPU tensor. allow: called with how many bytes of text will be read next, as
        the index says; may raise to stop this. Raises IndexError outside 0..len - 1, also for a negative one.
        """
        if type(ids) is list and len(ids) <= FEW and self._are_rows(ids):
            return self._few(ids, allow)
        packed = self.packed(ids, allow)
        return packed.rows(np.arange(len(packed)))

    def _are_rows(self, ids: list[int]) -> bool:
        return all(type(i) is int and 0 <= i < len(self) for i in ids)

    def _few(self, ids: list[int], allow: Told | None) -> list[str]:
        """Return rows one by one, which spares the arrays that pay for many."""
        rows = []
        try:
            for i in ids:
                begin, end = self._index.bounds_of(i)
                if allow is not None:
                    allow(end - begin)
                text = memoryview(bytearray(end - begin))
                length = copy_row(self._file, begin, end, self._index.gaps, text)
                rows.append(str(text[:length], "utf-8", "surrogateescape"))
        except EOFError:
            raise self._index.damaged() from None
        finally:  # a text that has changed, before or meanwhile, is the error, whatever else is
            self._check_unchanged()
        return rows

    def packed(self, ids: Sequence[int] | Ids, allow: Told | None = None) -> Packed:
        """Return rows as one array of bytes, item i being row ids[i]. As `rows`, for many rows that stay."""
        array = integers("ids", ids)
        if array.ndim != 1:
            raise TypeError(f"ids must be a sequence of integers, not {ids!r}; one row is rows([i])[0]")
        if array.size:
            self._check_range(int(array.min()), int(array.max()))
        blocks = (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))
        return self.pack(len(array), blocks, allow=allow)

    def pack(
        self, count: int, blocks: Iterable[Ids], progress: Told | None = None, allow: Told | None = None
    ) -> Packed:
        """Return the `count` rows whose ids come in blocks, which are not kept: `packed` for who has no room for ids.

        The ids are not checked. progress: called with numbers of rows that add up to `count`; may raise to stop this.
        allow: as in `rows`. Takes 16 bytes a row at first, and then 4 bytes a row and about 10 MB beside the result.
        """
        ids, places = _sorted_with_places(count, blocks, wide=len(self) >= 2**32)
        offsets: Offsets = np.zeros(count + 1, np.uint32)
        data = np.empty(0, np.uint8)
        filled = 0
        whole = count == len(self) and places is None  # so far: each row once, and in the file's order
        self._check_unchanged()
        try:
            for start in range(0, count, CHUNK):
                block = ids[start : start + CHUNK].astype(np.int64)
                whole = whole and np.array_equal(block, np.arange(start, start + len(block)))
                begin, end = self._index.bounds(block)
                more = int((end - begin).sum())
                if allow is not None:
                    allow(more)
                room = filled + more
                if start == 0:  # a guess, by the average row: what is too much is never touched, so it takes no memory
                    average = self._status[0] / len(self)
                    guess = int(count * (average + 1)) + 4096
                    data = np.empty(max(room, guess), np.uint8)
                elif room > len(data):
                    data.resize(room + room // 8, refcheck=False)
                lengths = copy_rows(self._file, begin, end, self._index.gaps, data[filled:])
                ends = filled + np.cumsum(lengths)
                filled = int(ends[-1])
                if filled >= 2**32:  # known only now: the ids may name a long row many times
                    offsets = offsets.astype(np.int64, copy=False)
                offsets[start + 1 : start + 1 + len(ends)] = ends
                if progress is not None:
                    progress(len(ends))
        except EOFError:
            raise self._index.damaged() from None
        finally:
            self._check_unchanged()
        data.resize(filled, refcheck=False)
        return Packed(data, offsets, places, self.stamp if whole else "")

    def _check_range(self, low: int, high: int) -> None:
        if low < 0 or high >= len(self):
            wrong = low if low < 0 else high
            there = f"0..{len(self) - 1}" if len(self) else "none"
            raise IndexError(f"row {wrong} is out of range: {self.path} has {there}")

    def _check_unchanged(self) -> None:
        if not self._close.alive:
            raise ValueError(f"{self.path} is closed")
        now = _status(self._file)
        if now != self._status:
            raise RuntimeError(
                f"{self.path} has changed since it was opened ({self._status[0]} bytes then, {now[0]} now): its rows "
                "may lie elsewhere; open it anew with MetaFile"
            )

    def close(self) -> None:
        """Close the files; what has been read stays."""
        self._close()
        self._close_index()

    def __enter__(self) -> MetaFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        # absolute: who opens it again may work in another folder
        path = os.path.abspath(self.path)
        index = os.path.abspath(self.index_path)
        return {"path": path, "index": index, "status": self._status}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"], state["index"])  # type: ignore[misc]
        self._status = state["status"]
        self._check_unchanged()


def _status(file: int) -> tuple[int, int]:
    status = os.fstat(file)
    return status.st_size, status.st_mtime_ns


def _sorted_with_places(count: int, blocks: Iterable[Ids], wide: bool) -> tuple[npt.NDArray[Any], Places]:
    """Return the ids sorted, and for each item where its id has got to (None: where it was).

    An id and its item go through the sort as one number, id · 2^bits + item: one fast sort, and no argsort.
    """
    bits = max(1, (count - 1).bit_length())
    keys = np.empty(count, np.uint64)
    filled = 0
    for block in blocks:
        part = keys[filled : filled + len(block)]
        part[:] = block
        part <<= np.uint64(bits)
        part |= np.arange(filled, filled + len(block), dtype=np.uint64)
        filled += len(block)
    in_order = bool((keys[1:] >= keys[:-1]).all())
    if not in_order:
        keys.sort()
    ids = np.empty(count, np.int64 if wide else np.uint32)
    places = None if in_order else np.empty(count, np.uint32)
    for start in range(0, count, CHUNK):
        # and apart again: the upper bits are the id, the lower ones its item
        part = keys[start : start + CHUNK]
        ids[start : start + CHUNK] = part >> np.uint64(bits)
        if places is not None:
            items = part & np.uint64(2**bits - 1)
            places[items] = np.arange(start, start + len(part), dtype=np.uint32)
    return ids, places
