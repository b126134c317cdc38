"""The text of a meta file: which of its lines are rows, and how many rows at once are copied out of it.

A line ends with a newline byte and with nothing else. It is no row if it begins with `#` or has no byte but blanks. A
row's text is its line without the newline, and without one carriage return before it. A byte order mark at the head of
the file is skipped.

Places are counted in bytes from the beginning of the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lib.data.permutation import Ids

Bytes: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]

BLOCK = 1 << 20  # bytes of text that are scanned at a time: with what is made of them they stay in the cache
WINDOW = 1 << 21  # bytes of text that are read at a time where wanted rows are close to each other
FAR = 1 << 15  # bytes between two of them, on average, from which each is read by itself
FEW = 8  # rows that are not worth an array: each is read by itself

NEWLINE, RETURN, HASH = b"\n\r#"
BOM = b"\xef\xbb\xbf"
BLANK: Flags = np.isin(np.arange(256), list(b" \t\v\f\r"))  # by byte: is it a blank?

_position = threading.Lock()


def read_into(file: int, view: memoryview, offset: int) -> int:
    """Fill `view` from a place in an open file and return how many bytes there were.

    The file's own position is not used: threads and forked workers share it.
    """
    done = got = _read_once(file, view, offset)
    while got and done < len(view):  # a signal came between, or it is more than 2 GB
        got = _read_once(file, view[done:], offset + done)
        done += got
    return done


def _read_once(file: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(file, [view], offset)
    with _position:  # Windows has the position only; there is no fork there, so a lock between threads is enough
        os.lseek(file, offset, os.SEEK_SET)
        got = os.read(file, min(len(view), BLOCK))
    view[: len(got)] = got
    return len(got)


# ---- which lines are rows


def row_starts(file: int, size: int) -> Iterator[tuple[int, Ids, bool]]:
    """Yield block by block: bytes scanned, where the rows that begin there begin, whether other lines follow a row.

    Raises EOFError for a text that is shorter than `size`.
    """
    # buffer[k] is the byte before the line that may begin at offset + k, so text[k] is the line's first byte
    buffer = np.empty(BLOCK + 1, np.uint8)
    begins_line = np.empty(BLOCK, np.bool_)
    first = 0
    if read_into(file, buffer[:3].data, 0) == 3 and buffer[:3].tobytes() == BOM:
        first = len(BOM)
    buffer[0] = NEWLINE
    seen_a_row = False
    for offset in range(first, size, BLOCK):
        count = min(BLOCK, size - offset)
        text = buffer[1 : count + 1]
        if read_into(file, text.data, offset) < count:
            raise EOFError
        np.equal(buffer[:count], NEWLINE, out=begins_line[:count])
        starts = np.flatnonzero(begins_line[:count])
        gap = False
        if (text[starts] <= HASH).any():  # as a header's first byte is, and all blanks are
            is_row = _are_rows(file, offset, text, starts)
            after_a_row = np.logical_or.accumulate(is_row) | seen_a_row
            gap = not is_row[after_a_row].all()
            starts = starts[is_row]
        seen_a_row = seen_a_row or len(starts) > 0
        yield count, starts + offset, gap
        buffer[0] = buffer[count]


def _are_rows(file: int, offset: int, text: Bytes, starts: Ids) -> Flags:
    """Tell which of the lines that begin in a block of text, at `starts`, are rows. offset: where the block is."""
    heads = text[starts]
    is_row: Flags = heads != HASH
    unclear = np.flatnonzero(BLANK[heads] | (heads == NEWLINE))
    if len(unclear):  # each is a row if the first byte that is no blank is no newline
        solid = np.flatnonzero(~BLANK[text])
        after_the_block = np.uint8(_after_blanks(file, offset + len(text)))
        solid_bytes = np.append(text[solid], after_the_block)
        is_row[unclear] = solid_bytes[np.searchsorted(solid, starts[unclear])] != NEWLINE
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


# ---- copying rows


def copy_rows(file: int, begin: Ids, end: Ids, gaps: bool, out: Bytes) -> Ids:
    """Copy rows one after another to `out` and return their lengths; `out` has room for the sum of end - begin.

    begin, end: where each row's line begins and where its newline is, sorted. gaps: the end may lie some lines too
    far. A carriage return before the newline is left out. Raises EOFError where the file is too short or has no row.
    """
    lengths = np.empty(len(begin), np.int64)
    buffer = np.empty(min(WINDOW, int(end[-1] - begin[0])), np.uint8)
    view = out.data
    filled = start = 0
    while start < len(begin):
        low = int(begin[start])
        # what ends within a window from here is read together; a row that is longer than a window comes alone
        stop = max(start + 1, int(end.searchsorted(low + WINDOW)))
        span = int(end[stop - 1]) - low
        if stop - start < FEW or span > FAR * (stop - start):
            each = _copy_each(file, begin[start:stop].tolist(), end[start:stop].tolist(), gaps, view[filled:])
            lengths[start:stop] = each
            filled += sum(each)
        else:
            window = buffer[:span]
            if read_into(file, window.data, low) < span:
                raise EOFError
            copied = _copy_lines(window, begin[start:stop] - low, end[start:stop] - low, gaps, out[filled:])
            lengths[start:stop] = copied
            filled += int(copied.sum())
        start = stop
    return lengths


def _copy_each(file: int, begins: list[int], ends: list[int], gaps: bool, out: memoryview) -> list[int]:
    """Copy rows that lie far apart, each with one read; return their lengths.

    copy_row in a loop would do; without its calls a batch of 256 takes 0.8 of the time.
    """
    lengths = []
    filled = 0
    simple = hasattr(os, "preadv") and not gaps
    for begin, end in zip(begins, ends, strict=True):
        length = end - begin
        row = out[filled : filled + length]
        whole = simple and os.preadv(file, (row,), begin) == length > 1
        if not whole or row[length - 1] == RETURN:
            length = copy_row(file, begin, end, gaps, out[filled:])
        lengths.append(length)
        filled += length
    return lengths


def copy_row(file: int, begin: int, end: int, gaps: bool, out: memoryview) -> int:
    """Copy one row to `out`, which has room for end - begin bytes; return its length. Raises EOFError as copy_rows."""
    length = end - begin
    row = out[:length]
    if read_into(file, row, begin) < length:
        raise EOFError
    if gaps:
        length = len(row.tobytes().partition(b"\n")[0])
    if row[length - 1] == RETURN:
        length -= 1
    if length < 1:
        raise EOFError
    return length


def _copy_lines(window: Bytes, begin: Ids, end: Ids, gaps: bool, out: Bytes) -> Ids:
    """Copy rows that lie in a window of the text, without a loop over them; return their lengths."""
    if gaps:
        newlines = np.append(np.flatnonzero(window == NEWLINE), len(window))
        end = newlines[np.searchsorted(newlines, begin)]
    lengths: Ids = end - begin - (window[end - 1] == RETURN)
    if (lengths < 1).any():
        raise EOFError
    to = lengths.cumsum() - lengths
    # As memcpy does: whatever has 2^c bytes or more, but less than 2^(c + 1), is its first and its last 2^c bytes,
    # which may overlap. So for each c two copies of equal pieces move thousands of unequal rows.
    exponents = np.frexp(lengths.astype(np.float64))[1] - 1
    for c in np.bincount(exponents).nonzero()[0].tolist():
        rows = (exponents == c).nonzero()[0]
        source = _pieces(window, 1 << c)
        target = _pieces(out, 1 << c)
        source_first = begin[rows]
        target_first = to[rows]
        to_last = lengths[rows] - (1 << c)
        target[target_first] = source[source_first]
        target[target_first + to_last] = source[source_first + to_last]
    return lengths


def _pieces(buffer: Bytes, size: int) -> npt.NDArray[np.void]:
    """View a buffer as all its pieces of `size` bytes: piece k begins at byte k."""
    return np.ndarray(len(buffer) - size + 1, f"V{size}", buffer, strides=(1,))
