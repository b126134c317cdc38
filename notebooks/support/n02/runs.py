"""What notebook 02 runs: a dataset that shows its order, batches by length, a process that plays a worker."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler
from torch.utils.data._utils import worker as torch_worker

from lib.arguments import integer

# ---- Data that shows its order: a dataset whose item is its index, and a log of who asked whom for what.
# The classes live in a module and not in a notebook cell, so that DataLoader workers can unpickle them.


@dataclass(frozen=True)
class Message:
    """Hold one message: its name, who sends it to whom, and the numbers it carries (a length, or indices).

    The receiver is who asked for it. times: how often it was told one after the other.
    """

    name: str
    sender: str
    receiver: str
    payload: tuple[int, ...]
    times: int = 1


def who_asked() -> str:
    """Return who called the function that calls this one: "Sampler", "DataLoader" or "training loop".

    It is read off the call stack: the nearest object above that is a sampler or a part of a DataLoader. A BatchSampler
    counts as a part: the DataLoader wraps one around the sampler that it is given.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Sampler) and not isinstance(owner, BatchSampler):
            return "Sampler"
        if type(owner).__module__.startswith("torch.utils.data") and not isinstance(owner, Dataset):
            return "DataLoader"
        frame = frame.f_back
    return "training loop"


class IndexDataset(Dataset[Any]):
    """Item i is i, so what comes out of a DataLoader is the order itself.

    log: a list to which `len()` and every item add a Message, in the process where they happen. `loads`
    counts the items that this copy of the dataset was asked for. Raises ValueError for a negative size, IndexError
    outside 0..size-1.
    """

    def __init__(self, size: int, log: list[Message] | None = None) -> None:
        self.size = integer("size", size, at_least=0)
        self.log = log
        self.loads = 0

    def __len__(self) -> int:
        if self.log is not None:
            self.log.append(Message("length", "Dataset", who_asked(), (self.size,)))
        return self.size

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is out of range for {self.size} items")
        if self.log is not None:
            self.log.append(Message("load", "Dataset", who_asked(), (index,)))
        self.loads += 1
        return index


class LoggedSampler(Sampler[int]):
    """Pass on the indices of a sampler, or of any iterable, and log each one as it leaves."""

    def __init__(self, sampler: Iterable[int], log: list[Message]) -> None:
        self.sampler = sampler
        self.log = log

    def __iter__(self) -> Iterator[int]:
        for index in self.sampler:
            self.log.append(Message("indices", "Sampler", who_asked(), (index,)))
            yield index


def record_epoch(
    make_sampler: Callable[[IndexDataset], Iterable[int]], size: int, batch_size: int, drop_last: bool = False
) -> list[Message]:
    """Run one epoch of a real DataLoader over an IndexDataset; return its messages in order.

    Neighbours of one kind are joined: the indices 7 and 2 that left one after the other become one message (7, 2).
    """
    log: list[Message] = []
    dataset = IndexDataset(size, log)
    sampler = LoggedSampler(make_sampler(dataset), log)
    for batch in DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=drop_last):
        log.append(Message("batch", "DataLoader", "training loop", tuple(batch.tolist())))
    return joined_messages(log)


def joined_messages(messages: Iterable[Message]) -> list[Message]:
    """Join neighbouring messages of one kind; a length that is told twice is one length, told two times."""
    out: list[Message] = []
    for message in messages:
        last = out[-1] if out else None
        if last is None or (last.name, last.receiver) != (message.name, message.receiver):
            out.append(message)
        elif message.name == "length":
            out[-1] = replace(last, times=last.times + message.times)
        else:
            out[-1] = replace(last, payload=last.payload + message.payload)
    return out


# ---- Batches of samples that are about equally long: less padding, and still a shuffle.
def sentence_lengths(count: int, seed: int = 0) -> list[int]:
    """Return made-up sentence lengths in words, spread as in real text: many short ones, few long (at most 64)."""
    drawn = np.random.default_rng(seed).lognormal(
        mean=2.7, sigma=0.7, size=integer("count", count, at_least=0)
    )
    return [int(length) for length in drawn.round().clip(1, 64)]


def pooled_batches(
    lengths: Sequence[int], order: Sequence[int], batch_size: int, pool: int
) -> list[list[int]]:
    """Cut `order` into pools of `pool` batches, sort each pool by length, and cut it into batches of indices.

    lengths: by index. order: the indices, shuffled. Equal lengths keep the order they had. With pool=1 only the order
    inside a batch changes. Raises ValueError for a batch_size or pool below 1.
    """
    batch_size = integer("batch_size", batch_size, at_least=1)
    size = batch_size * integer("pool", pool, at_least=1)
    pools = (
        sorted(order[start : start + size], key=lambda i: lengths[i]) for start in range(0, len(order), size)
    )
    return [part[start : start + batch_size] for part in pools for start in range(0, len(part), batch_size)]


def padding_share(lengths: Sequence[int], batches: Sequence[Sequence[int]]) -> float:
    """Return which share of all padded batches is padding, 0.0 … 1.0; each batch is as long as its longest sample."""
    used = sum(lengths[i] for batch in batches for i in batch)
    held = sum(max(lengths[i] for i in batch) * len(batch) for batch in batches if batch)
    return 1 - used / held if held else 0.0


# ---- A process that plays a worker, so that a check need not start one.


@contextmanager
def as_worker(worker: int, workers: int, dataset: Any = None) -> Iterator[Any]:
    """Let `get_worker_info()` answer as in worker `worker` of `workers`; as without workers where there are 0."""
    before = torch_worker._worker_info
    info = torch_worker.WorkerInfo(id=worker, num_workers=workers, seed=1000 + worker, dataset=dataset)
    torch_worker._worker_info = info if workers else None
    try:
        yield info
    finally:
        torch_worker._worker_info = before


class Watched(Dataset[Any]):
    """Pass on another dataset's items, and let the main process wait until workers have loaded so many."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.loaded = multiprocessing.get_context("fork").Semaphore(0)

    def __getitem__(self, key: Any) -> Any:
        item = self.dataset[key]
        self.loaded.release()
        return item

    def wait_for(self, count: int, seconds: float = 60.0) -> None:
        """Wait until `count` more items have been loaded. Raises TimeoutError where none comes for so many seconds."""
        for number in range(count):
            if not self.loaded.acquire(timeout=seconds):
                raise TimeoutError(f"{number} of {count} items were loaded, and then none for {seconds:g} s")
