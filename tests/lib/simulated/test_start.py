"""Starting devices: once a process; again to change what they cost."""

import re
import subprocess
import sys

import pytest
import torch

from lib import simulated
from lib.simulated import Kernel, Link
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


BEFORE_ANY_TENSOR = """
import torch
from lib.simulated import sleep, start
start(2)
sleep(0.5)
for index in range(2):
    torch.accelerator.synchronize(index)
print(torch.ops.simgpu.idle(), torch.simgpu.memory_allocated())
"""


def test_synchronize_waits_also_before_the_first_tensor(device):
    done = subprocess.run([sys.executable, "-c", BEFORE_ANY_TENSOR], capture_output=True, text=True, timeout=120)
    assert done.stdout == "True 0\n", done.stderr


def test_beside_a_real_accelerator_it_is_refused_with_the_way_out(device, monkeypatch):
    monkeypatch.setattr(module, "_started", None)
    real = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: real)
    with pytest.raises(RuntimeError, match=r"real accelerator here \(cuda\).*CUDA_VISIBLE_DEVICES=''"):
        simulated.start(2)


def test_beside_apples_gpu_which_no_process_can_hide_it_starts(device, monkeypatch):
    real = torch.device("mps")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: real)
    module._refuse_beside_a_real_one()


def test_negative_sleep_is_refused(device):
    with pytest.raises(ValueError, match="seconds must be 0 or more"):
        simulated.sleep(-1)


@pytest.mark.parametrize("wrong", [{"kernel": 0.2}, {"host_link": 4e6}, {"peer_link": Kernel()}, {"kernel": Link()}])
def test_a_cost_that_is_a_bare_number_or_of_another_kind_is_refused_with_what_to_write(device, wrong):
    [(name, value)] = wrong.items()
    kind = "Kernel" if name == "kernel" else "Link"
    with pytest.raises(TypeError, match=rf"{name} must be a {kind}, such as {kind}\(.*, not {re.escape(repr(value))}"):
        device(**wrong)


def test_a_bare_number_stands_in_the_advice_if_it_is_one(device):
    with pytest.raises(TypeError, match=r"such as Kernel\(seconds=0\.2\), not 0\.2"):
        device(kernel=0.2)
    with pytest.raises(TypeError, match=r"such as Link\(bandwidth=4000000\.0\), not 4000000\.0"):
        device(host_link=4e6)


@pytest.mark.parametrize("wrong", ["wait_event", None, 3])
def test_calls_to_forget_are_a_list(device, wrong):
    with pytest.raises(TypeError, match=rf"forgets must be a list, such as \['wait_event'\], not {wrong!r}"):
        device(forgets=wrong)


@pytest.mark.parametrize("wrong", [[1, "a"], [[]], [None]])
def test_what_is_no_name_of_a_call_cannot_be_forgotten(device, wrong):
    with pytest.raises(ValueError, match=rf"forgets: {re.escape(repr(wrong[0]))} is none of wait_event"):
        device(forgets=wrong)


def test_another_count_is_told_how_to_go_on_with_the_devices_that_there_are(device):
    with pytest.raises(ValueError, match=rf"start\(2, memory={MEMORY}\) goes on with them"):
        simulated.start()


BEFORE_START = """
from lib.simulated import counters, profile, sleep
for use in (lambda: sleep(0.1), counters, lambda: profile().__enter__()):
    try:
        use()
    except RuntimeError as error:
        print(error)
"""


def test_before_start_each_call_says_that_start_comes_first():
    done = subprocess.run([sys.executable, "-c", BEFORE_START], capture_output=True, text=True, timeout=120)
    assert done.stdout == 3 * "no simulated device was started here: call lib.simulated.start() first\n", done.stderr


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1, 1e10])
def test_a_sleep_without_an_end_is_refused(device, seconds):
    with pytest.raises(
        ValueError, match=rf"seconds must be 0 or more, and at most 86400, not {re.escape(repr(seconds))}"
    ):
        simulated.sleep(seconds)


@pytest.mark.parametrize("seconds", ["1", None, True])
def test_a_sleep_is_a_number_of_seconds(device, seconds):
    with pytest.raises(TypeError, match=rf"seconds must be a number, such as 0\.5, not {seconds!r}"):
        simulated.sleep(seconds)


AFTER_A_BACKWARD = """
import warnings
import torch
from lib.simulated import start

weight = torch.ones(3, requires_grad=True)
weight.sum().backward()
with warnings.catch_warnings(record=True) as told:
    start(2)
start(2)  # once is enough
print(*[warning.message for warning in told])
x = torch.ones(3, device="simgpu:1")
print(x.mul(2).sum().item())
weight.sum().backward()
print(weight.grad.tolist())
"""


def test_started_after_a_backward_it_says_that_none_will_work_on_the_devices_and_all_else_does():
    done = subprocess.run([sys.executable, "-c", AFTER_A_BACKWARD], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told, computed, gradient = done.stdout.splitlines()
    assert "Call lib.simulated.start before the first backward (restart the kernel)" in told
    assert computed == "6.0"
    assert gradient == "[2.0, 2.0, 2.0]"
