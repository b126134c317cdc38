"""What must hold for every epoch of the model, whatever the times: limits from below, order, places in the queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.n01.runs import TRAINER, moments, queue_depth, simulate_loading, simulate_path

ticks = st.integers(0, 9)


@st.composite
def epochs(draw):
    batches = draw(st.integers(1, 14))
    load = draw(st.lists(st.integers(1, 9), min_size=batches, max_size=batches))
    workers = draw(st.integers(1, 4))
    prefetch = draw(st.integers(1, 3))
    return dict(batches=batches, load=load, step=draw(ticks), num_workers=workers, prefetch_factor=prefetch)


@given(epochs())
def test_no_epoch_beats_the_trainer_or_the_workers(epoch):
    span = simulate_loading(**epoch).makespan + 1e-6
    assert span >= epoch["load"][0] + epoch["batches"] * epoch["step"]
    assert span >= sum(epoch["load"]) / epoch["num_workers"]


@given(epochs())
def test_no_epoch_is_slower_than_the_serial_one(epoch):
    serial = simulate_loading(epoch["batches"], epoch["load"], epoch["step"])
    assert simulate_loading(**epoch).makespan <= serial.makespan + 1e-6


@given(epochs())
def test_every_batch_is_loaded_and_trained_once_and_in_order(epoch):
    trace = simulate_loading(**epoch)
    for kind in ("load", "step"):
        numbers = [int(span.label.split()[1]) for span in trace if span.kind == kind]
        assert sorted(numbers) == list(range(epoch["batches"]))
    steps = [span.label for span in trace.only(lane=TRAINER, kind="step")]
    assert steps == [f"step {b}" for b in range(epoch["batches"])]


@given(epochs())
def test_a_lane_does_one_thing_at_a_time(epoch):
    trace = simulate_loading(**epoch)
    for lane in trace.lanes:
        assert sum(span.duration for span in trace.only(lane=lane)) == pytest.approx(trace.busy(lane))


@given(epochs())
def test_no_more_batches_are_under_way_than_the_queue_has_places(epoch):
    trace = simulate_loading(**epoch)
    places = epoch["num_workers"] * epoch["prefetch_factor"]
    at = moments(trace)
    for batch in range(places, epoch["batches"]):
        assert at["started"][batch] >= at["taken"][batch - places]
    depths = [depth for _, depth in queue_depth(trace)]
    assert depths[-1] == 0
    assert min(depths) == 0
    assert max(depths) <= places


@given(epochs(), st.sampled_from(["step", "load"]))
def test_slower_parts_never_make_a_faster_epoch(epoch, which):
    slower = {**epoch, "step": epoch["step"] + 1}
    if which == "load":
        slower = {**epoch, "load": [seconds + 1 for seconds in epoch["load"]]}
    assert simulate_loading(**slower).makespan >= simulate_loading(**epoch).makespan


@given(st.integers(1, 20), st.integers(1, 9), ticks, st.integers(2, 3))
def test_even_batches_more_workers_are_never_slower(batches, load, step, prefetch):
    spans = [simulate_loading(batches, load, step, workers, prefetch).makespan for workers in range(6)]
    assert spans == sorted(spans, reverse=True)


@given(epochs())
def test_more_places_are_never_slower(epoch):
    deeper = {**epoch, "prefetch_factor": epoch["prefetch_factor"] + 1}
    assert simulate_loading(**deeper).makespan <= simulate_loading(**epoch).makespan


@given(st.integers(1, 9), st.dictionaries(st.sampled_from("abcde"), ticks, min_size=1))
def test_a_pipeline_costs_one_pass_and_then_its_slowest_hop(batches, hops):
    pipeline = simulate_path(batches, hops)
    assert pipeline.makespan == sum(hops.values()) + (batches - 1) * max(hops.values())
    for before, after in zip(pipeline.lanes, pipeline.lanes[1:], strict=False):
        ended = [span.end for span in pipeline.only(lane=before)]
        started = [span.start for span in pipeline.only(lane=after)]
        assert all(end <= start for end, start in zip(ended, started, strict=True))
