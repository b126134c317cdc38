"""The checks of notebook 12 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest
from support.n12 import checks as answers
from support.n12 import checks as n12


def stub(*arguments): ...


@pytest.mark.parametrize(
    "check, reference",
    [
        (n12.check_balance, answers.true_balance),
        (n12.check_step, answers.true_step),
        (n12.check_makespan, answers.true_makespan),
    ],
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference):
    assert check(reference).status == "right"
    assert check(stub).status == "open"


def test_another_balance_with_the_same_slowest_partition_passes():
    def by_search(costs, partitions):
        if partitions == 1:
            return [len(costs)]
        cuts = [[k, *by_search(costs[k:], partitions - 1)] for k in range(1, len(costs) - partitions + 2)]
        return min(cuts, key=lambda cut: max(n12.block_costs(costs, cut)))

    different = [case for case in n12.BALANCE_CASES if by_search(*case) != answers.true_balance(*case)]
    assert different, "one case at least has two right answers"
    assert n12.check_balance(by_search)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.same_layers, "Equal numbers of layers"),
        (answers.greedy_below, "piles up in the last one"),
        (answers.greedy_above, "one dear layer too many"),
        (answers.near_the_marks, "their distances are not"),
        (lambda costs, n: [len(costs)] + [0] * (n - 1), "is no balance: GPipe needs 3 numbers from 1 up"),
        (lambda costs, n: [].sort(), "returned None"),
        (lambda costs, n: 1 / 0, "raised ZeroDivisionError"),
    ],
)
def test_wrong_balances_are_named(wrong, says):
    verdict = n12.check_balance(wrong)
    assert verdict.status == "wrong"
    assert "for costs = [" in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.both_first, "so the target must go there"),
        (answers.both_last, "Partition 0 takes the input"),
        (answers.input_left, "The input stays"),
        (answers.target_left, "The target stays"),
        (answers.output_back, "Move the target, not the output"),
        (answers.no_backward, "No backward, no gradients"),
    ],
)
def test_wrong_steps_are_named(wrong, says):
    verdict = n12.check_step(wrong)
    assert verdict.status == "wrong"
    assert "for devices = " in verdict.message
    assert says in verdict.message


def test_a_step_that_moves_things_in_another_order_and_without_blocking_passes():
    def step(model, loss_function, x, y):
        y = y.to(model.devices[-1], non_blocking=True)
        x = x.to(model.devices[0], non_blocking=True)
        loss = loss_function(model(x), y)
        loss.backward()
        return loss

    assert n12.check_step(step)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.slowest_always, "fills or drains"),
        (answers.no_barrier, "without clocks"),
        (answers.without_filling, "filled and drained"),
        (answers.mean_clock, "not with the mean"),
        (answers.one_after_another, "nothing overlaps"),
    ],
)
def test_wrong_makespans_are_named(wrong, says):
    verdict = n12.check_makespan(wrong)
    assert verdict.status == "wrong"
    assert "for seconds = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (lambda g: n12.guess_partitions(g, 17), 17, 9),
        (n12.guess_idle, 75, 0),
        (n12.guess_speed, 1.28, 3),
        (n12.guess_counted, 7, 1),
        (n12.guess_tasks, 28, 32),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
