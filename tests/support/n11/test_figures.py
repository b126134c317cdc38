"""The graph figure shows the nodes and edges that are there, each in its place, in no other's way."""

import inspect
import itertools
import re
from collections import Counter

import pytest
import torch

from lib.pipeline.pipeline import Pipeline
from lib.show.explore import explore
from lib.show.style import alt_text
from support.n11 import figures as n11
from support.n11.runs import Untied, backward_run, by_hand, peaks, predict, walk
from tests.pictures import corners, told


def test_each_operation_is_shown_once_and_nothing_overlaps():
    for values in corners(explore(n11.draw_pipeline, **n11.GRAPH_CONTROLS), 30):
        m, n, mode = values["micro_batches"], values["partitions"], values["mode"]
        drawn = [box for box in n11.draw_pipeline(**values).axes[0].patches if isinstance(box, n11.NodeBox)]
        nodes = predict(m, n, mode, values["dependencies"]).nodes
        names = Counter(nodes[box.index].name for box in drawn)
        again = {"always": m, "except_last": m - 1, "never": 0}[mode] * n
        assert names["Recompute"] == names["Checkpoint"] == again
        assert (names["layers"], names["Copy"]) == (m * n - again, m * (n - 1))
        assert sorted(box.turn for box in drawn) == list(range(1, len(drawn) + 1))
        assert not any(a.get_bbox().overlaps(b.get_bbox()) for a, b in itertools.combinations(drawn, 2)), values
        assert all(box.get_x() >= 0 and box.get_x() + box.get_width() <= n11.WIDTH for box in drawn)


def test_a_row_runs_from_right_to_left_recompute_hangs_below_and_edges_skip_what_is_not_shown():
    nodes = predict(1, 2).nodes
    at = n11.Layout(nodes).at
    row = sorted((k for k in at if nodes[k].name != "Recompute"), key=lambda k: at[k][0])
    first = ["Checkpoint", "Wait", "Fork", "Join"]
    assert [nodes[k].name for k in row] == [*first, "Copy", "Wait", "Checkpoint", "Fork", "Join"]
    top = min(y for _, y in at.values())
    assert all((y > top) == (nodes[k].name == "Recompute") for k, (_, y) in at.items())
    nodes = predict(2, 2, "never").nodes
    names = {(nodes[a].name, nodes[b].name) for a, b in n11.Layout(nodes).edges}
    assert any(node.name == "Addmm" for node in nodes) and ("layers", "Wait") in names
    assert not any("Addmm" in pair for pair in names)


@pytest.mark.parametrize("m, n, mode, ties", [(3, 2, "always", 4), (4, 2, "except_last", 6), (3, 2, "never", 2)])
def test_ties_are_one_a_row_and_partition_and_none_without_dependencies(m, n, mode, ties):
    nodes = predict(m, n, mode).nodes
    found = n11.ties_of(nodes)
    assert len(found) == ties
    for a, b in found:
        later, earlier = nodes[a].place, nodes[b].place
        assert later.i == earlier.i + 1
        assert nodes[b].name == "Fork"
    assert n11.ties_of(predict(m, n, mode, False).nodes) == []
    assert f"{ties} dependencies" in alt_text(n11.draw_pipeline(m, n, mode, True))


def test_alt_text_tells_the_turns_and_a_graph_that_says_no_place_is_refused():
    alt = alt_text(n11.draw_pipeline(2, 2, "always", True))
    assert "In their turn: Recompute 11, Checkpoint 11, Recompute 01" in alt
    assert "Checkpoint 10 to Fork 00" in alt
    with pytest.raises(ValueError, match="where it belongs"):
        n11.draw_graph(walk(torch.ones(2, requires_grad=True) * 2))


def test_the_order_is_that_of_a_real_run_and_the_title_says_what_dependencies_save():
    for values, words in told(n11.draw_backward, n11.BACKWARD_CONTROLS, 20):
        ties = [] if values["dependencies"] else [Untied]
        run = backward_run(values["micro_batches"], values["partitions"], values["mode"], *ties)
        assert f"Order: {' '.join(run.ops)}." in words
    tied, untied = (alt_text(n11.draw_backward(5, 2, "always", tie)) for tie in (True, False))
    assert tied.startswith("With dependencies at most 1 alive in a partition; without: 5.")
    assert untied.startswith("Without dependencies at most 5 alive in a partition; with: 1.")
    assert "all 10 insides are alive from the start" in alt_text(n11.draw_backward(5, 2, "never", True))


def test_strips_mark_where_an_order_leaves_the_first_row_and_staircases_whether_counts_agree():
    orders = {"tied": by_hand(3, 2), "untied": by_hand(3, 2, dependencies=False), "again": by_hand(3, 2)}
    figure = n11.draw_orders(orders, "title")
    (marked,) = [c.op for c in figure.axes[0].patches if isinstance(c, n11.OpCell) and c.get_linewidth() > 2]
    assert marked == "R11" and "untied: R21 R11" in alt_text(figure)
    assert [max(peaks(ops, 3, 2)) for ops in orders.values()] == [1, 3, 1]
    with pytest.raises(ValueError, match="at least one order"):
        n11.draw_orders({})
    figure = n11.draw_staircases({"a": [3, 6], "b": [3, 9]}, {"a": [3, 6], "b": [3, 6]}, "finding")
    assert "a: at most 6 tensors, as predicted; b: at most 9 tensors, not as predicted" in alt_text(figure)


def test_every_step_names_its_node_and_its_line_of_code():
    for values, words in told(n11.draw_fence, n11.FENCE_CONTROLS):
        stop = n11.STOPS[n11.order_of(values["direction"])[values["step"] - 1]]
        assert f"step {values['step']} of {len(n11.STOPS)}, {stop.name}" in words
        assert stop.code in words and getattr(stop, values["direction"])[:20] in words
    with pytest.raises(ValueError, match="sideways"):
        n11.draw_fence("sideways", 1)
    assert n11.DIRECTIONS == ("forward", "backward")


def test_the_steps_backward_are_those_of_a_real_run():
    run = backward_run(2, 3)
    of_interest = ("Copy", "Wait", "Checkpoint", "Recompute")
    names = [run.nodes[k].name for k in run.ran if run.nodes[k].place in ((1, 1), (1, 2))]
    row = [k for k in run.ran if run.nodes[k].place and run.nodes[k].place.i == 1]
    ours = [k for k in row if run.nodes[k].name in of_interest]
    after = [run.nodes[k].name for k in ours if run.nodes[k].place == (1, 1)]
    copy_next = [k for k in ours if run.nodes[k].name == "Copy" and run.nodes[k].place == (1, 2)]
    assert len(copy_next) == 1
    assert names.index("Copy") < names.index("Recompute", names.index("Copy"))
    assert ["Copy", *after] == [n11.STOPS[k].name for k in n11.order_of("backward")]


def test_the_code_of_each_stop_stands_in_the_pipeline():
    source = inspect.getsource(Pipeline.fence) + inspect.getsource(Pipeline.compute)
    flat = source.replace("self.", "").replace("batches[i]", "batch")
    for stop in n11.STOPS[:-1]:  # the last is the first, one partition on
        assert re.sub(r"\)$", "", stop.code) in flat, stop.code
        if stop.tag:
            line = next(line for line in flat.splitlines() if re.sub(r"\)$", "", stop.code) in line)
            assert f"# {stop.tag}" in line
