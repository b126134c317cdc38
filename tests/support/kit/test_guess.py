"""A guess is commented on, whatever it is, and never fails."""

import numpy as np
import pytest
import torch

from support.kit.guess import Guess, guess, letter


@pytest.mark.parametrize(
    "my_guess", [None, ..., 3, 3.01, 40, "three", [3], np.zeros(2), torch.ones(3), object(), float("nan")]
)
def test_a_guess_is_commented_on_and_never_fails(my_guess):
    said = guess(my_guess, 3, what="the length", unit="samples")
    assert said.status == "note"
    assert bool(said) is False


@pytest.mark.parametrize("my_guess, truth, says", [
    (3, 3, "that is it"),
    (3.5, 3, "close"),
    (9, 3, "Read on"),
    ("rank 2", "rank 2", "that is it"),
    ("3", 3, "said 3: that is it"),
])  # fmt: skip
def test_a_guess_is_told_how_near_it_was_and_no_guess_does_not_give_the_answer_away(my_guess, truth, says):
    assert says in guess(my_guess, truth, what="x").message
    assert "that is it" in guess(3.1, 3, what="x", tolerance=0.1).message
    assert "17" not in guess(None, 17, what="the length").message


def test_a_guess_reads_what_is_meant():
    fastest = Guess(lambda ways: f"the best of {ways}", lambda ways: "AB"[ways - 1], read=letter)
    assert fastest(" b", ways=2).message == "You said B: that is it, the best of 2 = B."
    assert fastest(None, 2).message.startswith("No guess yet for the best of 2.")
