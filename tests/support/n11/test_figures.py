"""The graph figure shows the nodes and edges that are there, each in its place, in no other's way."""

from __future__ import annotations

import itertools

import pytest
import torch
from support.n11.figures import (
    BACKWARD_CONTROLS,
    DIRECTIONS,
    FENCE_CONTROLS,
    GRAPH_CONTROLS,
    STOPS,
    WIDTH,
    Layout,
    NodeBox,
    OpCell,
    draw_backward,
    draw_fence,
    draw_graph,
    draw_orders,
    draw_pipeline,
    draw_staircases,
    order_of,
    ties_of,
)
from support.n11.runs import Untied, backward_run, by_hand, peaks, predict, walk

from lib.show.explore import explore
from lib.show.style import alt_text, png


def boxes(figure):
    return {box.index: box for box in figure.axes[0].patches if isinstance(box, NodeBox)}


def cells(figure):
    found = [patch for patch in figure.axes[0].patches if isinstance(patch, OpCell)]
    return sorted(found, key=lambda cell: (-cell.get_y(), cell.get_x()))


# ---- the graph


@pytest.mark.parametrize("values", list(explore(draw_pipeline, **GRAPH_CONTROLS).corners()), ids=str)
def test_every_setting_shows_each_operation_once_and_nothing_overlaps(values):
    m, n, mode = values["micro_batches"], values["partitions"], values["mode"]
    figure = draw_pipeline(**values)
    drawn = boxes(figure)
    nodes = predict(m, n, mode, values["dependencies"]).nodes
    names = [nodes[k].name for k in drawn]
    again = {"always": m, "except_last": m - 1, "never": 0}[mode] * n
    assert names.count("Recompute") == names.count("Checkpoint") == again
    assert names.count("layers") == m * n - again
    assert names.count("Copy") == m * (n - 1)
    assert sorted(box.turn for box in drawn.values()) == list(range(1, len(drawn) + 1))
    for a, b in itertools.combinations(drawn.values(), 2):
        assert not a.get_bbox().overlaps(b.get_bbox()), (nodes[a.index].name, nodes[b.index].name)
    assert all(box.get_x() >= 0 and box.get_x() + box.get_width() <= WIDTH for box in drawn.values())


@pytest.mark.parametrize("m, n, mode, ties", [(3, 2, "always", 4), (4, 2, "except_last", 6), (3, 2, "never", 2)])
def test_ties_are_one_a_row_and_partition_and_none_without_dependencies(m, n, mode, ties):
    nodes = predict(m, n, mode).nodes
    found = ties_of(nodes)
    assert len(found) == ties
    for a, b in found:
        later, earlier = nodes[a].place, nodes[b].place
        assert later.i == earlier.i + 1
        assert nodes[b].name == "Fork"
    assert ties_of(predict(m, n, mode, False).nodes) == []
    assert f"{ties} dependencies" in alt_text(draw_pipeline(m, n, mode, True))


def test_a_row_runs_from_right_to_left_and_recompute_hangs_below():
    nodes = predict(1, 2).nodes
    layout = Layout(nodes)
    row = [k for k in layout.at if nodes[k].name != "Recompute"]
    by_x = [nodes[k].name for k in sorted(row, key=lambda k: layout.at[k][0])]
    first = ["Checkpoint", "Wait", "Fork", "Join"]
    assert by_x == [*first, "Copy", "Wait", "Checkpoint", "Fork", "Join"]
    for k in layout.at:
        below = layout.at[k][1] > min(y for _, y in layout.at.values())
        assert below == (nodes[k].name == "Recompute")


def test_edges_skip_nodes_that_are_not_shown():
    nodes = predict(2, 2, "never").nodes
    assert any(node.name == "Addmm" for node in nodes)
    layout = Layout(nodes)
    names = {(nodes[a].name, nodes[b].name) for a, b in layout.edges}
    assert ("layers", "Wait") in names
    assert not any("Addmm" in pair for pair in names)


def test_alt_text_tells_the_turns():
    alt = alt_text(draw_pipeline(2, 2, "always", True))
    assert "In their turn: Recompute 11, Checkpoint 11, Recompute 01" in alt
    assert "Checkpoint 10 to Fork 00" in alt


def test_a_graph_that_says_no_place_is_refused():
    with pytest.raises(ValueError, match="where it belongs"):
        draw_graph(walk(torch.ones(2, requires_grad=True) * 2))


# ---- the order


@pytest.mark.parametrize("values", list(explore(draw_backward, **BACKWARD_CONTROLS).corners()), ids=str)
def test_every_setting_draws_the_order_of_a_real_run(values):
    m, n, mode = values["micro_batches"], values["partitions"], values["mode"]
    run = backward_run(m, n, mode, *([] if values["dependencies"] else [Untied]))
    figure = draw_backward(**values)
    drawn = sorted(cells(figure), key=lambda cell: cell.get_x())
    assert tuple(cell.op for cell in drawn) == run.ops
    rows = {}
    for cell in drawn:
        rows.setdefault(cell.op[1:], set()).add(cell.get_y())
    assert all(len(ys) == 1 for ys in rows.values())
    assert len({next(iter(ys)) for ys in rows.values()}) == m * n
    assert f"Order: {' '.join(run.ops)}." in alt_text(figure)


def test_the_title_says_what_dependencies_save():
    tied, untied = (alt_text(draw_backward(5, 2, "always", tie)) for tie in (True, False))
    assert tied.startswith("With dependencies at most 1 alive in a partition; without: 5.")
    assert untied.startswith("Without dependencies at most 5 alive in a partition; with: 1.")
    assert "all 10 insides are alive from the start" in alt_text(draw_backward(5, 2, "never", True))


def test_the_stack_of_insides_is_as_high_as_what_is_alive():
    figure = draw_backward(4, 2, "always", False)
    bars = figure.axes[1].patches
    tops = {}
    for bar in bars:
        step = round(bar.get_x() + bar.get_width() / 2)
        tops[step] = max(tops.get(step, 0), bar.get_y() + bar.get_height())
    assert [tops[k] for k in sorted(tops)] == list(predict(4, 2, "always", False).held)


def test_strips_mark_where_an_order_first_leaves_the_first_row():
    orders = {"tied": by_hand(3, 2), "untied": by_hand(3, 2, dependencies=False), "again": by_hand(3, 2)}
    figure = draw_orders(orders, "title")
    assert [cell.op for cell in cells(figure)][-12:] == orders["tied"]
    (marked,) = [cell for cell in cells(figure) if cell.get_linewidth() > 2]
    assert marked.op == "R11"
    assert "untied: R21 R11" in alt_text(figure)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [str(max(peaks(ops, 3, 2))) for ops in orders.values()] == [t for t in texts if t.isdigit()]
    with pytest.raises(ValueError, match="at least one order"):
        draw_orders({})


def test_staircases_say_whether_counts_and_prediction_agree():
    figure = draw_staircases({"a": [3, 6], "b": [3, 9]}, {"a": [3, 6], "b": [3, 6]}, "finding")
    assert "a: at most 6 tensors, as predicted; b: at most 9 tensors, not as predicted" in alt_text(figure)
    assert [bar.get_height() for bar in figure.axes[1].patches] == [3, 9]


# ---- fence and compute


@pytest.mark.parametrize("values", list(explore(draw_fence, **FENCE_CONTROLS).corners()), ids=str)
def test_every_step_names_its_node_and_its_line_of_code(values):
    figure = draw_fence(**values)
    stop = STOPS[order_of(values["direction"])[values["step"] - 1]]
    alt = alt_text(figure)
    assert f"step {values['step']} of {len(STOPS)}, {stop.name}" in alt
    assert stop.code in alt
    assert getattr(stop, values["direction"])[:20] in alt
    assert png(figure)


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
    assert ["Copy", *after] == [STOPS[k].name for k in order_of("backward")]


def test_the_code_of_each_stop_stands_in_the_pipeline():
    import inspect
    import re

    from lib.pipeline.pipeline import Pipeline

    source = inspect.getsource(Pipeline.fence) + inspect.getsource(Pipeline.compute)
    flat = source.replace("self.", "").replace("batches[i]", "batch")
    for stop in STOPS[:-1]:  # the last is the first, one partition on
        assert re.sub(r"\)$", "", stop.code) in flat, stop.code
        if stop.tag:
            line = next(line for line in flat.splitlines() if re.sub(r"\)$", "", stop.code) in line)
            assert f"# {stop.tag}" in line


def test_another_direction_is_refused():
    with pytest.raises(ValueError, match="sideways"):
        draw_fence("sideways", 1)
    assert DIRECTIONS == ("forward", "backward")
