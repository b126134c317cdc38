"""A check speaks in one sentence, names the first counterexample, and leaves an untouched stub alone."""

import numpy as np
import pytest
import torch

from support.checks import Exercise, Guess, Verdict, cases, check_function, check_value, guess, letter, untouched, use


def squares(n):
    return [i * i for i in range(n)]


def raising_stub(n):
    raise NotImplementedError("about one line")


def ellipsis_stub(n): ...


def documented_stub(n):
    """Return the first n squares; about one line."""


def pass_stub(n):
    pass


def endless(n):
    while True:
        yield 0


def breaks(n):
    yield from squares(n)[:1]
    raise KeyError("lost")


CASES = [{"n": n} for n in range(6)]


def verdict(answer, **more):
    return check_function(answer, squares, CASES, what="squares", **more)


@pytest.mark.parametrize("stub", [ellipsis_stub, documented_stub, pass_stub, raising_stub])
def test_an_untouched_stub_is_neither_right_nor_wrong(stub):
    assert untouched(stub) and verdict(stub).status == "open" and "Not attempted yet" in repr(verdict(stub))


@pytest.mark.parametrize(
    "as_type", [list, tuple, iter, np.array, lambda s: torch.tensor(s, dtype=torch.int64), lambda s: (i for i in s)]
)
def test_any_kind_of_sequence_will_do(as_type):
    assert verdict(lambda n: as_type(squares(n)))
    assert verdict(lambda n: as_type(squares(n))).message == "squares: the same as the reference in all 6 cases."


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda n: [0] * n, "for n = 2, position 1: expected 1, got 0"),
        (lambda n: squares(n)[:3], "for n = 4, expected 4 items"),
        (lambda n: squares(n + 1), "got more"),
        (lambda n: 1 // 0, "for n = 0 your code raised ZeroDivisionError"),
        (lambda n: n, "for n = 0, expected"),
        (lambda n: "squares", "for n = 0, expected"),
        (lambda n: [squares(n)].clear(), "is a `return` missing?"),
        (endless, "got more"),
        (breaks, "your code raised KeyError"),
    ],
)
def test_a_wrong_answer_gets_its_first_counterexample(answer, says):
    assert verdict(answer).status == "wrong" and says in verdict(answer).message


def test_a_famous_mistake_is_recognised_by_what_it_returns():
    mistakes = {
        "You left out the zero.": lambda n: [i * i for i in range(1, n)],
        "You cubed.": lambda n: [i**3 for i in range(n)],
    }
    assert verdict(lambda n: [i * i * i for i in range(n)], mistakes=mistakes).message.endswith("You cubed.")
    assert verdict(lambda n: [i**2 for i in range(1, n)], mistakes=mistakes).message.endswith("left out the zero.")
    assert verdict(lambda n: [7] * n, mistakes=mistakes).message.count("You") == 0


@pytest.mark.parametrize(
    "my_guess", [None, ..., 3, 3.01, 40, "three", [3], np.zeros(2), torch.ones(3), object(), float("nan")]
)
def test_a_guess_is_commented_on_and_never_fails(my_guess):
    said = guess(my_guess, 3, what="the length", unit="samples")
    assert said.status == "note" and bool(said) is False


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


@pytest.mark.parametrize(
    "value, truth, tolerance, status",
    [
        (None, 4, 0, "open"),
        (4, 4, 0, "right"),
        (5, 4, 0, "wrong"),
        (0.51, 0.5, 0.05, "right"),
        (True, 1.5, 0, "wrong"),
        (torch.ones(2), 4, 0, "wrong"),
    ],
)
def test_a_value_is_right_wrong_or_open(value, truth, tolerance, status):
    assert check_value(value, truth, what="W", tolerance=tolerance).status == status


def test_cases_are_named_once_there_must_be_some_and_floats_have_room_for_rounding():
    assert cases("m n", [(3, 2), (1, 4)]) == [{"m": 3, "n": 2}, {"m": 1, "n": 4}]
    assert cases("order", [[2, 0, 1]]) == [{"order": [2, 0, 1]}]
    with pytest.raises(ValueError):
        cases("m n", [(3, 2, 1)])
    assert check_function(lambda x: x * 0.1, lambda x: x / 10, [{"x": 3.0}], what="a tenth")
    with pytest.raises(ValueError, match="at least one case"):
        check_function(squares, squares, [], what="squares")


def test_an_exercise_without_cases_compares_a_value_explains_wrong_ones_and_escapes_what_was_written():
    exercise = Exercise("the clocks", reference=6, mistakes={"One too few: count the last.": 5})
    assert exercise(6) and exercise(None).status == "open"
    assert exercise(5).message == "the clocks is not 5. One too few: count the last."
    known = {5: "That counts the padding."}
    assert check_value(5, 4, what="W", wrong=known).message.endswith("That counts the padding.")
    assert "<script>" not in check_value("<script>", 4, what="W")._repr_html_()


def test_an_exercise_may_accept_whatever_has_no_fault():
    even = Exercise(
        "an even number above n",
        reference=lambda n: n + 2 - n % 2,
        cases=cases("n", range(4)),
        fault=lambda got, expected, case: "" if got % 2 == 0 and got > case["n"] else f"{got} will not do",
        praise="even and large enough {count} times",
        mistakes={"Above, not equal.": lambda n: n + n % 2},
    )
    assert even(lambda n: 10).message == "an even number above n: even and large enough 4 times."
    assert even(lambda n: n + n % 2).message == "an even number above n: for n = 0, 0 will not do. Above, not equal."
    assert "returned None" in even(lambda n: print(end="")).message


def test_an_exercise_of_two_answers_needs_both_and_a_guess_reads_what_is_meant():
    pair = Exercise("a pair", reference=(1, 2), answers=2, judge=lambda _, pair: Verdict("right", f"{sum(pair)}"))
    assert pair(1, 2).message == "3" and pair(1, None).status == "open"
    with pytest.raises(TypeError, match="2 answer"):
        pair(1)
    fastest = Guess(lambda ways: f"the best of {ways}", lambda ways: "AB"[ways - 1], read=letter)
    assert fastest(" b", ways=2).message == "You said B: that is it, the best of 2 = B."
    assert fastest(None, 2).message.startswith("No guess yet for the best of 2.")


def test_later_cells_run_on_a_right_answer_and_on_ours_while_it_is_a_stub_or_wrong():
    exercise = Exercise("double", reference=lambda x: 2 * x, cases=[{"x": 3}])

    def right(x):
        return x + x

    def wrong(x):
        return x**2

    def other(x):
        return x * 2

    def stub(x): ...

    assert use(right, exercise) is right
    assert use(stub, exercise) is use(wrong, exercise) is exercise.reference
    assert use(wrong, exercise, other) is other


def test_a_class_without_a_method_that_it_should_have_is_wrong_and_told_so():
    exercise = Exercise("the rows", reference=list, methods=("__iter__", "__len__"), judge=lambda *_: 1 / 0)
    assert exercise(None).status == "open"
    assert exercise(type("Rows", (), {"__len__": len})).message == "the rows: Rows has no __iter__."


def test_later_cells_run_on_what_is_right_and_say_whose_it_is(capsys):
    one = Exercise("a word", reference="yes", name="my_word")
    two = Exercise(
        "two words", reference=("a", "b"), answers=2, judge=lambda self, got: check_value(got, self.reference, what="")
    )
    right = "".join(["y", "es"])
    assert use(right, one) is right and use("no", one) == "yes" and use(None, one, ours="YES") == "YES"
    assert use((None, None), two) == ("a", "b") and use(("a", "b"), two) == ("a", "b")
    assert capsys.readouterr().out.splitlines() == [
        "my_word: from here on yours",
        *["my_word: from here on ours, until yours passes its check"] * 2,
        "two words: from here on ours, until yours passes its check",
        "two words: from here on yours",
    ]
