"""Where each row of a meta file begins: a sidecar file, written once, of 2.25 bytes a row.

    header   64 bytes: magic, version, what the text file looks like from outside, how many rows, a checksum
    record   64 rows: where the first begins (8 bytes), zeros (8), then where each *next* row begins, counted from
             there: 64 numbers of 2 bytes. Row k lies between number k-1 and number k; for k = 0 the zeros are k-1.
    record   …

A row is found with one short read, whatever its number. Where 64 rows together have 64 KB or more, the numbers have 4
bytes (or 8). A line that is no row is counted to the row before it.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib.data.meta_text import Bytes, Ids, read_into

GROUP = 64  # rows a record
MAGIC, VERSION = b"\x89rows\r\n\x1a", 1
HEADER = struct.Struct("<8s4I3qI12x")
NEAR = 8192  # records that are read at a time
WIDTHS = {2: "<u2", 4: "<u4", 8: "<i8"}


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
            sample = zlib.crc32(buffer[: read_into(file, buffer.data, place)].data, sample)
        return cls(status.st_size, status.st_mtime_ns, sample)


class Index:
    """An open index: how many `rows` there are, and where. broken: lines that are no rows lie between them."""

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
            view = records.data
            for at, group in enumerate(wanted.tolist()):
                self._read(view[at * self.record : (at + 1) * self.record], group)
            return self._decode(records, groups, ids)
        pieces = []
        while len(ids):
            first = int(groups[0])
            near = int(np.searchsorted(groups, first + NEAR))
            records = np.empty((int(groups[near - 1]) - first + 1) * self.record, np.uint8)
            self._read(records.data, first)
            pieces.append(self._decode(records, groups[:near] - first, ids[:near]))
            groups, ids = groups[near:], ids[near:]
        begins, ends = zip(*pieces, strict=True)
        return np.concatenate(begins), np.concatenate(ends)

    def bounds_of(self, row: int) -> tuple[int, int]:
        """Return what `bounds` does for one row, without an array: for a few rows that is many times as fast."""
        group, place = divmod(row, GROUP)
        record, width = bytearray(self.record), self.width
        self._read(memoryview(record), group)
        start, at = int.from_bytes(record[:8], "little"), 16 + place * width
        begin = start + int.from_bytes(record[at - width : at], "little")
        end = start + int.from_bytes(record[at : at + width], "little") - 1
        if end <= begin:
            raise _refusal(self.path, "is damaged")
        return begin, end

    def _decode(self, records: Bytes, groups: Ids, ids: Ids) -> tuple[Ids, Ids]:
        starts = records.view("<i8")[groups * (self.record // 8)]
        steps = records.view(WIDTHS[self.width])
        at = groups * (self.record // self.width) + 16 // self.width + ids % GROUP
        begin, end = starts + steps[at - 1], starts + steps[at] - 1
        if (end <= begin).any():
            raise _refusal(self.path, "is damaged")
        return begin, end

    def _read(self, records: memoryview, first: int) -> None:
        if read_into(self.file, records, HEADER.size + first * self.record) < len(records):
            raise _refusal(self.path, "is cut short")


def _refusal(path: Path, what: str) -> ValueError:
    return ValueError(
        f"{path} {what}: delete it if it is an index and it is made anew, or keep the index elsewhere with index=…"
    )


def open_existing(path: Path, stamp: Stamp) -> Index | None:
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
    count = read_into(file, header.data, 0)
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
