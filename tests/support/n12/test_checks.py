"""What is particular about the checks of notebook 12; what all exercises have in common is in test_exercises."""

import pytest

from support.n12 import checks as n12
from support.n12.figures import block_costs


def test_another_balance_with_the_same_slowest_partition_passes_and_one_that_empties_its_costs():
    def by_search(costs, partitions):
        if partitions == 1:
            return [len(costs)]
        cuts = [[k, *by_search(costs[k:], partitions - 1)] for k in range(1, len(costs) - partitions + 2)]
        return min(cuts, key=lambda cut: max(block_costs(costs, cut)))

    reference = n12.check_balance.reference
    different = [case for case in n12.check_balance.cases if by_search(**case) != reference(**case)]
    assert different, "one case at least has two right answers"
    assert n12.check_balance(by_search)

    def emptying(costs, partitions):
        sizes = n12.check_balance.reference(costs, partitions)
        costs.clear()
        return sizes

    assert n12.check_balance(emptying)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (lambda costs, n: [len(costs)] + [0] * (n - 1), "is no balance: GPipe needs 3 numbers from 1 up"),
        (lambda costs, n: [1] * (n - 1) + [len(costs) - n + 1], "the slowest partition of [1, 1, 8] costs 15;"),
    ],
)
def test_any_other_wrong_balance_is_told_why(wrong, says):
    verdict = n12.check_balance(wrong)
    assert verdict.status == "wrong" and "for costs = [" in verdict.message and says in verdict.message


def test_a_step_in_another_order_passes_and_one_to_a_wrong_device_is_told_in_the_words_of_torch():
    def step(model, loss_function, x, y):
        y = y.to(model.devices[-1], non_blocking=True)
        x = x.to(model.devices[0], non_blocking=True)
        loss = loss_function(model(x), y)
        loss.backward()
        return loss

    assert n12.check_step(step)
    message = n12.check_step(lambda model, loss_function, x, y: model(x)).message
    assert "for devices = " in message
    assert "got RuntimeError: the input is on cpu, partition 0 on cuda:0" in message
