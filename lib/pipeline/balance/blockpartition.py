"""Cut a sequence of costs into blocks so that the slowest block is as fast as it can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from lib._arguments import integer


def partition(costs: Sequence[float], partitions: int) -> list[int]:
    """Return the lengths of `partitions` blocks of neighbours, none empty, whose largest sum is the least possible.

    The slowest stage sets the pace of a pipeline, so its sum is what counts; among equals the most even cut wins (least
    sum of squares). Dynamic programming over (blocks, end), O(partitions · len(costs)²) in numpy. Raises ValueError
    for fewer than one partition, more partitions than costs, or a cost that is negative or not finite.
    """
    n = integer("partitions", partitions, at_least=1)
    if n > len(costs):
        raise ValueError(f"{len(costs)} layers can't fill {n} partitions; give at most {len(costs)}")
    if not all(0 <= cost < float("inf") for cost in costs):
        raise ValueError(f"costs must be finite and not negative, not {list(costs)}")
    total = np.array([0, *accumulate(costs)], dtype=np.float64)
    block = total[None, :] - total[:, None]  # block[a, b]: what layers a..b-1 cost
    block[np.tril_indices(len(total))] = np.inf  # none is empty
    slowest = _cheapest(block, n, np.maximum)[0]
    return _cheapest(np.where(block <= slowest, block**2, np.inf), n, np.add)[1]


def _cheapest(block: NDArray[np.float64], n: int, join: np.ufunc) -> tuple[float, list[int]]:
    """Return the least joined price of n blocks that cover everything, and their lengths."""
    best, starts = block[0], []  # best[b]: the price of layers 0..b-1 in the blocks so far
    for _ in range(n - 1):
        prices = join(best[:, None], block)
        starts.append(prices.argmin(axis=0))
        best = prices.min(axis=0)
    ends = [len(block) - 1]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return float(best[-1]), [b - a for a, b in pairwise([0, *reversed(ends)])]


def solve(sequence: Sequence[float], partitions: int = 1) -> list[list[float]]:
    """Return the blocks themselves."""
    ends = [0, *accumulate(partition(sequence, partitions))]
    return [list(sequence[a:b]) for a, b in pairwise(ends)]
