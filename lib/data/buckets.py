"""Batches of samples that are about equally long: less padding, and still a shuffle.

A batch of sequences is as long as its longest; the rest is padding. Sorting the whole epoch by length leaves hardly any
padding and no shuffle either. So: shuffle, cut the order into pools of several batches, sort inside each pool.

    order    3 9 0 5 | 8 1 7 2      pools of 2 batches of 2
    sorted   9 0 5 3 | 1 7 8 2      by length, inside each pool
    batches  [9 0] [5 3] [1 7] [8 2]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lib._arguments import integer


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
