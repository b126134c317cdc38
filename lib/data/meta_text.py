"""The text of a meta file: which of its lines are rows, and how many rows are copied out of it at once.

A line ends with a newline byte and with nothing else. It is no row if it begins with `#` or has no byte but blanks. A
row's text is its line without the newline and without one carriage return before it; a byte order mark is skipped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ids: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

BLOCK = 1 << 20  # bytes that are scanned at a time: with what is made of them they stay in the cache
WINDOW = 1 << 21  # bytes that are read at a time where wanted rows are close to each other
FAR, FEW = (
    1 << 15,
    8,
)  # bytes between two of them from which each is read by itself; and so are less than a few
NEWLINE, RETURN, SPACE, HASH = b"\n\r #"
BOM = b"\xef\xbb\xbf"

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


# ---- which lines are rows


def row_starts(file: int, size: int) -> Iterator[tuple[int, Ids, bool]]:
    """Yield block by block: bytes scanned, where the rows that begin there begin, whether other lines follow a row."""
    buffer, ends = np.empty(BLOCK + 1, np.uint8), np.empty(BLOCK, bool)
    first = len(BOM) if read_into(file, buffer[:3].data, 0) == 3 and buffer[:3].tobytes() == BOM else 0
    buffer[0] = NEWLINE  # buffer[k] is the byte before the line that may begin at offset + k
    rows = 0
    for offset in range(first, size, BLOCK):
        count = min(BLOCK, size - offset)
        if read_into(file, buffer[1 : count + 1].data, offset) < count:
            raise EOFError
        np.equal(buffer[:count], NEWLINE, out=ends[:count])
        starts = np.flatnonzero(ends[:count])
        heads = buffer[1:][starts]
        heads -= (
            HASH + 1
        )  # wraps around: only a hash and what sorts before it, as blanks do, is now above 219
        broken = False
        if heads.size and heads.max() >= 256 - HASH - 1:
            is_row = _are_rows(file, offset, starts, buffer[1 : count + 1])
            broken = not is_row[0 if rows else int(is_row.argmax()) :].all() and bool(rows or is_row.any())
            starts = starts[is_row]
        rows += len(starts)
        starts += offset
        buffer[0] = buffer[count]
        yield count, starts, broken


def _are_rows(file: int, offset: int, starts: Ids, text: Bytes) -> Flags:
    """Tell which lines are rows: all lines at once look at their first byte, those that begin blank at the next, …"""
    is_row: Flags = text[starts] != HASH
    lines = np.flatnonzero(_is_blank(text[starts]))
    at = starts[lines]
    for _ in range(64):
        byte = text[at]
        is_row[lines[byte == NEWLINE]] = False
        undecided = _is_blank(byte) & (byte != NEWLINE)
        lines, at = lines[undecided], at[undecided] + 1
        inside = at < len(text)
        if not (len(lines) and inside.all()):
            break
    for line in lines.tolist():  # what is blank for very long, or to the end of the block
        is_row[line] = not _blank_line(file, offset + int(starts[line]))
    return is_row


def _is_blank(byte: Bytes) -> Flags:
    blank: Flags = (byte == SPACE) | ((byte >= 9) & (byte <= 13))
    return blank


def _blank_line(file: int, offset: int) -> bool:
    buffer = np.empty(4096, np.uint8)
    while count := read_into(file, buffer.data, offset):
        rest = buffer[:count].tobytes().lstrip(b" \t\r\v\f")
        if rest:
            return rest[0] == NEWLINE
        offset += count
    return True


# ---- copying rows


def copy_rows(file: int, begin: Ids, end: Ids, broken: bool, out: Bytes) -> Ids:
    """Copy rows one after another to `out` and return their lengths; `out` has room for the sum of end - begin.

    begin, end: where each row's line begins and where its newline is, sorted. broken: the end may lie some lines too
    far. Raises EOFError where the file is too short.
    """
    lengths, filled = np.empty(len(begin), np.int64), 0
    buffer, view = np.empty(0, np.uint8), out.data
    a = 0
    while a < len(begin):
        low = int(begin[a])
        b = int(np.searchsorted(begin, low + WINDOW))
        if b - a > 1 and end[b - 1] - low > 2 * WINDOW:
            b -= 1  # the last of them is huge: it comes next, alone
        span = int(end[b - 1]) - low
        if b - a < FEW or span > FAR * (b - a):
            for k in range(a, b):
                length = copy_one(file, int(begin[k]), int(end[k]), broken, view[filled:])
                lengths[k], filled = length, filled + length
        else:
            if len(buffer) < span:
                buffer = np.empty(max(span, min(WINDOW, int(end[-1]) - low)), np.uint8)
            if read_into(file, buffer[:span].data, low) < span:
                raise EOFError
            lengths[a:b] = _copy_near(buffer[:span], begin[a:b] - low, end[a:b] - low, broken, out[filled:])
            filled += int(lengths[a:b].sum())
        a = b
    return lengths


def copy_one(file: int, begin: int, end: int, broken: bool, out: memoryview) -> int:
    """Copy one row to `out`, which has room for end - begin bytes; return its length. Raises EOFError."""
    length = end - begin
    row = out[:length]
    if read_into(file, row, begin) < length:
        raise EOFError
    if broken:
        length = len(row.tobytes().partition(b"\n")[0])
    return length - (row[length - 1] == RETURN)


def _copy_near(window: Bytes, begin: Ids, end: Ids, broken: bool, out: Bytes) -> Ids:
    """Copy rows as memcpy does: one of 2^c bytes or more, but below 2^(c + 1), is its first and its last 2^c bytes.

    These may overlap. So a few copies of equal pieces, one c after another, move thousands of unequal rows.
    """
    if broken:
        newlines = np.append(np.flatnonzero(window == NEWLINE), len(window))
        end = newlines[np.searchsorted(newlines, begin)]
    end = end - (window[end - 1] == RETURN)
    lengths = end - begin
    to = np.cumsum(lengths) - lengths
    out = out[: int(lengths.sum())]
    size_class = np.frexp(lengths.astype(np.float64))[1]
    for exponent in range(int(size_class.min()), int(size_class.max()) + 1):
        these = np.flatnonzero(size_class == exponent)
        if len(these):
            piece = 1 << (exponent - 1)
            source, target = _pieces(window, piece), _pieces(out, piece)
            rest = lengths[these] - piece
            here, there = begin[these], to[these]
            target[there] = source[here]
            here += rest
            there += rest
            target[there] = source[here]
    return lengths


def _pieces(buffer: Bytes, size: int) -> npt.NDArray[np.void]:
    """View a buffer as all its pieces of `size` bytes: piece k begins at byte k."""
    return np.ndarray(len(buffer) - size + 1, f"V{size}", buffer, strides=(1,))
