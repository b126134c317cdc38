"""What notebook 05, 400 million rows, runs and measures: a meta file, six ways to hold its rows, a server's answers."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from torch.utils.data import DataLoader

from lib._values import integer
from lib.data import (
    DistributedSampler,
    FileDataset,
    MetaServer,
    NaiveDataset,
    RankDataset,
    ServerDataset,
    mini_epoch_loaders,
)
from lib.data.meta import MetaFile, Packed
from lib.measure import MemoryWatch

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
            numbers = np.arange(first // 1000, -(-min(rows, first + 1_000_000) // 1000))
            block = np.tile(thousand, (len(numbers), 1))
            for digit in range(6):  # the last three of nine are those of the thousand rows
                value = (numbers // 10 ** (5 - digit) % 10 + ord("0")).astype(np.uint8)
                block[:, line_starts + len("img/") + digit] = value[:, None]
            extra = first + 1000 * len(numbers) - rows
            end = block.size - (len(thousand) - int(line_starts[1000 - extra]) if 0 < extra < 1000 else 0)
            file.write(block.reshape(-1)[:end].data)
        return file.tell()


def _thousand() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a thousand rows whose captions have 12 to 34 letters, as bytes."""
    random, words = np.random.default_rng(0), WORDS.split()
    text = []
    for row in range(1000):
        length, caption = random.integers(12, 35), ""
        while len(caption) < length:
            caption += words[random.integers(len(words))] + " "
        text.append(f'img/{row:09}.jpg "{caption[:length].strip().ljust(length, "s")}"\n')
    return np.frombuffer("".join(text).encode(), np.uint8)


# ---- How much memory the rows of a meta file take, predicted: a copy's size, how many copies, and what is cached.

Way: TypeAlias = Literal["naive", "server", "rank", "file", "mapped"]
WAYS: tuple[Way, ...] = get_args(Way)

STR_HEADER, ROUNDED_TO, POINTER = sys.getsizeof(""), 16, 8
"""Bytes of a str beside its ASCII letters, of which its size in memory is a multiple, and of its place in a list."""
PLACE, ITEM, INDEX = 4, 4, 2.25
"""Bytes a packed row takes for where it begins, and for which item it is; bytes a row of the index file."""


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
    return -(-(STR_HEADER + letters) // ROUNDED_TO) * ROUNDED_TO + POINTER


def predict(
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
    turns = -(-rows // world_size)
    return Holding(world_size, -(-turns // mini_epochs) * (row_bytes - 1 + PLACE + ITEM))


# ---- Run a way in real ranks with real workers, and watch everybody's memory.

BATCH = 2048


@dataclass(frozen=True)
class Run:
    """One way, run: `predicted`, and the `peak` of all processes together, in bytes that were not there before.

    The peak is a PSS: private pages, and of a shared page each process its part, those of mapped files included. What
    was there when the ranks were ready (torch) does not count, nor does the system's cache of files that are read.
    """

    predicted: Holding
    peak: int
    rows_per_second: float


def run_way(
    way: Way,
    path: str | os.PathLike[str],
    *,
    world_size: int = 2,
    workers: int = 2,
    mini_epochs: int = 4,
    seconds: float = 20.0,
) -> Run:
    """Start the ranks of one way, let them read an epoch (or as much as they can in `seconds`), and watch.

    Raises ValueError for an unknown way or a bad file, RuntimeError when a process fails.
    """
    with MetaFile(path) as meta_file:
        rows = len(meta_file)
        if way == "mapped":
            packed = meta_file.packed(range(rows))
            np.save(f"{path}.data.npy", packed.data)
            np.save(f"{path}.offsets.npy", packed.offsets)
    machine = {"world_size": world_size, "workers": workers, "mini_epochs": mini_epochs}
    predicted = predict(way, rows=rows, row_bytes=os.stat(path).st_size / max(1, rows), **machine)
    with ExitStack() as stack:
        server = stack.enter_context(_started("server", serve, str(path))) if way == "server" else None
        started = (
            _started(f"rank {r}", be_rank, way, str(path), r, machine, seconds) for r in range(world_size)
        )
        ranks = [stack.enter_context(rank) for rank in started]
        for peer in (*ranks, *filter(None, [server])):
            peer.hear()
        with MemoryWatch(interval=0.03) as watch:
            port = server.ask("go") if server else 0
            for rank in ranks:
                rank.pipe.send(port)
            rates = [rank.hear() for rank in ranks]
        extra = watch.extra
    return Run(predicted, int(extra.uss or 0) if extra.pss is None else extra.pss, sum(rates))


@dataclass(frozen=True)
class _Peer:
    """A process that was started, and the pipe to it."""

    process: Any
    pipe: Connection

    def hear(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            self.process.join(5)
            how = f"exit code {self.process.exitcode}; its error is printed above"
            raise RuntimeError(f"{self.process.name} ended with {how}") from None

    def ask(self, question: Any) -> Any:
        self.pipe.send(question)
        return self.hear()


@contextmanager
def _started(name: str, target: Any, *arguments: Any) -> Iterator[_Peer]:
    """Run target(pipe, *arguments) in a clean process of its own, ended with the body of a `with`, by force at last."""
    method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["torch.utils.data", "lib.data"])
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(theirs, *arguments), name=name)
    process.start()
    theirs.close()
    try:
        yield _Peer(process, ours)
    finally:
        with contextlib.suppress(OSError):  # it is gone already
            ours.send("end")
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()


# ---- What these processes do: be the server, be a rank with its DataLoader and workers.


def serve(pipe: Connection, path: str) -> None:
    """Be the server: all rows in memory, packed."""
    _ready(pipe)
    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))
    with MetaServer(rows) as server:
        pipe.send(server.port)
        pipe.recv()


@contextmanager
def serving(path: str | os.PathLike[str]) -> Iterator[int]:
    """Run a MetaServer that holds the rows, in a process of its own; give its port."""
    with _started("server", serve, str(path)) as server:
        server.hear()
        yield server.ask("go")


def be_rank(
    pipe: Connection, way: Way, path: str, rank: int, machine: Mapping[str, int], seconds: float
) -> None:
    """Be a rank: build the dataset, read through DataLoaders, say how fast, stay until all have been looked at."""
    with MetaFile(path) as meta_file:
        loaders = _loaders(meta_file, way, _ready(pipe), rank, **machine)
        held, began, count = (
            [next(loaders)],
            time.perf_counter(),
            0,
        )  # held: dataset, and loaders whose workers stay
        for loader in loaders:
            held.append(loader)
            for batch in loader:
                count += batch
                if time.perf_counter() - began > seconds:
                    break
        pipe.send(count / (time.perf_counter() - began))
        pipe.recv()


def _ready(pipe: Connection) -> Any:
    """Say so, and return what is said to begin."""
    gc.collect()
    gc.freeze()  # else a worker's garbage collector writes to every object that torch has made, and copies its page
    pipe.send("ready")
    return pipe.recv()


def _loaders(
    meta_file: MetaFile, way: Way, port: int, rank: int, world_size: int, workers: int, mini_epochs: int
) -> Iterator[Any]:
    """Yield the dataset, then the loaders of an epoch; a batch is how many rows came."""
    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "collate_fn": len}
    if workers and sys.platform == "linux":
        arguments["multiprocessing_context"] = "fork"
    dataset: Any
    if way == "rank":
        yield (dataset := RankDataset(meta_file, world_size, rank, mini_epochs=mini_epochs))
        yield from mini_epoch_loaders(dataset, 0, **arguments)
        return
    if way == "server":
        dataset = ServerDataset("127.0.0.1", port)
    elif way == "mapped":
        arrays = (np.load(f"{meta_file.path}.{name}.npy", mmap_mode="r") for name in ("data", "offsets"))
        dataset = Packed(*arrays)
    else:
        dataset = FileDataset(meta_file) if way == "file" else NaiveDataset(meta_file)
    yield dataset
    sampler = DistributedSampler(range(len(meta_file)), world_size, rank, order="feistel")
    yield DataLoader(dataset, sampler=sampler, persistent_workers=workers > 0, **arguments)
