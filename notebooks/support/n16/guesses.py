"""Predictions of notebook 16: each truth is that of torch 2.13, as a test tries it; famous wrong guesses are named."""

from __future__ import annotations

from support.kit.exact import exact_number
from support.kit.guess import Guess, Tried, letter

guess_flipped = Guess(
    "what torch.load does",
    lambda: "B",
    read=letter,
    tried=Tried(right="b", wrong="A"),
)
guess_named = exact_number(
    "how many ranks monitored_barrier names",
    lambda: 0,
    said={
        1: "the one that stays away is rank 0, and it is rank 0 that counts who has come",
        2: "these two are there: they wait for rank 0 to let them go on",
    },
    tried=Tried(right=0, wrong=1),
)
