"""What notebook 15 says of a guess is true of it."""

import pytest

from support.n15.guesses import guess_any_order, guess_loss
from support.n15.plans import every_plan


@pytest.mark.parametrize("loss", [2.3, "2.30", " 2.3 "])
def test_a_loss_between_quotation_marks_is_a_number(loss):
    assert "that is it" in guess_loss(loss).message


@pytest.mark.parametrize("first", [2.74, 2.76, 2.80])
def test_the_first_loss_is_known_as_it_is_printed_and_with_one_digit_less(first):
    assert "that of the first weights" in guess_loss(first).message


@pytest.mark.costly
def test_eight_in_any_order_idle_more_than_two_and_leave_hardly_less_of_the_reduction():
    _, two, _, eight, _ = every_plan(512, gather_waits=False)
    assert eight.seconds - two.seconds == pytest.approx(0.025, abs=5e-4)
    assert eight.pipeline - two.pipeline > 0.025
    assert 0 < two.reduce - eight.reduce < 0.005
    assert "0.025 s behind: it idles more, and leaves hardly less of R" in guess_any_order(8).message
