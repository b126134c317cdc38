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
from lib.streams.races import HOST, waits, without
from lib.timeline import Recorder
from tests.lib.races import assert_no_race
from tests.lib.streams.prefetched import items, on_pretend, plain, train

Pair = namedtuple("Pair", "x y")


@pytest.mark.parametrize("depth", [1, 2, 5, 100])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_the_items_are_those_of_the_loader_in_its_order(depth, count):
    assert list(DevicePrefetcher(range(count), "cpu", depth)) == list(range(count))
    gpu = PretendGPU()
    prefetcher = DevicePrefetcher(on_pretend(gpu, count), gpu, depth)
    assert len(prefetcher) == count
    for _ in range(2):  # and in every epoch
        assert [x.tolist() for x in train(gpu, prefetcher)] == [x.tolist() for x in items(count)]
    assert_no_race(gpu.operations)


def test_a_user_who_asks_for_each_batch_in_another_stream_needs_no_more_memory():
    gpu = PretendGPU()
    with contextlib.ExitStack() as place:
        for batch in DevicePrefetcher(on_pretend(gpu, 30), gpu):
            batch.square()
            del batch
            place.enter_context(gpu.use_stream(gpu.new_stream("another")))
    assert_no_race(gpu.operations)
    copies = [op for op in gpu.operations if op.kind == "launch" and op.label.startswith("C")]
    assert len(copies) == 30
    assert len({region.block for op in copies for region in op.writes}) <= 5


def test_on_a_cpu_the_loader_is_read_when_needed_and_on_a_gpu_copies_go_ahead_by_depth():
    taken = []
    source = (taken.append(i) or i for i in range(5))
    iterator = iter(DevicePrefetcher(source, "cpu", 3))
    assert taken == []
    assert next(iterator) == 0
    assert taken == [0]
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
    assert got["b"][1][1:] == ("text", 3)
    assert got["c"].y is None
    assert isinstance(got["c"], Pair)
    assert isinstance(got["d"], OrderedDict)
    assert got["d"]["e"]["new"] == [], "a defaultdict keeps its default"
    assert not batch["a"].is_cuda
    assert not batch["d"]["e"]["f"].is_cuda, "the loader's batch is left alone"
    sample = SimpleNamespace(x=torch.zeros(1))
    assert next(iter(DevicePrefetcher([sample], gpu))) is sample, "what is no tensor is handed on itself"


def test_mappings_and_packed_sequences():
    frozen = each_tensor(lambda x: x + 1, MappingProxyType({"a": torch.zeros(1)}))
    assert frozen == {"a": torch.ones(1)}
    assert type(frozen) is MappingProxyType
    changed = each_tensor(lambda x: x + 1, UserDict(a=torch.zeros(1)))
    assert isinstance(changed, UserDict)
    assert changed["a"] == 1
    packed = pack_sequence([torch.ones(2), torch.ones(3)], enforce_sorted=False)
    moved = each_tensor(lambda x: x.to("meta"), packed)
    assert type(moved) is type(packed)
    assert moved.batch_sizes is packed.batch_sizes, "sizes stay on the host"
    assert {x.device.type for x in (moved.data, moved.sorted_indices, moved.unsorted_indices)} == {"meta"}


class Named(list):
    def __init__(self, name):
        super().__init__()
        self.name = name


class Twice(tuple):
    def __new__(cls, x):
        return super().__new__(cls, (x, x))


def test_a_list_or_tuple_that_is_made_in_a_way_of_its_own_stays_what_it_is():
    named = Named("rows")
    named += [torch.zeros(1), "text"]
    moved = each_tensor(lambda x: x + 1, named)
    assert type(moved) is Named
    assert moved.name == "rows"
    assert moved == [torch.ones(1), "text"]
    assert named[0] == 0, "and the loader's own is as it was"
    twice = each_tensor(lambda x: x + 1, Twice(torch.zeros(1)))
    assert type(twice) is Twice
    assert twice == (1, 1)


@pytest.mark.parametrize("depth", [1, 2, 10])
def test_an_exception_of_the_loader_comes_where_its_batch_would_have(depth):
    gpu = PretendGPU()
    seen = []

    def broken(batches):
        yield from batches[:3]
        raise KeyError("batch 3")

    with pytest.raises(KeyError, match="batch 3"):
        seen.extend(plain(x)[0].item() for x in DevicePrefetcher(broken(on_pretend(gpu)), gpu, depth))
    assert seen == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("end", ["break", "exception of the loader", "exception of the reader"])
def test_whatever_ends_an_epoch_nothing_stays_behind(end):
    gpu = PretendGPU()
    iterators = []
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
    gpu = PretendGPU()
    inside = []
    x = gpu.host(torch.zeros(6, 3), pinned=False)
    pin = type(x).pin_memory
    monkeypatch.setattr(type(x), "pin_memory", lambda x: (inside.extend(gpu._labels), pin(x))[1])
    list(DevicePrefetcher([x], gpu))
    StreamPipeline(torch.sin, 3, device=gpu)(x)
    assert inside == []
    assert sum(op.label == "pin" for op in gpu.operations) == 4


@pytest.mark.parametrize(
    "make, arguments, error, words",
    [
        (DevicePrefetcher, ([], "cpu", 0), ValueError, "depth"),
        *((DevicePrefetcher, ([], "cpu", depth), TypeError, "depth") for depth in (1.5, True)),
        (DevicePrefetcher, ([], "meta", 2), ValueError, "an accelerator with streams, such as 'cuda', not 'meta'"),
        *((DevicePrefetcher, ([], nothing, 2), TypeError, "device must be") for nothing in (None, 1.5, object())),
        (DevicePrefetcher, (3, "cpu", 2), TypeError, "iterable"),
        (partial(StreamPipeline, device="cpu"), (abs, 0), ValueError, "at least 1"),
        (partial(StreamPipeline, device="cpu", depth=0), (abs, 2), ValueError, "at least 1"),
    ],
)
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
    return {
        "a model": model,
        "a tuple of results": lambda x: (x * 2, x.sum(1)),
        "other dtype": lambda x: x > 0,
        "itself": lambda x: x,
        "a view": lambda x: x[:, 1:],
        "in place": lambda x: x.mul_(2),
    }


@pytest.mark.parametrize("stage", stages())
@pytest.mark.parametrize("rows, chunks, depth", [(12, 4, 2), (11, 4, 2), (5, 9, 2), (7, 3, 1), (7, 7, 3), (0, 2, 2)])
def test_the_result_is_that_of_the_unstreamed_stage(stage, rows, chunks, depth):
    function = stages()[stage]
    x = torch.randn(rows, 3)
    with torch.no_grad():
        expected = function(x.clone())
    gpu = PretendGPU()
    for device, given in (("cpu", x.clone()), (gpu, gpu.host(x.clone()))):
        got = plain(StreamPipeline(function, chunks, device=device, depth=depth)(given))
        torch.testing.assert_close(got, expected)
    assert_no_race(gpu.operations)


@pytest.mark.parametrize("atomic", [False, True])
def test_tuples_are_cut_alike(atomic):
    gpu = PretendGPU()
    x = torch.randn(7, 2)
    y = torch.arange(7)

    def stage(pair):
        return pair[0] * pair[1][:, None] if atomic else (pair[1], pair[0] + 1)

    got = plain(StreamPipeline(stage, 3, device=gpu)((gpu.host(x, "x"), gpu.host(y, "y"))))
    torch.testing.assert_close(got, stage((x, y)))
    torch.testing.assert_close(StreamPipeline(stage, 3, device="cpu")((x, y)), stage((x, y)))
    assert_no_race(gpu.operations)


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
    assert_no_race(gpu.operations)


NO_TENSORS = (None, "text", [torch.zeros(2)], {"y": torch.zeros(2)}, (torch.zeros(2), 3))


@pytest.mark.parametrize("device", ["cpu", "pretend"])
@pytest.mark.parametrize(
    "stage, error, words",
    [
        *((stage, ValueError, "stage got 2 rows") for stage in (lambda x: x[:1], torch.sum, lambda x: (x, x.mean()))),
        *((lambda x, y=y: y, TypeError, "expected a Tensor or a tuple") for y in NO_TENSORS),
    ],
)
def test_a_stage_that_gives_other_rows_or_no_tensors_is_told_so(device, stage, error, words):
    gpu = PretendGPU()
    x = torch.zeros(4, 2)
    pipeline = StreamPipeline(stage, 2, device="cpu" if device == "cpu" else gpu)
    with pytest.raises(error, match=words):
        pipeline(x if device == "cpu" else gpu.host(x))


@pytest.mark.parametrize("device", ["cpu", "pretend"])
def test_a_stage_gives_as_many_tensors_for_each_chunk(device):
    gpu = PretendGPU()
    x = torch.zeros(4, 2)
    calls = []

    def stage(x):
        calls.append(x)
        return (x, x) if len(calls) == 1 else (x,)

    pipeline = StreamPipeline(stage, 2, device="cpu" if device == "cpu" else gpu)
    with pytest.raises(ValueError):
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
    assert_no_race(gpu.operations)


def test_on_a_cpu_a_recorder_gets_a_span_a_chunk_and_no_gradients_are_kept():
    with Recorder() as recorder:
        StreamPipeline(lambda x: x, 3, device="cpu")(torch.zeros(6))
    assert [(s.lane, s.label) for s in recorder.trace()] == [("compute", f"F{i}") for i in range(3)]
    assert not StreamPipeline(nn.Linear(3, 2), 2, device="cpu")(torch.randn(4, 3)).requires_grad
