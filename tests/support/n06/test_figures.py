"""The figures of notebook 06 draw what they say: every corner of every explorer is drawn and counted."""

import re
from collections import Counter
from fractions import Fraction

import pytest

from lib.show.explore import explore
from lib.show.sheet import drawn_cells
from lib.show.style import alt_text
from lib.timeline import Span, Trace
from support.n06 import figures as n06
from support.training import Step
from tests.pictures import corners, told


@pytest.mark.parametrize("counts", [(3, 3, 1), (2, 2, 2), (6, 1, 4)])
def test_the_weights_of_all_samples_add_up_to_one_unless_they_are_summed(counts):
    for how in n06.HOW:
        total = sum(n * w for n, w in zip(counts, n06.share_weights(counts, how), strict=True))
        assert total == pytest.approx(len(counts) if how == n06.HOW[2] else 1)


def test_the_title_compares_the_weights_of_samples():
    for values, words in told(n06.draw_weights, n06.WEIGHTS_CONTROLS, 42):
        counts = [values[f"rank_{rank}"] for rank in range(3)]
        weights = n06.share_weights(counts, values["how"])
        heights = [round(weight * sum(counts), 9) for weight, count in zip(weights, counts, strict=True) if count]
        owners = [rank for rank, count in enumerate(counts) if count]
        assert all(f"rank {rank} {height:.2f}" in words for rank, height in zip(owners, heights, strict=True))
        title = n06.draw_weights(**values).axes[0].get_title("left").replace("\n", " ")
        if max(heights) > min(heights):
            assert f"weighs {max(heights) / min(heights):.1f} ×" in title
        else:
            assert ("every sample weighs the same" in title) == (heights[0] == 1)


def test_an_image_is_compared_with_its_ranks_captions_or_with_all():
    for values in corners(explore(n06.draw_negatives, **n06.NEGATIVES_CONTROLS), 13):
        figure = n06.draw_negatives(**values)
        batch, cells = values["batch"], drawn_cells(figure)
        seen = batch if values["gathered"] else batch // values["world_size"]
        assert Counter(patch.at[1] for patch in cells) == dict.fromkeys(range(batch), seen)
        assert sum(patch.cell.mark == "plain" for patch in cells) == batch
        assert f"{seen - 1} wrong captions an image" in alt_text(figure)


def test_every_chunk_ends_with_every_part_once_and_a_wrong_choice_is_run_as_it_is():
    for world in range(1, 7):
        assert n06.ring(world) == [[Counter(range(world))] * world] * world
    held = n06.ring(3, choose=lambda rank, step, world_size: rank)
    assert held[1][0] != Counter(range(3))
    with pytest.raises(ValueError, match="chunk must be below 3"):
        n06.ring(3, choose=lambda rank, step, world_size: 3)


def test_the_ring_says_what_is_complete_and_sends_almost_two_gradients_however_many_ranks():
    for values, words in told(n06.draw_ring, n06.RING_CONTROLS, 19):
        world = values["world_size"]
        held = n06.ring(world, min(values["step"], 2 * (world - 1)))
        assert f"{sum(len(parts) == world for row in held for parts in row)} of {world**2} chunks" in words
    for world in range(2, 7):
        sent = f"{float(Fraction(2 * (world - 1), world)):.2f} gradients sent"
        assert sent in alt_text(n06.draw_ring(world_size=world, step=10))


@pytest.mark.parametrize("afterwards", [False, True])
@pytest.mark.parametrize("per_bucket", [1, 3, 8])
def test_the_plan_sends_a_bucket_when_it_is_full_and_one_at_a_time(per_bucket, afterwards):
    trace = n06.plan(8, per_bucket, network=0.8, latency=0.2, afterwards=afterwards)
    reduces = trace.only(kind="transfer").spans
    for number, span in enumerate(reduces):
        full = 8 if afterwards else min(8, (number + 1) * per_bucket)
        before = reduces[number - 1].end if number else 0
        assert span.start == pytest.approx(max(full, before))
    (step,) = trace.only(kind="step")
    assert step.start == pytest.approx(reduces[-1].end)


def test_nothing_is_hidden_by_one_bucket_or_by_waiting():
    for values, words in told(n06.draw_overlap, n06.OVERLAP_CONTROLS, 40):
        if values["afterwards"] or values["per_bucket"] >= values["layers"]:
            assert " 0 % of the all-reduce is hidden" in words


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


def test_what_is_hidden_lies_in_backward_and_the_order_fails_when_one_rank_breaks_it():
    assert n06.hidden_share(n06.of_rank(measured(), 0)) == pytest.approx(4 / 5)
    figure = n06.draw_buckets(measured(), rank=1)
    assert "3 buckets: 80 % of the all-reduce time lies in backward, none in step()" in alt_text(figure)
    assert list(n06.order_holds(measured(), (0, 1)).values()) == [True, True, True]
    assert list(n06.order_holds(measured(last_end=9.5), (0, 1)).values()) == [True, True, False]
    with pytest.raises(ValueError, match="no rank 2"):
        n06.of_rank(measured(), 2)


def test_a_hang_lasts_as_long_as_the_last_spans_lie_side_by_side():
    steps = [Span("rank 0", "step 0", 0, 1, "step"), Span("rank 0", "step 1", 1, 4.5, "step")]
    trace = Trace([*steps, Span("rank 1", "barrier", 1.5, 5, "wait")])
    assert "rank 0 in step 1 and rank 1 in barrier: 3.0 s in vain" in alt_text(n06.draw_hang(trace))
    with pytest.raises(ValueError, match="nothing to draw"):
        n06.draw_hang(Trace((), ["rank 0"]))


def test_a_large_file_counts_each_row_and_a_step_that_one_rank_did_not_finish_is_no_step():
    words = alt_text(n06.draw_attempts(n06.simulate(1437, 60, 3, 2, 9, 5), 1437, {0: (2, 9)}))
    assert "all 1,437 rows counted, 1 of them twice" in words  # 1,137 left for 2 ranks: one is padding
    done = [Step(0, 2, rank, 0, 0, 0, (rank,), 0.0, 0.0, 0.0) for rank in (0, 1)]
    half = Step(0, 2, 0, 0, 0, 1, (2,), 0.0, 0.0, 0.0)
    figure = n06.draw_attempts([*done, half], 3, {0: (1, 1)})
    assert "2 ranks, 1 steps, rank 1 killed in step 1" in alt_text(figure)
    assert "1 of 3 rows never counted" in alt_text(figure)


def test_after_a_kill_every_row_counts_once_unless_the_samplers_state_was_forgotten():
    for values in corners(explore(n06.draw_calendar, **n06.CALENDAR_CONTROLS), 16):
        figure = n06.draw_calendar(**values)
        saved = values["kill_at"] // values["save_every"] * values["save_every"]
        twice = [patch.cell.mark == "padding" for patch in drawn_cells(figure)]  # first the steps, then 96 rows
        assert sum(twice[-96:]) == (0 if values["sampler_saved"] else saved * 12)
        assert sum(twice[:-96]) == (values["kill_at"] - saved) * values["before"]
        assert f"{values['kill_at'] - saved} step" in alt_text(figure)


def results(*shifts):
    base = [0.90, 0.92, 0.91, 0.93]
    names = ("full shuffle", "rank, E = 1", "rank, E = 8")
    return {
        name: [{"accuracy": a + s * f} for a, f in zip(base, (0.5, 1.5, 1, 1), strict=True)]
        for name, s in zip(names, (0, *shifts), strict=True)
    }


def test_a_difference_is_claimed_only_beyond_zero_and_curves_are_told_apart():
    same, worse = n06.statements(results(0.0, -0.02))
    assert "4 seeds show no difference; a loss above 0.00" in same
    low = re.search(r"worse by ([\d.]+) or more", worse)
    assert low and 0 < float(low[1]) < 2
    figure = n06.draw_accuracy(results(0.0, -0.02))
    assert figure.get_suptitle() == "4 seeds: rank, E = 8, loses 2.00 points"
    assert "no difference to full shuffle is shown" in n06.draw_accuracy(results(0.0, 0.0)).get_suptitle()
    figure = n06.draw_curves({"a": [2.0, 1.0], "b": [2.0, 1.0003]})
    assert "never 1e-3 apart" in figure.get_suptitle()
    with pytest.raises(ValueError, match="two curves of one length"):
        n06.draw_curves({"a": [1.0], "b": [1.0, 2.0]})
