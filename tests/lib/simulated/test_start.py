"""Starting devices: once a process; again to change what they cost."""

import pytest
import torch

from lib import simulated
from lib.simulated import Kernel
from lib.simulated import starting as module
from tests.lib.simulated.conftest import MEMORY


def test_torch_finds_the_devices_and_their_module(device):
    assert torch.accelerator.current_accelerator() == torch.device("simgpu")
    assert torch.accelerator.device_count() == 2
    assert torch.get_device_module("simgpu").device_count() == 2
    assert torch.ones(3, device="simgpu:1").device == torch.device("simgpu:1")


def test_a_device_that_was_not_started_is_refused(device):
    with pytest.raises(RuntimeError, match=r"there is no simgpu:2: 2 simulated device\(s\)"):
        torch.ones(3, device="simgpu:2")


@pytest.mark.parametrize("other", [{"count": 3, "memory": MEMORY}, {"count": 2, "memory": None}])
def test_another_count_or_memory_needs_a_process_of_its_own(device, other):
    with pytest.raises(ValueError, match="a process of their own"):
        simulated.start(**other)


def test_the_costs_change_only_while_the_devices_are_idle(device):
    simulated.sleep(0.2)
    with pytest.raises(RuntimeError, match="a simulated device is at work"):
        device(kernel=Kernel(seconds=1))
    torch.accelerator.synchronize()
    device(kernel=Kernel(seconds=0.001))


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": 65}, {"count": 2, "memory": 0}])
def test_sizes_that_make_no_sense_are_refused(device, wrong):
    with pytest.raises(ValueError, match="must be at"):
        simulated.start(**wrong)


def test_what_can_be_forgotten_is_named(device):
    with pytest.raises(ValueError, match="forgets: 'copy' is none of wait_event, wait_stream, record_stream"):
        device(forgets={"copy"})


def test_stop_says_that_it_is_not_possible(device):
    with pytest.raises(RuntimeError, match="until the process ends"):
        simulated.stop()


def test_beside_a_real_accelerator_it_is_refused_with_the_way_out(device, monkeypatch):
    monkeypatch.setattr(module, "_started", None)
    real = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: real)
    with pytest.raises(RuntimeError, match=r"real accelerator here \(cuda\).*CUDA_VISIBLE_DEVICES=''"):
        simulated.start(2)


def test_negative_sleep_is_refused(device):
    with pytest.raises(ValueError, match="seconds must be 0 or more"):
        simulated.sleep(-1)
