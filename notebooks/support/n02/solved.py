"""The solutions of notebook 02's exercises, as its solution notebook has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, Sampler, get_worker_info


class Shuffled(Sampler[int]):
    """Name each index once, in an order that depends on seed and epoch alone."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)
        return iter(torch.randperm(self.size, generator=generator).tolist())

    def __len__(self) -> int:
        return self.size


class PooledBatches(Sampler[list[int]]):
    """Cut a sampler's order into pools of so many batches, and each pool into batches of about equal lengths."""

    def __init__(self, sampler: Any, lengths: Any, batch_size: int, pool: int) -> None:
        self.sampler = sampler
        self.lengths = lengths
        self.batch_size = batch_size
        self.pool = pool

    def __iter__(self) -> Iterator[list[int]]:
        order = list(self.sampler)
        size = self.pool * self.batch_size
        for start in range(0, len(order), size):
            part = sorted(order[start : start + size], key=lambda i: self.lengths[i])
            for first in range(0, len(part), self.batch_size):
                yield part[first : first + self.batch_size]

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)


class Dealt(IterableDataset[Any]):
    """Read of a stream what belongs to this worker of this rank."""

    def __init__(self, read: Callable[[], Iterable[Any]], rank: int, world_size: int) -> None:
        self.read = read
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first = self.rank + self.world_size * worker
        step = self.world_size * workers
        return islice(self.read(), first, None, step)


def buffered(items: Iterable[Any], size: int, generator: np.random.Generator) -> Iterator[Any]:
    """Yield each item once: the next one is drawn from `size` that wait, as long as the stream lasts."""
    waiting: list[Any] = []
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def keys_of(indices: Iterable[int], epoch: int) -> Iterator[Any]:
    """Yield for each index what tells a worker both the epoch and the index."""
    for index in indices:
        yield epoch, index


def item_of(key: Any, seed: int) -> tuple[int, int, int]:
    """Return (index, crop, flip), whose two random numbers depend on seed, epoch and index alone."""
    epoch, index = key
    generator = np.random.default_rng((seed, epoch, index))
    return index, int(generator.integers(100)), int(generator.integers(2))
