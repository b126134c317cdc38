"""Checks of notebook 03: which rank gets which index, and what an evaluation may count."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from lib.checks import n03_answers as answers
from lib.checks.base import Verdict, check_function, guess
from lib.data.samplers import DistributedSampler

# Predictions: each truth is computed, from the samplers themselves.


def guess_share_length(my_guess: object) -> Verdict:
    """Comment on how many indices a rank of 3 gets of 10."""
    return guess(my_guess, len(DistributedSampler(range(10), 3, 0)), what="num_samples for N = 10, W = 3")


def guess_holder(my_guess: object) -> Verdict:
    """Comment on which rank gets the number 11 of 1..15."""
    holder = next(rank for rank in range(3) if 11 in range(1, 16)[rank::3])
    return guess(my_guess, holder, what="the rank that gets the number 11")


def guess_messages(my_guess: object) -> Verdict:
    """Comment on the messages that 3 ranks exchange to agree on an order: nobody sends any."""
    return guess(my_guess, 0, what="the number of messages")


def guess_first_index(my_guess: object) -> Verdict:
    """Comment on rank 2's first index of epoch 1, which a reader can read off epoch 1's order."""
    sampler = DistributedSampler(range(10), 3, 2)
    sampler.set_epoch(1)
    return guess(my_guess, next(iter(sampler)), what="rank 2's first index in epoch 1")


def epochs_until_all_seen(size: int, world_size: int, **arguments: Any) -> int:
    """Return after how many epochs of drop_last each of `size` samples came at least once."""
    seen: set[int] = set()
    epoch = 0
    while len(seen) < size:
        for rank in range(world_size):
            sampler = DistributedSampler(range(size), world_size, rank, drop_last=True, **arguments)
            sampler.set_epoch(epoch)
            seen.update(sampler)
        epoch += 1
    return epoch


def guess_epochs_until_all_seen(my_guess: object) -> Verdict:
    """Comment on the number of epochs after which 11 samples on 4 ranks were all seen once, with drop_last."""
    return guess(my_guess, epochs_until_all_seen(11, 4), what="the number of epochs until all 11 were seen")


def guess_exact_gradient(my_guess: object) -> Verdict:
    """Comment on which shares, A equal, B padded or C uneven, make the mean of gradients that of the whole batch."""
    values = torch.arange(10.0) ** 2  # the gradient of a mean is a mean of gradients: any numbers show it
    ways = {"A": (9, True), "B": (10, True), "C": (10, False)}
    exact = [
        way
        for way, (size, pad) in ways.items()
        if torch.isclose(
            torch.stack(
                [values[list(DistributedSampler(range(size), 3, rank, pad=pad))].mean() for rank in range(3)]
            ).mean(),
            values[:size].mean(),
        )
    ]
    return guess(my_guess, "".join(exact), what="the shares that give the gradient of the whole batch")


def guess_repeats(my_guess: object) -> Verdict:
    """Comment on how many of the 360 test images 7 ranks count twice."""
    total = sum(len(DistributedSampler(range(360), 7, rank)) for rank in range(7))
    return guess(my_guess, total - 360, what="the number of images that are counted twice")


def guess_orders(my_guess: object) -> Verdict:
    """Comment on how many different orders 6 seeds × 6 epochs have."""
    sums = {seed + epoch for seed in range(6) for epoch in range(6)}
    return guess(my_guess, len(sums), what="the number of different orders")


def guess_missed_percent(my_guess: object) -> Verdict:
    """Comment on the per cent of samples that nobody holds if 8 ranks shuffle with seeds of their own."""
    return guess(
        my_guess,
        100 * (1 - 1 / 8) ** 8,
        what="the share of samples without a holder",
        unit="%",
        tolerance=0.05,
    )


INDEX_MISTAKES: Mapping[str, Callable[..., list[int]]] = {
    "You padded with 0, 1, 2 …: torch repeats the head of the *shuffled* order.": answers.padded_with_unshuffled_head,
    "You padded and then shuffled: shuffle the N indices first, pad after.": answers.padded_before_shuffle,
    "You appended the head once: with more than 2 N positions it has to be repeated again.": answers.padded_once,
    "Nothing is padded or dropped: the ranks get shares of different lengths.": answers.not_padded,
    "You cut contiguous blocks: rank r takes positions r, r + W, r + 2 W, …": answers.in_blocks,
    "drop_last cut the head of the order: it cuts the tail.": answers.head_dropped,
    "drop_last=True still pads.": answers.as_if(drop_last=False),
    "shuffle=False still shuffles.": answers.as_if(shuffle=True),
    "The epoch is not in the seed: this is epoch 0 for ever.": answers.as_if(epoch=0),
    "The seed has no effect: only the epoch has.": answers.as_if(seed=0),
    "The rank is in the seed: then every rank has an order of its own, and coverage breaks.": answers.seeded_with_rank,
}


def index_cases() -> Iterator[dict[str, Any]]:
    """Yield readable cases first, one step of the recipe after the other, then N = 1..40 × W = 1..8 with every rank."""
    easy = [(12, 3, False, 0, 0, False), (12, 3, True, 0, 0, False), (12, 3, True, 0, 1, False)]
    easy += [(12, 3, True, 7, 0, False), (10, 3, False, 0, 0, False), (10, 3, True, 0, 0, False)]
    easy += [(10, 3, False, 0, 0, True), (10, 3, True, 0, 0, True), (2, 5, False, 0, 0, False)]
    runs = ((False, 0, 0), (True, 0, 1), (True, 7, 0), (True, 3, 5))
    grid = (
        (size, world, *run, drop_last)
        for size in range(1, 41)
        for world in range(1, 9)
        for run in runs
        for drop_last in (False, True)
    )
    names = ("size", "num_replicas", "shuffle", "seed", "epoch", "drop_last")
    for values in itertools.chain(easy, grid):
        case = dict(zip(names, values, strict=True))
        yield from ({**case, "rank": rank} for rank in range(values[1]))


def check_indices(answer: Callable[..., list[int]]) -> Verdict:
    """Check exercise 1."""
    return check_function(
        answer, answers.true_indices, index_cases(), what="the share of a rank", mistakes=INDEX_MISTAKES
    )


def check_length(answer: Callable[..., int]) -> Verdict:
    """Check exercise 2."""
    mistakes = {
        "You always round up: drop_last rounds down, and pad=False gives the longer shares to the first ranks only.": (
            answers.always_rounded_up
        ),
        "You always round down: padding rounds up.": answers.always_rounded_down,
        "Rounding up is not floor + 1: where W divides N, the two differ.": answers.one_too_many,
        "With pad=False the first N % W ranks have one more, not the last: position p goes to rank p % W.": (
            answers.rest_to_the_last
        ),
        "With pad=False one rank got the whole rest: shares differ by one at most.": answers.all_rest_to_one,
    }
    readable = [
        (10, 3, 0, False, True),
        (10, 3, 0, True, True),
        (10, 5, 0, False, True),
        (11, 3, 1, False, False),
        (10, 3, 0, False, False),
    ]
    grid = (
        (size, world, rank, drop_last, pad)
        for size in range(41)
        for world in range(1, 9)
        for drop_last, pad in ((False, True), (True, True), (False, False))
        for rank in range(world)
    )
    names = ("size", "num_replicas", "rank", "drop_last", "pad")
    cases = (dict(zip(names, values, strict=True)) for values in itertools.chain(readable, grid))
    return check_function(answer, answers.true_length, cases, what="the length of a share", mistakes=mistakes)


def check_accuracy(answer: Callable[..., float]) -> Verdict:
    """Check exercise 3."""
    mistakes = {
        "That is the mean of the ranks' means: a rank with fewer samples then weighs as much as the others.": (
            answers.mean_of_means
        ),
        "You multiplied rank 0's count by W: other ranks may have fewer.": answers.by_first_rank,
        "That is rank 0's score: the others' samples are missing.": answers.rank_zero_only,
    }
    cases: list[dict[str, list[int]]] = [
        dict(correct=[4, 4], counted=[5, 5]),
        dict(correct=[4, 1], counted=[5, 4]),
        dict(correct=[3, 2, 0], counted=[3, 3, 1]),
        dict(correct=[1, 0, 0, 0], counted=[1, 1, 0, 0]),
        dict(correct=[46, 45, 47, 44, 46, 45, 45], counted=[52, 52, 52, 51, 51, 51, 51]),
    ]
    return check_function(answer, answers.true_accuracy, cases, what="the accuracy", mistakes=mistakes)
