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

A line ends with a newline byte and with nothing else. It is no row if it begins with `#` or has no byte but blanks; a
byte order mark at the head of the text is skipped.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from lib.data.permutation import Ids
from lib.files import whole_or_not_at_all

Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

GROUP = 64  # rows a record
MAGIC, VERSION = b"\x89rows\r\n\x1a", 3
HEADER = struct.Struct("<8s4I3qI12x")
EDGES = {2: "<u2", 4: "<u4", 8: "<i8"}  # by width; 8 is signed: an int64 and a uint64 have no common integer type
RECORDS = {
    width: np.dtype([("start", "<i8"), ("edges", edge, GROUP + 1), ("check", "<u4")], align=True)
    for width, edge in EDGES.items()
}
PRIME = 16_025_969  # the largest for which 134 words of 32 bits, each times a remainder, add up to less than 2^63
WORDS = {width: record.itemsize // 4 for width, record in RECORDS.items()}
POWERS = {  # what a bit in each word of 32 bits adds to the remainder of the record
    width: np.array([pow(2, 32 * word, PRIME) for word in range(words)], np.int64) for width, words in WORDS.items()
}
CHECK = {2: 35, 4: 67, 8: 132}  # which word of a record holds its check
UNIT = {width: pow(2, -32 * word, PRIME) for width, word in CHECK.items()}  # in the check, it adds 1 to the remainder
START = 2**64 - 1  # mask of a record's first field, in the record as one number
NEAR = 8192  # records that are read at a time
BLOCK = 1 << 20  # bytes of text that are scanned at a time: with what is made of them they stay in the cache
WAIT_SECONDS = 60.0  # for another process that is building; after that this one builds too
LEFTOVER_SECONDS = 600.0  # an unfinished file that nobody has written to for so long has lost its process
BAR_DELAY = 1.0  # seconds of work before a progress bar appears

NEWLINE, HASH = b"\n#"
BOM = b"\xef\xbb\xbf"
BLANK: Flags = np.isin(np.arange(256), list(b" \t\v\f\r"))

_position = threading.Lock()


def read_into(file: int, view: memoryview, offset: int) -> int:
    """Fill `view` from a place in an open file and return how many bytes there were.

    The file's own position is not used: threads and forked workers share it.
    """
    done = got = _read_once(file, view, offset)
    while got and done < len(view):  # a signal, or more than 2 GB
        got = _read_once(file, view[done:], offset + done)
        done += got
    return done


def _read_once(file: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [view], offset)
    with _position:  # Windows; and there is no fork there
        os.lseek(file, offset, os.SEEK_SET)
        got = os.read(file, min(len(view), BLOCK))
    view[: len(got)] = got
    return len(got)


@contextlib.contextmanager
def progress_bar(label: str, total: int, unit: str, *, show: bool = True) -> Iterator[Callable[[int], object]]:
    """Yield what notes that so much more is done; after a second a bar is on stderr, if there is tqdm."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda amount: None
        return

    class Bar(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0  # no thread of its own, which would still be there when workers are forked

    hide = not show or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
    with Bar(total=total, desc=label, unit=unit, unit_scale=True, delay=BAR_DELAY, leave=False, disable=hide) as bar:
        yield bar.update


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
        buffer, sample = np.empty(4096, np.uint8), 0
        for place in (0, status.st_size // 2, max(0, status.st_size - 4096)):
            sample = zlib.crc32(buffer[: read_into(file, buffer.data, place)].data, sample)
        return cls(status.st_size, status.st_mtime_ns, sample)


class Index:
    """An open index: how many `rows` there are, and where. gaps: lines that are no rows lie between them."""

    def __init__(self, file: int, path: Path, rows: int, width: int, gaps: bool) -> None:
        self.file, self.path, self.rows, self.width, self.gaps = file, path, rows, width, gaps
        self.record = RECORDS[width]
        self._edges = struct.Struct({2: "<HH", 4: "<II", 8: "<qq"}[width])  # before and after a row

    def bounds(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return where each row begins, and where its newline is. ids: sorted, in range, not empty.

        One read where the rows are near each other, one read a record where they are not.
        """
        groups = ids // GROUP
        places = ids - GROUP * groups
        if int(groups[-1] - groups[0]) >= 64 * len(ids):  # far apart: only the records that are wanted
            wanted, at = np.unique(groups, return_inverse=True)
            records, size = np.empty(len(wanted), self.record), self.record.itemsize
            raw = records.view(np.uint8).data
            for k, group in enumerate(wanted.tolist()):
                self._read(raw[k * size : (k + 1) * size], group)
            return self._decode(records, wanted, at, places)
        # near each other: all records between them, in sweeps that need little memory
        begin, end, a = np.empty_like(ids), np.empty_like(ids), 0
        while a < len(ids):
            first = int(groups[a])
            b = int(groups.searchsorted(first + NEAR))
            records = np.empty(int(groups[b - 1]) - first + 1, self.record)
            self._read(records.view(np.uint8).data, first)
            numbers = np.arange(first, first + len(records))
            begin[a:b], end[a:b] = self._decode(records, numbers, groups[a:b] - first, places[a:b])
            a = b
        return begin, end

    def bounds_of(self, row: int) -> tuple[int, int]:
        """Return what `bounds` does for one row, without an array: for a few rows that is many times as fast."""
        group, place = divmod(row, GROUP)
        record = bytearray(self.record.itemsize)
        self._read(memoryview(record), group)
        number = int.from_bytes(record, "little")
        if (number - group - 1) % PRIME:
            raise self.damaged()
        start, (edge, next_edge) = number & START, self._edges.unpack_from(record, 8 + place * self.width)
        return start + edge, start + next_edge - 1

    def damaged(self) -> ValueError:
        """Return the error to raise where what the index says cannot be."""
        return _refusal(self.path, "is damaged")

    def _decode(self, records: npt.NDArray[np.void], numbers: Ids, at: Ids, places: Ids) -> tuple[Ids, Ids]:
        if remainders(records, self.width, numbers).any():
            raise self.damaged()
        # one index into all edges is twice as fast as two, records["edges"][at, places]
        edge = at * (self.record.itemsize // self.width) + 8 // self.width + places
        starts, edges = records["start"][at], records.view(EDGES[self.width])
        return starts + edges[edge], starts + edges[edge + 1] - 1

    def _read(self, records: memoryview, first: int) -> None:
        if read_into(self.file, records, HEADER.size + first * self.record.itemsize) < len(records):
            raise _refusal(self.path, "is cut short")


def remainders(records: npt.NDArray[np.void], width: int, numbers: Ids) -> Ids:
    """Return what is left of each record minus its number minus 1 when it is divided by PRIME: 0 if all is well."""
    words = records.view("<u4").reshape(-1, WORDS[width])
    left: Ids = (np.einsum("ij,j->i", words, POWERS[width]) - numbers - 1) % PRIME  # as @, in two thirds of its time
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
    if zlib.crc32(header[:48]) != checksum:
        raise _refusal(path, "is damaged")
    if Stamp(size, modified, sample) != stamp:
        return None
    index = Index(file, path, rows, width, bool(gaps))
    there, need = os.fstat(file).st_size, HEADER.size + -(-rows // GROUP) * index.record.itemsize
    if there != need:
        raise _refusal(path, "is cut short" if there < need else "is damaged")
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
    rows, gaps = 0, False
    waiting = np.empty(0, np.int64)  # starts of rows that are not in a record yet
    with progress_bar(f"index of {name.name}", stamp.size, "B") as progress:
        for scanned, starts, gap in row_starts(text, stamp.size):
            rows, gaps = rows + len(starts), gaps or gap
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
    checksum = zlib.crc32(HEADER.pack(*fields, 0)[:48])
    file.seek(0)
    file.write(HEADER.pack(*fields, checksum))
    return True


def _write_records(file: BinaryIO, starts: Ids, width: int) -> bool:
    """Write the records of whole groups of rows, given where these begin and where the row after them does."""
    firsts, nexts = starts[:-1:GROUP], starts[1:].reshape(-1, GROUP)
    if (nexts[:, -1] - firsts).max(initial=0) > np.iinfo(EDGES[width]).max:
        return False
    records = np.zeros(len(firsts), RECORDS[width])
    records["start"] = firsts
    np.subtract(nexts, firsts[:, None], out=records["edges"][:, 1:], casting="unsafe")
    first = (file.tell() - HEADER.size) // records.dtype.itemsize
    records["check"] = -remainders(records, width, np.arange(first, first + len(records))) * UNIT[width] % PRIME
    file.write(records.view(np.uint8).data)
    return True


# ---- which lines of a text are rows


def row_starts(file: int, size: int) -> Iterator[tuple[int, Ids, bool]]:
    """Yield block by block: bytes scanned, where the rows that begin there begin, whether other lines follow a row.

    Raises EOFError for a text that is shorter than `size`.
    """
    buffer, newlines = np.empty(BLOCK + 1, np.uint8), np.empty(BLOCK, np.bool_)
    first = len(BOM) if read_into(file, buffer[:3].data, 0) == 3 and buffer[:3].tobytes() == BOM else 0
    buffer[0] = NEWLINE  # buffer[k] is the byte before the line that may begin at offset + k
    seen = False
    for offset in range(first, size, BLOCK):
        count = min(BLOCK, size - offset)
        if read_into(file, buffer[1 : count + 1].data, offset) < count:
            raise EOFError
        text = buffer[1 : count + 1]
        np.equal(buffer[:count], NEWLINE, out=newlines[:count])
        starts, gap = np.flatnonzero(newlines[:count]), False
        if (text[starts] <= HASH).any():  # as a header's first byte is, and all blanks are
            is_row = _are_rows(file, offset, text, starts)
            gap = not is_row[np.logical_or.accumulate(is_row) | seen].all()
            starts = starts[is_row]
        seen = seen or len(starts) > 0
        starts += offset
        yield count, starts, gap
        buffer[0] = buffer[count]


def _are_rows(file: int, offset: int, text: Bytes, starts: Ids) -> Flags:
    """Tell which of the lines that begin in a block of text, at `starts`, are rows. offset: where the block is."""
    heads = text[starts]
    is_row: Flags = heads != HASH
    unclear = np.flatnonzero(BLANK[heads] | (heads == NEWLINE))
    if len(unclear):  # a row, if what comes first after the blanks is no newline
        stops = np.flatnonzero(~BLANK[text])
        first = np.append(text[stops], np.uint8(_after_blanks(file, offset + len(text))))
        is_row[unclear] = first[np.searchsorted(stops, starts[unclear])] != NEWLINE
    return is_row


def _after_blanks(file: int, offset: int) -> int:
    """Return the first byte from a place on that is no blank; a newline if there is none."""
    buffer = np.empty(4096, np.uint8)
    while count := read_into(file, buffer.data, offset):
        solid = buffer[:count][~BLANK[buffer[:count]]]
        if len(solid):
            return int(solid[0])
        offset += count
    return NEWLINE
