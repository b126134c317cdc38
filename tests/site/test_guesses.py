"""A prediction on a page says what its check says: found by asking it. tests/browser holds guess.js to the same."""

import ast

import pytest

from support.kit.exact import exact_number
from support.kit.guess import Guess, letter
from support.kit.verdict import Verdict
from support.n02 import checks as n02
from tests.rooms import GUESSES
from tests.sizes import size
from tools.site import guesses

#: Shares are read and repeated in most ways: 0.2, 20 and "20 %".
SHARES = [name for name, check in GUESSES.items() if check.unit == "%"]


@pytest.mark.parametrize("name", size(suite=SHARES, prove=list(GUESSES)))
def test_a_page_can_say_what_the_check_of_a_room_says(name):
    check = GUESSES[name]
    known = check.tried.known
    with guesses.one_truth(check, known, {}):
        found = guesses.exported(check, *known)
    assert found["what"]


def test_a_check_is_described_by_single_guesses_and_ranges():
    held = exact_number("what is held", lambda n: 4 * n, "rows", {5: "one too many", 8: "so much is not needed"})
    found = guesses.exported(held, 1)
    assert (found["what"], found["unit"], found["kind"]) == ("what is held", "rows", "number")
    assert dict(found["whole"]["at"])[5] == "You said 5 (one too many); what is held = 4 rows. Read on for the reason."
    assert set(dict(found["whole"]["at"])) == {4, 5, 8}
    assert found["whole"]["cuts"] == []
    assert found["whole"]["said"] == [("g", "You said ", "; what is held = 4 rows. Read on for the reason.")]


def test_where_close_and_right_begin_and_end_is_found_to_the_last_digit():
    found = guesses.exported(Guess("it", lambda: 10.0, tolerance=0.1))["number"]
    assert [said for _, _, said in found["said"]][1:4] == [
        ": close, it = 10.",
        ": that is it, it = 10.",
        ": close, it = 10.",
    ]
    ends = 10 * 0.75, 10 * 0.9, 10 / 0.9, 10 / 0.75
    assert found["cuts"] == pytest.approx(ends, rel=1e-12)


def test_words_may_be_read_in_any_capitals_and_lists_have_a_shape():
    found = guesses.exported(Guess("which", lambda: "B", read=letter))
    assert found["kind"] == "word"
    assert found["word"]["folded"] == {"b": ("upper", "You said ", ": that is it, which = B.")}
    found = guesses.exported(n02.guess_loads)
    assert found["kind"] == "list"
    assert found["list"]["at"][0][0] == [0, 6, 4]
    assert found["list"]["shapes"]["[nnn]"][1] == "You said "
    assert found["list"]["other"][1].startswith("Three whole")


def test_a_truth_that_takes_long_is_computed_once():
    asked = []
    guess = Guess("it", lambda: asked.append(1) or 3)
    assert dict(guesses.exported(guess)["whole"]["at"])[3] == "You said 3: that is it, it = 3."
    assert len(asked) == 1
    assert guess(3).message
    assert len(asked) == 2


def test_a_comment_that_writes_the_guess_in_an_unknown_way_and_a_check_that_fails_are_noticed():
    with pytest.raises(ValueError, match="Add it to NUMBERS"):
        guesses.exported(Guess("it", lambda: "x", read=lambda said: f"{said:.5e}" if isinstance(said, float) else said))
    with pytest.raises(ValueError, match="but 7 raises ZeroDivisionError"):
        guesses.exported(Guess("it", lambda: 3, read=lambda said: 1 / 0 if said == 7 else said))


def test_predictions_of_a_cell_are_found_with_what_the_notebook_knows():
    space = {
        "checks": type("room", (), {"guess_it": exact_number("it", lambda n, m: n + m), "check_it": Verdict}),
        "n": 3,
    }
    (found,) = guesses.predictions(
        "my_guess = None\nchecks.check_it('open', '')\nchecks.guess_it(my_guess, n, 2)", space
    )
    assert found["name"] == "guess_it"
    assert found["what"] == "it"
    assert dict(found["whole"]["at"]).keys() == {5}
    assert guesses.predictions("!ls\nguess = 1", {}) == [] == guesses.asked("guess_it()")
    assert [ast.unparse(call) for call in guesses.asked("guess_a(x)\nb.guess_c(x, 1)")] == [
        "guess_a(x)",
        "b.guess_c(x, 1)",
    ]


@pytest.mark.parametrize("name", GUESSES)
def test_every_prediction_of_the_course_can_be_asked_on_a_page(name):
    guess = GUESSES[name]
    assert guesses.exported(guess, *guess.tried.known)["what"]
