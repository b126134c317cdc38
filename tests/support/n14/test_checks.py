"""The checks of notebook 14: right answers pass, untouched stubs stay open, famous wrong answers are named."""

from __future__ import annotations

import pytest
from support.n14 import checks as answers
from support.n14 import checks as n14

from lib.schedules import Schedule, live_activations, one_f_one_b


def stub(*args): ...


# --- exercise 1


def test_1f1b_passes_with_and_without_its_idle_slots():
    assert n14.check_table(answers.RIGHT)
    assert n14.check_table(one_f_one_b(4, 3).to_text())
    assert n14.check_table(answers.RIGHT.replace(".", ""))


def test_an_unfinished_table_is_open():
    assert n14.check_table("\nrank 0  0F0 0F1 ...\nrank 1  ...\nrank 2  ...\n").status == "open"
    assert n14.check_table(...).status == "open"


@pytest.mark.parametrize(
    "table, says",
    [
        (answers.GPIPE, "rank 0 holds 4 at once; 3 are enough there. That is GPipe"),
        (answers.ONE_SHORT, "Which rank could go further ahead?"),
        (answers.DEADLOCK, "0B0 needs 1B0"),
        (answers.LACKS, "lacks 0B3, 1B3, 2B3"),
        (answers.RIGHT.replace("2B3", "2B4"), "micro-batch 4"),
        (answers.RIGHT.replace("2B3", "2B"), "'2B' is no action"),
        (answers.RIGHT.replace("2B3", "2I3 2W3"), "half of a backward"),
        ("0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3", "there are 1 rows"),
    ],
)
def test_wrong_tables_are_told_what_is_wrong(table, says):
    verdict = n14.check_table(table)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_a_better_table_than_1f1b_would_pass_as_well():
    # rank 1 holds one less than it may, and nothing is slower: not the table of one_f_one_b, but as good
    table = Schedule.from_text("other", answers.RIGHT)
    assert live_activations(table) == [3, 2, 1]


# --- exercise 2


def test_the_reference_order_passes_and_the_stub_is_open():
    assert n14.check_order(answers.true_order)
    assert n14.check_order(stub).status == "open"


def test_without_a_limit_that_bites_the_reference_is_1f1b():
    for m, n in ((8, 4), (2, 5), (1, 3)):
        table = one_f_one_b(m, n)
        for rank in range(n):
            assert answers.true_order(rank, m, n, n) == [str(action) for action in table.actions(rank)]


@pytest.mark.parametrize("says, wrong", answers.ORDER_MISTAKES.items())
def test_wrong_orders_are_named(says, wrong):
    verdict = n14.check_order(wrong)
    assert verdict.status == "wrong"
    assert "for rank = " in verdict.message
    assert says in verdict.message


# --- exercise 3


def test_the_reference_choice_passes_and_the_stub_is_open():
    assert n14.check_choose(answers.true_choose)
    assert n14.check_choose(stub).status == "open"
    assert n14.check_choose(lambda points, limit: min((p, n) for n, p in points.items())[1]).status == "wrong"


@pytest.mark.parametrize("says, wrong", answers.CHOICE_MISTAKES.items())
def test_wrong_choices_are_named(says, wrong):
    verdict = n14.check_choose(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


# --- predictions


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (lambda g: n14.guess_last_rank(g, 8, 4), 1, 4),
        (lambda g: n14.guess_interleaved(g, 8, 4, 2), 16, 27),
        (lambda g: n14.guess_half(g, 0.5), 50, 100),
        (lambda g: n14.guess_zero_bubble(g, 8, 4), 3, 0),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
