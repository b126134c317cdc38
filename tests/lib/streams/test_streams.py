"""lib.streams without a GPU: what a CPU does, what is put into streams, what goes wrong without a wait."""

import contextlib
import gc
import weakref
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from functools import partial
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from lib.streams import DevicePrefetcher, PretendGPU, StreamPipeline, find_races
from lib.streams.prefetch import each_tensor
from lib.streams.races import HOST, Operation, Region, waits, without
from lib.timeline import Recorder, Span, Trace, overlap_share
from support.overlap import best_chunks, predict_chunks, predict_prefetch

Pair = namedtuple("Pair", "x y")


def plain(x):
    return each_tensor(lambda y: y.as_subclass(torch.Tensor), x)


def items(count=7):
    return [torch.full((4,), float(i)) for i in range(count)]


def on_pretend(gpu, count=7):
    return [gpu.host(x, f"batch {i}") for i, x in enumerate(items(count))]


def train(gpu, batches):
    """A consumer: one launch F0, F1, … a batch, and nothing kept."""
    seen = []
    for batch in batches:  # no enumerate: it holds on to its last item
        with gpu.span(gpu.current_stream(), "compute", f"F{len(seen)}"):
            result = batch + 0
        seen.append(plain(result))
        del batch, result
    return seen


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_the_items_are_those_of_the_loader_in_its_order(depth, count):
    assert list(DevicePrefetcher(range(count), "cpu", depth)) == list(range(count))
    gpu = PretendGPU()
    prefetcher = DevicePrefetcher(on_pretend(gpu, count), gpu, depth)
    assert len(prefetcher) == count
    for _ in range(2):  # and in every epoch
        assert [x.tolist() for x in train(gpu, prefetcher)] == [x.tolist() for x in items(count)]
    assert find_races(gpu.operations) == []


def test_on_a_cpu_the_loader_is_read_when_needed_and_on_a_gpu_copies_go_ahead_by_depth():
    taken = []
    source = (taken.append(i) or i for i in range(5))
    iterator = iter(DevicePrefetcher(source, "cpu", 3))
    assert taken == []
    assert next(iterator) == 0 and taken == [0]
    gpu = PretendGPU()
    train(gpu, DevicePrefetcher(on_pretend(gpu), gpu, depth=3))
    labels = [op.label for op in gpu.operations if op.kind == "launch"]
    assert labels == ["C0", "C1", "C2", "F0", "C3", "F1", "C4", "F2", "C5", "F3", "C6", "F4", "F5", "F6"]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_host_runs_ahead_but_the_device_never_holds_more_than_twice_depth(depth):
    gpu = PretendGPU()
    train(gpu, DevicePrefetcher(on_pretend(gpu, 30), gpu, depth))
    copied = {r.block for op in gpu.operations if op.lane == "copy" for r in op.writes}
    assert len(copied) == 2 * depth
    first_stop = next(k for k, op in enumerate(gpu.operations) if op.kind == "synchronize")
    assert sum(op.lane == "compute" and op.kind == "launch" for op in gpu.operations[:first_stop]) == depth + 1


def test_every_nesting_goes_to_the_device_as_it_is():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(2))
    batch = {"a": x, "b": [x, (x, "text", 3)], "c": Pair(x, None), "d": OrderedDict(e=defaultdict(list, f=x))}
    (got,) = DevicePrefetcher([batch], gpu)
    assert all(y.is_cuda for y in (got["b"][0], got["b"][1][0], got["c"].x, got["d"]["e"]["f"]))
    assert got["b"][1][1:] == ("text", 3) and got["c"].y is None
    assert isinstance(got["c"], Pair) and isinstance(got["d"], OrderedDict)
    assert got["d"]["e"]["new"] == [], "a defaultdict keeps its default"
    assert not batch["a"].is_cuda and not batch["d"]["e"]["f"].is_cuda, "the loader's batch is left alone"
    sample = SimpleNamespace(x=torch.zeros(1))
    assert next(iter(DevicePrefetcher([sample], gpu))) is sample, "what is no tensor is handed on itself"


def test_mappings_and_packed_sequences():
    assert each_tensor(lambda x: x + 1, MappingProxyType({"a": torch.zeros(1)})) == {"a": torch.ones(1)}
    changed = each_tensor(lambda x: x + 1, UserDict(a=torch.zeros(1)))
    assert isinstance(changed, UserDict) and changed["a"] == 1
    packed = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    moved = each_tensor(lambda x: x.to("meta"), packed)
    assert type(moved) is type(packed) and moved.batch_sizes is packed.batch_sizes, "sizes stay on the host"
    assert {x.device.type for x in (moved.data, moved.sorted_indices, moved.unsorted_indices)} == {"meta"}


@pytest.mark.parametrize("depth", [1, 2, 10])
def test_an_exception_of_the_loader_comes_where_its_batch_would_have(depth):
    gpu, seen = PretendGPU(), []

    def broken(batches):
        yield from batches[:3]
        raise KeyError("batch 3")

    with pytest.raises(KeyError, match="batch 3"):
        seen.extend(plain(x)[0].item() for x in DevicePrefetcher(broken(on_pretend(gpu)), gpu, depth))
    assert seen == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("end", ["break", "exception of the loader", "exception of the reader"])
def test_whatever_ends_an_epoch_nothing_stays_behind(end):
    gpu, iterators = PretendGPU(), []
    batches = on_pretend(gpu)

    def read():
        yield from batches[:4]
        if "loader" in end:
            raise KeyError

    class Reads:
        def __iter__(self):
            iterator = read()
            iterators.append(weakref.ref(iterator))
            return iterator

    def epoch():
        for number, _ in enumerate(DevicePrefetcher(Reads(), gpu)):
            if number == 1 and end == "break":
                break
            if number == 1 and end.endswith("reader"):
                raise KeyError

    gc.collect()
    gc.disable()
    try:
        for _ in range(2):
            with contextlib.suppress(KeyError):
                epoch()
        assert [reference() for reference in iterators] == [None, None]
    finally:
        gc.enable()


def test_a_batch_that_is_not_pinned_is_pinned_first_and_in_no_span(monkeypatch):
    gpu = PretendGPU()
    list(DevicePrefetcher([gpu.host(torch.ones(3), "pageable", pinned=False)], gpu))
    shown = [str(op) for op in gpu.operations]
    first_copy = next(k for k, op in enumerate(gpu.operations) if op.lane == "copy" and op.kind == "launch")
    assert any(line.startswith("host      pin   pageable -> host") for line in shown), "the host's work, not the copy's"
    assert not any("stands still" in line or "staging" in line for line in shown[: first_copy + 1])
    gpu, inside = PretendGPU(), []
    x = gpu.host(torch.zeros(6, 3), pinned=False)
    pin = type(x).pin_memory
    monkeypatch.setattr(type(x), "pin_memory", lambda x: (inside.extend(gpu._labels), pin(x))[1])
    list(DevicePrefetcher([x], gpu))
    StreamPipeline(torch.sin, 3, device=gpu)(x)
    assert inside == [] and sum(op.label == "pin" for op in gpu.operations) == 4


@pytest.mark.parametrize("make, arguments, error, words", [
    (DevicePrefetcher, ([], "cpu", 0), ValueError, "depth"),
    *((DevicePrefetcher, ([], "cpu", depth), TypeError, "depth") for depth in (1.5, True)),
    (DevicePrefetcher, ([], "meta", 2), ValueError, "cpu or cuda"),
    *((DevicePrefetcher, ([], nothing, 2), TypeError, "device must be") for nothing in (None, 1.5, object())),
    (DevicePrefetcher, (3, "cpu", 2), TypeError, "iterable"),
    (partial(StreamPipeline, device="cpu"), (abs, 0), ValueError, "at least 1"),
    (partial(StreamPipeline, device="cpu", depth=0), (abs, 2), ValueError, "at least 1"),
])  # fmt: skip
def test_what_a_prefetcher_or_a_pipeline_cannot_work_with_is_told_at_once(make, arguments, error, words):
    with pytest.raises(error, match=words):
        make(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_at_once():
    with pytest.raises(RuntimeError, match="no CUDA device"):
        StreamPipeline(abs, 2)
    with pytest.raises(RuntimeError, match="'cuda:1'"):  # a number is a GPU, as everywhere in torch
        DevicePrefetcher([], 1)


def stages():
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    return {"a model": model, "a tuple of results": lambda x: (x * 2, x.sum(1)), "other dtype": lambda x: x > 0,
        "itself": lambda x: x, "a view": lambda x: x[:, 1:], "in place": lambda x: x.mul_(2)}  # fmt: skip


@pytest.mark.parametrize("stage", stages())
@pytest.mark.parametrize("rows, chunks, depth", [(12, 4, 2), (11, 4, 2), (5, 9, 2), (7, 3, 1), (7, 7, 3), (0, 2, 2)])
def test_the_result_is_that_of_the_unstreamed_stage(stage, rows, chunks, depth):
    function, x = stages()[stage], torch.randn(rows, 3)
    with torch.no_grad():
        expected = function(x.clone())
    gpu = PretendGPU()
    for device, given in (("cpu", x.clone()), (gpu, gpu.host(x.clone()))):
        got = plain(StreamPipeline(function, chunks, device=device, depth=depth)(given))
        torch.testing.assert_close(got, expected)
    assert find_races(gpu.operations) == []


@pytest.mark.parametrize("atomic", [False, True])
def test_tuples_are_cut_alike(atomic):
    gpu = PretendGPU()
    x, y = torch.randn(7, 2), torch.arange(7)

    def stage(pair):
        return pair[0] * pair[1][:, None] if atomic else (pair[1], pair[0] + 1)

    got = plain(StreamPipeline(stage, 3, device=gpu)((gpu.host(x, "x"), gpu.host(y, "y"))))
    torch.testing.assert_close(got, stage((x, y)))
    torch.testing.assert_close(StreamPipeline(stage, 3, device="cpu")((x, y)), stage((x, y)))
    assert find_races(gpu.operations) == []


def test_of_a_pipeline_whose_result_is_its_buffer_a_wait_follows_from_another():  # else none: the property has it
    gpu = PretendGPU()
    StreamPipeline(lambda x: x, 5, device=gpu)(gpu.host(torch.randn(10, 3)))
    numbers = waits(gpu.operations)
    racing = [number for number in numbers if find_races(without(gpu.operations, number))]
    assert 0 < len(racing) < len(numbers), "[4] follows from [2]"


def test_the_device_holds_depth_chunks_pageable_input_is_pinned_and_computed_input_waited_for():
    gpu = PretendGPU()
    StreamPipeline(lambda x: x + 1, 12, device=gpu, depth=2)(gpu.host(torch.zeros(12, 3)))
    blocks = {r.block for op in gpu.operations for r in op.writes} - {"result"}
    assert len(blocks) == 2 * 2, "two inputs and two outputs"
    gpu = PretendGPU()
    result = StreamPipeline(lambda x: x + 1, 3, device=gpu)(gpu.host(torch.zeros(6, 3), pinned=False))
    assert plain(result).eq(1).all()
    assert [op.label for op in gpu.operations if op.kind == "launch" and op.lane == HOST] == ["pin"] * 3
    gpu = PretendGPU()
    x = gpu.host(torch.ones(4)).to("cuda", non_blocking=True) + 1
    assert plain(StreamPipeline(lambda x: x * 2, 2, device=gpu)(x)).tolist() == [4.0] * 4
    assert find_races(gpu.operations) == []


NO_TENSORS = (None, "text", [torch.zeros(2)], {"y": torch.zeros(2)}, (torch.zeros(2), 3))


@pytest.mark.parametrize("device", ["cpu", "pretend"])
@pytest.mark.parametrize("stage, error, words", [
    *((stage, ValueError, "stage got 2 rows") for stage in (lambda x: x[:1], torch.sum, lambda x: (x, x.mean()))),
    *((lambda x, y=y: y, TypeError, "expected a Tensor or a tuple") for y in NO_TENSORS),
])  # fmt: skip
def test_a_stage_that_gives_other_rows_or_no_tensors_is_told_so(device, stage, error, words):
    gpu, x = PretendGPU(), torch.zeros(4, 2)
    pipeline = StreamPipeline(stage, 2, device="cpu" if device == "cpu" else gpu)
    with pytest.raises(error, match=words):
        pipeline(x if device == "cpu" else gpu.host(x))


def test_a_stage_that_fails_leaves_nothing_in_flight():
    gpu = PretendGPU()

    def stage(x):
        if (plain(x) == 3).any():
            raise ZeroDivisionError
        return x + 1

    pipeline = StreamPipeline(stage, 4, device=gpu)
    with pytest.raises(ZeroDivisionError):
        pipeline(gpu.host(torch.arange(4.0)))
    stops = [op.kind for op in gpu.operations if op.kind not in ("allocate", "free")][-6:]
    assert stops == ["record", "synchronize"] * 3
    assert plain(pipeline(gpu.host(torch.zeros(4)))).tolist() == [1.0] * 4
    assert find_races(gpu.operations) == []


def test_on_a_cpu_a_recorder_gets_a_span_a_chunk_and_no_gradients_are_kept():
    with Recorder() as recorder:
        StreamPipeline(lambda x: x, 3, device="cpu")(torch.zeros(6))
    assert [(s.lane, s.label) for s in recorder.trace()] == [("compute", f"F{i}") for i in range(3)]
    assert not StreamPipeline(nn.Linear(3, 2), 2, device="cpu")(torch.randn(4, 3)).requires_grad


def test_a_race_is_told_in_words_and_a_pretend_gpu_knows_what_it_can_forget():
    region = (Region("A", 0, 4),)
    a, b = Operation("launch", "s", "a", writes=region), Operation("launch", "t", "b", reads=region)
    (race,) = find_races([a, b])
    assert str(race) == "b (t) reads A while a (s) may still write it: nothing lets b wait for a"
    with pytest.raises(ValueError, match="record_stream, wait_event, wait_stream"):
        PretendGPU(["record_steam"])
    with pytest.raises(IndexError):
        without([], 0)


@pytest.mark.parametrize(
    "forgets, says", [("wait_event", "F0 (compute) reads A while C0 (copy)"), ("record_stream", "writes A while F0")]
)
def test_the_two_famous_races_of_a_prefetcher(forgets, says):
    gpu = PretendGPU([forgets])
    seen = train(gpu, DevicePrefetcher(on_pretend(gpu), gpu))
    assert [x[0].item() for x in seen] == list(range(7)), "a race is no error: here all went well"
    assert says in " | ".join(map(str, find_races(gpu.operations)))


def test_without_record_stream_copies_take_memory_in_use_and_only_those_to_the_host_stop_it():
    def memory(forgets):
        gpu = PretendGPU(forgets)
        train(gpu, DevicePrefetcher(on_pretend(gpu), gpu))
        return [op.writes[0].block for op in gpu.operations if op.kind == "launch" and op.lane == "copy"][:4]

    first, second, third, fourth = memory(["record_stream"])
    assert (third, fourth) == (first, second)
    assert len(set(memory([]))) == 4
    gpu = PretendGPU()
    x = gpu.host(torch.ones(2)).to("cuda", non_blocking=True)
    (x * 2).copy_(x)
    assert not any(op.kind == "synchronize" for op in gpu.operations), "not one on the device, as in torch"
    pageable = gpu.host(torch.zeros(2), pinned=False)
    pageable.copy_(x, non_blocking=True)
    assert gpu.operations[-1].kind == "synchronize", "to pageable memory the call returns when the data are there"
    assert not x.to("cpu").is_pinned() and x.to("cpu", non_blocking=True).is_pinned(), "as torch makes them"


def test_reading_a_result_or_overwriting_a_batch_that_is_still_being_copied_is_a_race_of_the_host():
    for non_blocking, lanes in ((True, [("compute", HOST)]), (False, [])):
        gpu = PretendGPU()
        gpu.host(torch.ones(2)).to("cuda", non_blocking=True).to("cpu", non_blocking=non_blocking).sum()
        assert [(race.earlier.lane, race.later.lane) for race in find_races(gpu.operations)] == lanes
    gpu = PretendGPU()
    buffer = gpu.host(torch.ones(2), "buffer")
    on_device = buffer.to("cuda", non_blocking=True)
    buffer.fill_(3)
    assert "writes buffer" in str(find_races(gpu.operations)[0])
    del on_device


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("wait", ["none", "blocking copy", "wait_stream", "of the host"])
def test_a_pageable_copy_is_staged_not_done_so_it_races_as_a_pinned_one_does(pinned, wait):
    gpu = PretendGPU()
    side, x = gpu.new_stream("side"), gpu.host(torch.ones(4), "x", pinned=pinned)
    with gpu.use_stream(side):
        y = x.to("cuda", non_blocking=wait != "blocking copy")
    if wait == "wait_stream":
        gpu.current_stream().wait_stream(side)
    elif wait == "of the host":
        side.synchronize()
    y.record_stream(gpu.current_stream())
    z = y * 2
    assert [(race.earlier.lane, race.later.lane) for race in find_races(gpu.operations)] == (
        [("side", "compute")] if wait == "none" else []
    )
    x.fill_(3)  # what is staged has been read; what is pinned is read at any time until the copy is known to be done
    assert ("writes x" in " ".join(map(str, find_races(gpu.operations)))) == (
        pinned and wait in ("none", "wait_stream")
    )
    del z


@pytest.mark.parametrize("waits", [False, True])
def test_a_side_stream_needs_wait_stream_both_ways(waits):
    gpu = PretendGPU()
    side, x = gpu.new_stream("side"), gpu.host(torch.ones(2)).to("cuda", non_blocking=True)
    if waits:
        side.wait_stream(gpu.current_stream())
    with gpu.use_stream(side):
        y = x + 1
    if not waits:
        assert find_races(gpu.operations)
        return
    gpu.current_stream().wait_stream(side)
    assert plain(y * 2).tolist() == [4.0, 4.0]
    assert find_races(gpu.operations) == []


def test_with_one_chunk_or_buffer_nothing_overlaps_with_many_the_slowest_lane_or_the_host_decides():
    one, many = predict_chunks(1, 3, 4, 2), predict_chunks(100, 3, 4, 2)
    assert one.makespan == 9 and overlap_share(one) == 0
    assert 4 < many.makespan < 4.2 and overlap_share(many) > 0.97
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
    clocks, events, starts = defaultdict(float), {}, {}
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
    assert overlap_share(Trace(spans)) == 0.5 and overlap_share(Trace(spans[:1])) == 0.0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_seconds_that_are_none_are_told(seconds):
    with pytest.raises(ValueError, match="number of seconds"):
        predict_chunks(2, seconds, 1, 1)
    with pytest.raises(ValueError, match="number of seconds"):
        predict_prefetch(2, 1, seconds)
