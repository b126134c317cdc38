"""Predictions of notebook 16: each truth is computed, and famous wrong guesses are named."""

from __future__ import annotations

from support.kit.guess import Guess, Tried, letter

guess_flipped = Guess(
    "what torch.load does",
    lambda: "B",
    read=letter,
    tried=Tried(right="b", wrong="A"),
)
