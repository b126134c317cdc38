"""How much memory the rows of a meta file take on one machine, predicted: a copy's size, and how many copies.

one      one process parses everything                   1 copy as a list
naive    every rank does, and each of its workers        W · (1 + workers) copies as a list
server   one process holds the rows, the others ask      1 copy, packed
rank     every rank holds its rows of a mini-epoch       W copies of 1 / (W · E), packed, which workers share
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

Way: TypeAlias = Literal["one", "naive", "server", "rank"]
WAYS: tuple[Way, ...] = get_args(Way)

STR_HEADER, ROUNDED_TO, POINTER = sys.getsizeof(""), 16, 8
"""Bytes of a str beside its ASCII letters, of which its size in memory is a multiple, and of its place in a list."""
OFFSETS = 8
"""Bytes that a packed row takes beside its text: where it begins (4), and which item it is (4)."""


@dataclass(frozen=True)
class Holding:
    """Who holds rows: how many copies there are, and the bytes of each."""

    copies: int
    each: float

    @property
    def total(self) -> float:
        """Bytes on the whole machine."""
        return self.copies * self.each


def list_row_bytes(row_bytes: float) -> float:
    """Return what a row of so many bytes in the file, newline included, takes as a str in a list."""
    letters = row_bytes - 1
    return -(-(STR_HEADER + letters) // ROUNDED_TO) * ROUNDED_TO + POINTER


def predict(
    way: Way, *, rows: int, row_bytes: float, world_size: int = 1, workers: int = 0, mini_epochs: int = 1
) -> Holding:
    """Return who holds the rows when every worker has read enough. Raises ValueError for an unknown way."""
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    if way in ("one", "naive"):
        ranks = 1 if way == "one" else world_size
        return Holding(ranks * (1 + workers), rows * list_row_bytes(row_bytes))
    packed = row_bytes - 1 + OFFSETS
    if way == "server":
        small = rows * row_bytes < 2**32  # in file order, and offsets of 4 bytes reach so far
        return Holding(1, rows * (packed - (4 if small else 0)))
    turns = -(-rows // world_size)
    return Holding(world_size, -(-turns // mini_epochs) * packed)
