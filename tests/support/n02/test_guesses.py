"""What is said of a guess in notebook 02, beyond what all guesses have in common."""

import pytest

from support.n02 import guesses as n02


def test_a_guess_of_another_shape_is_told_which_is_asked_for_and_no_truth():
    for guess, comment, *known in ((10, n02.guess_loads), ([4, 2], n02.guess_table, {"a": (4, 2)})):
        said = comment(guess, *known).message
        assert f"please, not {guess!r}. " in said
        assert "=" not in said


def test_a_right_guess_is_right_however_it_is_written():
    for guess, comment in (("sampler ", n02.guess_asker), (["0", "6", "4"], n02.guess_loads)):
        assert ": that is it" in comment(guess).message


@pytest.mark.parametrize("near", [8, 12])
def test_a_wrong_idea_of_the_indices_on_their_way_is_not_called_close_and_told_what_it_forgets(near):
    said = n02.guess_handed_out(near).message
    assert "close" not in said
    assert f"You said {near} (" in said


def test_who_asks_is_read_whatever_its_capitals_and_no_length_is_said_to_be_asked_of_the_sampler():
    assert "that is it" in n02.guess_asker(" sampler").message
    assert "stops when its sampler does" in n02.guess_asker("dataloader").message
    assert "Read on" in n02.guess_asker(["Sampler"]).message
