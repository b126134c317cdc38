"""What a PretendGPU takes for its own: what is pinned stays as it is, and nothing of another PretendGPU gets in."""

import pytest
import torch

from lib.streams import PretendGPU, find_races


def test_what_is_pinned_is_pinned_already():
    gpu = PretendGPU()
    x = gpu.host(torch.ones(4))
    assert x.pin_memory() is x
    assert gpu.host(x, "another name") is x
    assert not gpu.operations


def test_two_tensors_of_the_host_are_two_also_if_they_are_given_one_name():
    gpu = PretendGPU()
    side = gpu.new_stream()
    for new in (
        lambda: gpu.host(torch.ones(4)),
        lambda: gpu.host(torch.ones(4), "batch"),
        lambda: gpu.pinned((4,), torch.float32),
    ):
        first = new()
        second = new()
        with gpu.use_stream(side):
            first.to(gpu.device, non_blocking=True)
        second.fill_(2.0)
    assert not find_races(gpu.operations)


def test_streams_and_memory_of_two_gpus_do_not_mix():
    one = PretendGPU()
    other = PretendGPU()
    with (
        pytest.raises(ValueError, match="copy is a stream of another PretendGPU"),
        one.use_stream(other.new_stream("copy")),
    ):
        pass
    event = other.current_stream().record_event()
    mixed = {
        "a wait": lambda: one.current_stream().wait_event(event),
        "a wait for a stream": lambda: one.current_stream().wait_stream(other.current_stream()),
        "a record": lambda: event.record(one.current_stream()),
        "a named stream": lambda: one.empty_like(torch.ones(4)).record_stream(other.current_stream()),
    }
    for mix in mixed.values():
        with pytest.raises(ValueError, match="of another PretendGPU: make it anew"):
            mix()
    x = one.empty_like(torch.ones(4))
    y = other.empty_like(torch.ones(4))
    with pytest.raises(RuntimeError, match="memory of another PretendGPU"):
        x + y
    with pytest.raises(RuntimeError, match="memory of another PretendGPU"):
        x.copy_(other.host(torch.ones(4)))
