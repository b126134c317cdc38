"""A kernel fails after its call has returned: the next synchronisation says so, with the operator's name."""

import pytest
import torch

from lib.simulated import Kernel
from tests.lib.simulated.common import new_stream


def fail(index=0):
    x = torch.ones(10, device=f"simgpu:{index}")
    return x.index_select(0, torch.tensor([20], device=f"simgpu:{index}"))


WAYS = {
    "device": lambda y: torch.accelerator.synchronize(),
    "stream": lambda y: torch.accelerator.current_stream().synchronize(),
    "event": lambda y: torch.accelerator.current_stream().record_event().synchronize(),
    "item": lambda y: y.sum().item(),
    "to the host": lambda y: y.cpu(),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_next_synchronisation_names_device_operator_and_reason(device, way):
    device(kernel=Kernel(seconds=0.001))
    y = fail()
    with pytest.raises(RuntimeError, match="simgpu:0, index_select: index out of range"):
        WAYS[way](y)


def test_it_is_told_once_and_the_device_goes_on(device):
    fail()
    with pytest.raises(RuntimeError, match="index_select"):
        torch.accelerator.synchronize()
    torch.accelerator.synchronize()
    assert torch.ones(3, device="simgpu").sum() == 3


def test_the_first_of_several_is_told(device):
    x = torch.ones(3, device="simgpu")
    too_large = torch.tensor([7], device="simgpu")
    x.index_select(0, too_large)
    x.gather(0, too_large)
    with pytest.raises(RuntimeError, match="index_select"):
        torch.accelerator.synchronize()


def test_another_device_does_not_hear_of_it(device):
    fail(1)
    torch.accelerator.synchronize(0)
    with pytest.raises(RuntimeError, match="simgpu:1, index_select"):
        torch.accelerator.synchronize(1)


def test_an_error_on_one_stream_is_heard_on_another_of_its_device(device):
    side = new_stream()
    with side:
        fail()
    while not side.query():
        pass
    with pytest.raises(RuntimeError, match="index_select"):
        torch.accelerator.current_stream().synchronize()


def test_wrong_shapes_are_refused_at_once_as_everywhere_in_torch(device):
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.ones(2, 3, device="simgpu") @ torch.ones(2, 3, device="simgpu")


def test_two_devices_in_one_operator_are_refused(device):
    with pytest.raises(RuntimeError, match="device"):
        torch.ones(3, device="simgpu:0") + torch.ones(3, device="simgpu:1")
