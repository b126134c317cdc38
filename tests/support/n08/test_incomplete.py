"""Simulators of notebook 08 that know whole steps only: orders may stop early, with micro-batches of any number."""

import pytest

from support.n08 import checks as n08
from support.n08.runs import needed_by


def in_tables(columns, goes_on=lambda orders, done: True):
    """Return a simulate that keeps its ends in tables of so many columns, and sweeps while `goes_on` says so."""

    def simulate(orders, costs, message=0):
        n = len(orders)
        tables = {kind: [[None] * columns(orders) for _ in orders] for kind in "FB"}
        ends = {}
        free = [0] * n
        done = [0] * n
        moved = True
        while moved and goes_on(orders, done):
            moved = False
            for j, order in enumerate(orders):
                while done[j] < len(order):
                    kind, i = order[done[j]]
                    need = needed_by(kind, i, j, n)
                    there = tables[need[0]][need[2]][i] if need else 0
                    if there is None:
                        break
                    travel = message if need and need[2] != j else 0
                    free[j] = ends[kind, i, j] = max(free[j], there + travel) + costs[kind][j]
                    if kind in tables:
                        tables[kind][j][i] = free[j]
                    done[j] += 1
                    moved = True
        if any(len(order) > count for order, count in zip(orders, done, strict=True)):
            raise RuntimeError([order[count : count + 1] for order, count in zip(orders, done, strict=True)])
        return ends

    return simulate


def by_number(orders):
    return 1 + max((i for order in orders for _, i in order), default=0)


def test_ends_in_tables_pass_if_there_is_a_column_for_the_largest_number():
    assert n08.check_simulate(in_tables(by_number))


@pytest.mark.parametrize(
    "count",
    [
        lambda orders: max(sum(kind == "F" for kind, _ in order) for order in orders),
        lambda orders: sum(map(len, orders)),
    ],
    ids=["most forwards of a rank", "all tasks"],
)
def test_the_number_of_a_micro_batch_may_be_larger_than_any_count(count):
    verdict = n08.check_simulate(in_tables(count))
    assert verdict.status == "wrong"
    assert "IndexError" in verdict.message


def test_rank_0_may_be_done_before_the_others():
    verdict = n08.check_simulate(in_tables(by_number, lambda orders, done: done[0] < len(orders[0]) or not orders[0]))
    assert verdict.status == "wrong"
    assert "But these orders can run" in verdict.message


def test_a_deadlock_may_be_named_by_tasks_that_touch():
    def touching(orders, costs, message=0):
        try:
            return in_tables(by_number)(orders, costs, message)
        except RuntimeError as error:
            (waiting,) = error.args
            raise RuntimeError("".join(f"{kind}{i}" for rows in waiting for kind, i in rows)) from None

    assert n08.check_simulate(touching)
