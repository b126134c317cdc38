"""A meta file of image captions of any size, and how much memory its rows take by who holds them."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from lib.arguments import integer

# ---- Make a meta file of any size: image names and captions, 44 bytes a row on average, some GB a second.

WORDS = "a an the red blue green small large old young dog cat bird horse girl boy car tree on in by under sea snow"
HEADER = "# image caption\n"
ROW_BYTES = 44.0  # on average


def write_captions(path: str | os.PathLike[str], rows: int) -> int:
    """Write a header and rows like `img/000000007.jpg "a small dog on the grass"`; return how many bytes they take.

    The captions differ in length and repeat every thousand rows; the names do not repeat. Every machine gets the same
    rows. Raises ValueError for more than a billion.
    """
    rows = integer("rows", rows, at_least=0, below=10**9 + 1)
    thousand = _thousand()
    line_starts = np.flatnonzero(np.concatenate([[True], thousand[:-1] == ord("\n")]))
    with open(path, "wb") as file:
        file.write(HEADER.encode())
        for first in range(0, rows, 1_000_000):
            last = min(rows, first + 1_000_000)
            numbers = np.arange(first // 1000, math.ceil(last / 1000))  # of the thousands in this block
            block = np.tile(thousand, (len(numbers), 1))
            for digit in range(6):  # the last three of nine are those of the thousand rows
                value = (numbers // 10 ** (5 - digit) % 10 + ord("0")).astype(np.uint8)
                block[:, line_starts + len("img/") + digit] = value[:, None]
            end = block.size
            extra = first + 1000 * len(numbers) - rows
            if 0 < extra < 1000:  # the last thousand is cut where its first extra row begins
                end -= len(thousand) - int(line_starts[1000 - extra])
            file.write(block.reshape(-1)[:end].data)
        return file.tell()


def _thousand() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a thousand rows whose captions have 12 to 34 letters, as bytes."""
    random = np.random.default_rng(0)
    words = WORDS.split()
    text = []
    for row in range(1000):
        length = random.integers(12, 35)
        caption = ""
        while len(caption) < length:
            caption += words[random.integers(len(words))] + " "
        text.append(f'img/{row:09}.jpg "{caption[:length].strip().ljust(length, "s")}"\n')
    return np.frombuffer("".join(text).encode(), np.uint8)


# ---- How much memory the rows of a meta file take, predicted: a copy's size, how many copies, and what is cached.

Way: TypeAlias = Literal["naive", "server", "rank", "file", "mapped"]
WAYS: tuple[Way, ...] = get_args(Way)

STR_HEADER = sys.getsizeof("")  # bytes of a str beside its ASCII letters
ROUNDED_TO = 16  # its size in memory is a multiple of so many bytes
POINTER = 8  # bytes of its place in a list
PLACE = 4  # bytes that a packed row takes for where it begins,
ITEM = 4  # and for which item it is
INDEX = 2.25  # bytes a row of the index file


@dataclass(frozen=True)
class Holding:
    """Who holds rows: `copies` of `each` bytes; `cached`: bytes of files that are read again and again."""

    copies: int
    each: float
    cached: float = 0.0

    @property
    def total(self) -> float:
        """Bytes on the whole machine, without what is cached."""
        return self.copies * self.each


def list_row_bytes(row_bytes: float) -> float:
    """Return what a row of so many bytes in the file, newline included, takes as a str in a list."""
    letters = row_bytes - 1
    return math.ceil((STR_HEADER + letters) / ROUNDED_TO) * ROUNDED_TO + POINTER


def predict_holding(
    way: Way, *, rows: int, row_bytes: float, world_size: int = 1, workers: int = 0, mini_epochs: int = 1
) -> Holding:
    """Return who holds the rows when every worker has read enough. Raises ValueError for an unknown way."""
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    if way == "naive":
        return Holding(world_size * (1 + workers), rows * list_row_bytes(row_bytes))
    place = PLACE if rows * row_bytes < 2**32 else 2 * PLACE  # offsets of 4 bytes reach so far
    text = rows * (row_bytes - 1)
    if way == "server":
        return Holding(1, text + rows * place)
    if way == "file":
        return Holding(0, 0.0, rows * (row_bytes + INDEX))
    if way == "mapped":
        return Holding(1, text + rows * place)
    turns = math.ceil(rows / world_size)
    held = math.ceil(turns / mini_epochs)
    return Holding(world_size, held * (row_bytes - 1 + PLACE + ITEM))
