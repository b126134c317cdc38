"""Predictions and exercises of notebook 04, contiguous shards."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TypeAlias

import numpy as np

from lib.data.libtorch import DistributedSequentialSampler
from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from support.checks import Exercise, Guess, Verdict, cases
from support.n04.figures import CHANCE, DECK, lag_surprise, readers

DIGITS, ROW, PAGE = 1797, 64, 4096  # the file of section 1


# ---- predictions


def _page_reads() -> int:
    shares = [DistributedSampler(range(DIGITS), 8, rank, shuffle=False) for rank in range(8)]
    return sum(len({index * ROW // PAGE for index in share}) for share in shares)


def _fewest_rounds(size: int = 4096) -> int:
    """Return the fewest rounds of a Permutation that pass the lag test at every power of two."""
    lags = [2**k for k in range((size - 1).bit_length())]
    for rounds in range(1, 9):
        image = Permutation(size, 3, rounds=rounds)[np.arange(size)]
        if max(lag_surprise(image, lag) for lag in lags) < CHANCE:
            return rounds
    raise AssertionError


def _twice() -> int:
    shares = [sum(count > 1 for count in readers(8, epoch, False)) / DECK for epoch in range(40)]
    return round(100 * sum(shares) / len(shares))


guess_page_reads = Guess("the page reads of 8 ranks", _page_reads, tolerance=0.02)
"""Section 1: pages that 8 ranks read by stride."""
guess_last_shard = Guess(
    "the last rank's shard",
    lambda: list(DistributedSequentialSampler(10, 3, 2)),
    read=lambda mine: list(mine) if isinstance(mine, (tuple, range)) else mine,
)
"""Section 2: the samples of the last of 3 ranks over 10 samples."""
guess_rest = Guess("what each of the 3 ranks still gets", lambda: (36 - 3 * 4 * 2) // 3, unit="samples")
"""Section 3: samples for each of 3 ranks after 3 steps of 4 ranks and 2 samples."""
guess_rounds = Guess("the first number of rounds without a pattern", _fewest_rounds, unit="rounds")
"""Section 4: the fewest rounds that leave no pattern at any lag."""
guess_twice = Guess("the share that several ranks read", _twice, unit="%", tolerance=0.1)
"""Of "Break it": percent of the samples that two of 8 disagreeing ranks or more read."""


# ---- exercise 1: shard_bounds

Bounds: TypeAlias = Callable[[int, int, int], tuple[int, int]]


def _all_ranks(bounds: Bounds) -> Callable[[int, int], list[tuple[int, int]]]:
    return lambda size, world_size: [bounds(size, world_size, rank) for rank in range(world_size)]


def _bounds(size: int, world_size: int, rank: int) -> tuple[int, int]:
    local, longer = divmod(size, world_size)
    begin = rank * local + min(rank, longer)
    return begin, begin + local + (rank < longer)


check_shard_bounds = Exercise(
    "shard_bounds of all ranks",
    name="shard_bounds",
    reference=_bounds,
    view=_all_ranks,
    cases=cases("size world_size", product((11, *range(14)), (3, 1, 2, 4, 5))),
    mistakes={
        "The floor for everyone leaves the last size % world_size samples to nobody.": lambda size, w, rank: (
            size // w * rank,
            size // w * (rank + 1),
        ),
        "The ceiling for everyone runs past the end: those samples do not exist.": lambda size, w, rank: (
            -(-size // w) * rank,
            -(-size // w) * (rank + 1),
        ),
        "The ceiling cut at the end covers all, but the last ranks get less, even nothing.": lambda size, w, rank: (
            min(size, -(-size // w) * rank),
            min(size, -(-size // w) * (rank + 1)),
        ),
        "The last rank gets the whole rest: up to world_size - 1 samples more than the others.": (
            lambda size, w, rank: (size // w * rank, size // w * (rank + 1) if rank < w - 1 else size)
        ),
        "Even to one sample, but the first size % world_size ranks should be the longer ones.": (
            lambda size, w, rank: (rank * size // w, (rank + 1) * size // w)
        ),
    },
)
"""Exercise 1: (begin, end) of contiguous shards, for size 0..13 and world_size 1..5, all ranks at once."""


# ---- exercise 2: rest_for_rank


check_rest_for_rank = Exercise(
    "rest_for_rank",
    reference=lambda order, steps, batch_size, old_world_size, world_size, rank: order[
        steps * batch_size * old_world_size + rank :: world_size
    ],
    cases=cases(
        "order steps batch_size old_world_size world_size rank",
        (
            ([int(i) for i in Permutation(size, seed=size)], steps, batch_size, old, new, rank)
            for size in (24, 25)
            for old, new in ((4, 3), (2, 5), (3, 3), (1, 2))
            for steps, batch_size in ((2, 2), (1, 3), (0, 1))
            for rank in range(new)
        ),
    ),
    mistakes={
        "This deals the whole epoch again: what run 1 has used comes twice.": (
            lambda order, world_size, rank, **_: order[rank::world_size]
        ),
        "steps * batch_size is what one rank has used; all old ranks together have used more.": (
            lambda order, steps, batch_size, world_size, rank, **_: order[
                steps * batch_size + rank :: world_size
            ]
        ),
        "The rest is dealt over the old number of ranks; there are other ranks now.": (
            lambda order, steps, batch_size, old_world_size, rank, **_: order[
                steps * batch_size * old_world_size + rank :: old_world_size
            ]
        ),
        "Dealt anew, then skipped: that counts the used samples with the new number of ranks.": (
            lambda order, steps, batch_size, world_size, rank, **_: order[rank::world_size][
                steps * batch_size :
            ]
        ),
    },
)
"""Exercise 2: one rank's share of what the first run left over, of 24 and 25 samples."""


# ---- exercise 3: walk

Walk: TypeAlias = Callable[[int, int, Callable[[int], int]], int]
RUNS = [(size, seed) for seed in (0, 1) for size in (40, 1, 2, 33, 50, 63, 64)]


class Shuffle64:
    """A fixed shuffle of 0..63 for the check: callable, and it ends a walk that would never end."""

    def __init__(self, seed: int) -> None:
        self.seed, self._calls = seed, 0
        self._images = np.random.default_rng(seed).permutation(64).tolist()

    def __call__(self, index: int) -> int:
        """Return the image of index; raises RecursionError for a walk that goes nowhere."""
        self._calls += 1
        if self._calls > 2000:
            raise RecursionError(
                "mix was called 2,000 times: pass its last image to it, not the same index again"
            )
        if not 0 <= index < 64:
            raise ValueError(f"mix takes 0..63, not {index}")
        return int(self._images[index])

    def __repr__(self) -> str:
        return f"shuffle {self.seed} of 0..63"


def _walked(index: int, size: int, mix: Callable[[int], int]) -> int:
    while index >= size:
        index = mix(index)
    return index


def _show_collision(exercise: Exercise, answer: Walk) -> Verdict:
    """Compare; a wrong answer that maps two positions to one is shown both: a bijection has none."""
    verdict = exercise.compare(answer)
    for size, seed in RUNS if verdict.status == "wrong" else []:
        seen: dict[int, int] = {}
        for index in range(size):
            try:
                image = int(answer(index, size, Shuffle64(seed)))
            except Exception:
                return verdict
            if image in seen:
                both = f"positions {seen[image]} and {index} both become {image}"
                collision = f"For size = {size}, {both}, so some other id never comes: no bijection."
                return Verdict("wrong", f"{verdict.message} {collision}")
            seen[image] = index
    return verdict


check_walk = Exercise(
    "walk",
    reference=lambda index, size, mix: _walked(mix(index), size, mix),
    judge=_show_collision,
    cases=lambda: cases(
        "index size mix", ((index, size, Shuffle64(seed)) for size, seed in RUNS for index in range(size))
    ),
    mistakes={
        "A remainder is no walk.": lambda index, size, mix: mix(index) % size,
        "One pass can land outside range(size): go on while it does.": lambda index, size, mix: mix(index),
        "A second pass can land outside as well: go on while it does.": lambda index, size, mix: (
            mix(index) if mix(index) < size else mix(mix(index))
        ),
        "Every index starts inside, so this loop never runs: mix once before you look.": _walked,
        "Clipping is no walk.": lambda index, size, mix: min(mix(index), size - 1),
    },
)
"""Exercise 3: the first image of index that lies inside range(size), for several sizes and shuffles."""
