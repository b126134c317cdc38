"""An answer that is compared is told its first counterexample, and the famous mistake that it makes."""

import numpy as np
import pytest
import torch

from support.kit.compare import check_function, check_value
from support.kit.exercise import cases


def squares(n):
    return [i * i for i in range(n)]


def endless(n):
    while True:
        yield 0


def breaks(n):
    yield from squares(n)[:1]
    raise KeyError("lost")


CASES = [{"n": n} for n in range(6)]


def verdict(answer, **more):
    return check_function(answer, squares, CASES, what="squares", **more)


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
    assert verdict(answer).status == "wrong"
    assert says in verdict(answer).message


def test_a_famous_mistake_is_recognised_by_what_it_returns():
    mistakes = {
        "You left out the zero.": lambda n: [i * i for i in range(1, n)],
        "You cubed.": lambda n: [i**3 for i in range(n)],
    }
    assert verdict(lambda n: [i * i * i for i in range(n)], mistakes=mistakes).message.endswith("You cubed.")
    assert verdict(lambda n: [i**2 for i in range(1, n)], mistakes=mistakes).message.endswith("left out the zero.")
    assert verdict(lambda n: [7] * n, mistakes=mistakes).message.count("You") == 0


def test_who_returns_nothing_is_told_of_no_mistake_that_raises():
    told = verdict(lambda n: None, mistakes={"You divided by zero.": lambda n: n // 0}).message
    assert told.endswith("returned None (is a `return` missing?)."), told


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


def total(numbers):
    return sum(numbers)


def emptying(numbers):
    found = 0
    while numbers:
        found += numbers.pop()
    return found


def emptying_and_wrong(numbers):
    emptying(numbers)
    numbers.append(7)
    raise KeyError("lost")


def test_who_empties_a_list_has_emptied_nobody_elses():
    several = cases("numbers", [[1, 2], [3]])
    assert check_function(emptying, total, several, what="the total")
    assert several == [{"numbers": [1, 2]}, {"numbers": [3]}]
    mistakes = {"You emptied, and counted.": lambda numbers: emptying(numbers) * 0 + 2}
    wrong = check_function(lambda numbers: len(numbers), total, several, what="the total", mistakes=mistakes)
    assert wrong.message == "the total: for numbers = [1, 2], expected 3, got 2. You emptied, and counted."
    assert check_function(total, emptying, several, what="the total"), "not even the reference can"


def test_where_arguments_are_to_be_kept_who_changes_one_is_told_which_and_what_it_is_afterwards():
    several = cases("numbers", [[1, 2], [3]])

    def ask(answer, wanted=total):
        return check_function(answer, wanted, several, what="the total", keeps=True).message

    assert ask(emptying) == (
        "the total: for numbers = [1, 2], your function has changed its argument numbers, which is [] afterwards; "
        "what it is given belongs to whoever calls it, who may need it again."
    )
    assert "KeyError: 'lost'" in ask(emptying_and_wrong)
    assert ask(emptying_and_wrong).endswith("Before, it has changed its argument numbers, which is [7] afterwards.")
    assert ask(total) == "the total: the same as the reference in all 2 cases."

    nested = [{"rows": [("x", [1])]}]
    inside = check_function(lambda rows: rows[0][1].pop(), lambda rows: 1, nested, what="x", keeps=True)
    assert "changed its argument rows, which is [('x', [])] afterwards" in inside.message


def test_an_answer_whose_items_come_one_by_one_is_asked_for_its_arguments_when_it_is_done():
    def by_and_by(numbers):
        while numbers:
            yield numbers.pop(0)

    verdict = check_function(by_and_by, lambda numbers: numbers, [{"numbers": [1, 2]}], what="the items", keeps=True)
    assert "changed its argument numbers" in verdict.message


def test_a_mistake_may_be_named_only_where_the_answer_makes_it_throughout():
    mistakes = {"You doubled.": lambda n: 2 * n}
    several = cases("n", [2, 3, 4])

    def twice(n):
        return 2 * n

    def twice_at_first(n):
        return 2 * n if n < 4 else 1 // 0

    def told(answer, throughout):
        return check_function(
            answer, lambda n: n * n, several, what="the square", mistakes=mistakes, throughout=throughout
        ).message

    expected = "the square: for n = 3, expected 9, got 6."
    assert told(twice, throughout=True) == f"{expected} You doubled."
    assert told(twice_at_first, throughout=True) == expected
    assert told(twice_at_first, throughout=False) == f"{expected} You doubled."
