"""Checks of notebook 02: who asks whom, and samplers of the reader's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader

from lib.checks.base import Verdict, check_function, guess, not_attempted, untouched
from lib.data.buckets import pooled_batches, sentence_lengths
from lib.data.samplers import RandomSampler
from lib.data.toy import IndexDataset, LoggedSampler, Message, record_epoch


def guess_asker(my_guess: object) -> Verdict:
    """Comment on who asks the dataset for its length: "Sampler", "DataLoader" or "training loop"."""
    messages = record_epoch(lambda dataset: RandomSampler(dataset, seed=0), size=5, batch_size=2)
    asker = next(message.receiver for message in messages if message.name == "length")
    return guess(my_guess, asker, what="who asks the Dataset for its length")


def guess_obeyed(my_guess: object) -> Verdict:
    """Comment on how many batches of 2 the sampler [9, 9, 1] makes of ten items."""
    loader = DataLoader(IndexDataset(10), batch_size=2, sampler=[9, 9, 1])
    return guess(my_guess, len(list(loader)), what="batches")


def guess_handed_out(my_guess: object) -> Verdict:
    """Comment on how many indices have left the sampler when the first batch of 2 arrives from 2 workers."""
    log: list[Message] = []
    loader = DataLoader(IndexDataset(12), batch_size=2, sampler=LoggedSampler(range(12), log), num_workers=2)
    counts = [len(log) for _ in loader]
    return guess(my_guess, counts[0], what="indices handed out")


def guess_loads(my_guess: object) -> Verdict:
    """Comment on how many loads the main process's dataset has counted after 2 workers loaded ten items."""
    dataset = IndexDataset(10)
    for _ in DataLoader(dataset, num_workers=2):
        pass
    return guess(my_guess, dataset.loads, what="dataset.loads in the main process")


def guess_distinct(my_guess: object) -> Verdict:
    """Comment on how many of 1,000 items come up in 1,000 draws with replacement, all weights equal."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(torch.ones(1000), 1000, replacement=True, generator=generator)
    return guess(my_guess, len(set(drawn.tolist())), what="different items", tolerance=0.05)


def guess_second_epoch(my_guess: object) -> Verdict:
    """Comment on how many batches the second epoch has when the sampler is a generator object."""
    loader = DataLoader(IndexDataset(10), batch_size=2, sampler=(index for index in range(10)))
    epochs = [len(list(loader)) for _ in range(2)]
    return guess(my_guess, epochs[1], what="batches in the second epoch")


def strided(size: int, stride: int) -> list[int]:
    """Return 0, s, 2s, … then 1, s + 1, … and so on: every index once."""
    return [index for start in range(min(stride, size)) for index in range(start, size, stride)]


STRIDED_MISTAKES = {
    "You stop after the first run: go on from 1, from 2, up to stride - 1.": lambda size, stride: [
        *range(0, size, stride)
    ],
    "i * stride % size meets the same index again when size and stride have a common factor.": lambda size, stride: [
        i * stride % size for i in range(size)
    ],
    "The rows must not be cut to equal length: the tail of the dataset is lost.": lambda size, stride: [
        start + step * stride for start in range(stride) for step in range(size // stride)
    ],
    "This is the order that the dataset has anyway.": lambda size, stride: [*range(size)],
}


def check_strided(sampler_class: Any) -> Verdict:
    """Check the exercise's `Strided(dataset, stride)`: its order, and that a second pass gives it again."""
    what = "Strided"
    if untouched(sampler_class.__iter__):
        return not_attempted(f"{what}.__iter__")

    def passes(size: int, stride: int, number: int) -> list[int]:
        sampler = sampler_class(IndexDataset(size), stride)
        each: list[list[int]] = []
        for _ in range(number):
            indices: Iterator[int] = iter(sampler)
            each.append([int(index) for index in islice(indices, size + 1)])
        return each[-1]

    cases = [{"size": n, "stride": s} for n, s in ((6, 2), (7, 3), (10, 4), (4, 2), (3, 5), (1, 1), (0, 2))]
    first = check_function(
        lambda size, stride: passes(size, stride, 1), strided, cases, what=what, mistakes=STRIDED_MISTAKES
    )
    if not first:
        return first
    second = check_function(
        lambda size, stride: passes(size, stride, 2),
        strided,
        cases,
        what=f"{what}, second epoch",
        mistakes={
            "Each call of __iter__ must begin anew: a stored iterator is used up.": lambda size, stride: []
        },
    )
    return second and first


def _batches(indices: Iterable[int], batch_size: int, drop_last: bool) -> list[list[int]]:
    return list(BatchSampler(indices, batch_size, drop_last))


def _starts(indices: Sequence[int], batch_size: int, starts: Iterable[int]) -> list[list[int]]:
    return [list(indices[start : start + batch_size]) for start in starts]


BATCHES_MISTAKES = {
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
        _batches(indices, batch_size, False)[:-1] if drop_last else _batches(indices, batch_size, False)
    ),
}


def check_batches(answer: Any) -> Verdict:
    """Check the exercise's `batches(indices, batch_size, drop_last)` against torch's BatchSampler."""
    orders = [[4, 0, 3, 1], [4, 0, 3, 1, 2], [2, 0, 1], [7], []]
    cases = [
        {"indices": order, "batch_size": batch_size, "drop_last": drop_last}
        for order in orders
        for batch_size in (2, 3, 1)
        for drop_last in (False, True)
    ]
    return check_function(answer, _batches, cases, what="batches", mistakes=BATCHES_MISTAKES)


POOLS_MISTAKES = {
    "You sort the whole epoch: sort inside each pool only, or nothing is left of the shuffle.": lambda **case: (
        pooled_batches(case["lengths"], case["order"], case["batch_size"], max(1, len(case["order"])))
    ),
    "Sort the indices by lengths[index], not by the index itself.": lambda **case: pooled_batches(
        range(len(case["lengths"])), case["order"], case["batch_size"], case["pool"]
    ),
    "A pool holds pool × batch_size indices; yours holds batch_size.": lambda **case: pooled_batches(
        case["lengths"], case["order"], case["batch_size"], 1
    ),
    "A pool holds pool × batch_size indices; yours holds pool.": lambda **case: [
        batch
        for start in range(0, len(case["order"]), case["pool"])
        for batch in pooled_batches(
            case["lengths"], case["order"][start : start + case["pool"]], case["batch_size"], case["pool"]
        )
    ],
    "These are lengths; batches hold indices.": lambda **case: [
        [case["lengths"][index] for index in batch] for batch in pooled_batches(**case)
    ],
    "Nothing is sorted here: the batches are those of the shuffle.": lambda **case: _starts(
        case["order"], case["batch_size"], range(0, len(case["order"]), case["batch_size"])
    ),
}


def check_pools(answer: Any) -> Verdict:
    """Check the exercise's `pooled(lengths, order, batch_size, pool)`."""
    cases = []
    for size, batch_size, pool in ((8, 2, 2), (12, 2, 3), (11, 3, 2), (5, 4, 1), (3, 2, 4)):
        lengths = sentence_lengths(size, seed=size)
        cases.append(
            {
                "lengths": lengths,
                "order": list(RandomSampler(lengths, seed=size)),
                "batch_size": batch_size,
                "pool": pool,
            }
        )
    return check_function(answer, pooled_batches, cases, what="pooled", mistakes=POOLS_MISTAKES)
