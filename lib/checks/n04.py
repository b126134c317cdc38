"""Checks of notebook 04: where shards begin and end, what is left after a restart, a walk that is a bijection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from lib.checks.base import Verdict, check_function, guess, not_attempted, untouched
from lib.data.libtorch import DistributedSequentialSampler
from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from lib.figures.feistel import CHANCE, lag_surprise
from lib.figures.missed import DECK, readers

Mix: TypeAlias = Callable[[int], int]

DIGITS, ROW, PAGE = 1797, 64, 4096  # the file of section 1


# ---- predictions


def guess_page_reads(my_guess: object) -> Verdict:
    """Comment on the guess of section 1: pages that 8 ranks read by stride."""
    shares = [DistributedSampler(range(DIGITS), 8, rank, shuffle=False) for rank in range(8)]
    reads = sum(len({index * ROW // PAGE for index in share}) for share in shares)
    return guess(my_guess, reads, what="the page reads of 8 ranks", tolerance=0.02)


def guess_last_shard(my_guess: object) -> Verdict:
    """Comment on the guess of section 2: the samples of the last of 3 ranks over 10 samples."""
    guessed = list(my_guess) if isinstance(my_guess, (tuple, range)) else my_guess
    return guess(guessed, list(DistributedSequentialSampler(10, 3, 2)), what="the last rank's shard")


def guess_rest(my_guess: object) -> Verdict:
    """Comment on the guess of section 3: samples for each of 3 ranks after 3 steps of 4 ranks and 2 samples."""
    return guess(my_guess, (36 - 3 * 4 * 2) // 3, what="what each of the 3 ranks still gets", unit="samples")


def guess_rounds(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: the fewest rounds that leave no pattern at any lag."""
    return guess(
        my_guess, fewest_rounds(), what="the first number of rounds without a pattern", unit="rounds"
    )


def guess_twice(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": percent of the samples that two of 8 disagreeing ranks or more read."""
    shares = [sum(count > 1 for count in readers(8, epoch, False)) / DECK for epoch in range(40)]
    share = round(100 * sum(shares) / len(shares))
    return guess(my_guess, share, what="the share that several ranks read", unit="%", tolerance=0.1)


def fewest_rounds(size: int = 4096) -> int:
    """Return the fewest rounds of a Permutation that pass the lag test at every power of two."""
    lags = [2**k for k in range((size - 1).bit_length())]
    return next(
        rounds
        for rounds in range(1, 9)
        if max(lag_surprise(Permutation(size, 3, rounds=rounds)[np.arange(size)], lag) for lag in lags)
        < CHANCE
    )


# ---- exercise 1: shard_bounds


def true_bounds(size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Return (begin, end) of one rank's contiguous shard: even to one sample, the longer ones first."""
    local, longer = divmod(size, world_size)
    begin = rank * local + min(rank, longer)
    return begin, begin + local + (rank < longer)


def floor_bounds(size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Give every rank the floor (wrong)."""
    local = size // world_size
    return rank * local, (rank + 1) * local


def ceil_bounds(size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Give every rank the ceiling (wrong)."""
    local = -(-size // world_size)
    return rank * local, (rank + 1) * local


def clipped_bounds(size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Give every rank the ceiling, cut at the end (wrong)."""
    begin, end = ceil_bounds(size, world_size, rank)
    return min(begin, size), min(end, size)


def longer_last(size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Cut at the multiples of size / world_size (even, but another order)."""
    return rank * size // world_size, (rank + 1) * size // world_size


def tail_to_last(size: int, world_size: int, rank: int) -> tuple[int, int]:
    """Give the floor to all and the rest to the last rank (wrong)."""
    begin, end = floor_bounds(size, world_size, rank)
    return begin, size if rank == world_size - 1 else end


Bounds: TypeAlias = Callable[[int, int, int], tuple[int, int]]


def _all_ranks(bounds: Bounds) -> Callable[[int, int], list[tuple[int, int]]]:
    return lambda size, world_size: [bounds(size, world_size, rank) for rank in range(world_size)]


def check_shard_bounds(answer: Bounds) -> Verdict:
    """Check exercise 1 over size 0..13 and world_size 1..5; compares the bounds of all ranks at once."""
    if untouched(answer):
        return not_attempted("shard_bounds")
    mistakes = {
        "The floor for everyone leaves the last size % world_size samples to nobody.": floor_bounds,
        "The ceiling for everyone runs past the end: those samples do not exist.": ceil_bounds,
        "The ceiling cut at the end covers all, but the last ranks get less, even nothing.": clipped_bounds,
        "The last rank gets the whole rest: up to world_size - 1 samples more than the others.": tail_to_last,
        "Even to one sample, but the first size % world_size ranks should be the longer ones.": longer_last,
    }
    cases = [{"size": size, "world_size": w} for size in (11, *range(14)) for w in (3, 1, 2, 4, 5)]
    return check_function(
        _all_ranks(answer),
        _all_ranks(true_bounds),
        cases,
        what="shard_bounds of all ranks",
        mistakes={why: _all_ranks(wrong) for why, wrong in mistakes.items()},
    )


# ---- exercise 2: rest_for_rank

Order: TypeAlias = Sequence[int]


def true_rest(
    order: Order, steps: int, batch_size: int, old_world_size: int, world_size: int, rank: int
) -> Order:
    """Return one rank's share of what the first run left over."""
    return order[steps * batch_size * old_world_size + rank :: world_size]


def from_the_start(order: Order, world_size: int, rank: int, **_: int) -> Order:
    """Deal the whole epoch again (wrong)."""
    return order[rank::world_size]


def own_count(order: Order, steps: int, batch_size: int, world_size: int, rank: int, **_: int) -> Order:
    """Skip what one rank has used instead of all ranks (wrong)."""
    return order[steps * batch_size + rank :: world_size]


def old_stride(order: Order, steps: int, batch_size: int, old_world_size: int, rank: int, **_: int) -> Order:
    """Deal the rest over the old number of ranks (wrong)."""
    return order[steps * batch_size * old_world_size + rank :: old_world_size]


def new_count(order: Order, steps: int, batch_size: int, world_size: int, rank: int, **_: int) -> Order:
    """Deal the whole epoch anew, then skip in each share what an old rank has used (wrong)."""
    return order[rank::world_size][steps * batch_size :]


def check_rest_for_rank(answer: Callable[..., Order]) -> Verdict:
    """Check exercise 2 over orders of 24 and 25 samples, several old and new world sizes."""
    mistakes: dict[str, Callable[..., Order]] = {
        "This deals the whole epoch again: what run 1 has used comes twice.": from_the_start,
        "steps * batch_size is what one rank has used; all old ranks together have used more.": own_count,
        "The rest is dealt over the old number of ranks; there are other ranks now.": old_stride,
        "Dealt anew, then skipped: that counts the used samples with the new number of ranks.": new_count,
    }
    cases = [
        {
            "order": [int(i) for i in Permutation(size, seed=size)],
            "steps": steps,
            "batch_size": batch_size,
            "old_world_size": old,
            "world_size": new,
            "rank": rank,
        }
        for size in (24, 25)
        for old, new in ((4, 3), (2, 5), (3, 3), (1, 2))
        for steps, batch_size in ((2, 2), (1, 3), (0, 1))
        for rank in range(new)
    ]
    return check_function(answer, true_rest, cases, what="rest_for_rank", mistakes=mistakes)


# ---- exercise 3: walk


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


def true_walk(index: int, size: int, mix: Mix) -> int:
    """Return the first image of index that lies inside range(size)."""
    index = mix(index)
    while index >= size:
        index = mix(index)
    return index


def modulo(index: int, size: int, mix: Mix) -> int:
    """Fold an image outside back by the remainder (wrong)."""
    return mix(index) % size


def one_pass(index: int, size: int, mix: Mix) -> int:
    """Pass through mix once (wrong)."""
    return mix(index)


def two_passes(index: int, size: int, mix: Mix) -> int:
    """Pass through mix at most twice (wrong)."""
    image = mix(index)
    return image if image < size else mix(image)


def never_mixed(index: int, size: int, mix: Mix) -> int:
    """Look before the first pass (wrong)."""
    while index >= size:
        index = mix(index)
    return index


def clip(index: int, size: int, mix: Mix) -> int:
    """Put an image outside onto the last sample (wrong)."""
    return min(mix(index), size - 1)


def check_walk(answer: Callable[[int, int, Mix], int]) -> Verdict:
    """Check exercise 3 over several sizes and shuffles; a wrong answer that maps two positions to one is shown both."""
    mistakes = {
        "A remainder is no walk.": modulo,
        "One pass can land outside range(size): go on while it does.": one_pass,
        "A second pass can land outside as well: go on while it does.": two_passes,
        "Every index starts inside, so this loop never runs: mix once before you look.": never_mixed,
        "Clipping is no walk.": clip,
    }
    runs = [(size, seed) for seed in (0, 1) for size in (40, 1, 2, 33, 50, 63, 64)]
    cases = [
        {"index": index, "size": size, "mix": Shuffle64(seed)} for size, seed in runs for index in range(size)
    ]
    verdict = check_function(answer, true_walk, cases, what="walk", mistakes=mistakes)
    collision = _collision(answer, runs) if verdict.status == "wrong" else ""
    return Verdict("wrong", f"{verdict.message} {collision}") if collision else verdict


def _collision(answer: Callable[[int, int, Mix], int], runs: Sequence[tuple[int, int]]) -> str:
    """Find two positions that an answer maps to the same id: a bijection has none."""
    for size, seed in runs:
        seen: dict[int, int] = {}
        for index in range(size):
            try:
                image = int(answer(index, size, Shuffle64(seed)))
            except Exception:
                return ""
            if image in seen:
                both = f"positions {seen[image]} and {index} both become {image}"
                return f"For size = {size}, {both}, so some other id never comes: no bijection."
            seen[image] = index
    return ""
