"""What support.overlap predicts of prefetchers and of chunks that go through three streams."""

from collections import defaultdict

import pytest
import torch

from lib.streams import PretendGPU, StreamPipeline
from lib.timeline import Span, Trace, overlap_share
from support.overlap import best_chunks, predict_chunks, predict_prefetch


def test_with_one_chunk_or_buffer_nothing_overlaps_with_many_the_slowest_lane_or_the_host_decides():
    one = predict_chunks(1, 3, 4, 2)
    many = predict_chunks(100, 3, 4, 2)
    assert one.makespan == 9
    assert overlap_share(one) == 0
    assert 4 < many.makespan < 4.2
    assert overlap_share(many) > 0.97
    assert overlap_share(predict_chunks(8, 4, 4, 0, depth=1)) == 0
    assert predict_chunks(8, 4, 4, 0, depth=2).makespan == pytest.approx(4 + 4 / 8)
    hidden, free = (predict_chunks(10, 4, 6, 4, launch=launch).makespan for launch in (0.3, 0))
    assert hidden == pytest.approx(free)
    slow = predict_chunks(100, 4, 6, 4, launch=0.3)
    assert slow.makespan == pytest.approx(99 * 0.3 + (4 + 6 + 4) / 100), "the host's time, and the last chunk's; no sum"
    assert slow.lanes == ("copy in", "compute", "copy out")


def test_the_model_waits_exactly_where_the_pipeline_does():
    gpu = PretendGPU()
    StreamPipeline(lambda x: x + 1, 6, device=gpu)(gpu.host(torch.zeros(6)))
    model = {span.label: span for span in predict_chunks(6, 3, 5, 2)}
    clocks = defaultdict(float)
    events = {}
    starts = {}
    for op in gpu.operations:  # walk the real operations by hand, with the durations of the model
        if op.kind == "launch":
            starts[op.label] = clocks[op.lane]
            clocks[op.lane] += model[op.label].duration
        elif op.kind == "record":
            events[op.event] = clocks[op.lane]
        elif op.kind == "wait":
            clocks[op.lane] = max(clocks[op.lane], events[op.event])
    assert starts == pytest.approx({label: span.start for label, span in model.items()})


def test_too_many_chunks_cost_more_than_they_hide_and_uneven_chunks_take_their_share():
    times = [predict_chunks(c, 4, 4, 4, overhead=0.1).makespan for c in (1, 4, 200)]
    assert times[1] < times[0] < times[2]
    best = best_chunks(4, 4, 4, 0.1)
    assert best == min(range(1, 65), key=lambda c: predict_chunks(c, 4, 4, 4, overhead=0.1).makespan)
    assert best_chunks(1, 100, 0, 5) == 1
    trace = predict_chunks(4, 10, 10, 0, rows=10)
    assert [round(span.duration, 9) for span in trace if span.lane == "compute"] == [3, 3, 2, 2]
    assert len(predict_chunks(8, 1, 1, 1, rows=3).only(lane="compute")) == 3


def test_a_step_behind_a_prefetcher_takes_the_longer_of_copy_and_compute_and_overlap_is_the_hidden_part():
    for copy, compute in ((2, 5), (5, 2), (3, 3)):
        assert predict_prefetch(50, copy, compute, ahead=False).makespan == 50 * (copy + compute)
        ahead = predict_prefetch(50, copy, compute).makespan
        assert ahead == 50 * max(copy, compute) + min(copy, compute)
    spans = [Span("copy", "C", 0, 4, "copy"), Span("compute", "F", 3, 5, "compute")]
    assert overlap_share(Trace(spans)) == 0.5
    assert overlap_share(Trace(spans[:1])) == 0.0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_seconds_that_are_none_are_told(seconds):
    with pytest.raises(ValueError, match="number of seconds"):
        predict_chunks(2, seconds, 1, 1)
    with pytest.raises(ValueError, match="number of seconds"):
        predict_prefetch(2, 1, seconds)
