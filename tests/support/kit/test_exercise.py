"""An exercise says what an answer is worth: open while a part of it is a stub, otherwise right or wrong."""

import pytest

from support.kit.compare import check_value
from support.kit.exercise import Exercise, cases, use
from support.kit.verdict import Verdict


def test_an_exercise_without_cases_compares_a_value_explains_wrong_ones_and_escapes_what_was_written():
    exercise = Exercise("the clocks", reference=6, mistakes={"One too few: count the last.": 5})
    assert exercise(6)
    assert exercise(None).status == "open"
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


def test_an_exercise_of_two_answers_needs_both():
    pair = Exercise("a pair", reference=(1, 2), answers=2, judge=lambda _, pair: Verdict("right", f"{sum(pair)}"))
    assert pair(1, 2).message == "3"
    assert pair(1, None).status == "open"
    with pytest.raises(TypeError, match="2 answer"):
        pair(1)


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


class Half:
    def __iter__(self):
        raise NotImplementedError

    def __len__(self):
        return 3


def len_stub(rows): ...


def test_a_class_among_several_answers_is_a_stub_by_its_own_methods():
    exercise = Exercise(
        "the rows", reference=(list, len), answers=2, methods=("__iter__", "__len__"), judge=lambda *_: 1 / 0
    )
    assert exercise(Half, len_stub).message == "the rows: still the stub: Half.__iter__, len_stub."
    assert exercise(Half, len).message == "the rows: still the stub: Half.__iter__."
    assert exercise(list, None).message == "the rows: still the stub: len."


def test_an_exercise_whose_answer_is_a_class_must_say_which_methods_are_the_readers():
    with pytest.raises(ValueError, match="the rows: list is a class; say which methods the reader fills in"):
        Exercise("the rows", reference=list)


def test_later_cells_run_on_what_is_right_and_say_whose_it_is(capsys):
    one = Exercise("a word", reference="yes", name="my_word")
    two = Exercise(
        "two words", reference=("a", "b"), answers=2, judge=lambda self, got: check_value(got, self.reference, what="")
    )
    right = "".join(["y", "es"])
    assert use(right, one) is right
    assert use("no", one) == "yes"
    assert use(None, one, ours="YES") == "YES"
    assert use((None, None), two) == ("a", "b")
    assert use(("a", "b"), two) == ("a", "b")
    assert capsys.readouterr().out.splitlines() == [
        "my_word: from here on yours",
        *["my_word: from here on ours, until yours passes its check"] * 2,
        "two words: from here on ours, until yours passes its check",
        "two words: from here on yours",
    ]
