"""Races: which there are without a wait or a record_stream, and how they are told."""

import pytest
import torch

from lib.runtime.regions import Region
from lib.streams import DevicePrefetcher, PretendGPU, find_races
from lib.streams.races import HOST, Operation, without
from tests.lib.races import assert_no_race
from tests.lib.streams.prefetched import on_pretend, plain, train


def test_a_race_is_told_in_words_and_a_pretend_gpu_knows_what_it_can_forget():
    region = (Region("A", 0, 4),)
    a = Operation("launch", "s", "a", writes=region)
    b = Operation("launch", "t", "b", reads=region)
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
    assert not x.to("cpu").is_pinned()
    assert x.to("cpu", non_blocking=True).is_pinned(), "as torch makes them"


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
    side = gpu.new_stream("side")
    x = gpu.host(torch.ones(4), "x", pinned=pinned)
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
    side = gpu.new_stream("side")
    x = gpu.host(torch.ones(2)).to("cuda", non_blocking=True)
    if waits:
        side.wait_stream(gpu.current_stream())
    with gpu.use_stream(side):
        y = x + 1
    if not waits:
        assert find_races(gpu.operations)
        return
    gpu.current_stream().wait_stream(side)
    assert plain(y * 2).tolist() == [4.0, 4.0]
    assert_no_race(gpu.operations)


@pytest.mark.parametrize("wrong", [PretendGPU(), [1], "abc", iter([]), None, [PretendGPU()]])
def test_what_is_no_list_of_operations_is_refused_and_never_called_free_of_races(wrong):
    with pytest.raises(TypeError, match="operations must be a list of Operations, .*: pass gpu.operations"):
        find_races(wrong)
