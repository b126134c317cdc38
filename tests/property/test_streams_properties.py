"""Whatever the shapes, the depth and the reader: what lib.streams issues has no race, and gives the right result."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lib.streams import DevicePrefetcher, PretendGPU, StreamPipeline, find_races
from lib.streams.races import waits, without
from support.overlap import predict_chunks
from tests.lib.races import assert_no_race

LAYERS = {"add": lambda x: x + 1, "relu_": torch.relu_, "view": lambda x: x[:, :2], "pair": lambda x: x}


@given(
    rows=st.integers(1, 20),
    chunks=st.integers(1, 8),
    depth=st.integers(1, 4),
    layers=st.lists(st.sampled_from(sorted(LAYERS)), max_size=3),
    pinned=st.booleans(),
)
def test_a_stream_pipeline_is_the_stage_itself(rows, chunks, depth, layers, pinned):
    def stage(x):
        for layer in layers:
            x = LAYERS[layer](x)
        return (x, x.sum(1)) if "pair" in layers else x

    x = torch.arange(3.0 * rows).reshape(rows, 3) - 5
    expected = stage(x.clone())
    gpu = PretendGPU()
    got = StreamPipeline(stage, chunks, device=gpu, depth=depth)(gpu.host(x, pinned=pinned))
    for ours, theirs in zip(*((y if isinstance(y, tuple) else (y,)) for y in (got, expected)), strict=True):
        assert torch.equal(ours.as_subclass(torch.Tensor), theirs)
    assert_no_race(gpu.operations)


@given(batches=st.integers(0, 8), depth=st.integers(1, 4), kept=st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_prefetcher_has_no_race_however_long_its_reader_keeps_a_batch(batches, depth, kept):
    gpu = PretendGPU()
    own = []
    seen = []
    loader = [gpu.host(torch.full((4,), float(i)), f"batch {i}") for i in range(batches)]
    for batch in DevicePrefetcher(loader, gpu, depth):
        result = batch * 2
        if kept[len(seen)]:
            own.append(batch)
        seen.append(result[0].item() if len(seen) % 3 == 0 else None)
        del batch, result
    for batch in own:
        batch.sum()
    assert len(seen) == batches
    assert_no_race(gpu.operations)


@given(chunks=st.integers(2, 7), depth=st.integers(1, 3), data=st.data())
def test_no_wait_of_a_pipeline_can_go(chunks, depth, data):
    gpu = PretendGPU()
    StreamPipeline(lambda x: x + 1, chunks, device=gpu, depth=depth)(gpu.host(torch.zeros(chunks)))
    number = data.draw(st.sampled_from(waits(gpu.operations)))
    assert find_races(without(gpu.operations, number))


times = st.tuples(*[st.floats(0, 100)] * 3)


@given(chunks=st.integers(1, 40), seconds=times, depth=st.integers(1, 4), overhead=st.floats(0, 5))
def test_the_model_lies_between_the_longest_lane_and_no_overlap_at_all(chunks, seconds, depth, overhead):
    trace = predict_chunks(chunks, *seconds, depth=depth, overhead=overhead)
    alone = [part + chunks * overhead for part in seconds]
    assert max(alone) - 1e-6 <= trace.makespan <= sum(alone) + 1e-6
    for lane, part in zip(trace.lanes, alone, strict=True):
        assert abs(sum(s.duration for s in trace.only(lane=lane)) - part) < 1e-6
