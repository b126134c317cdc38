"""The figures of notebook 12 draw what the clocks, the balance and the published numbers say."""

import pytest

from lib.show.style import alt_text
from lib.timeline import Span, Trace
from support import recordings
from support.n12 import figures as n12
from support.n12.runs import CHUNKS, MODES, predicted_rows

START = {name: control.value for name, control in n12.BALANCE_CONTROLS.items()}


@pytest.fixture(scope="module")
def record():
    return recordings.load("published_gpipe")


@pytest.mark.parametrize(
    "costs, chunks, clocks, busy",
    [([2.0] * 3, 4, [0, 2, 4, 6, 8, 10], 3), ([1.0, 3.0, 2.0], 1, [0, 1, 4], 1), ([3.0, 1.0], 2, [0, 3, 6], 2)],
)
def test_a_clock_ends_with_its_slowest_task(costs, chunks, clocks, busy):
    trace = n12.predicted_forward(costs, chunks)
    assert sorted({span.start for span in trace}) == clocks and n12.most_at_once(trace) == busy
    assert trace.makespan == {4: 2.0 * (4 + 3 - 1), 1: 6.0, 2: 7.0}[chunks]
    assert chunks != 4 or trace.bubble == pytest.approx((3 - 1) / (4 + 3 - 1))


@pytest.mark.parametrize("end, most", [(1, 1), (1.5, 2)])
def test_spans_that_touch_are_not_at_the_same_time(end, most):
    assert n12.most_at_once(Trace([Span("a", "x", 0, end), Span("b", "y", 1, 2)])) == most
    assert n12.most_at_once(Trace()) == 0


def test_the_measured_run_is_compared_with_the_costs_of_its_work_without_copies():
    spans = [Span("a", "F0", 0, 1, "compute"), Span("a", "C0", 1, 2, "copy"), Span("a", "B0", 2, 3, "backward")]
    assert [span.kind for span in n12.work(Trace(spans))] == ["forward", "backward"]
    spans = [Span("partition 0", f"F{i}", 9.0 * i, 9.0 * i + 9, "forward") for i in range(2)]
    spans += [Span("partition 1", f"F{i}", 9.0 * i + 9, 9.0 * i + 10, "forward") for i in range(2)]
    text = alt_text(n12.draw_balance_run(Trace(spans), [5.0, 3.0, 2.0], [2, 1], chunks=2))
    assert "partition 0 does 90 % of the work, predicted 80 %" in text


def test_the_title_of_the_explorer_says_who_decides_and_what_would_be_best():
    text = alt_text(n12.draw_balance(**START))
    assert "[4, 3, 3]: partition 0 decides" in text and "[2, 2, 6] gives" in text
    best = alt_text(n12.draw_balance(**{**START, "first": 2, "second": 2}))
    assert "the best there is" in best
    at = [n12.speedup((4, 4, 4), [1, 1, 1], m, overhead=0.5) for m in (1, 4, 64)]
    assert at[0] < at[1] > at[2], "too many micro-batches lose to overhead"


def test_the_skip_tensor_passes_the_partitions_between():
    text = alt_text(n12.draw_cut("abcdef", [2, 2, 2], skip=(1, 4)))
    assert "goes from 0 straight to 2, past 1" in text and "partition 1: c, d" in text
    assert "stays in partition 0" in alt_text(n12.draw_cut("abcdef", [3, 3], skip=(0, 2)))
    with pytest.raises(ValueError, match=r"balance \[2, 2\] is for 4 layers, there are 3"):
        n12.draw_cut("abc", [2, 2])


def test_the_title_compares_gpipe_with_seeds():
    runs = [
        {"seed": s, "partitions": n, "plain": ([2.0, 1.0], plain), "gpipe": ([2.0, 1.1], piped)}
        for s, n, plain, piped in ((0, 2, 0.90, 0.91), (1, 4, 0.94, 0.94))
    ]
    assert n12.differences(runs) == pytest.approx([1.0, 0.0])
    text = alt_text(n12.draw_training(runs))
    assert "differs by +0.5 points in the mean; seeds differ by 4.0" in text
    assert "seed 1: plain 94.0 %, GPipe with 4 partitions 94.0 %" in text


def test_predicted_memory_falls_with_checkpoints_and_micro_batches():
    rows = {(row["mode"], row["chunks"]): row for row in predicted_rows()}
    assert len(rows) == len(MODES) * len(CHUNKS)
    for m in CHUNKS:
        never, last, always = (rows[mode, m] for mode in MODES)
        assert always["predicted_mib"] < never["predicted_mib"] >= last["predicted_mib"]
        assert never["predicted_ratio"] == 1.0, "one device: no speed-up"
        assert always["predicted_ratio"] == pytest.approx(4 / 3)
    assert rows["except_last", 1]["predicted_mib"] == rows["never", 1]["predicted_mib"]
    assert rows["except_last", 8]["predicted_ratio"] < rows["always", 8]["predicted_ratio"]
    two = predicted_rows(2)[3]  # never, 8 micro-batches
    assert two["predicted_ratio"] == pytest.approx(rows["never", 8]["predicted_ratio"] * 9 / 16)


def test_the_gpu_figure_says_whether_it_was_measured_and_what_is_kept_was_not_computed_again():
    rows = predicted_rows()
    assert "should need" in alt_text(n12.draw_modes(rows, "Predicted"))
    measured = [{**row, "mib": 10.0 * k + 10, "ms": 30.0, "plain_ms": 20.0} for k, row in enumerate(rows)]
    text = alt_text(n12.draw_modes(measured, "Measured here"))
    assert "never, m = 1 needs 100 % of the memory" in text and "m = 2 20 MiB" in text
    again = {"never": 0, "except_last": 3, "always": 4}
    rows = [
        {"mode": mode, "chunks": 4, "partitions": 2, "forward": 8, "again": 2 * number, "time": 1.5}
        for mode, number in again.items()
    ]
    figure = n12.draw_kept(rows)
    assert "Of 4 micro-batches never keeps 4, except_last keeps 1, always keeps 0" in alt_text(figure)


def test_the_published_speeds_follow_from_the_published_throughputs(record):
    first = record["amoebanet"][0]["samples_per_second"]
    for row in record["amoebanet"]:
        assert row["samples_per_second"] / first == pytest.approx(row["torchgpipe"], abs=2e-3)
        assert row["torchgpipe"] <= 1.01 * n12.ideal(row["partitions"], row["micro_batches"]), "what clocks allow"
    assert n12.ideal(8, 1) == 1.0
    unet = record["speed"]["U-Net"]
    assert [round(unet["partitions"][n] / unet["baseline"], 3) for n in "1248"] == [0.858, 1.246, 2.352, 3.105]


def test_the_published_figure_names_its_source_and_the_line_of_descent_every_stop(record):
    text = alt_text(n12.draw_published(record))
    assert all(words in text for words in ("not measured here", "2004.09910", "Tesla P40", "21.99 ± 0.13"))
    rows = record["descent"]
    assert [row["name"] for row in rows if row["state"] == "gone"] == ["torch Pipe"]
    assert {row["from"] for row in rows} - {None} <= {row["name"] for row in rows}
    assert all(row["source"] for row in rows)
    text = alt_text(n12.draw_descent(rows))
    assert "torch Pipe (2021, gone) has its code from fairscale Pipe" in text
