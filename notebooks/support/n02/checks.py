"""Predictions and exercises of notebook 02, samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, product
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from lib.data.samplers import RandomSampler
from support.checks import Exercise, Guess, Verdict, cases
from support.n02.runs import (
    IndexDataset,
    LoggedSampler,
    Message,
    pooled_batches,
    record_epoch,
    sentence_lengths,
)

# ---- predictions


def _asker() -> str:
    messages = record_epoch(lambda dataset: RandomSampler(dataset, seed=0), size=5, batch_size=2)
    return next(message.receiver for message in messages if message.name == "length")


def _handed_out() -> int:
    log: list[Message] = []
    loader = DataLoader(IndexDataset(12), batch_size=2, sampler=LoggedSampler(range(12), log), num_workers=2)
    counts = [len(log) for _ in loader]
    return counts[0]


def _loads() -> int:
    dataset = IndexDataset(10)
    for _ in DataLoader(dataset, num_workers=2):
        pass
    return dataset.loads


def _distinct() -> int:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(torch.ones(1000), 1000, replacement=True, generator=generator)
    return len(set(drawn.tolist()))


def _second_epoch() -> int:
    loader = DataLoader(IndexDataset(10), batch_size=2, sampler=(index for index in range(10)))
    epochs = [len(list(loader)) for _ in range(2)]
    return epochs[1]


guess_asker = Guess("who asks the Dataset for its length", _asker)
"""Who asks the dataset for its length: "Sampler", "DataLoader" or "training loop"."""
guess_obeyed = Guess("batches", lambda: len([*DataLoader(IndexDataset(10), batch_size=2, sampler=[9, 9, 1])]))
"""How many batches of 2 the sampler [9, 9, 1] makes of ten items."""
guess_handed_out = Guess("indices handed out", _handed_out)
"""How many indices have left the sampler when the first batch of 2 arrives from 2 workers."""
guess_loads = Guess("dataset.loads in the main process", _loads)
"""How many loads the main process's dataset has counted after 2 workers loaded ten items."""
guess_distinct = Guess("different items", _distinct, tolerance=0.05)
"""How many of 1,000 items come up in 1,000 draws with replacement, all weights equal."""
guess_second_epoch = Guess("batches in the second epoch", _second_epoch)
"""How many batches the second epoch has when the sampler is a generator object."""


# ---- exercise 1: Strided


def _sampler(order: Callable[[int, int], Iterable[int]], used_up: bool = False) -> type[Any]:
    """Make the exercise's class from a function of (size, stride); `used_up`: with one iterator for all passes."""

    class Strided:
        def __init__(self, dataset: IndexDataset, stride: int) -> None:
            self.size, self.stride = len(dataset), stride
            self.iterator = iter(order(self.size, stride))

        def __iter__(self) -> Iterator[int]:
            return self.iterator if used_up else iter(order(self.size, self.stride))

    return Strided


def _epoch(number: int) -> Callable[[type[Any]], Callable[..., list[int]]]:
    """View a sampler's class as a function from size and stride to the indices of its epoch `number`."""

    def view(sampler_class: type[Any]) -> Callable[..., list[int]]:
        def indices(size: int, stride: int) -> list[int]:
            sampler = sampler_class(IndexDataset(size), stride)
            return [[int(index) for index in islice(iter(sampler), size + 1)] for _ in range(number)][-1]

        return indices

    return view


def _both_epochs(exercise: Exercise, answer: Any) -> Verdict:
    first = exercise.compare(answer)
    second = replace(exercise, what="Strided, second epoch", view=_epoch(2))
    return first and second.compare(answer) and first


def _strided(size: int, stride: int) -> list[int]:
    return [index for start in range(min(stride, size)) for index in range(start, size, stride)]


check_strided = Exercise(
    "Strided",
    name="Strided.__iter__",
    methods=("__iter__",),
    reference=_sampler(_strided),
    view=_epoch(1),
    judge=_both_epochs,
    cases=cases("size stride", [(6, 2), (7, 3), (10, 4), (4, 2), (3, 5), (1, 1), (0, 2)]),
    mistakes={
        "You stop after the first run: go on from 1, from 2, up to stride - 1.": _sampler(
            lambda size, stride: range(0, size, stride)
        ),
        "i * stride % size meets the same index again when size and stride have a common factor.": _sampler(
            lambda size, stride: [i * stride % size for i in range(size)]
        ),
        "The rows must not be cut to equal length: the tail of the dataset is lost.": _sampler(
            lambda size, stride: [
                start + k * stride for start in range(stride) for k in range(size // stride)
            ]
        ),
        "This is the order that the dataset has anyway.": _sampler(lambda size, stride: range(size)),
        "Each call of __iter__ must begin anew: a stored iterator is used up.": _sampler(
            _strided, used_up=True
        ),
    },
)
"""Exercise 1, `Strided(dataset, stride)`: every index once, and a second pass gives the same again."""


# ---- exercise 2: batches


def _batches(indices: Iterable[int], batch_size: int, drop_last: bool) -> list[list[int]]:
    return list(BatchSampler(indices, batch_size, drop_last))


def _starts(indices: Sequence[int], batch_size: int, starts: Iterable[int]) -> list[list[int]]:
    return [list(indices[start : start + batch_size]) for start in starts]


check_batches = Exercise(
    "batches",
    reference=_batches,
    cases=cases(
        "indices batch_size drop_last",
        product(([4, 0, 3, 1], [4, 0, 3, 1, 2], [2, 0, 1], [7], []), (2, 3, 1), (False, True)),
    ),
    mistakes={
        "The short last batch is lost although drop_last is False.": lambda indices, batch_size, drop_last: (
            _batches(indices, batch_size, True)
        ),
        "drop_last is ignored: the short last batch is still there.": lambda indices, batch_size, drop_last: (
            _batches(indices, batch_size, False)
        ),
        "The batches overlap: step by batch_size, not by 1.": lambda indices, batch_size, drop_last: _starts(
            indices, batch_size, range(len(indices) - batch_size + 1 if drop_last else len(indices))
        ),
        "drop_last drops a short batch only; here a full one went.": lambda indices, batch_size, drop_last: (
            _batches(indices, batch_size, False)[: -1 if drop_last else None]
        ),
    },
)
"""Exercise 2, `batches(indices, batch_size, drop_last)`, against torch's BatchSampler."""


# ---- exercise 3: pooled


def _pooled_case(size: int, batch_size: int, pool: int) -> dict[str, Any]:
    lengths = sentence_lengths(size, seed=size)
    order = list(RandomSampler(lengths, seed=size))
    return {"lengths": lengths, "order": order, "batch_size": batch_size, "pool": pool}


check_pools = Exercise(
    "pooled",
    reference=pooled_batches,
    cases=[_pooled_case(*case) for case in ((8, 2, 2), (12, 2, 3), (11, 3, 2), (5, 4, 1), (3, 2, 4))],
    mistakes={
        "You sort the whole epoch: sort inside each pool only, or nothing is left of the shuffle.": (
            lambda lengths, order, batch_size, pool: pooled_batches(
                lengths, order, batch_size, max(1, len(order))
            )
        ),
        "Sort the indices by lengths[index], not by the index itself.": (
            lambda lengths, order, batch_size, pool: pooled_batches(
                range(len(lengths)), order, batch_size, pool
            )
        ),
        "A pool holds pool × batch_size indices; yours holds batch_size.": (
            lambda lengths, order, batch_size, pool: pooled_batches(lengths, order, batch_size, 1)
        ),
        "A pool holds pool × batch_size indices; yours holds pool.": lambda lengths, order, batch_size, pool: [
            batch
            for start in range(0, len(order), pool)
            for batch in pooled_batches(lengths, order[start : start + pool], batch_size, pool)
        ],
        "These are lengths; batches hold indices.": lambda lengths, **case: [
            [lengths[index] for index in batch] for batch in pooled_batches(lengths, **case)
        ],
        "Nothing is sorted here: the batches are those of the shuffle.": (
            lambda lengths, order, batch_size, pool: _starts(
                order, batch_size, range(0, len(order), batch_size)
            )
        ),
    },
)
"""Exercise 3, `pooled(lengths, order, batch_size, pool)`."""
