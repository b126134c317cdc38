"""What CUDA refuses is refused here, at once and with the reason; what the CPU's kernels would let pass, too."""

import pytest
import torch
from torch import nn

from lib.simulated import sleep

TWO_PLACES = {
    "cat": lambda x, host, other: torch.cat([x, host]),
    "stack of two devices": lambda x, host, other: torch.stack([x, other]),
    "product": lambda x, host, other: host.reshape(1, 4) @ x,
    "mask": lambda x, host, other: x.masked_fill(host > 0, 0.0),
    "scatter": lambda x, host, other: x.scatter_(0, torch.tensor([0]), 1.0),
    "embedding": lambda x, host, other: nn.functional.embedding(torch.tensor([1]), x.reshape(4, 1)),
    "weights left behind": lambda x, host, other: nn.Linear(4, 2)(x),
    "sum": lambda x, host, other: x + host,
    "sum of two devices": lambda x, host, other: x + other,
    "in place": lambda x, host, other: host.add_(x),
    "out": lambda x, host, other: torch.add(x, 1, out=host),
    "out on another device": lambda x, host, other: torch.add(x, 1, out=other),
    "out of no dimension": lambda x, host, other: torch.sum(x, 0, out=torch.tensor(0.0)),
}


@pytest.mark.parametrize("name", TWO_PLACES)
def test_tensors_of_two_places_are_refused(device, name):
    x = torch.arange(4.0, device="simgpu")
    host = torch.ones(4)
    other = torch.ones(4, device="simgpu:1")
    with pytest.raises(RuntimeError, match="same device.*simgpu:0"):
        TWO_PLACES[name](x, host, other)
    assert x.tolist() == [0, 1, 2, 3]
    assert host.tolist() == other.tolist() == [1] * 4


def test_numbers_and_indices_of_the_host_are_taken_as_on_cuda(device):
    x = torch.arange(4.0, device="simgpu")
    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3, 4]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    assert x[torch.tensor([True, False, False, True])].tolist() == [0, 3]
    x[torch.tensor([1])] = 5.0
    assert torch.where(x > 2, x, torch.tensor(-1.0)).tolist() == [-1, 5, -1, 3]
    host = torch.zeros(4)
    host.copy_(x)
    assert host.tolist() == [0, 5, 2, 3]


def test_a_list_of_tensors_may_be_of_many_places_as_on_cuda(device):
    places = ("simgpu:0", "simgpu:1", "cpu")
    added = torch._foreach_add([torch.ones(2, device=place) for place in places], 1.0)
    assert [(str(x.device), x.tolist()) for x in added] == [(place, [2, 2]) for place in places]


OVERLAPS = {
    "copy": lambda x: x[1:].copy_(x[:-1]),
    "assignment": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "in place": lambda x: x[1:].add_(x[:-1]),
    "out": lambda x: torch.add(x[:-1], 1, out=x[1:]),
    "into what is expanded": lambda x: x[:1].expand(4).add_(1),
    "copy into what is expanded": lambda x: x[:1].expand(4).copy_(x),
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_what_is_read_and_written_in_part_is_refused(device, name):
    x = torch.arange(4.0, device="simgpu")
    with pytest.raises(RuntimeError, match="single memory location"):
        OVERLAPS[name](x)
    x.add_(x).mul_(2)
    assert x.tolist() == [0, 4, 8, 12]


@pytest.mark.parametrize("place", ["cpu", "simgpu:0", "simgpu:1"])
def test_a_copy_of_another_size_is_refused_at_once(device, place):
    x = torch.zeros(3, device="simgpu")
    with pytest.raises(RuntimeError, match="size"):
        x.copy_(torch.ones(4, device=place), non_blocking=True)
    with pytest.raises(RuntimeError, match="size"):
        x[:0].copy_(torch.ones(4, device=place))
    assert x.copy_(torch.ones(1, device=place)).tolist() == [1, 1, 1]


def test_a_generator_of_another_kind_is_refused_wherever_it_is_used(device):
    with pytest.raises(RuntimeError, match="'simgpu' device type for generator but found 'cpu'"):
        torch.rand(2, device="simgpu", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="same device"):
        torch.rand(2, generator=torch.Generator("simgpu"))
    with pytest.raises(RuntimeError, match="there is no simgpu:2"):
        torch.Generator("simgpu:2")


@pytest.mark.parametrize("name", ["simgpu:2", "simgpu:63"])
def test_a_device_that_was_not_started_is_refused_with_their_number(device, name):
    for use in (
        lambda: torch.ones(1, device=name),
        lambda: torch.ones(1).to(name),
        lambda: torch.Stream(name),
        lambda: torch.simgpu.synchronize(name),
        lambda: torch.simgpu.memory_allocated(name),
    ):
        with pytest.raises(RuntimeError, match="2 simulated device"):
            use()


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_nobody_sleeps_for_a_time_that_is_none(device, seconds):
    with pytest.raises(ValueError, match="seconds must be 0 or more"):
        sleep(seconds)


def test_torch_compile_says_which_backends_run_here(device):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).to("simgpu")
    x = torch.randn(3, 4, device="simgpu")
    with pytest.raises(Exception, match="backend='aot_eager'"):
        torch.compile(model)(x)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(model, backend=backend)(x), model(x))


def test_memory_of_a_device_is_not_pinned(device):
    with pytest.raises(RuntimeError, match="Only dense CPU tensors can be pinned"):
        torch.empty(3, device="simgpu", pin_memory=True)


@pytest.mark.parametrize("number", [-1, 33, 999])
def test_a_stream_that_no_device_has_is_refused(device, number):
    here = torch.accelerator.current_stream()
    stream = torch.Stream(stream_id=number, device_index=0, device_type=here.device_type)
    with pytest.raises(RuntimeError, match=f"no stream {number}, but 0 to 32"):
        stream.synchronize()
