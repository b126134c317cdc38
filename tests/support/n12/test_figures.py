"""The figures of notebook 12 draw what the clocks, the balance and the published numbers say."""

import pytest

from lib.show.style import alt_text
from support import recordings
from support.n12 import figures as n12
from support.n12.balance import block_costs, fastest, forward_gain, predicted_forward, speedup

START = {name: control.value for name, control in n12.BALANCE_CONTROLS.items()}


@pytest.fixture(scope="module")
def record():
    return recordings.load("published_gpipe")


@pytest.mark.parametrize(
    "costs, chunks, clocks",
    [
        ([2.0] * 3, 4, [0, 2, 4, 6, 8, 10]),
        ([1.0, 3.0, 2.0], 1, [0, 1, 4]),
        ([3.0, 1.0], 2, [0, 3, 6]),
    ],
)
def test_a_clock_ends_with_its_slowest_task(costs, chunks, clocks):
    trace = predicted_forward(costs, chunks)
    assert sorted({span.start for span in trace}) == clocks
    assert trace.makespan == {4: 2.0 * (4 + 3 - 1), 1: 6.0, 2: 7.0}[chunks]
    assert forward_gain(costs, chunks) == chunks * sum(costs) / trace.makespan
    assert chunks != 4 or trace.bubble == pytest.approx((3 - 1) / (4 + 3 - 1))


def test_the_title_of_the_explorer_says_who_decides_and_what_would_be_best():
    text = alt_text(n12.draw_balance(**START))
    assert "[4, 3, 3]: partition 0 decides" in text
    assert "[1, 2, 7] gives" in text
    assert fastest((6, 5, 4, 3, 2, 2, 1, 1, 1, 1), 3, 4, 0.1) == [1, 2, 7], "not the least slowest block, [2, 2, 6]"
    best = alt_text(n12.draw_balance(**{**START, "first": 1, "second": 2}))
    assert "no cut is faster" in best
    one = alt_text(n12.draw_balance(**{**START, "chunks": 1}))
    assert "no partition alone decides, 0.99 × one device; no cut is faster" in one
    beside = alt_text(n12.draw_balance("early layers dear", first=2, second=2, chunks=16, overhead=1.0))
    assert "0.90 × one device; [1, 2, 7] is faster by a hair" in beside, "by 0.2 %"
    capped = n12.draw_balance(**{**START, "first": 8, "second": 8})
    assert capped.axes[0].get_xlabel() == "there are only ten layers: 8, 1 and 1 in place of 8, 8"
    assert alt_text(capped).endswith("There are only ten layers: 8, 1 and 1 in place of 8, 8.")
    assert "only ten" not in alt_text(n12.draw_balance(**{**START, "first": 8, "second": 1}))
    at = [speedup((4, 4, 4), [1, 1, 1], m, overhead=0.5) for m in (1, 4, 64)]
    assert at[0] < at[1] > at[2], "too many micro-batches lose to overhead"


def test_the_published_speeds_follow_from_the_throughputs_and_the_figure_names_its_source(record):
    first = record["amoebanet"][0]["samples_per_second"]
    for row in record["amoebanet"]:
        assert row["samples_per_second"] / first == pytest.approx(row["torchgpipe"], abs=2e-3)
        assert row["torchgpipe"] <= 1.01 * n12.ideal(row["partitions"], row["micro_batches"]), "what clocks allow"
    assert n12.ideal(8, 1) == 1.0
    text = alt_text(n12.draw_published(record))
    assert all(words in text for words in ("not measured here", "2004.09910", "Tesla P40"))
    assert "73 to 96 % of what the clocks allow, in a unit that recomputes all" in text
    assert "U-Net 1.165, ResNet-101 1.172 times as long as plain layers; 1.167 is predicted" in text
    modes = {row["micro_batches"]: row["checkpoint"] for row in record["amoebanet"]}
    assert modes == {1: "always", 4: "except_last", 32: "except_last"}


def test_the_speeds_on_devices_stand_between_two_predictions_and_the_best_m_is_named():
    ms = (1, 2, 4)
    seconds = [[0.004, 0.008], [0.001, 0.001], [0.016, 0.032], [0.010, 0.020], [0.007, 0.021]]
    text = alt_text(n12.draw_speeds(seconds, ms, "a device"))
    assert "Forward is nearer to “launched ahead”, backward to “each clock waits”." in text
    assert "On a device; forward is fastest with m = 4, f = 4.0 ms, o = 1.00 ms; backward is fastest with m = 2" in text
    assert "m = 2: 10.0 and 20.0 ms" in text


def test_what_a_mode_holds_is_told_and_what_always_saves_after_forward_and_what_both_need_at_the_peak():
    found = {"never": [5.0, 5.4], "except_last": [1.5, 1.9], "always": [1.0, 2.0]}
    text = alt_text(n12.draw_held(found, 8, 5.0))
    assert "always saves 0.50 E after forward; at the peak both need at least 1.50 E" in text
    assert "always 1.00 E after forward, 2.00 E at most" in text


def test_the_fastest_way_is_named_or_that_none_gains_and_equal_losses_are_called_so():
    alone = {"a": 0.2, "b": 0.1, "c": 0.3}
    text = alt_text(n12.draw_ways(alone, {"a": 0.2, "b": 0.4, "c": 0.3}))
    assert text.startswith("Fastest: b 2.00 ×; beside busy programs: none gains.")
    assert "beside busy programs: a 1.00 ×; b 0.50 ×; c 0.67 ×." in text
    assert "beside busy programs: c 2.00 ×." in alt_text(n12.draw_ways(alone, {"a": 0.2, "b": 0.4, "c": 0.1}))
    rows = [{"chunks": m, "law": 2 * m / (m + 1), "predicted": 1.1, "measured": 1.2} for m in (1, 8)]
    text = alt_text(n12.draw_gains(rows))
    assert "m = 8: predicted 1.10 ×, measured 1.20 ×" in text
    assert "2 m / (m + 1) is 1.78" in text
    runs = {"plain": [2.0, 1.0], "n = 1": [2.0, 1.0]}
    words = alt_text(n12.draw_same(runs, [2.0, 1.1]))
    assert "2 runs with one seed: at every step the same loss, to the last bit" in words
    runs["n = 2"] = [2.0, 0.9]
    assert n12.furthest(runs) == pytest.approx(0.1)
    assert "the same loss to within 1e-01 of itself" in alt_text(n12.draw_same(runs, [2.0, 1.1]))
    runs["n = 2"] = [2.0, 1.0 - 1.4e-7]
    assert "the same loss to within 1e-06 of itself" in alt_text(n12.draw_same(runs, [2.0, 1.1]))


def without_clocks(costs, m):
    """Return the time of m micro-batches of which each goes on as soon as its next partition is free."""
    free = [0] * len(costs)
    for _ in range(m):
        arrives = 0
        for j, cost in enumerate(costs):
            free[j] = arrives = max(arrives, free[j]) + cost
    return free[-1]


@pytest.mark.parametrize("m", [2, 3, 4, 8, 16])
def test_two_cuts_with_one_slowest_part_by_a_tick_where_clocks_wait_and_not_at_all_where_nothing_does(m):
    two, one = (block_costs(n12.COSTS["early layers dear"], cut) for cut in ([2, 2, 6], [1, 2, 7]))
    clocks = [predicted_forward(costs, m).makespan for costs in (two, one)]
    assert clocks == [11 * m + 8 + 8, 11 * m + 6 + 9]
    assert without_clocks(two, m) == without_clocks(one, m) == 26 + (m - 1) * 11
