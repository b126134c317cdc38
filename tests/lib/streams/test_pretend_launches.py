"""What a PretendGPU writes down of a span, of a wait and of a cast: all of it, in the stream it belongs to."""

import pytest
import torch

from lib.streams import PretendGPU, find_races


def test_a_span_reads_and_writes_what_all_its_operators_do_but_its_own_results_are_no_input():
    gpu = PretendGPU()
    side = gpu.new_stream("side")
    x, y = (gpu.host(torch.ones(3)).to("cuda") for _ in range(2))
    with gpu.span(gpu.current_stream(), "compute", "F0"):
        first = x + 1
        second = first * y
        with side:
            elsewhere = y * 2
    launches = [op for op in gpu.operations if op.label == "F0"]
    assert [(op.lane, op.reads, op.writes) for op in launches] == [
        ("compute", (x.region, y.region), (first.region, second.region)),
        ("side", (y.region,), (elsewhere.region,)),
    ]


def test_what_races_with_the_second_operator_of_a_span_is_found():
    gpu = PretendGPU()
    x, y = (gpu.host(torch.ones(3)).to("cuda") for _ in range(2))
    gpu.synchronize()
    with gpu.span(gpu.current_stream(), "compute", "F0"):
        (x + 1) * y
    with gpu.new_stream("side"):
        y.zero_()
    assert find_races(gpu.operations)


def test_an_event_lets_that_stream_wait_which_it_is_given():
    gpu = PretendGPU()
    side = gpu.new_stream("side")
    event = gpu.current_stream().record_event()
    event.wait(side)
    event.wait()
    assert [op.lane for op in gpu.operations if op.kind == "wait"] == ["side", "compute"]


def test_memory_of_a_device_is_not_pinned_and_there_is_one_device_unless_told_otherwise():
    gpu = PretendGPU()
    assert not gpu.empty_like(torch.ones(3)).is_pinned()
    with pytest.raises(RuntimeError, match="there is no cuda:1"):
        gpu.host(torch.ones(3)).to("cuda:1")


def test_torchs_operator_that_moves_and_casts_copies_nothing_where_it_only_casts():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(3)).to("cuda")
    before = len(gpu.operations)
    y = torch.ops.aten._to_copy(x, dtype=torch.float64, device=x.device)
    (cast,) = [op for op in gpu.operations[before:] if op.kind == "launch"]
    assert (cast.reads, cast.writes) == ((x.region,), (y.region,))
