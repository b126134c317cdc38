"""Open the index of a meta file; build it first where there is none that fits.

One process builds and the others wait. It writes to a file of its own, which gets its name when it is whole: a process
that is killed, or a disk that is full, leaves no half an index.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lib.data.meta_index import GROUP, HEADER, MAGIC, VERSION, WIDTHS, Index, Stamp, open_existing
from lib.data.meta_text import NEWLINE, Ids, read_into, row_starts
from lib.data.progress import Progress

WAIT_SECONDS = 60.0  # for another process that is building; after that this one builds too
LEFTOVER_SECONDS = 600.0  # an unfinished file that nobody has written to for so long has lost its process


def open_index(text: int, name: Path, path: Path) -> Index:
    """Open the index at `path` of an open text file, whose name is `name`; write it first if there is none that fits.

    Of several processes one writes and the others wait for it. Raises ValueError for a file that is no index or a
    damaged one, OSError where it cannot be written.
    """
    stamp = Stamp.of(text)
    index = open_existing(path, stamp)
    if index is None:
        with _one_at_a_time(text):
            index = open_existing(path, stamp)
            if index is None:
                _write(text, name, path, stamp)
                index = open_existing(path, stamp)
    if index is None:
        raise RuntimeError(f"{name} or its index {path} changes faster than it can be read")
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
        raise OSError(
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
    ended = stamp.size > 0 and read_into(text, last.data, stamp.size - 1) == 1 and last[0] == NEWLINE
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
    records = np.zeros(len(firsts), [("start", "<i8"), ("zeros", "<i8"), ("next", WIDTHS[width], GROUP)])
    records["start"] = firsts
    np.subtract(nexts, firsts[:, None], out=records["next"], casting="unsafe")
    file.write(records.data)
    return True
