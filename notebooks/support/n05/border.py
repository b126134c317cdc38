"""How long an epoch of 400 million rows takes where they are read cold: who waits for whom, and from which demand on.

Training asks for so many rows a second, its demand. A disk has two limits, reads and bytes a second, and what is slower
decides. Whoever reads while training goes on needs the longer of the two, max(train, read); whoever reads first, their
sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ROWS = 400e6
ROW_BYTES = 44
FILE = ROWS * ROW_BYTES
RANKS = 8
PAGE = 4096  # bytes that a disk reads where one row of it is wanted
PIECE = 2e6  # bytes that are read at a time where a file is read front to back
IMAGE = 10e3  # bytes of an image that lies on the same disk


@dataclass(frozen=True)
class Disk:
    """What a disk gives at most: reads a second, bytes a second."""

    reads: float
    bytes: float


DISKS = {
    "NVMe in the machine": Disk(500_000, 3e9),
    "network volume": Disk(16_000, 250e6),
    "hard disk": Disk(150, 150e6),
}

ColdWay: TypeAlias = Literal[
    "row by row", "own rows, read first", "own rows, read ahead", "shards, shuffle buffer"
]
COLD_WAYS: tuple[ColdWay, ...] = (
    "row by row",
    "own rows, read first",
    "own rows, read ahead",
    "shards, shuffle buffer",
)


def reading_seconds(
    way: ColdWay, disk: Disk, *, mini_epochs: int = 8, cached: float = 0.0, images: bool = False
) -> float:
    """Return how long the reads of an epoch keep a disk busy.

    mini_epochs: each rank sweeps the file once in each of them, by itself. cached: the share of single reads that find
    their page in memory. images: an image a row is read from the same disk, singly but in shards, which have it packed.
    """
    image_reads = ROWS * images
    image_bytes = image_reads * IMAGE
    if way == "row by row":
        pages = ROWS * (1 - cached)
        return max((pages + image_reads) / disk.reads, (pages * PAGE + image_bytes) / disk.bytes)
    if way == "shards, shuffle buffer":
        text = FILE + image_bytes
        return max(text / PIECE / disk.reads, text / disk.bytes)
    text = RANKS * mini_epochs * FILE
    return max((text / PIECE + image_reads) / disk.reads, (text + image_bytes) / disk.bytes)


def epoch_seconds(
    way: ColdWay,
    demand: float,
    disk: Disk,
    *,
    mini_epochs: int = 8,
    cached: float = 0.0,
    images: bool = False,
) -> float:
    """Return how long an epoch takes if training asks for `demand` rows a second; the rest as in reading_seconds."""
    train = ROWS / demand
    read = reading_seconds(way, disk, mini_epochs=mini_epochs, cached=cached, images=images)
    if way == "own rows, read first":
        sweeps = reading_seconds(way, disk, mini_epochs=mini_epochs)
        return sweeps + max(train, read - sweeps)
    return max(train, read)


def keeps_up_to(
    way: ColdWay, disk: Disk, *, mini_epochs: int = 8, cached: float = 0.0, images: bool = False
) -> float:
    """Return the demand, in rows a second, from which on training waits for the disk; 0 if it always does."""
    if way == "own rows, read first":
        return 0.0
    return ROWS / reading_seconds(way, disk, mini_epochs=mini_epochs, cached=cached, images=images)
