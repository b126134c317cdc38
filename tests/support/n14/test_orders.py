"""Exercises 4 to 6 of notebook 14: what is said of an answer is true of it, and each clause of a contract is tried."""

import re
from fractions import Fraction
from math import ceil
from unittest.mock import ANY

import numpy as np
import pytest
import torch

from lib.schedules import simulate
from lib.schedules.makers import MAKERS
from support.n14 import checks as n14
from support.n14 import solved


def _warm_up(rounds):
    def rule(j, n, forward, backward, message):
        return 1 + (n - 1 - j) * (1 + rounds(2 * message, forward, backward))

    return rule


@pytest.mark.parametrize("kind", [float, Fraction, np.float32, lambda number: torch.ceil(torch.tensor(number - 0.5))])
def test_a_number_at_which_no_list_can_be_cut_is_no_warm_up(kind):
    rule = _warm_up(lambda both, f, b: kind(ceil(both / (f + b))))
    assert "a list is cut at an int; `math.ceil` gives one" in n14.check_forwards_ahead(rule).message
    for whole in (np.int64, torch.tensor):
        assert n14.check_forwards_ahead(lambda whole=whole, **case: whole(solved.forwards_ahead(**case)))


def test_what_calls_itself_equal_to_every_number_is_none():
    assert "is a _ANY, and a list is cut at an int" in n14.check_forwards_ahead(lambda **case: ANY).message


@pytest.mark.parametrize(
    "rounds",
    [
        lambda both, f, b: ceil(both / min(f + b, 5)),
        lambda both, f, b: ceil(both / (f * b + 1)),
        lambda both, f, b: ceil(ceil(both) / (f + b)),
    ],
)
def test_a_round_is_any_forward_and_any_backward(rounds):
    assert n14.check_forwards_ahead(_warm_up(rounds)).status == "wrong"


@pytest.mark.parametrize("short", [lambda f, b: f, lambda f, b: b, lambda f, b: 1], ids=["forward", "backward", "tick"])
@pytest.mark.parametrize(
    "rounds",
    [
        lambda both, f, b: both > 0,
        lambda both, f, b: ceil(both / 2 / min(f, b)),
        lambda both, f, b: ceil(both / 2 / max(f, b)),
    ],
    ids=["eager", "by the shorter task", "by the longer task"],
)
def test_another_rule_for_messages_shorter_than_a_task_is_refused(short, rounds):
    def rule(j, n, forward, backward, message):
        if message < short(forward, backward):
            return _warm_up(rounds)(j, n, forward, backward, message)
        return solved.forwards_ahead(j, n, forward, backward, message)

    assert n14.check_forwards_ahead(rule).status == "wrong"


def test_who_never_returns_more_forwards_than_the_prediction_has_micro_batches_is_refused():
    assert n14.check_forwards_ahead(lambda **case: min(32, solved.forwards_ahead(**case))).status == "wrong"


@pytest.mark.parametrize("mistake", n14.check_forwards_ahead.famous, ids=lambda mistake: mistake.sentence)
def test_a_wrong_number_is_told_of_a_rank_behind_which_all_are_right(mistake):
    """With 5, 4, 3, 2 and free messages nobody waits, and with 4 instead of 5 all do: too many are rank 3's two."""
    message = n14.check_forwards_ahead(mistake.answer).message
    told = re.search(r"j = (\d), n = (\d), forward = (.+), backward = (.+), message = ([\d.]+),", message)
    j, n = map(int, told.groups()[:2])
    costs = [float(number) for number in told.groups()[2:]]
    for behind in range(j + 1, n):
        assert mistake.answer(behind, n, *costs) == solved.forwards_ahead(behind, n, *costs)


@pytest.mark.parametrize("right", [lambda m, n, v: v <= 2 or m <= 2 * n, lambda m, n, v: m <= 3 * n])
def test_who_interleaves_in_small_sizes_only_is_refused(right):
    def in_some_sizes(m, n, v):
        return solved.interleaved(m, n, v if right(m, n, v) else 1)

    assert n14.check_interleaved(in_some_sizes).status == "wrong"


def _two_ways(m, n, message, room):
    """Let even micro-batches go down the ranks, and odd ones up."""
    return [[(op, n - 1 - j if i % 2 else j, i) for i in range(m) for op in "FB"] for j in range(n)]


def _half_stages_on_rank_0(m, n, message, room):
    first, *others = solved.search(m, n, message, room)
    halves = [(op, s, i) for op, _, i in first for s in sorted((0, 1), reverse=op != "F")]
    return [halves, *([(op, s + 1, i) for op, s, i in order] for order in others)]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_two_ways, "is at stage 3, which rank 3 has; a stage stays on one rank"),
        (_half_stages_on_rank_0, "rank 0 has 2 of the 5 stages, rank 1 has 1: give all ranks equally many"),
        (lambda m, n, message, room: [[] for _ in range(n)], "these are done nowhere: 0F0, 0B0"),
    ],
)
def test_places_of_ones_own_are_told_what_is_wrong_with_them(answer, said):
    assert said in n14.check_search(answer).message


def test_who_wins_is_not_praised_for_beating_makers_that_need_more_room():
    def one_pass(m, n, message, room):
        return solved.listed(m, n, message, room)[1]

    verdict = n14.check_search(one_pass)
    roomy = simulate(MAKERS["looped BFS"].table(8, 4, 2), 0.5, 1, communicate=0.5)
    assert verdict
    assert roomy.makespan < simulate(solved.table("", one_pass(8, 4, 0.5, 5)), communicate=0.5).makespan
    assert "each of lib's makers that fits" in verdict.message
