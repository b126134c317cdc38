"""Figures of notebook 13: what they draw is what the model, the list and the data say."""

import itertools

import pytest
import torch

from lib.show.style import alt_text
from lib.streams import find_races
from lib.streams.races import waits
from lib.timeline import overlap_share
from support import recordings
from support.n13 import figures as n13
from support.n13 import runs
from support.runs import predict_chunks


def heading(figure):
    return figure.axes[0].get_title("left")


@pytest.mark.parametrize(
    "way, end, first",
    [("one stream", 15, 6), ("no wait", 9, 0), ("wait_event", 11, 2), ("wait_stream", 15, 6), ("synchronize", 15, 6)],
)
def test_a_way_to_wait_takes_its_ticks(way, end, first):
    title = heading(n13.draw_ways(way, 2, 3))
    assert title.startswith(f"{end} ticks, first kernel at {first}:")
    assert ("race" in title and "no race" not in title) == (way == "no wait")
    with pytest.raises(ValueError, match="way must be one of"):
        runs.run_way("wait")


def test_arrows_stand_for_the_waits_of_the_list():
    operations = runs.run_chunks()
    arrows = n13.arrow_pairs(operations)
    assert len(arrows) == len(waits(operations))
    named = {(operations[a].label, operations[b].label) for a, b in arrows}
    assert {("C0", "F0"), ("F0", "D0"), ("F0", "C2"), ("D0", "F2")} <= named
    spans = runs.earliest(operations, lambda op: {"C": 0.5, "F": 1.0, "D": 0.75}[op.label[0]])
    ours = {span.label: span.start for span in spans.values() if span.label}
    assert ours == pytest.approx({span.label: span.start for span in predict_chunks(4, 2, 4, 3)})


@pytest.mark.parametrize("number", range(n13.WAIT_COUNT))
def test_each_removed_wait_is_drawn_as_a_race_that_spoils_results(number):
    figure = n13.draw_removed(number + 1)
    (race,) = find_races(runs.damaged(number))
    wrong = sum(result != ["0", "1", "2", "3"] for result in runs.outcomes(runs.damaged(number), 4))
    assert heading(figure).startswith(f"{race.later.label} does not wait for {race.earlier.label}: ")
    assert f"in {wrong} of 100" in heading(figure) and wrong > 0


def test_with_all_waits_no_order_is_wrong():
    assert heading(n13.draw_removed(0)) == "With all 12 waits the result is right in all of 100 allowed orders"


def test_torchs_sanitizer_agrees_on_waits_and_does_not_see_a_missing_record_stream():
    def pairs(operations):
        return [(race.earlier.label, race.later.label) for race in find_races(operations)]

    for number in (None, *range(n13.WAIT_COUNT)):
        assert runs.torchs_races(runs.damaged(number)) == pairs(runs.damaged(number))
    for way in runs.WAYS:
        assert runs.torchs_races(runs.run_way(way)) == pairs(runs.run_way(way))
    for forgets, count in (((), 0), (("wait_event",), 4)):
        operations = runs.run_prefetcher(forgets, 4)
        assert len(runs.torchs_races(operations)) == len(pairs(operations)) == count
    assert pairs(runs.run_prefetcher(["record_stream"], 5)) == [("F0", "C2"), ("F1", "C3"), ("F2", "C4")]
    assert runs.torchs_races(runs.run_prefetcher(["record_stream"], 5)) == []


def test_titles_state_the_models_time_and_where_a_copy_meets_half_the_link():
    trace = predict_chunks(8, 75, 100, 75, overhead=1)
    title = heading(n13.draw_chunks(8, 75, 100, 1.0, 2))
    assert title.startswith(f"8 chunks: {trace.makespan:.0f} ticks, {overlap_share(trace):.0%} of the shorter work")
    assert n13.rates(250e3, 25, 10, 8)[0] == pytest.approx(12.5)
    assert "250 kB" in heading(n13.draw_bandwidth(25, 10, 8))
    assert n13.rates(1e12, 24, 10, 8)[1] == pytest.approx(24 * 8 / (24 + 8), rel=1e-3)


@pytest.mark.parametrize("load, copy, compute", [(2, 3, 6), (1, 6, 2), (8, 2, 3), (2, 2, 2)])
def test_a_step_takes_the_longest_hop_ahead_and_copy_plus_compute_in_the_loop(load, copy, compute):
    ahead = n13.chain(load, copy, compute, 2, True, batches=30)
    inside = n13.chain(load, copy, compute, 2, False, batches=30)
    assert n13.step_of(ahead) == max(load, copy, compute) and n13.step_of(inside) == max(load, copy + compute)


def rows_of_bandwidth():
    return [
        {"bytes": s, "direction": d, "way": w, "call": 1e-6, "done": 1e-5 + s / (20e9 if "pinned" in w else 5e9)}
        for s, d, w in itertools.product(runs.SIZES, runs.DIRECTIONS, runs.COPY_WAYS)
    ]


def test_what_was_measured_is_compared_with_its_prediction_and_says_where():
    words = alt_text(n13.draw_bandwidth_measured({"rows": rows_of_bandwidth()}, "Recorded in a test"))
    assert "Pinned 20 GB/s, pageable 5" in words and "Recorded in a test" in words
    rows = [{"chunks": c, "seconds": 0.01 / c, "predicted": 0.009 / c, "overlap": 1 - 1 / c} for c in (1, 2, 4)]
    chunks = n13.draw_chunks_measured({"rows": rows}, "Recorded in a test")
    assert heading(chunks) == "4 chunks take 0.25 of the time of one, 75% hidden"
    rows = [
        {"ratio": r, "copy": 1e-3, "compute": r * 1e-3, "plain": (1 + r) * 1e-3, "prefetched": 1.04e-3 * max(1, r)}
        for r in (0.5, 1, 2)
    ]
    steps = n13.draw_prefetch_measured({"rows": rows}, "Recorded in a test")
    assert heading(steps) == "A prefetched step takes max(copy, compute), 4% more at most"


def test_preprocessing_counts_bytes_and_without_a_gpu_only_the_cpus_time():
    cpu = runs.cpu_part(4)
    assert cpu["float_bytes"] == 4 * cpu["byte_bytes"] == 4 * 4 * 224 * 224 * 3
    assert "4 × fewer bytes" in alt_text(n13.draw_preprocess(None, cpu, "no GPU"))
    assert "not known here" in alt_text(n13.draw_preprocess(None, cpu, "no GPU"))
    data = {**cpu, "cpu": 0.05, "copy_floats": 0.004, "copy_bytes": 0.001, "gpu": 0.002}
    assert "Together 54.0 ms and 3.0 ms" in alt_text(n13.draw_preprocess(data, cpu, "a GPU"))
    ready = runs.make_ready(runs.images(2))
    assert ready.shape == (2, 3, 224, 224) and ready.dtype == torch.float32 and ready.is_contiguous()
    assert abs(ready.mean()) < 0.02 and abs(ready.std() - 1) < 0.02


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_measured_and_without_a_recording_no_figure_shows_a_measured_number(monkeypatch):
    for measure in (runs.measure_bandwidth, runs.measure_chunks, runs.measure_prefetch, runs.measure_preprocess):
        with pytest.raises(RuntimeError, match="needs a CUDA device"):
            measure()

    def none(name):
        raise FileNotFoundError

    monkeypatch.setattr(recordings, "load", none)
    for find in (runs.find_bandwidth, runs.find_chunks, runs.find_prefetch, runs.find_preprocess):
        assert find() == (None, "No GPU here, and no recording yet")
    assert "only the model" in heading(n13.draw_chunks_measured(*runs.find_chunks()))
    assert "the two rules only" in heading(n13.draw_prefetch_measured(*runs.find_prefetch()))
    record = {"rows": rows_of_bandwidth(), "provenance": {}}
    monkeypatch.setattr(recordings, "load", lambda name: record)
    monkeypatch.setattr(recordings, "provenance", lambda record: "Recorded in a test")
    assert runs.find_bandwidth() == (record, "Recorded in a test")
