"""Predictions of notebook 04, contiguous shards."""

from __future__ import annotations

import numpy as np

from lib.data.libtorch import DistributedSequentialSampler
from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from support.kit.guess import Guess, Tried
from support.n04.runs import CHANCE, lag_surprise

# The file of section 1: digits of 64 bytes, in pages of 4 KiB.
DIGITS = 1797
ROW = 64
PAGE = 4096


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


guess_page_reads = Guess("the page reads of 8 ranks", _page_reads, tried=Tried(right=229, wrong=29))
"""Section 1: pages that 8 ranks read by stride."""
guess_last_shard = Guess(
    "the last rank's shard",
    lambda: list(DistributedSequentialSampler(10, 3, 2)),
    read=lambda mine: list(mine) if isinstance(mine, (tuple, range)) else mine,
    tried=Tried(right=(8, 9, 0, 1), wrong=range(4)),
)
"""Section 2: the samples of the last of 3 ranks over 10 samples."""
guess_rest = Guess(
    "what each of the 3 ranks still gets",
    lambda: (36 - 3 * 4 * 2) // 3,
    unit="samples",
    tried=Tried(right=4, wrong=12),
)
"""Section 3: samples for each of 3 ranks after 3 steps of 4 ranks and 2 samples."""
guess_rounds = Guess(
    "the first number of rounds without a pattern",
    _fewest_rounds,
    unit="rounds",
    tried=Tried(right=5, wrong=1),
)
"""Section 4: the fewest rounds that leave no pattern at any lag."""
