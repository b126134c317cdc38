"""A volume with limits, and ranks that train from it: what an epoch's first rows take where nothing is in the cache.

Volume    stands before os.pread and os.preadv; what reads by them waits as a disk of these limits would make it wait
Shards    the rows of a piece of a file, read front to back, through a shuffle buffer
cold_run  real ranks with real DataLoader workers, trained from a volume; a training step is a pause of a given length

The limits are given, so a run shows nothing about disks. It shows who waits for whom: workers, threads, loads, steps.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils.data import IterableDataset

from support.n05.border import Disk

_SHORT = 0.001  # seconds: a shorter wait is put off, and taken together with the next ones
_FORK: Any = multiprocessing.get_context("fork") if hasattr(os, "fork") else multiprocessing


class Volume:
    """Let reads of one file wait as on a disk, one for all processes that are forked from here; count them.

    Each call of os.pread or os.preadv is one read: 1 / disk.reads seconds, or its bytes / disk.bytes if that is longer.
    No read waits longer than these limits make it: as if as many were asked for at a time as the disk can take.
    """

    def __init__(self, path: str | os.PathLike[str], disk: Disk) -> None:
        self.disk = disk
        self._file = os.stat(path)
        self._lock = _FORK.Lock()
        self._free = _FORK.Value("d", 0.0, lock=False)  # when the disk has done all that it was asked for
        self._reads = _FORK.Value("q", 0, lock=False)
        self._bytes = _FORK.Value("q", 0, lock=False)
        self._busy = _FORK.Value("d", 0.0, lock=False)

    @property
    def counted(self) -> tuple[int, int, float]:
        """Reads, bytes, and the seconds that they have kept the disk busy, since the last reset."""
        return self._reads.value, self._bytes.value, self._busy.value

    def reset(self) -> None:
        """Count from 0 again, and let the disk be idle."""
        self._reads.value = 0
        self._bytes.value = 0
        self._busy.value = 0.0
        self._free.value = 0.0

    def charge(self, size: int) -> None:
        """Wait as long as a read of so many bytes keeps the disk busy, behind all that were asked for before."""
        with self._lock:
            now = time.perf_counter()
            cost = max(1 / self.disk.reads, size / self.disk.bytes)
            self._free.value = max(now, self._free.value) + cost
            self._reads.value += 1
            self._bytes.value += size
            self._busy.value += cost
            wait = self._free.value - now
        if wait > _SHORT:
            time.sleep(wait)

    @contextmanager
    def limiting(self) -> Iterator[None]:
        """Charge for every os.pread and os.preadv of the file, in this process and in those that it forks."""
        pread = os.pread
        preadv = os.preadv

        def slow_pread(file: int, size: int, place: int) -> bytes:
            if os.path.samestat(os.fstat(file), self._file):
                self.charge(size)
            return pread(file, size, place)

        def slow_preadv(file: int, buffers: Any, place: int, *flags: int) -> int:
            if os.path.samestat(os.fstat(file), self._file):
                self.charge(sum(map(len, buffers)))
            return preadv(file, buffers, place, *flags)

        with mock.patch.object(os, "pread", slow_pread), mock.patch.object(os, "preadv", slow_preadv):
            yield


def limited(volume: Volume, make: Callable[..., Any], ours: Callable[..., Any], *arguments: Any) -> Any:
    """Return make(*arguments) if the volume notices how that dataset reads row 0; else say so, and return ours."""
    dataset = make(*arguments)
    volume.reset()
    with volume.limiting():
        dataset[0]
    if volume.counted[0]:
        return dataset
    print("the volume does not see how your dataset reads: here ours runs in its place")
    return ours(*arguments)


def shuffle_in_buffer(rows: Iterable[Any], size: int, random: np.random.Generator) -> Iterator[Any]:
    """Hand rows out in an order that a buffer of `size` of them can make, as 02 does."""
    buffer: list[Any] = []
    for row in rows:
        if len(buffer) < size:
            buffer.append(row)
            continue
        place = int(random.integers(size))
        yield buffer[place]
        buffer[place] = row
    yield from (buffer[place] for place in random.permutation(len(buffer)))


class Shards(IterableDataset[str]):
    """Read a rank's piece of the file front to back, and hand rows out through a shuffle buffer of `size` rows."""

    PIECE = 4096  # rows that are read at a time

    def __init__(self, path: str, bounds: Any, world_size: int, rank: int, size: int, seed: int = 0) -> None:
        self.path = path
        self.bounds = bounds
        share = (len(bounds) - 1) // world_size
        self.rows = range(rank * share, (rank + 1) * share)
        self.size = size
        self.seed = seed

    def __iter__(self) -> Iterator[str]:
        random = np.random.default_rng((self.seed, self.rows.start))
        return shuffle_in_buffer(self._in_order(), self.size, random)

    def _in_order(self) -> Iterator[str]:
        file = os.open(self.path, os.O_RDONLY)
        try:
            for first in range(self.rows.start, self.rows.stop, self.PIECE):
                begin = int(self.bounds[first])
                end = int(self.bounds[min(first + self.PIECE, self.rows.stop)])
                yield from os.pread(file, end - begin, begin).decode().split("\n")[:-1]
        finally:
            os.close(file)


@dataclass(frozen=True)
class ColdRun:
    """A run: seconds from the first rank's start to the last one's end, rows trained, and what the volume did."""

    seconds: float
    rows: int
    reads: int
    bytes: int
    busy: float  # seconds


def cold_run(
    batches_of: Callable[[int], Iterable[Any]], volume: Volume, *, demand: float, world_size: int = 2
) -> ColdRun:
    """Let real ranks train from a volume: batches_of(rank) are a rank's batches.

    demand: rows a second that all ranks together could train. Raises RuntimeError where a rank fails.
    """
    volume.reset()
    ranks = []
    for rank in range(world_size):
        ours, theirs = _FORK.Pipe()
        process = _FORK.Process(target=_be_rank, args=(theirs, batches_of, rank, volume, demand / world_size))
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        for _, pipe in ranks:
            _heard(pipe)
        for _, pipe in ranks:
            pipe.send("go")
        told = [_heard(pipe) for _, pipe in ranks]
    finally:
        for process, pipe in ranks:
            with suppress(OSError):  # it is gone already
                pipe.send("end")
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            pipe.close()
    reads, size, busy = max(counted for *_, counted in told)
    seconds = max(end for _, end, *_ in told) - min(begin for begin, *_ in told)
    return ColdRun(seconds, sum(rows for _, _, rows, _ in told), reads, size, busy)


def _heard(pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a rank has ended with an error, which is printed above") from None


def _be_rank(
    pipe: Connection, batches_of: Callable[[int], Iterable[Any]], rank: int, volume: Volume, demand: float
) -> None:
    torch.set_num_threads(1)
    with volume.limiting():
        pipe.send("ready")
        pipe.recv()
        began = time.perf_counter()
        rows = 0
        for batch in batches_of(rank):
            rows += len(batch)
            time.sleep(len(batch) / demand)  # the device computes; the host has nothing to do
        pipe.send((began, time.perf_counter(), rows, volume.counted))
        pipe.recv()  # until all have trained
