"""Predictions of notebook 12: each truth is computed, and famous wrong guesses are named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from support.kit.guess import Guess, Tried, letter
from support.n12.balance import forward_gain

guess_step = Guess(
    "the gain of a step",
    lambda: round(100 * (3 / (1 / forward_gain([1.0, 1.0], 8) + 2) - 1)),
    unit="%",
    read=lambda said: f"{said} (in per cent, please)" if isinstance(said, float) and 0 < said < 3 else said,
    said={
        "39": "that is the mean of 78 and 0; but a step spends twice as long in the part that gains nothing"
    },
    tried=Tried(right=17, wrong=78),
)
"""Section 5: by how many per cent a step is faster whose backward takes two forwards and gains nothing."""


def _fastest(seconds: Mapping[int, float]) -> int:
    return min(seconds, key=seconds.__getitem__)


guess_m = Guess(
    "the fastest m of forward",
    _fastest,
    tried=Tried(right=16, wrong=8, known=({4: 0.03, 8: 0.02, 16: 0.01, 32: 0.02},)),
)
"""Section 7: the number of micro-batches with which forward on four devices is fastest, as measured."""


def _mode(said: Any) -> Any:
    return letter(said.replace("_", " ")) if isinstance(said, str) else said


guess_peak = Guess(
    "the mode whose peak is lower",
    lambda: "NEITHER",
    read=_mode,
    said={
        "ALWAYS": "after forward it holds less; but the peak comes later, when one micro-batch is computed again",
        "EXCEPT LAST": "it has the last inside already when the other begins to compute it, and no more than that",
    },
    tried=Tried(right="neither", wrong="always"),
)
"""Section 8: always or except_last, on devices of their own."""
guess_counted = Guess(
    "num_batches_tracked after one step",
    lambda: 4 + 3,
    read=lambda said: "8 (that is `always`: here the last is not computed again)" if said == 8 else said,
    tried=Tried(right=7, wrong=1),
)
"""Section 10: what a BatchNorm counts in one step, 4 micro-batches, except_last."""
