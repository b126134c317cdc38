"""Every guess of every room is only commented on; what exercises say is held by test_detectors.py."""

from dataclasses import replace

import pytest

from support.kit.guess import Guess, Tried
from tests.rooms import GUESSES
from tests.sizes import size


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_of_a_room_brings_the_values_with_which_it_is_tried(name):
    assert isinstance(GUESSES[name], Guess)
    assert isinstance(GUESSES[name].tried, Tried), f"{name} has no tried=Tried(right=…, wrong=…)"


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess_is_only_commented_on_and_none_is_told_nothing(name):
    comment = GUESSES[name]
    told = comment.tried.known
    missing = comment(None, *told)
    hit = comment(comment.tried.right, *told)
    missed = comment(comment.tried.wrong, *told)
    odd = comment("forty-two", *told)
    dot = comment(".", *told)
    assert {verdict.status for verdict in (missing, hit, missed, odd, dot)} == {"note"}
    assert missing.message.startswith("No guess yet for ")
    assert missing.message.endswith("Put one in place of None: a wrong guess teaches more than none.")
    assert "that is it" in hit.message
    assert "that is it" not in missed.message
    assert odd.message.endswith("Read on for the reason.")
    truth = hit.message.rsplit(" = ", 1)[1].rstrip(".")
    assert f" = {truth}" not in missing.message


ROUND_NUMBERS = size(suite=[k / 4 for k in range(0, 400, 9)], prove=[k / 4 for k in range(405)])


@pytest.mark.parametrize("name", GUESSES)
def test_a_comment_on_a_number_is_said_to_its_end(name):
    told = GUESSES[name].tried.known
    quick = replace(GUESSES[name], truth=lambda *known, **named: 1.0)
    famous = GUESSES[name].said
    for number in (*famous, *ROUND_NUMBERS):
        message = quick(number, *told).message.replace(", …]", "]")  # a list that goes on is not cut off
        assert "…" not in message
