"""Small models of notebook 04: blocks of an order, who used which sample, a walk, how far from chance an order is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lib.data.samplers import DistributedSampler
from support.n04.cutting import pieces


def block_shares(size: int, world_size: int, block: int) -> list[list[int]]:
    """Return what each rank reads of the positions when they are dealt in blocks.

    A last round that is short is dealt in pieces that differ by at most one position.
    """
    shares: list[list[int]] = [[] for _ in range(world_size)]
    for begin in range(0, size, world_size * block):
        end = min(begin + world_size * block, size)
        for share, piece in zip(shares, np.array_split(np.arange(begin, end), world_size), strict=True):
            share += piece.tolist()
    return shares


def pieces_after(shares: Sequence[Sequence[int]], steps: int, batch_size: int) -> int:
    """Return in how many pieces the rest of the order lies when all ranks have read so many batches."""
    return len(pieces(place for share in shares for place in share[steps * batch_size :]))


@dataclass(frozen=True)
class Use:
    """One sample handed to one rank: in run 1 or 2, at the step counted on from run 1, as its `turn`-th sample."""

    run: int
    rank: int
    step: int
    turn: int
    sample: int


def two_runs(
    size: int, before: int, after: int, steps: int, batch_size: int = 2, restart: bool = False, seed: int = 0
) -> tuple[list[Use], int]:
    """Use an epoch with `before` ranks for some steps, then the rest of it with `after` ranks; return all uses.

    restart: the second run knows nothing of the first. Also returns how many samples the first run consumed.
    """
    first = [DistributedSampler(range(size), before, rank, seed=seed) for rank in range(before)]
    uses = []
    for rank, sampler in enumerate(first):
        for turn, sample in enumerate(list(sampler)[: steps * batch_size]):
            uses.append(Use(1, rank, turn // batch_size + 1, turn, sample))
    consumed = len(uses)
    done = max((use.step for use in uses), default=0)
    for rank in range(after):
        sampler = DistributedSampler(range(size), after, rank, seed=seed)
        if not restart:
            sampler.load_state_dict(first[0].state_dict(consumed))
        for turn, sample in enumerate(sampler):
            uses.append(Use(2, rank, done + turn // batch_size + 1, turn, sample))
    return uses, consumed


def walk_path(mix: Callable[[int], int], index: int, size: int) -> list[int]:
    """Return index, its image, the image of that, … up to the first one inside range(size)."""
    path = [index, mix(index)]
    while path[-1] >= size:
        path.append(mix(path[-1]))
    return path


CHANCE = 5  # standard deviations; a true shuffle stays below


def lag_surprise(order: npt.NDArray[np.int64], lag: int) -> float:
    """Return how far p[i] ^ p[i + lag] is from uniform, in its low or its high half: the worse of two z-scores.

    order: a permutation of range(4^k). A z-score is a chi-square in its standard deviations.
    Raises ValueError for another length.
    """
    half = (len(order).bit_length() - 1) // 2
    if 4**half != len(order):
        raise ValueError(f"{len(order)} numbers have no two equal halves: a power of four is needed")
    changed = order[lag:] ^ order[:-lag]
    expected = len(changed) / 2**half
    counts = (np.bincount(part, minlength=2**half) for part in (changed % 2**half, changed >> half))
    surplus = [float(((count - expected) ** 2 / expected).sum()) - (2**half - 1) for count in counts]
    return float(max(map(abs, surplus)) / math.sqrt(2 * (2**half - 1)))
