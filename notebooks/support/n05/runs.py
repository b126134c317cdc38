"""What notebook 05, 400 million rows, runs and measures: five ways to hold rows, in real ranks with real workers."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch.utils.data import DataLoader, Dataset

from lib import data
from lib.data.meta import MetaFile, Packed
from lib.memory import MemoryWatch
from support.captions import HEADER, ROW_BYTES, Holding, Way, predict_holding

# ---- Run a way in real ranks with real workers, and watch everybody's memory.
BATCH = 2048


@dataclass(frozen=True)
class MeasuredWay:
    """One way, run: who was to hold what, and the most bytes (PSS) of all processes that were not there before."""

    predicted: Holding
    peak: int
    rows_per_second: float


class NoRows(Dataset[str]):
    """As long as a file, and nothing in it: what the processes of a run take without any row."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> str:
        return "x" * int(ROW_BYTES)


def run_way(
    way: Way | Literal["no rows"],
    path: str | Path,
    *,
    world_size: int = 2,
    workers: int = 2,
    mini_epochs: int = 4,
    seconds: float = 20,
) -> MeasuredWay:
    """Let real ranks read an epoch, or what they can in `seconds`; ValueError, RuntimeError when a process fails."""
    with MetaFile(path) as meta_file:
        rows = len(meta_file)
        if way == "mapped":
            packed = meta_file.packed(range(rows))
            np.save(f"{path}.data.npy", packed.data)
            np.save(f"{path}.offsets.npy", packed.offsets)
    machine = {"world_size": world_size, "workers": workers, "mini_epochs": mini_epochs}
    predicted = Holding(0, 0.0)
    if way != "no rows":
        row_bytes = os.stat(path).st_size / max(1, rows)
        predicted = predict_holding(way, rows=rows, row_bytes=row_bytes, **machine)
    with ExitStack() as stack:
        server = stack.enter_context(_started("server", serve_rows, str(path))) if way == "server" else None
        new = (_started(f"rank {r}", be_rank, way, str(path), r, machine, seconds) for r in range(world_size))
        ranks = [stack.enter_context(rank) for rank in new]
        for peer in (*ranks, *([server] if server else [])):
            peer.hear()
        with MemoryWatch(interval=0.03) as watch:
            port = server.ask("go") if server else 0
            for rank in ranks:
                rank.pipe.send(port)
            rates = [rank.hear() for rank in ranks]
    pss = watch.extra.pss
    uss = watch.extra.uss
    return MeasuredWay(predicted, int(uss or 0) if pss is None else pss, sum(rates))


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
def serve_rows(pipe: Connection, path: str) -> None:
    """Be the server: all rows in memory, packed."""
    _ready(pipe)
    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))
    with data.MetaServer(rows) as server:
        pipe.send(server.port)
        pipe.recv()


@contextmanager
def serving(path: str | os.PathLike[str]) -> Iterator[int]:
    """Run a MetaServer that holds the rows, in a process of its own; give its port."""
    with _started("server", serve_rows, str(path)) as server:
        server.hear()
        yield server.ask("go")


def be_rank(
    pipe: Connection, way: str, path: str, rank: int, machine: Mapping[str, int], seconds: float
) -> None:
    """Be a rank: build the dataset, read through DataLoaders, say how fast, stay until all have been looked at."""
    with MetaFile(path) as meta_file:
        loaders = _loaders(meta_file, way, _ready(pipe), rank, **machine)
        # held: dataset and loaders, whose workers stay for the last look
        held = [next(loaders)]
        began = time.perf_counter()
        count = 0
        for loader in islice(loaders, machine["mini_epochs"]):  # and not to its end, which ends them
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
    meta_file: MetaFile, way: str, port: int, rank: int, world_size: int, workers: int, mini_epochs: int
) -> Iterator[Any]:
    """Yield the dataset, then the loaders of an epoch; a batch is how many rows came."""
    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers, "collate_fn": len}
    arguments["persistent_workers"] = workers > 0
    if workers and sys.platform == "linux":
        arguments["multiprocessing_context"] = "fork"
    dataset: Any
    if way == "rank":
        yield (dataset := data.RankDataset(meta_file, world_size, rank, mini_epochs=mini_epochs))
        yield from data.mini_epoch_loaders(dataset, 0, **arguments)
        return
    if way == "server":
        dataset = data.ServerDataset("127.0.0.1", port)
    elif way == "mapped":
        arrays = (np.load(f"{meta_file.path}.{name}.npy", mmap_mode="r") for name in ("data", "offsets"))
        dataset = Packed(*arrays)
    elif way == "no rows":
        dataset = NoRows(len(meta_file))
    else:
        dataset = data.FileDataset(meta_file) if way == "file" else data.NaiveDataset(meta_file)
    yield dataset
    sampler = data.DistributedSampler(range(len(meta_file)), world_size, rank, order="feistel")
    yield DataLoader(dataset, sampler=sampler, **arguments)


# ---- What an exercise's answer holds and reads.
@contextmanager
def written(rows: Sequence[str], header: str = HEADER) -> Iterator[str]:
    """Write a meta file of these rows, for as long as the body of a `with` runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.txt"
        path.write_text(header + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        yield str(path)


def held_and_most(make: Callable[[], Any]) -> tuple[Any, int, int]:
    """Return what `make` returns, the bytes that stay, and the most that there were at a time."""
    with only_new_objects():
        tracemalloc.start()
        try:
            result = make()
            _, most = tracemalloc.get_traced_memory()
            gc.collect()  # Python keeps tuples that are gone for later use until then
            stays, _ = tracemalloc.get_traced_memory()
            return result, stays, most
        finally:
            tracemalloc.stop()


@contextlib.contextmanager
def only_new_objects() -> Iterator[None]:
    """Hide from the garbage collector what is there already: to go through all of a process takes half a second."""
    is_outermost = not gc.get_freeze_count()
    gc.freeze()
    try:
        yield
    finally:
        if is_outermost:
            gc.unfreeze()


def positions(path: str) -> dict[int, int]:
    """Return the position of every open descriptor of a file: what forked processes share."""
    found = {}
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(number), os.stat(path)):
                found[number] = os.lseek(number, 0, os.SEEK_CUR)
    return found
