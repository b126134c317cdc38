"""The graph as a list, the engine's rule, and the orders of pipelines: ours, lib's, torchgpipe's."""

import ast
import importlib.util
import json

import pytest
import torch

from support.n11 import runs as n11
from tools.project import ROOT

there = importlib.util.find_spec("torchgpipe") is not None
RECORDED = n11.load("torchgpipe_order")["orders"]
SIZES = [(1, 1), (1, 4), (6, 1), (3, 2), (4, 3)]


def test_walk_lists_the_nodes_in_the_order_of_backward_without_leaves():
    w = torch.ones(3, requires_grad=True)
    nodes = n11.walk((w * 2).exp() + (w * 3).sin())
    assert [(node.name, node.next) for node in nodes] == [
        ("Add", (3, 1)), ("Sin", (2,)), ("Mul", (None, None)), ("Exp", (4,)), ("Mul", (None, None)),
    ]  # fmt: skip
    assert all(node.place == (0, 0) for node in nodes)


def test_our_orders_are_torchgpipes_recorded_ones_after_other_work_too():
    for _ in range(2):
        assert " ".join(n11.order_of(3, 2)) == RECORDED["with"]
        assert " ".join(n11.order_of(3, 2, tied=False)) == RECORDED["without"]
        x = torch.ones(1, requires_grad=True)
        for _ in range(3000):
            x * 1
    orders, origin = n11.torchgpipe_orders()
    assert {name: " ".join(order) for name, order in orders.items()} == RECORDED
    assert origin


@pytest.mark.costly
def test_a_kernel_that_has_worked_all_day_sees_the_same_orders_of_new_and_of_older_workers():
    def orders():
        return n11.order_of(8, 2, tied=False), n11.order_of(8, 2, tied=False, older=n11.OLDER)

    new, older = orders()
    assert n11.peaks(new) == [2, 8]
    assert n11.peaks(older) == [1, 1]
    n11.make_nodes(2 * n11.OLDER)
    assert orders() == (new, older)


@pytest.mark.parametrize("m, n", SIZES)
def test_lib_goes_backward_in_our_order_which_changes_no_gradient_but_what_is_held_at_once(m, n):
    assert n11.gpipe_order(m, n) == n11.order_of(m, n)
    _, tied, _ = n11.fenced(m, n, n11.fence)
    _, untied, _ = n11.fenced(m, n, n11.untied)
    assert tied.any()
    assert torch.equal(tied, untied)
    assert n11.peaks(n11.order_of(m, n)) == [1] * n
    assert n11.peaks(n11.order_of(m, n, tied=False))[-1] == m
    assert n11.alive(["R00", "R10", "B00"]) == [{"00"}, {"00", "10"}, {"00", "10"}]


def total(order):
    return max(map(len, n11.alive(order)))


def test_ties_promise_one_inside_in_each_partition_and_neither_the_sequence_nor_the_sum():
    orders = {(tied, age): n11.order_of(4, 2, tied, age) for tied in (True, False) for age in (0, 100_000)}
    assert {cell: n11.peaks(order) for cell, order in orders.items()} == {
        (True, 0): [1, 1], (True, 100_000): [1, 1], (False, 0): [2, 4], (False, 100_000): [1, 1],
    }  # fmt: skip
    assert orders[True, 0] != orders[True, 100_000]
    assert [total(orders[True, age]) for age in (0, 100_000)] == [2, 1]
    assert orders[False, 100_000] == orders[True, 100_000], "the best order of all, by luck"


@pytest.mark.parametrize("m, n", [(3, 2), (4, 3), (2, 4)])
@pytest.mark.parametrize("age", [0, 40, 400, 100_000])
def test_one_inside_at_any_age_and_each_tie_is_kept(m, n, age):
    order = n11.order_of(m, n, older=age)
    assert n11.peaks(order) == [1] * n
    for i in range(1, m):
        for j in range(n):
            assert order.index(f"B{i}{j}") < order.index(f"R{i - 1}{j}")


@pytest.mark.skipif(not there, reason="torchgpipe is not installed")
@pytest.mark.parametrize("m, n", [(2, 3), (4, 2), (5, 3)])
def test_torchgpipe_run_here_goes_backward_as_we_do(m, n):
    assert n11.torchgpipe_run(m, n) == " ".join(n11.order_of(m, n))
    assert n11.torchgpipe_run(m, n, dependencies=False) == " ".join(n11.order_of(m, n, tied=False))


def names(cells, context):
    """Return the names that cells use, or bind, as `context` says."""
    found = set()
    for node in ast.walk(ast.parse("\n".join(cells))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            found.add(node.id)
        elif context is ast.Store and isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif context is ast.Store and isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif context is ast.Store and isinstance(node, ast.arg):
            found.add(node.arg)
    return found


def test_who_goes_on_with_section_5_lacks_no_name_of_the_encore():
    cells = json.loads((ROOT / "notebooks" / "11_backward_order.ipynb").read_text(encoding="utf-8"))["cells"]
    begin = next(k for k, cell in enumerate(cells) if "### Encore, 50 minutes" in "".join(cell["source"]))
    end = next(k for k, cell in enumerate(cells) if "## 5 ·" in "".join(cell["source"]))
    code = ["".join(x["source"]) if x["cell_type"] == "code" and x["id"] != "setup" else "" for x in cells]
    lacking = names(code[end:], ast.Load) & names(code[begin:end], ast.Store)
    assert lacking - names(code[:begin] + code[end:], ast.Store) == set()
