"""The checks of notebook 08 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

from fractions import Fraction

import pytest
from support.n08 import checks as answers
from support.n08 import checks as n08

from lib.schedules import ScheduleError, validate

# ---- exercise 1: clock_cycles


def stub(m, n): ...


def test_the_reference_passes_and_the_stub_is_neutral():
    assert n08.check_clock_cycles(answers.true_clock_cycles)
    assert n08.check_clock_cycles(stub).status == "open"


def test_another_way_to_write_it_passes_lists_and_any_order_within_a_clock_too():
    def by_sum(m, n):
        return [[[k - j, j] for j in range(n - 1, -1, -1) if 0 <= k - j < m] for k in range(m + n - 1)]

    assert n08.check_clock_cycles(by_sum)


@pytest.mark.parametrize("why", answers.CLOCK_MISTAKES, ids=lambda why: answers.CLOCK_MISTAKES[why].__name__)
def test_each_famous_mistake_is_rejected_and_told_by_name(why):
    verdict = n08.check_clock_cycles(answers.CLOCK_MISTAKES[why])
    assert verdict.status == "wrong"
    assert verdict.message.endswith(why)


def test_the_naive_pipeline_is_not_taken_for_a_pipeline():
    """One device busy at a time computes the right values; it is still no pipeline."""
    verdict = n08.check_clock_cycles(answers.one_pair_a_clock)
    assert "position 1: expected [[1, 0], [0, 1]], got [[0, 1]]" in verdict.message
    assert "model parallelism" in verdict.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda m, n: print(end=""), "returned None"),
        (lambda m, n: [[0, 1]], "a clock is a list of pairs (i, j), but it holds 0"),
        (lambda m, n: 1 // 0, "ZeroDivisionError"),
        (lambda m, n: iter(lambda: [(0, 0)], None), "position 1"),  # it never ends
    ],
)
def test_what_is_no_list_of_clocks_gets_an_answer_too(wrong, says):
    verdict = n08.check_clock_cycles(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- exercise 2: the fewest micro-batches


def test_the_fewest_micro_batches_pass_and_the_stub_is_neutral():
    m = answers.fewest(8, Fraction(1, 10))
    assert Fraction(7, m + 7) < Fraction(1, 10) <= Fraction(7, m - 1 + 7)
    assert n08.check_fewest(m)
    assert n08.check_fewest(None).status == "open"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [(63, "exactly 10%"), (71, "(n - 1) / m:"), (73, "n / (m + n)"), (81, "n / m."), (65, "is not 65")],
)
def test_a_wrong_number_is_told_the_formula_behind_it(wrong, says):
    verdict = n08.check_fewest(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_the_named_wrong_numbers_come_from_the_formulas_that_they_are_said_to_come_from():
    tenth = Fraction(1, 10)
    formulas = {71: lambda m: Fraction(7, m), 73: lambda m: Fraction(8, m + 8), 81: lambda m: Fraction(8, m)}
    for number, formula in formulas.items():
        assert formula(number) < tenth <= formula(number - 1)


# ---- exercise 3: which table can't run


def test_exactly_one_table_is_illegal_and_all_have_the_same_actions():
    refused = []
    for letter, table in n08.TABLES.items():
        try:
            validate(table)
        except ScheduleError:
            refused.append(letter)
    assert refused == ["D"]
    assert len({frozenset(action for _, action in table) for table in n08.TABLES.values()}) == 1


def test_the_illegal_table_passes_with_any_rank_that_is_stuck():
    assert n08.check_illegal("D", "0B0")
    assert n08.check_illegal("d ", "1F1")
    assert n08.check_illegal(None, None).status == "open"
    assert n08.check_illegal("D", None).status == "open"


@pytest.mark.parametrize(
    ("letter", "action", "says"),
    [
        ("A", "0B2", "A runs to its end. A goes back in the opposite order"),
        ("B", "1B0", "B is 1F1B"),
        ("C", "1F1", "1F1 waits for 0F1, no more"),
        ("E", "0B0", "none of A, B, C, D"),
        ("D", "1B0", "1B0 is what 0B0 waits for"),
        ("D", "0F0", "it is done before anything is stuck"),
        ("D", "0B2", "its rank does not even come to it"),
        ("D", "0X9", "'0X9' is no action of it"),
        (4, "0B0", "4 is none of"),
    ],
)
def test_a_wrong_answer_about_the_tables_is_told_why(letter, action, says):
    verdict = n08.check_illegal(letter, action)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- predictions


@pytest.mark.parametrize(
    ("comment", "hit"),
    [
        (lambda guess: n08.guess_model_parallel(guess, 3), 1),
        (lambda guess: n08.guess_clocks(guess, 4, 3), 6),
        (lambda guess: n08.guess_idle(guess, 4, 4), 43),
        (lambda guess: n08.guess_best(guess, 16), 16),
        (lambda guess: n08.guess_slowest(guess, [1, 1, 2], 8), 18),
        (lambda guess: n08.guess_with_backward(guess, 4, 4), 43),
        (lambda guess: n08.guess_held(guess, 8, 4), 4),
    ],
)
def test_a_right_guess_is_told_so_and_no_guess_gives_nothing_away(comment, hit):
    assert "that is it" in comment(hit).message
    assert str(hit) not in comment(None).message
    assert comment("nonsense").status == "note"
