"""The graph figure shows the nodes and edges that are there, each in its place, in no other's way."""

import itertools
import re

import pytest
import torch
from matplotlib.patches import FancyBboxPatch

from lib.show.style import alt_text
from support.built import MyFork, MyJoin, MyTwoNodeCheckpoint, fence, my_tie
from support.n11 import figures as n11
from support.n11.runs import CopyNode, WaitNode, order_of, untied, walk
from tests.lib.refusal import refuses


def graph_of(m, n, prepare=fence, wait=False):
    """Send m micro-batches through n partitions as the notebook does, and return the output."""
    batches = [torch.ones(1, 2) for _ in range(m)]
    w = torch.ones(2, requires_grad=True)
    for k in range(m + n - 1):
        clock = [(k - j, j) for j in range(n) if 0 <= k - j < m]
        prepare(clock, batches, lambda x, j: CopyNode.apply(x))
        for i, j in clock:
            task = {"place": (i, j)}, lambda x: torch.tanh(x * w), batches[i]
            output = MyTwoNodeCheckpoint.apply(torch.empty(0, requires_grad=True), *task)
            batches[i] = my_tie(WaitNode.apply(output) if wait else output, *task)
    return torch.cat(batches)


@pytest.mark.parametrize("m, n, wait", [(1, 1, True), (2, 2, False), (4, 2, False), (3, 2, True)])
def test_each_node_is_drawn_once_with_its_turn_and_nothing_overlaps(m, n, wait):
    output = graph_of(m, n, wait=wait)
    figure = n11.draw_graph(output, "title")
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    names = [node.name for node in walk(output) if node.name in n11.NAMES]
    assert len(boxes) == len(names) == m * n * (4 + wait) + m * (n - 1) + 2 * n * (m - 1)
    assert not any(a.get_bbox().overlaps(b.get_bbox()) for a, b in itertools.combinations(boxes, 2))
    turns = sorted(int(text.get_text()) for text in figure.axes[0].texts if text.get_text().isdigit())
    assert turns == list(range(1, len(boxes) + 1))


def test_ties_lead_to_the_row_above_a_row_runs_from_right_to_left_and_recompute_hangs_below():
    graph = n11.Graph(walk(graph_of(3, 2)))
    assert sorted(f"{graph.name(a)} {graph.name(b)}" for a, b in graph.ties) == [
        "Join 10 Fork 00", "Join 10 Fork 01", "Join 20 Fork 10", "Join 20 Fork 11",
    ]  # fmt: skip
    assert n11.Graph(walk(graph_of(3, 2, untied))).ties == []
    assert "Ties between rows: none." in alt_text(n11.draw_graph(graph_of(3, 2, untied), "title"))
    graph = n11.Graph(walk(graph_of(1, 2)))
    row = sorted((k for k in graph.shown if graph.nodes[k].name != "Recompute"), key=lambda k: graph.at[k][0])
    assert [graph.name(k) for k in row] == [
        "Checkpoint 00", "Fork 00", "Join 00", "Copy 01", "Checkpoint 01", "Fork 01", "Join 01",
    ]  # fmt: skip
    assert all((y > 0) == (graph.nodes[k].name == "Recompute") for k, (_, y) in graph.at.items())
    refuses(ValueError, "no node of this graph", n11.draw_graph, torch.ones(2, requires_grad=True) * 2, "title")


def test_the_alt_text_tells_the_order_in_which_backward_really_runs():
    x = torch.ones(2, requires_grad=True) * 1
    y, phony = MyFork.apply(x)
    output = y + MyJoin.apply(torch.ones(2, requires_grad=True), phony)
    assert "In backward: Add, Join 00, Fork 00." in alt_text(n11.draw_graph(output, "title", ("a",)))
    words = alt_text(n11.draw_graph(graph_of(2, 2), "title"))
    ops = re.findall(r"(Recompute|Checkpoint) (\d\d)", words.split("In backward:")[1])
    assert ops.index(("Checkpoint", "11")) < ops.index(("Recompute", "01"))


@pytest.mark.costly
def test_strips_mark_where_an_order_leaves_the_first_row_and_the_title_says_what_ties_save():
    orders = {"tied": order_of(3, 2), "untied": order_of(3, 2, False), "again": order_of(3, 2)}
    figure = n11.draw_orders(orders, "title")
    (marked,) = [line for line in figure.axes[0].lines if line.get_marker() == "v"]
    cells = [patch for patch in figure.axes[0].patches if patch.get_linewidth() > 2]
    assert len(cells) == 1
    assert cells[0].get_x() < marked.get_xdata()[0] < cells[0].get_x() + cells[0].get_width()
    assert "untied: R21 R11 R01 B21 R20 B11 R10 B20 B01 R00 B10 B00, at most 3" in alt_text(figure)
    refuses(ValueError, "at least one order", n11.draw_orders, {}, "title")
    for m, n in ((1, 1), (5, 2), (6, 4)):
        for worker, most in (("new", m), ("older", 1)):
            words = alt_text(n11.draw_backward(m, n, worker))
            finding = f"Insides at once in a partition, {worker} worker: at most 1 with ties, {most} without."
            assert words.startswith(finding)


@pytest.mark.costly
@pytest.mark.parametrize(("m", "n", "worker"), [(6, 4, "new"), (6, 2, "older"), (4, 2, "new"), (1, 4, "new")])
def test_the_legend_stays_inside_and_insides_are_counted_in_whole_numbers(m, n, worker):
    figure = n11.draw_backward(m, n, worker)
    figure.canvas.draw()
    (legend,) = figure.legends
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert all(tick == round(tick) for axes in figure.axes[2:4] for tick in axes.get_yticks())


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 1), (1, 3)])
def test_the_names_of_both_axes_have_room_in_the_smallest_pipeline(m, n):
    figure = n11.draw_backward(m, n, "new")
    figure.draw_without_rendering()
    above, below = (figure.axes[k].yaxis.label.get_window_extent() for k in (0, 2))
    assert not above.overlaps(below)
