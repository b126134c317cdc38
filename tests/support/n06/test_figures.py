"""The figures of notebook 06 draw what they say: every corner of every explorer is drawn and counted."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from fractions import Fraction

import pytest
from matplotlib.patches import FancyArrowPatch, Rectangle
from support.n06 import figures as accuracy
from support.n06 import figures as allreduce
from support.n06 import figures as calendar
from support.n06 import figures as curves
from support.n06 import figures as gradients
from support.n06 import figures as hang
from support.n06 import figures as overlap
from support.training import Step

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from lib.timeline import Span, Trace
from tests.pictures import assert_each_control_changes_the_picture

EXPLORERS = {
    "weights": (gradients.draw_weights, gradients.WEIGHTS_CONTROLS),
    "negatives": (gradients.draw_negatives, gradients.NEGATIVES_CONTROLS),
    "ring": (allreduce.draw_ring, allreduce.RING_CONTROLS),
    "overlap": (overlap.draw_overlap, overlap.OVERLAP_CONTROLS),
    "calendar": (calendar.draw_calendar, calendar.CALENDAR_CONTROLS),
}


def corners(name):
    """Yield (settings, figure) of all combinations of ends."""
    explorer = explore(EXPLORERS[name][0], **EXPLORERS[name][1])
    ends = math.prod(len(control.corners) for control in explorer.controls.values())
    for values in itertools.islice(explorer.corners(), ends):
        yield values, explorer.update(**values)


@pytest.mark.parametrize("name", EXPLORERS)
def test_at_the_start_each_control_changes_the_picture(name):
    assert_each_control_changes_the_picture(*EXPLORERS[name])


# ---- gradients


@pytest.mark.parametrize("counts", [(3, 3, 1), (2, 2, 2), (6, 1, 4)])
def test_the_weights_of_all_samples_add_up_to_one_unless_they_are_summed(counts):
    for how in gradients.HOW:
        total = sum(n * w for n, w in zip(counts, gradients.share_weights(counts, how), strict=True))
        assert total == pytest.approx(len(counts) if how == gradients.HOW[2] else 1)


def test_bars_are_as_high_as_the_weights_and_the_title_compares_them():
    for values, figure in corners("weights"):
        counts = [values[f"rank_{rank}"] for rank in range(3)]
        bars = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
        heights = [round(bar.get_height(), 9) for bar in bars]
        weights = gradients.share_weights(counts, values["how"])
        assert heights == [round(weights[r] * sum(counts), 9) for r, count in enumerate(counts) for _ in range(count)]
        told = figure.axes[0].get_title("left").replace("\n", " ")
        if max(heights) > min(heights):
            assert f"weighs {max(heights) / min(heights):.1f} ×" in told
        else:
            assert ("every sample weighs the same" in told) == (heights[0] == 1)


def test_an_image_is_compared_with_its_ranks_captions_or_with_all():
    for values, figure in corners("negatives"):
        batch, world, gathered = values["batch"], values["world_size"], values["gathered"]
        cells = drawn_cells(figure)
        seen = batch if gathered else batch // world
        assert len(cells) == batch * seen
        assert Counter(patch.at[1] for patch in cells) == dict.fromkeys(range(batch), seen)
        assert sum(patch.cell.mark == "plain" for patch in cells) == batch
        assert f"{seen - 1} wrong captions an image" in alt_text(figure)


# ---- all-reduce


def test_the_ring_ends_with_every_part_once_in_every_chunk_of_every_rank():
    for world in range(1, 7):
        assert allreduce.ring(world) == [[Counter(range(world))] * world] * world


def test_the_ring_is_drawn_as_it_is_and_steps_beyond_its_end_change_nothing():
    for values, figure in corners("ring"):
        world = values["world_size"]
        every = 2 * (world - 1)
        step = min(values["step"], every)
        held = allreduce.ring(world, step)
        digits = [text.get_text() for text in figure.axes[0].texts if text.get_text().isdigit()]
        assert Counter(digits) == Counter(str(part) for row in held for parts in row for part in parts)
        arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
        assert len(arrows) == (world - 1 if step < every else 0)
        complete = sum(len(parts) == world for row in held for parts in row)
        assert f"{complete} of {world**2} chunks" in alt_text(figure)


def test_a_wrong_choice_of_chunks_is_run_as_it_is():
    held = allreduce.ring(3, choose=lambda rank, step, world_size: rank)
    assert held[1][0] != Counter(range(3))
    with pytest.raises(ValueError, match="chunk must be below 3"):
        allreduce.ring(3, choose=lambda rank, step, world_size: 3)


# ---- overlap


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("per_bucket", [1, 3, 8])
def test_the_plan_sends_a_bucket_when_it_is_full_and_one_at_a_time(per_bucket, afterwards):
    trace = overlap.plan(8, per_bucket, network=0.8, latency=0.2, afterwards=afterwards)
    reduces = trace.only(kind="transfer").spans
    for number, span in enumerate(reduces):
        full = 8 if afterwards else min(8, (number + 1) * per_bucket)
        before = reduces[number - 1].end if number else 0
        assert span.start == pytest.approx(max(full, before))
    (step,) = trace.only(kind="step")
    assert step.start == pytest.approx(reduces[-1].end)


def test_nothing_is_hidden_by_one_bucket_or_by_waiting():
    for values, figure in corners("overlap"):
        if values["afterwards"] or values["per_bucket"] >= values["layers"]:
            assert " 0 % of the all-reduce is hidden" in alt_text(figure)


def measured(last_end=9.0):
    """Two ranks: backward from 0 to 8, three buckets, step from 9."""
    return Trace(
        span
        for rank in (0, 1)
        for span in (
            *(Span(f"rank {rank} computes", f"layer {n}", 3 - n, 4 - n, "backward") for n in (3, 2, 1)),
            Span(f"rank {rank} computes", "layer 0", 3, 8, "backward"),
            Span(f"rank {rank} computes", "step", 9, 10, "step"),
            Span(f"rank {rank} bucket 0", "bucket 0", 1, 3, "transfer"),
            Span(f"rank {rank} bucket 1", "bucket 1", 3, 5, "transfer"),
            Span(f"rank {rank} bucket 2", "bucket 2", 8, last_end if rank else 9.0, "transfer"),
        )
    )


def test_what_is_hidden_of_a_measured_step_is_what_lies_in_backward():
    assert overlap.hidden_share(overlap.of_rank(measured(), 0)) == pytest.approx(4 / 5)
    figure = overlap.draw_buckets(measured(), rank=1)
    assert "3 buckets: 80 % of the all-reduce time lies in backward, none in step()" in alt_text(figure)


def test_statements_about_the_order_fail_when_one_rank_breaks_them():
    assert list(overlap.order_holds(measured(), (0, 1)).values()) == [True, True, True]
    assert list(overlap.order_holds(measured(last_end=9.5), (0, 1)).values()) == [True, True, False]
    with pytest.raises(ValueError, match="no rank 2"):
        overlap.of_rank(measured(), 2)


def test_a_hang_lasts_as_long_as_the_last_spans_lie_side_by_side():
    trace = Trace(
        [
            Span("rank 0", "step 0", 0, 1, "step"),
            Span("rank 0", "step 1", 1, 4.5, "step"),
            Span("rank 1", "barrier", 1.5, 5, "wait"),
        ]
    )
    assert "rank 0 in step 1 and rank 1 in barrier: 3.0 s in vain" in alt_text(hang.draw_hang(trace))
    with pytest.raises(ValueError, match="nothing to draw"):
        hang.draw_hang(Trace((), ["rank 0"]))


# ---- calendar


def test_after_a_kill_every_row_counts_once_unless_the_samplers_state_was_forgotten():
    for values, figure in corners("calendar"):
        saved = values["kill_at"] // values["save_every"] * values["save_every"]
        rows = drawn_cells(figure)[-96:]
        twice = sum(patch.cell.mark == "padding" for patch in rows)
        assert twice == (0 if values["sampler_saved"] else saved * 12)
        lost = [patch for patch in drawn_cells(figure)[:-96] if patch.cell.mark == "padding"]
        assert len(lost) == (values["kill_at"] - saved) * values["before"]
        assert f"{values['kill_at'] - saved} step" in alt_text(figure)


def test_a_step_that_one_rank_did_not_finish_is_no_step():
    done = [Step(0, 2, rank, 0, 0, 0, (rank,), 0.0, 0.0, 0.0) for rank in (0, 1)]
    half = Step(0, 2, 0, 0, 0, 1, (2,), 0.0, 0.0, 0.0)
    figure = calendar.draw_attempts([*done, half], 3, {0: (1, 1)})
    assert "2 ranks, 1 steps, rank 1 killed in step 1" in alt_text(figure)
    assert "1 of 3 rows never counted" in alt_text(figure)


def test_a_large_file_is_drawn_as_squares_one_a_row():
    figure = calendar.draw_attempts(calendar.simulate(1437, 60, 3, 2, 9, 5), 1437, {0: (2, 9)})
    (squares,) = figure.axes[0].collections
    assert len(squares.get_paths()) == 1437
    assert "all 1,437 rows counted, 1 of them twice" in alt_text(figure)  # 1,137 left for 2 ranks: one is padding


# ---- accuracy, curves


def results(*shifts):
    base = [0.90, 0.92, 0.91, 0.93]
    names = ("full shuffle", "rank, E = 1", "rank, E = 8")
    return {
        name: [{"accuracy": a + s * f} for a, f in zip(base, (0.5, 1.5, 1, 1), strict=True)]
        for name, s in zip(names, (0, *shifts), strict=True)
    }


def test_a_difference_is_claimed_only_where_the_interval_leaves_out_zero():
    same, worse = accuracy.statements(results(0.0, -0.02))
    assert "4 seeds show no difference; a loss above 0.00" in same
    low = re.search(r"worse by ([\d.]+) or more", worse)
    assert low and 0 < float(low[1]) < 2
    figure = accuracy.draw_accuracy(results(0.0, -0.02))
    assert figure.get_suptitle() == "4 seeds: rank, E = 8, loses 2.00 points"
    assert "no difference to full shuffle is shown" in accuracy.draw_accuracy(results(0.0, 0.0)).get_suptitle()


def test_every_seed_is_a_dot_in_both_panels():
    figure = accuracy.draw_accuracy(results(0.01, -0.02))
    left, right = figure.axes
    assert [len(dots.get_offsets()) for dots in left.collections] == [4, 4, 4]
    assert [len(dots.get_offsets()) for dots in right.collections] == [4, 4]
    assert right.collections[1].get_offsets()[0][0] == pytest.approx(-1.0)


def test_curves_are_told_apart_by_their_largest_distance():
    figure = curves.draw_curves({"a": [2.0, 1.0], "b": [2.0, 1.0003]})
    assert "never 1e-3 apart" in figure.get_suptitle()
    with pytest.raises(ValueError, match="two curves of one length"):
        curves.draw_curves({"a": [1.0], "b": [1.0, 2.0]})


def test_the_ring_sends_almost_two_gradients_however_many_ranks():
    for world in range(2, 7):
        figure = allreduce.draw_ring(world_size=world, step=10)
        assert f"{float(Fraction(2 * (world - 1), world)):.2f} gradients sent" in alt_text(figure)
