"""Predictions and exercises of notebook 03, DistributedSampler."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DistributedSampler as TorchSampler

from lib.data.samplers import DistributedSampler
from support.checks import Exercise, Guess, cases

# ---- predictions: each truth is computed, from the samplers themselves


def _first_index() -> int:
    sampler = DistributedSampler(range(10), 3, 2)
    sampler.set_epoch(1)
    return next(iter(sampler))


def _epochs_until_all_seen(size: int, world_size: int) -> int:
    seen: set[int] = set()
    for epoch in itertools.count():
        if len(seen) == size:
            return epoch
        for rank in range(world_size):
            sampler = DistributedSampler(range(size), world_size, rank, drop_last=True)
            sampler.set_epoch(epoch)
            seen.update(sampler)
    raise AssertionError


def _exact_gradient() -> str:
    values = torch.arange(10.0) ** 2  # the gradient of a mean is a mean of gradients: any numbers show it
    exact = ""
    for way, size, pad in (("A", 9, True), ("B", 10, True), ("C", 10, False)):
        shares = [values[list(DistributedSampler(range(size), 3, rank, pad=pad))] for rank in range(3)]
        mean_of_means = torch.stack([share.mean() for share in shares]).mean()
        exact += way if torch.isclose(mean_of_means, values[:size].mean()) else ""
    return exact


guess_share_length = Guess("num_samples for N = 10, W = 3", lambda: len(DistributedSampler(range(10), 3, 0)))
"""How many indices a rank of 3 gets of 10."""
guess_holder = Guess(
    "the rank that gets the number 11",
    lambda: next(rank for rank in range(3) if 11 in range(1, 16)[rank::3]),
)
"""Which rank gets the number 11 of 1..15."""
guess_messages = Guess("the number of messages", lambda: 0)
"""The messages that 3 ranks exchange to agree on an order: nobody sends any."""
guess_first_index = Guess("rank 2's first index in epoch 1", _first_index)
"""Rank 2's first index of epoch 1, which a reader can read off epoch 1's order."""
guess_epochs_until_all_seen = Guess(
    "the number of epochs until all 11 were seen", lambda: _epochs_until_all_seen(11, 4)
)
"""The number of epochs after which 11 samples on 4 ranks were all seen once, with drop_last."""
guess_exact_gradient = Guess("the shares that give the gradient of the whole batch", _exact_gradient)
"""Which shares, A equal, B padded or C uneven, make the mean of gradients that of the whole batch."""
guess_repeats = Guess(
    "the number of images that are counted twice",
    lambda: sum(len(DistributedSampler(range(360), 7, rank)) for rank in range(7)) - 360,
)
"""How many of the 360 test images 7 ranks count twice."""
guess_orders = Guess(
    "the number of different orders", lambda: len({seed + epoch for seed in range(6) for epoch in range(6)})
)
"""How many different orders 6 seeds × 6 epochs have."""
guess_missed_percent = Guess(
    "the share of samples without a holder", lambda: 100 * (1 - 1 / 8) ** 8, unit="%", tolerance=0.05
)
"""The per cent of samples that nobody holds if 8 ranks shuffle with seeds of their own."""


# ---- exercise 1: __iter__ in one function; a case has torch's seven arguments by name


def _indices(
    size: int, num_replicas: int, rank: int, shuffle: bool, seed: int, epoch: int, drop_last: bool
) -> list[int]:
    """Return what torch's own sampler yields."""
    sampler = TorchSampler[int](range(size), num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
    sampler.set_epoch(epoch)
    return list(sampler)


def _as_if(**changes: Any) -> Callable[..., list[int]]:
    """Make the right answer to another question: an argument that is ignored."""
    return lambda **case: _indices(**{**case, **changes})


def _order(size: int, shuffle: bool, seed: int, epoch: int, **_: Any) -> list[int]:
    if not shuffle:
        return list(range(size))
    return torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


def _total(size: int, num_replicas: int, drop_last: bool, **_: Any) -> int:
    return (size if drop_last else size + num_replicas - 1) // num_replicas * num_replicas


def _strided(order: list[int], rank: int, num_replicas: int, **_: Any) -> list[int]:
    return order[rank::num_replicas]


def _shuffled_with_the_padding(**case: Any) -> list[int]:
    mixed = _order(**{**case, "size": max(case["size"], _total(**case))})[: _total(**case)]
    return _strided([index % case["size"] for index in mixed], **case)


def _blocks(**case: Any) -> list[int]:
    shares = [_indices(**{**case, "rank": rank}) for rank in range(case["num_replicas"])]
    order = [index for step in zip(*shares, strict=True) for index in step]
    return order[case["rank"] * len(shares[0]) :][: len(shares[0])]


def index_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, one step of the recipe after the other, then N = 1..40 × W = 1..8 with every rank."""
    easy = [(12, 3, False, 0, 0, False), (12, 3, True, 0, 0, False), (12, 3, True, 0, 1, False)]
    easy += [(12, 3, True, 7, 0, False), (10, 3, False, 0, 0, False), (10, 3, True, 0, 0, False)]
    easy += [(10, 3, False, 0, 0, True), (10, 3, True, 0, 0, True), (2, 5, False, 0, 0, False)]
    runs = ((False, 0, 0), (True, 0, 1), (True, 7, 0), (True, 3, 5))
    grid = itertools.product(range(1, 41), range(1, 9), runs, (False, True))
    names = ("size", "num_replicas", "shuffle", "seed", "epoch", "drop_last")
    for values in [*easy, *((size, world, *run, drop) for size, world, run, drop in grid)]:
        case = dict(zip(names, values, strict=True))
        yield from ({**case, "rank": rank} for rank in range(values[1]))


check_indices = Exercise(
    "the share of a rank",
    reference=_indices,
    cases=index_cases,
    mistakes={
        "You padded with 0, 1, 2 …: torch repeats the head of the *shuffled* order.": lambda **case: _strided(
            [*_order(**case), *[*range(case["size"])] * 8][: _total(**case)], **case
        ),
        "You padded and then shuffled: shuffle the N indices first, pad after.": _shuffled_with_the_padding,
        "You appended the head once: with more than 2 N positions it has to be repeated again.": (
            lambda **case: _strided((_order(**case) * 2)[: _total(**case)], **case)
        ),
        "Nothing is padded or dropped: the ranks get shares of different lengths.": lambda **case: _strided(
            _order(**case), **case
        ),
        "You cut contiguous blocks: rank r takes positions r, r + W, r + 2 W, …": _blocks,
        "drop_last cut the head of the order: it cuts the tail.": lambda **case: (
            _strided(_order(**case)[case["size"] % case["num_replicas"] :], **case)
            if case["drop_last"]
            else _indices(**case)
        ),
        "drop_last=True still pads.": _as_if(drop_last=False),
        "shuffle=False still shuffles.": _as_if(shuffle=True),
        "The epoch is not in the seed: this is epoch 0 for ever.": _as_if(epoch=0),
        "The seed has no effect: only the epoch has.": _as_if(seed=0),
        "The rank is in the seed: then every rank has an order of its own, and coverage breaks.": (
            lambda **case: _indices(**{**case, "seed": case["seed"] + case["rank"]})
        ),
    },
)
"""Exercise 1: what rank `rank` of `num_replicas` reads in an epoch."""


# ---- exercise 2: its length, without computing it


def _length(size: int, num_replicas: int, rank: int, drop_last: bool, pad: bool) -> int:
    return len(DistributedSampler(range(size), num_replicas, rank, drop_last=drop_last, pad=pad))


def _length_cases() -> list[dict[str, Any]]:
    readable = [(10, 3, 0, False, True), (10, 3, 0, True, True), (10, 5, 0, False, True)]
    readable += [(11, 3, 1, False, False), (10, 3, 0, False, False)]
    ways = ((False, True), (True, True), (False, False))
    grid = itertools.product(range(41), range(1, 9), ways)
    all_ranks = [(size, world, rank, *way) for size, world, way in grid for rank in range(world)]
    return cases("size num_replicas rank drop_last pad", [*readable, *all_ranks])


check_length = Exercise(
    "the length of a share",
    reference=_length,
    cases=_length_cases,
    mistakes={
        "You always round up: drop_last rounds down, and pad=False gives the longer shares to the first ranks only.": (
            lambda size, num_replicas, **_: -(-size // num_replicas)
        ),
        "You always round down: padding rounds up.": lambda size, num_replicas, **_: size // num_replicas,
        "Rounding up is not floor + 1: where W divides N, the two differ.": lambda **case: (
            _length(**case)
            + (case["size"] % case["num_replicas"] == 0 and case["pad"] and not case["drop_last"])
        ),
        "With pad=False the first N % W ranks have one more, not the last: position p goes to rank p % W.": (
            lambda size, num_replicas, rank, drop_last, pad: _length(
                size, num_replicas, rank if pad else num_replicas - 1 - rank, drop_last, pad
            )
        ),
        "With pad=False one rank got the whole rest: shares differ by one at most.": lambda pad, **case: (
            _length(pad=pad, **case)
            if pad
            else case["size"] // case["num_replicas"]
            + (case["rank"] == case["num_replicas"] - 1) * (case["size"] % case["num_replicas"])
        ),
    },
)
"""Exercise 2: how many indices a rank gets."""


# ---- exercise 3: one score from uneven shares

check_accuracy = Exercise(
    "the accuracy",
    reference=lambda correct, counted: sum(correct) / sum(counted),
    cases=[
        dict(correct=[4, 4], counted=[5, 5]),
        dict(correct=[4, 1], counted=[5, 4]),
        dict(correct=[3, 2, 0], counted=[3, 3, 1]),
        dict(correct=[1, 0, 0, 0], counted=[1, 1, 0, 0]),
        dict(correct=[46, 45, 47, 44, 46, 45, 45], counted=[52, 52, 52, 51, 51, 51, 51]),
    ],
    mistakes={
        "That is the mean of the ranks' means: a rank with fewer samples then weighs as much as the others.": (
            lambda correct, counted: (
                sum(right / count for right, count in zip(correct, counted, strict=True)) / len(correct)
            )
        ),
        "You multiplied rank 0's count by W: other ranks may have fewer.": lambda correct, counted: (
            sum(correct) / (counted[0] * len(counted))
        ),
        "That is rank 0's score: the others' samples are missing.": lambda correct, counted: (
            correct[0] / counted[0]
        ),
    },
)
"""Exercise 3: the accuracy over the samples of all ranks."""
