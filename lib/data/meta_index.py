"""Where each row of a meta file begins: a file beside it, written once, of 2.25 bytes a row.

    header   64 bytes: magic, version, what the text file looks like from outside, how many rows, a checksum
    record   64 rows: where the first begins, and 65 edges counted from there. Row k of them is what lies between
             edge k and edge k + 1, the newline included; so edge 0 is 0, and edge 64 begins the next record's row.
             Last a check: 4 bytes such that record k, read as one number, leaves k + 1 when divided by a prime.
    record   …

A row is found with one short read, whatever its number. An edge takes 2 bytes; where 64 rows together have 64 KB or
more, 4 or 8. A line that is no row is counted to the row before it.

Whoever reads a record looks at its remainder. It finds every change within two neighbouring bytes, all but 6 in 10^8 of
the others, and records that have changed places. A CRC finds no more, but one a record, from Python, would take longer
than all else. Remainders of thousands of records are one product of integers, and that of one is Python's own `%`.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lib.data.meta_text import NEWLINE, read_into, row_starts
from lib.data.permutation import Ids
from lib.data.progress import progress_bar
from lib.files import whole_or_not_at_all

GROUP = 64  # rows a record
MAGIC = b"\x89rows\r\n\x1a"
VERSION = 3
HEADER = struct.Struct("<8s4I3qI12x")
CHECKED = 48  # bytes of the header that its checksum is of: all that come before the checksum
EDGES = {2: "<u2", 4: "<u4", 8: "<i8"}  # by width; 8 is signed: an int64 and a uint64 have no common integer type
PAIRS = {2: "<HH", 4: "<II", 8: "<qq"}  # by width: the edges before and after a row
RECORDS = {
    width: np.dtype([("start", "<i8"), ("edges", edge, GROUP + 1), ("check", "<u4")], align=True)
    for width, edge in EDGES.items()
}
START = 2**64 - 1  # mask of a record's first field, in the record as one number

# The check, see remainders(). A record is one number, of words of 32 bits; each word counts by its own power of 2^32.
PRIME = 16_025_969  # the largest for which 134 words of 32 bits, each times a remainder, add up to less than 2^63
WORDS = {width: record.itemsize // 4 for width, record in RECORDS.items()}
POWERS = {  # what a bit in each word of 32 bits adds to the remainder of the record
    width: np.array([pow(2, 32 * word, PRIME) for word in range(words)], np.int64) for width, words in WORDS.items()
}
CHECK = {2: 35, 4: 67, 8: 132}  # which word of a record holds its check
UNIT = {width: pow(2, -32 * word, PRIME) for width, word in CHECK.items()}  # in the check, it adds 1 to the remainder

SWEEP = 8192  # records that are read at a time where wanted ones are near each other
FAR = 64  # records between two wanted ones, on average, from which each is read by itself
WAIT_SECONDS = 60.0  # for another process that is building; after that this one builds too
LEFTOVER_SECONDS = 600.0  # an unfinished file that nobody has written to for so long has lost its process


# ---- looking rows up


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
        buffer = np.empty(4096, np.uint8)
        sample = 0
        for place in (0, status.st_size // 2, max(0, status.st_size - len(buffer))):
            count = read_into(file, buffer.data, place)
            sample = zlib.crc32(buffer[:count].data, sample)
        return cls(status.st_size, status.st_mtime_ns, sample)


class Index:
    """An open index: how many `rows` there are, and where. gaps: lines that are no rows lie between them."""

    def __init__(self, file: int, path: Path, rows: int, width: int, gaps: bool) -> None:
        self.file = file
        self.path = path
        self.rows = rows
        self.width = width
        self.gaps = gaps
        self.record = RECORDS[width]
        self._pair = struct.Struct(PAIRS[width])

    def bounds(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return where each row begins, and where its newline is. ids: sorted, in range, not empty.

        Only the records in which these rows lie are checked, however many others are read on the way to them.
        """
        groups = ids // GROUP
        places = ids - GROUP * groups
        is_new = np.append(True, groups[1:] != groups[:-1])
        wanted = groups[is_new]
        records = self._records(wanted)
        if remainders(records, self.width, wanted).any():
            raise self.damaged()
        record_of = is_new.cumsum() - 1  # for each row, which of the wanted records it lies in
        starts = records["start"][record_of]
        # one index into all edges is twice as fast as two, records["edges"][record_of, places]
        edges = records.view(EDGES[self.width])
        edge = record_of * (self.record.itemsize // self.width) + 8 // self.width + places
        return starts + edges[edge], starts + edges[edge + 1] - 1

    def bounds_of(self, row: int) -> tuple[int, int]:
        """Return what `bounds` does for one row, without an array: for a few rows that is many times as fast."""
        group, place = divmod(row, GROUP)
        record = bytearray(self.record.itemsize)
        self._read(memoryview(record), group)
        number = int.from_bytes(record, "little")
        if (number - group - 1) % PRIME:
            raise self.damaged()
        start = number & START
        edge, next_edge = self._pair.unpack_from(record, 8 + place * self.width)
        return start + edge, start + next_edge - 1

    def damaged(self) -> ValueError:
        """Return the error to raise where what the index says cannot be."""
        return _refusal(self.path, "is damaged")

    def _records(self, wanted: Ids) -> npt.NDArray[np.void]:
        """Read records, given their numbers, sorted: where they are near each other all between them, in sweeps."""
        size = self.record.itemsize
        # As bytes: numpy would copy a structured record without the padding in it, which its check counts.
        records = np.empty(len(wanted), f"V{size}")
        if int(wanted[-1] - wanted[0]) >= FAR * len(wanted):
            raw = records.view(np.uint8).data
            for k, number in enumerate(wanted.tolist()):
                self._read(raw[k * size : (k + 1) * size], number)
            return records.view(self.record)
        start = 0
        while start < len(wanted):
            first = int(wanted[start])
            stop = int(wanted.searchsorted(first + SWEEP))
            sweep = np.empty(int(wanted[stop - 1]) - first + 1, f"V{size}")
            self._read(sweep.view(np.uint8).data, first)
            records[start:stop] = sweep[wanted[start:stop] - first]
            start = stop
        return records.view(self.record)

    def _read(self, records: memoryview, first: int) -> None:
        if read_into(self.file, records, HEADER.size + first * self.record.itemsize) < len(records):
            raise _refusal(self.path, "is cut short")


def remainders(records: npt.NDArray[np.void], width: int, numbers: Ids) -> Ids:
    """Return what is left of each record minus its number minus 1 when it is divided by PRIME: 0 if all is well."""
    words = records.view("<u4").reshape(-1, WORDS[width])
    # as words @ POWERS[width], in two thirds of its time
    sums = np.einsum("ij,j->i", words, POWERS[width])
    left: Ids = (sums - numbers - 1) % PRIME
    return left


def _refusal(path: Path, what: str) -> ValueError:
    return ValueError(
        f"{path} {what}: delete it if it is an index and it is made anew, or keep the index elsewhere with index=…"
    )


# ---- opening: what is there is checked, what is missing is built


def open_index(text: int, name: Path, path: Path) -> Index:
    """Open the index at `path` of an open text file, whose name is `name`; write it first if there is none that fits.

    Of several processes one writes and the others wait for it. Raises ValueError for what is no file, no index or a
    damaged one, OSError where it cannot be written, RuntimeError for a text that changes meanwhile.
    """
    stamp = Stamp.of(text)
    index = _open_existing(path, stamp)
    if index is None:
        with _one_at_a_time(text):
            index = _open_existing(path, stamp)  # another process may have written it meanwhile
            if index is None:
                _build(text, name, path, stamp)
                index = _open_existing(path, stamp)
    if index is None:
        raise RuntimeError(f"{name} or its index {path} changes faster than it can be read")
    return index


def _open_existing(path: Path, stamp: Stamp) -> Index | None:
    """Open an index; None if there is none or it is that of another text."""
    with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as unless_it_fits:
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise ValueError(f"{path} is not a regular file: choose another place for the index with index=…")
        file = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        unless_it_fits.callback(os.close, file)
        index = _checked(file, path, stamp)
        if index is not None:
            unless_it_fits.pop_all()
        return index
    return None


def _checked(file: int, path: Path, stamp: Stamp) -> Index | None:
    header = bytearray(HEADER.size)
    count = read_into(file, memoryview(header), 0)
    if header[: len(MAGIC)][:count] != MAGIC[:count]:
        raise _refusal(path, "is not an index of ours")
    if count < HEADER.size:
        raise _refusal(path, "is cut short")
    _, version, width, gaps, sample, size, modified, rows, checksum = HEADER.unpack(header)
    if version != VERSION:
        return None
    if zlib.crc32(header[:CHECKED]) != checksum:
        raise _refusal(path, "is damaged")
    if Stamp(size, modified, sample) != stamp:
        return None
    index = Index(file, path, rows, width, bool(gaps))
    size = os.fstat(file).st_size
    needed = HEADER.size + -(-rows // GROUP) * index.record.itemsize
    if size < needed:
        raise _refusal(path, "is cut short")
    if size > needed:
        raise index.damaged()
    return index


@contextlib.contextmanager
def _one_at_a_time(text: int) -> Iterator[None]:
    """Hold the lock on the text file. A killed process loses it; one that hangs holds the others up for a while."""
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


def _build(text: int, name: Path, path: Path, stamp: Stamp) -> None:
    """Write the index to a file beside `path` and rename it: whoever looks sees a whole index or none.

    A process that is killed, or a disk that is full, leaves no half an index.
    """
    try:
        for lost in path.parent.glob(f".{path.name}.*.part"):
            with contextlib.suppress(OSError):
                if time.time() - lost.stat().st_mtime > LEFTOVER_SECONDS:
                    lost.unlink()
        with whole_or_not_at_all(path, f"{os.urandom(8).hex()}.part") as unfinished:
            with open(unfinished, "xb") as file:  # buffered: else a write on a full disk may be cut short in silence
                # the first width is nearly always enough; one that is not is found out long before the end
                fits = any(_write(text, name, file, width, stamp) for width in RECORDS)
            if not fits or Stamp.of(text) != stamp:
                raise EOFError
            unfinished.chmod(0o644)
    except EOFError:
        raise RuntimeError(f"{name} has changed while it was read; open it again when nobody writes to it") from None
    except OSError as error:
        said = f"cannot write the index of {name}, {os.strerror(error.errno or 0)}; choose a place for it with index=…"
        raise OSError(error.errno, said, str(path)) from error


def _write(text: int, name: Path, file: BinaryIO, width: int, stamp: Stamp) -> bool:
    """Write a whole index; return False as soon as an edge needs more than `width` bytes. Raises EOFError."""
    file.seek(0)
    file.truncate()
    file.write(bytes(HEADER.size))
    rows = 0
    gaps = False
    waiting = np.empty(0, np.int64)  # starts of rows that are not in a record yet
    with progress_bar(f"index of {name.name}", stamp.size, "B") as progress:
        for scanned, starts, gap in row_starts(text, stamp.size):
            rows += len(starts)
            gaps = gaps or gap
            waiting = np.concatenate([waiting, starts])
            whole = max(0, len(waiting) - 1) // GROUP * GROUP  # the row after a record must be known
            if not _write_records(file, waiting[: whole + 1], width):
                return False
            waiting = waiting[whole:]
            progress(scanned)
    last = np.zeros(1, np.uint8)
    read_into(text, last.data, max(0, stamp.size - 1))
    # after the last row only edges remain: where the next one would begin, if the text went on with another line
    end = stamp.size + int(last[0] != NEWLINE)
    missing = -len(waiting) % GROUP + 1
    if len(waiting) and not _write_records(file, np.append(waiting, np.full(missing, end)), width):
        return False
    fields = (MAGIC, VERSION, width, int(gaps), stamp.sample, stamp.size, stamp.modified, rows)
    checksum = zlib.crc32(HEADER.pack(*fields, 0)[:CHECKED])
    file.seek(0)
    file.write(HEADER.pack(*fields, checksum))
    return True


def _write_records(file: BinaryIO, starts: Ids, width: int) -> bool:
    """Write the records of whole groups of rows, given where these begin and where the row after them does."""
    firsts = starts[:-1:GROUP]
    nexts = starts[1:].reshape(-1, GROUP)  # for each row of a record, where the row after it begins
    if (nexts[:, -1] - firsts).max(initial=0) > np.iinfo(EDGES[width]).max:
        return False
    records = np.zeros(len(firsts), RECORDS[width])
    records["start"] = firsts
    np.subtract(nexts, firsts[:, None], out=records["edges"][:, 1:], casting="unsafe")
    first = (file.tell() - HEADER.size) // records.dtype.itemsize
    left = remainders(records, width, np.arange(first, first + len(records)))  # with a check of 0, as it is until now
    records["check"] = -left * UNIT[width] % PRIME
    file.write(records.view(np.uint8).data)
    return True
