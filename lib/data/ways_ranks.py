"""What the processes of `run_way` do: be the server, be a rank with its DataLoader and workers."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from lib.data.ways_model import Way

if TYPE_CHECKING:
    from lib.data.ways import Run

BATCH = 2048


def serve(pipe: Connection, path: str) -> None:
    """Be the server: all rows in memory, packed."""
    from lib.data.meta import MetaFile
    from lib.data.server import MetaServer

    _ready(pipe)
    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))
    with MetaServer(rows) as server:
        pipe.send(server.port)
        pipe.recv()


def be_rank(pipe: Connection, way: Way, path: str, rank: int, run: Run, seconds: float) -> None:
    """Be a rank: build the dataset, read through DataLoaders, stay until all have been looked at."""
    importlib.import_module("lib.data.server_dataset")  # now, so that it is not counted as rows
    importlib.import_module("lib.data.rank_dataset")
    from lib.data.meta import MetaFile

    with MetaFile(path) as meta_file:
        loaders = _loaders(way, meta_file, _ready(pipe), rank, run)
        held = [next(loaders)]  # until all ranks are done: the dataset, and loaders whose workers stay
        pipe.send("built")
        began, count = time.perf_counter(), 0
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


def _loaders(way: Way, meta_file: Any, port: int, rank: int, run: Run) -> Iterator[Any]:
    """Yield the dataset, then the loaders of an epoch; a batch is how many rows came."""
    from torch.utils.data import DataLoader

    from lib.data.rank_dataset import NaiveDataset, RankDataset, mini_epoch_loaders
    from lib.data.samplers import DistributedSampler

    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": run.num_workers, "collate_fn": len}
    if run.num_workers and sys.platform == "linux":
        arguments["multiprocessing_context"] = "fork"  # torch's default there
    if way == "rank":
        share = RankDataset(meta_file, run.world_size, rank, mini_epochs=run.mini_epochs)
        share.load(0)
        yield share
        yield from mini_epoch_loaders(share, 0, **arguments)
        return
    dataset: Any = ServerDataset("127.0.0.1", port) if way == "server" else NaiveDataset(meta_file)
    yield dataset
    sampler = DistributedSampler(range(run.rows), run.world_size, rank, order="feistel")
    yield DataLoader(dataset, sampler=sampler, persistent_workers=run.num_workers > 0, **arguments)
