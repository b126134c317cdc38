"""Predictions of notebook 04, contiguous shards."""

from __future__ import annotations

import numpy as np

from lib.data.permutation import Permutation
from lib.data.samplers import DistributedSampler
from support.kit.exact import exact_number, read_number
from support.kit.guess import Guess, Tried
from support.n04.cutting import DIGITS, RANKS, pages_of
from support.n04.runs import CHANCE, block_shares, lag_surprise, pieces_after

#: The job of section 1's bet: batches of 24, saved after every second step.
BET_BATCH = 24
BET_STEPS = 2
BET_BLOCKS = range(1, DIGITS // RANKS + 2)


def _page_reads() -> int:
    shares = [DistributedSampler(range(DIGITS), RANKS, rank, shuffle=False) for rank in range(RANKS)]
    return sum(len(pages_of(share)) for share in shares)


def leaves_a_prefix(block: int) -> bool:
    """Say whether a block leaves one piece at each save of the bet's job."""
    steps = range(BET_STEPS, DIGITS // (RANKS * BET_BATCH) + 1, BET_STEPS)
    shares = block_shares(DIGITS, RANKS, block)
    return all(pieces_after(shares, step, BET_BATCH) <= 1 for step in steps)


def best_block() -> int:
    """Return the block of the bet's job that reads the fewest pages of those that leave a prefix at each save."""
    allowed = [block for block in BET_BLOCKS if leaves_a_prefix(block)]
    return min(allowed, key=lambda block: sum(map(len, map(pages_of, block_shares(DIGITS, RANKS, block)))))


def _fewest_rounds(size: int = 4096) -> int:
    """Return the fewest rounds of a Permutation that pass the lag test at every power of two."""
    lags = [2**k for k in range((size - 1).bit_length())]
    for rounds in range(1, 9):
        image = Permutation(size, 3, rounds=rounds)[np.arange(size)]
        if max(lag_surprise(image, lag) for lag in lags) < CHANCE:
            return rounds
    raise AssertionError


#: What to say of a walk that takes so many times as long.
LONGER = {
    "1.1": "ten per cent more numbers; their walks are longer, too",
    "2": "ten per cent more numbers, 1.82 times as many passes each",
}


def _as_text(my_guess: object) -> object:
    """Return a famous guess as a text, 2.0 as "2", so that it is known however it is written; any other as it is."""
    value = read_number(my_guess)
    text = f"{value:g}" if isinstance(value, int | float) else ""
    return text if text in LONGER and float(text) == value else value


guess_page_reads = exact_number(
    "the page reads of 8 ranks",
    _page_reads,
    "pages",
    {
        29: "each page once; so it is if the ranks share one cache that holds the file",
        36: "each rank a piece of its own; those would be epoch shards",
        37: "each rank a piece of its own; those would be epoch shards",
        232: "every page on every rank; only the last page, with 5 rows, is too short for 8 ranks",
        224: "28 pages on 8 ranks; there is a 29th with 5 rows",
        1797: "a page for each row; but a rank keeps the pages that it has fetched",
    },
    whole=True,
    tried=Tried(right=229, wrong=29),
)
"""Section 1: pages that 8 ranks read by stride."""
guess_block = exact_number(
    "the block that reads the fewest pages and leaves a prefix at each save",
    best_block,
    "rows",
    {
        1: "that leaves a prefix at each step, and reads 229 pages",
        2: "that leaves a prefix at each save, and reads 229 pages",
        12: "that leaves a prefix at each step; longer blocks read fewer pages",
        16: "that leaves a prefix at each save; longer blocks read fewer pages",
        24: "that leaves a prefix after every step; nobody saves after every step here",
        32: "two steps take 48 rows of a rank, a block and a half: at a save the ranks stand in the middle of blocks",
        64: "a page; but at a save each rank has read 48 of its 64 rows, and 8 pieces are left",
        225: "that is the epoch shard: 8 pieces at the first save",
    },
    whole=True,
    tried=Tried(right=48, wrong=64),
)
"""Section 1: batches of 24, a save after every second step, pages of 64 rows."""
guess_ahead = exact_number(
    "where the cursor stands",
    lambda: 4 + 2 * 2 * 4,
    said={
        4: "what was trained on; but the loader asks ahead for its workers",
        8: "one batch ahead; but there are two workers, and each holds more than one",
        12: "one batch ahead for each worker; prefetch_factor is 2",
        16: "two batches for each of two workers; as soon as one is delivered, another is asked for",
    },
    whole=True,
    tried=Tried(right=20, wrong=4),
)
"""Section 3: the cursor of a loader with two workers after one batch of 4."""
guess_rounds = exact_number(
    "the first number of rounds without a pattern",
    _fewest_rounds,
    "rounds",
    {
        2: "each half has been changed once; that is not enough",
        3: "the eye says so, too; the test does not",
        4: "the number of the textbooks; see below what they prove",
        8: "what lib takes, for margin; a smaller number passes",
    },
    whole=True,
    tried=Tried(right=5, wrong=1),
)
"""Section 5: the fewest rounds that leave no pattern at any lag."""
guess_longer = Guess(
    "how many times as long it takes",
    lambda measured: round(measured, 1),
    read=_as_text,
    said=LONGER,
    tolerance=0.15,
    tried=Tried(right=3.3, wrong=1.1, known=(3.3,)),
)
"""Section 6: 1.1 million numbers by the time of a million, which was measured."""
