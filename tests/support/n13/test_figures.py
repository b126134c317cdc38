"""Figures of notebook 13: what they draw is what the model, the list and the data say."""

import pytest

from lib.show.style import alt_text
from lib.streams import find_races
from lib.streams.races import waits
from lib.timeline import overlap_share
from support.n13 import figures as n13
from support.n13 import runs
from support.overlap import predict_chunks
from tests.lib.refusal import refuses


def heading(figure):
    return figure.axes[0].get_title("left")


@pytest.mark.parametrize("way, end, first, races", [
    ("one stream", 15, 6, 0), ("no wait", 9, 0, 3), ("wait_event", 11, 2, 0), ("wait_stream", 15, 6, 0),
    ("synchronize", 15, 6, 0),
])  # fmt: skip
def test_a_way_to_wait_takes_its_ticks(way, end, first, races):
    operations = runs.launch_way(way)
    kernels = [span for span in runs.earliest(operations, n13.seconds_of).values() if span.label[0] == "F"]
    assert (kernels[0].start, kernels[-1].end, len(find_races(operations))) == (first, end, races)
    words = alt_text(n13.draw_operations(operations, "A finding"))
    assert ("no race" in words) == (races == 0)
    assert f"F2 {end - 3}-{end}" in words
    refuses(ValueError, "way must be one of", runs.launch_way, "wait")


def test_arrows_stand_for_the_waits_of_the_list():
    operations = runs.run_chunks()
    arrows = n13.arrow_pairs(operations)
    assert len(arrows) == len(waits(operations))
    named = {(operations[a].label, operations[b].label) for a, b in arrows}
    assert {("C0", "F0"), ("F0", "D0"), ("F0", "C2"), ("D0", "F2")} <= named
    spans = runs.earliest(operations, lambda op: {"C": 0.5, "F": 1.0, "D": 0.75}[op.label[0]])
    ours = {span.label: span.start for span in spans.values() if span.label}
    assert ours == pytest.approx({span.label: span.start for span in predict_chunks(4, 2, 4, 3)})


@pytest.mark.parametrize("number", [0, 4, 9, n13.WAIT_COUNT - 1])
def test_each_removed_wait_is_drawn_as_a_race_that_spoils_results(number):
    figure = n13.draw_removed(number + 1)
    (race,) = find_races(runs.damaged(number))
    wrong = sum(result != ["0", "1", "2", "3"] for result in runs.outcomes(runs.damaged(number), 4))
    assert heading(figure).startswith(f"{race.later.label} does not wait for {race.earlier.label}: ")
    assert f"in {wrong} of 100 random draws" in heading(figure)


def test_the_columns_show_a_wrong_result_whichever_wait_is_removed():
    for number in range(n13.WAIT_COUNT):
        shown = runs.outcomes(runs.damaged(number), 4, n13.SHOWN)
        assert any(result != ["0", "1", "2", "3"] for result in shown), number


def test_with_all_waits_no_order_is_wrong_and_the_title_states_the_models_time_and_best_chunks():
    assert heading(n13.draw_removed(0)) == "With all 12 waits the result is right in all of 100 random draws"
    trace = predict_chunks(8, 75, 100, 75, overhead=1)
    title = heading(n13.draw_chunks(8, 75, 100, 1.0, 2))
    seen = f"{trace.makespan:.1f} ticks, {overlap_share(trace):.0%} hidden"
    assert title == f"8 chunks: {seen}; of the dots, best 12: 126.5"


def test_torchs_sanitizer_agrees_on_waits_and_does_not_see_a_missing_record_stream():
    def pairs(operations):
        return [(race.earlier.label, race.later.label) for race in find_races(operations)]

    for number in (None, *range(n13.WAIT_COUNT)):
        assert runs.torchs_races(runs.damaged(number)) == pairs(runs.damaged(number))
    for way in runs.WAYS:
        assert runs.torchs_races(runs.launch_way(way)) == pairs(runs.launch_way(way))
    for forgets, count in (((), 0), (("wait_event",), 4)):
        operations = runs.run_prefetcher(forgets, 4)
        assert len(runs.torchs_races(operations)) == len(pairs(operations)) == count
    assert pairs(runs.run_prefetcher(["record_stream"], 5)) == [("F0", "C2"), ("F1", "C3"), ("F2", "C4")]
    assert runs.torchs_races(runs.run_prefetcher(["record_stream"], 5)) == []


@pytest.mark.parametrize("chunks, overhead", [(12, 0.0), (4, 1.0), (64, 1.0)])
def test_equal_spans_of_a_lane_all_have_their_label_or_none(chunks, overhead):
    trace = predict_chunks(chunks, 75, 100, 75, overhead=overhead)
    figure = n13.draw_chunks(chunks, 75, 100, overhead, 2)
    drawn = {text.get_text() for text in figure.axes[0].texts}
    for lane in trace.lanes:
        labels = {span.label for span in trace.only(lane=lane)}
        assert len(labels & drawn) in (0, len(labels))
