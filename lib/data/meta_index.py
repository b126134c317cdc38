"""Where each row of a meta file begins: a sidecar file, written once, of 2.25 bytes a row.

    header   64 bytes: magic, version, what the text file looks like from outside, how many rows, a checksum
    record   64 rows: where the first begins (8 bytes), zeros (8), then where each *next* row begins, counted from
             there: 64 numbers of 2 bytes. Row k lies between number k-1 and number k; for k = 0 the zeros are k-1.
    record   …

A row is found with one short read, whatever its number. Where 64 rows together have 64 KB or more, the numbers have 4
bytes (or 8). A line that is no row is counted to the row before it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lib.data.meta_text import Bytes, Ids, read_into, row_starts
from lib.data.progress import Progress

GROUP = 64  # rows a record
MAGIC, VERSION = b"\x89rows\r\n\x1a", 1
HEADER = struct.Struct("<8s4I3qI12x")
NEAR = 8192  # records that are read at a time
WIDTHS = {2: "<u2", 4: "<u4", 8: "<i8"}
WAIT_SECONDS = 60.0  # for another process that is writing the index; after that this one writes it too
LEFTOVER_SECONDS = 600.0  # an unfinished file that nobody has written to for so long has lost its process


@dataclass(frozen=True)
class Stamp:
    """What a file looks like from outside. If any of it differs, the index is that of another text."""

    size: int
    modified: int  # nanoseconds
    sample: int  # checksum of the head, the middle and the tail: some copies all have one date

    @classmethod
    def of(cls, file: int) -> Stamp:
        """Take the stamp of an open file."""
        status = os.fstat(file)
        buffer, sample = np.empty(4096, np.uint8), 0
        for place in (0, status.st_size // 2, max(0, status.st_size - 4096)):
            sample = zlib.crc32(buffer[: read_into(file, buffer, place)], sample)
        return cls(status.st_size, status.st_mtime_ns, sample)


class Index:
    """An open index: the number of `rows`, and where they lie. broken: there are lines between them that are no rows."""

    def __init__(self, file: int, path: Path, rows: int, width: int, broken: bool) -> None:
        self.file, self.path, self.rows, self.width, self.broken = file, path, rows, width, broken
        self.record = 16 + GROUP * width

    def bounds(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return where each row begins, and where its newline is. ids: sorted, in range, not empty.

        One read where the rows are near each other, one read a record where they are not.
        """
        groups = ids // GROUP
        if int(groups[-1] - groups[0]) >= 64 * len(ids):
            wanted, groups = np.unique(groups, return_inverse=True)
            records = np.empty(len(wanted) * self.record, np.uint8)
            view = memoryview(records)
            for at, group in enumerate(wanted.tolist()):
                self._read(view[at * self.record : (at + 1) * self.record], group)
            return self._decode(records, groups, ids)
        pieces = []
        while len(ids):
            first = int(groups[0])
            near = int(np.searchsorted(groups, first + NEAR))
            records = np.empty((int(groups[near - 1]) - first + 1) * self.record, np.uint8)
            self._read(records, first)
            pieces.append(self._decode(records, groups[:near] - first, ids[:near]))
            groups, ids = groups[near:], ids[near:]
        begins, ends = zip(*pieces, strict=True)
        return np.concatenate(begins), np.concatenate(ends)

    def _decode(self, records: Bytes, groups: Ids, ids: Ids) -> tuple[Ids, Ids]:
        starts = records.view("<i8")[groups * (self.record // 8)]
        steps = records.view(WIDTHS[self.width])
        at = groups * (self.record // self.width) + 16 // self.width + ids % GROUP
        begin, end = starts + steps[at - 1], starts + steps[at] - 1
        if (end <= begin).any():
            raise _refusal(self.path, "is damaged")
        return begin, end

    def _read(self, records: Bytes | memoryview, first: int) -> None:
        if read_into(self.file, records, HEADER.size + first * self.record) < len(records):
            raise _refusal(self.path, "is cut short")


def _refusal(path: Path, what: str) -> ValueError:
    return ValueError(
        f"{path} {what}: delete it if it is an index and it is made anew, or keep the index elsewhere with index=…"
    )


def open_index(text: int, name: Path, path: Path) -> Index:
    """Open the index at `path` of an open text file, whose name is `name`; write it first if there is none that fits.

    Of several processes one writes and the others wait for it. Raises ValueError for a file that is no index or a
    damaged one, OSError where it cannot be written.
    """
    stamp = Stamp.of(text)
    index = _open(path, stamp)
    if index is None:
        with _one_at_a_time(text):
            index = _open(path, stamp)
            if index is None:
                _write(text, name, path, stamp)
                index = _open(path, stamp)
    if index is None:
        raise RuntimeError(f"{name} or its index {path} changes faster than it can be read")
    return index


def _open(path: Path, stamp: Stamp) -> Index | None:
    """Open an index; None if there is none or it is that of another text."""
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        return None
    try:
        index = _checked(file, path, stamp)
    except BaseException:
        os.close(file)
        raise
    if index is None:
        os.close(file)
    return index


def _checked(file: int, path: Path, stamp: Stamp) -> Index | None:
    header = np.empty(HEADER.size, np.uint8)
    count = read_into(file, header, 0)
    raw = header[:count].tobytes()
    if raw[: len(MAGIC)] != MAGIC[:count]:
        raise _refusal(path, "is not an index of ours")
    if count < HEADER.size:
        raise _refusal(path, "is cut short")
    _, version, width, broken, sample, size, modified, rows, checksum = HEADER.unpack(raw)
    if version != VERSION:
        return None
    if zlib.crc32(raw[:48]) != checksum:
        raise _refusal(path, "is damaged")
    if Stamp(size, modified, sample) != stamp:
        return None
    index = Index(file, path, rows, width, bool(broken))
    if os.fstat(file).st_size != HEADER.size + -(-rows // GROUP) * index.record:
        raise _refusal(path, "is cut short")
    return index


# ---- writing


@contextlib.contextmanager
def _one_at_a_time(text: int) -> Iterator[None]:
    """Hold the lock on the text file. A killed process loses it; one that hangs holds the others up for a while only."""
    try:
        import fcntl
    except ImportError:  # Windows: each writes its own, and the last one stays
        yield
        return
    patience = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < patience:
        try:
            fcntl.flock(text, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(text, fcntl.LOCK_UN)


def _write(text: int, name: Path, path: Path, stamp: Stamp) -> None:
    """Write the index to a file beside `path` and rename it: whoever looks sees a whole index or none."""
    try:
        _remove_leftovers(path)
        handle, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
        try:
            with open(handle, "wb", buffering=0) as file:
                next(width for width in WIDTHS if _write_records(text, name, file, width, stamp))
            os.chmod(unfinished, 0o644)
            os.replace(unfinished, path)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    except EOFError:
        raise _changed(name) from None
    except OSError as error:
        raise type(error)(
            error.errno,
            f"cannot write the index of {name}, {os.strerror(error.errno or 0)}; "
            "choose a place for it with index=…",
            str(path),
        ) from error


def _remove_leftovers(path: Path) -> None:
    for file in path.parent.glob(f".{path.name}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - file.stat().st_mtime > LEFTOVER_SECONDS:
                file.unlink()


def _changed(name: Path) -> RuntimeError:
    return RuntimeError(f"{name} has changed while it was read; open it again when nobody writes to it")


def _write_records(text: int, name: Path, file: BinaryIO, width: int, stamp: Stamp) -> bool:
    """Write a whole index; return False as soon as a number needs more than `width` bytes."""
    file.seek(0)
    file.truncate()
    file.write(bytes(HEADER.size))
    rows, broken, waiting = 0, False, np.empty(0, np.int64)
    with Progress(f"index of {name.name}", stamp.size, "B") as progress:
        for scanned, starts, gap in row_starts(text, stamp.size):
            rows, broken = rows + len(starts), broken or gap
            waiting = np.concatenate([waiting, starts])
            whole = (len(waiting) - 1) // GROUP * GROUP
            if whole > 0:
                if not _write_groups(file, waiting[: whole + 1], width):
                    return False
                waiting = waiting[whole:]
            progress(scanned)
    last = np.empty(1, np.uint8)
    ended = stamp.size > 0 and read_into(text, last, stamp.size - 1) == 1 and last[0] == 10
    end = stamp.size if ended else stamp.size + 1  # where the row after the last one would begin
    missing = -len(waiting) % GROUP + 1
    if len(waiting) and not _write_groups(file, np.append(waiting, np.full(missing, end)), width):
        return False
    if Stamp.of(text) != stamp:
        raise _changed(name)
    fields = (MAGIC, VERSION, width, int(broken), stamp.sample, stamp.size, stamp.modified, rows)
    checksum = zlib.crc32(HEADER.pack(*fields, 0)[:48])
    file.seek(0)
    file.write(HEADER.pack(*fields, checksum))
    return True


def _write_groups(file: BinaryIO, starts: Ids, width: int) -> bool:
    """Write the records of some groups of rows, given where these begin and where the row after them does."""
    firsts, nexts = starts[:-1:GROUP], starts[1:].reshape(-1, GROUP)
    if int((nexts[:, -1] - firsts).max()) >= 1 << (8 * width - (width == 8)):
        return False
    records = np.zeros(
        len(firsts), [("start", "<i8"), ("zeros", "<i8"), ("next", WIDTHS[width], GROUP)]
    )
    records["start"] = firsts
    np.subtract(nexts, firsts[:, None], out=records["next"], casting="unsafe")
    file.write(records)
    return True
