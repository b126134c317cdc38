"""Predictions of notebook 15, in its order."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from support.kit.exact import exact_number, read_number
from support.kit.guess import Guess, Tried, letter
from support.n15.plans import Model, every_plan, fastest_plan
from support.n15.solved import memory_of_rank

SIZES = (1, 2, 4, 8, 16, 32)


def _one_digit(number: Any) -> Any:
    value = read_number(number)
    return f"{value:.1f}" if isinstance(value, (int, float)) else value


def _held(n: int) -> float:
    """Return the bytes of rank 0 under 1F1B, with every state on every replica."""
    return float(memory_of_rank(Model(), n, n, False, 0, 1))  # type: ignore[no-untyped-call]


def _fewest_stages(memory: float) -> int:
    """Return the fewest stages whose rank 0 fits under 1F1B, with every state on every replica."""
    fits = (n for n in SIZES if _held(n) <= memory)
    return next(fits)


def _fastest_of_any_order(largest: int) -> int:
    """Return the fastest n if pipelines take any order, gathering hides, each ring has a card."""
    return fastest_plan(every_plan(512, gather_waits=False, largest=largest)).partitions


guess_loss = Guess(
    "the loss after 24 steps, about",
    lambda: _one_digit(math.log(10)),
    read=_one_digit,
    said={
        "0.0": "nothing can be told from a stranger's image",
        **dict.fromkeys(("2.7", "2.8"), "that of the first weights, which training does lower"),
        **dict.fromkeys(("0.4", "0.5"), "as if the pairs fitted: the digits are other images'"),
    },
    tried=Tried(right=2.3, wrong=0.0),
)
_stage = exact_number(
    "the stages with wrong gradients",
    lambda: 1,
    said={0: "the stage that is at the data"},
    tried=Tried(right=1, wrong="both"),
)


def _stage_or_word(my_guess: Any) -> Any:
    """Read numbers as an exact number does, and "Both " as BOTH."""
    is_word = isinstance(read_number(my_guess), str)
    return letter(my_guess) if is_word else _stage.read(my_guess)


_words = {"BOTH": "as if both backwards were split", "NONE": "DDP averages what passes its hooks"}
guess_wrong_stage = replace(
    _stage,
    read=_stage_or_word,
    said={**_stage.said, **_words},
)
guess_clipped = exact_number(
    "the norm of the whole gradient after every stage has clipped its own",
    lambda: math.sqrt(4),
    said={
        1: "that is the norm of one stage's part",
        4: "lengths of parts at right angles don't add up, their squares do",
    },
    tried=Tried(right=2, wrong=1),
)
guess_scaled = exact_number(
    "the share of the right gradient",
    lambda: (1 + 1 / 4) / 2,
    said={
        1: "the first step's gradients are there already when the second one scales",
        0.25: "only the first step's share is divided twice",
        0.5: "the first step's share is small, not gone",
        0.0625: "the second step's share is divided once",
    },
    tried=Tried(right=0.625, wrong=1),
)
guess_stages = exact_number(
    "the fewest stages",
    lambda: _fewest_stages(24e9),
    "stages",
    said={
        1: "the states alone are 126 GB",
        8: "that is enough for the states alone",
        16: "the states and activations come to 25 GB",
        6: "that is enough for the states alone",
    },
    tried=Tried(right=32, wrong=8),
)
guess_any_order = exact_number(
    "the fastest n",
    lambda: _fastest_of_any_order(1),
    said={
        1: "so it was with 1F1B: other orders of a pipeline idle less, and let the reduction begin earlier",
        4: "less than 0.02 s behind, which such a plan can't tell apart",
        8: "0.025 s behind: it idles more, and leaves hardly less of R",
        16: "they idle most",
    },
    tried=Tried(right=2, wrong=8),
)
guess_two_sequences = exact_number(
    "the fastest n",
    lambda: _fastest_of_any_order(2),
    said={
        2: "less than 0.02 s behind, which such a plan can't tell apart",
        4: "less than 0.02 s behind, which such a plan can't tell apart",
        8: "it leaves as much of R as n = 1, and idles",
        16: "they idle most",
    },
    tried=Tried(right=1, wrong=2),
)
guess_gathers = exact_number(
    "gathers per step",
    lambda: 2 * 4,
    "gathers",
    said={
        4: "backward needs the weights as well, and they were thrown away",
        1: "they are thrown away after each use",
        2: "that is what one micro-batch takes",
    },
    tried=Tried(right=8, wrong=4),
)
