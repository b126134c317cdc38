"""A stream is a thread: what is in one runs in order, two overlap, and only events and the host bring order between."""

import threading

import pytest
import torch

from lib.simulated import Kernel, profile, sleep
from tests.lib.simulated.common import late, new_stream, seconds


def test_what_is_in_one_stream_runs_in_order(device):
    device(kernel=Kernel(seconds=0.001))
    x = torch.zeros(4, device="simgpu")
    for k in range(10):
        x.mul_(2).add_(k)
    expected = 0
    for k in range(10):
        expected = 2 * expected + k
    assert x.tolist() == [expected] * 4


def test_two_streams_overlap_and_one_does_not(device):
    streams = [new_stream(), new_stream()]

    def run(chosen):
        for stream in chosen:
            with stream:
                sleep(0.3)

    one = seconds(lambda: run([streams[0], streams[0]]))
    two = seconds(lambda: run(streams))
    assert one >= 0.2
    assert two < 0.75 * one


def test_two_devices_overlap(device):
    def run(devices):
        for index in devices:
            with torch.simgpu.device(index):
                sleep(0.3)

    assert seconds(lambda: run([0, 1])) < 0.75 * seconds(lambda: run([0, 0]))


@pytest.mark.parametrize("name", ["wait_event", "wait_stream"])
def test_a_forgotten_wait_gives_a_wrong_number(device, name):
    device(forgets={name})
    stream = new_stream()
    x = late(1.0, stream=stream)
    torch.accelerator.current_stream().wait_stream(stream)
    assert torch.isnan(x.sum())


def test_elapsed_time_is_what_the_kernels_between_two_events_took(device):
    first, second = (torch.Event("simgpu", enable_timing=True) for _ in range(2))
    sleep(0.3)  # else the device would reach the first mark at once, and idle until a busy host has launched more
    first.record()
    sleep(0.05)
    second.record()
    second.synchronize()
    assert first.elapsed_time(second) == pytest.approx(50, abs=1)


def test_an_event_takes_what_one_of_cuda_takes(device):
    done = torch.simgpu.Event(blocking=True)
    sleep(0.3)
    done.record()
    assert not done.query()
    done.synchronize()
    assert done.query()
    with pytest.raises(ValueError, match="belongs to one process"):
        torch.simgpu.Event(interprocess=True)


def test_elapsed_time_of_what_has_not_happened_is_refused(device):
    first, second = (torch.Event("simgpu", enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(second)
    first.record()
    sleep(0.3)
    second.record()
    with pytest.raises(RuntimeError, match="must be completed"):
        first.elapsed_time(second)


def test_each_thread_has_a_current_stream_of_its_own(device):
    side = new_stream()
    seen = []
    with side:
        thread = threading.Thread(target=lambda: seen.append(torch.accelerator.current_stream()))
        thread.start()
        thread.join()
        assert torch.accelerator.current_stream() == side
    assert seen == [torch.simgpu.default_stream(0)]


def test_streams_nest_also_those_of_another_device(device):
    outer = new_stream(0)
    inner = new_stream(1)
    with torch.simgpu.stream(outer):
        with torch.simgpu.stream(inner):
            assert torch.accelerator.current_stream() == inner
            assert torch.accelerator.current_device_index() == 1
        assert torch.accelerator.current_stream() == outer
    assert torch.accelerator.current_device_index() == 0
    assert torch.accelerator.current_stream() == torch.simgpu.default_stream(0)
    assert torch.accelerator.current_stream(1) == torch.simgpu.default_stream(1)


def duration(function):
    """Return how long the one kernel of a call took, on the device's own clock."""
    with profile() as found:
        function()
    (kernel,) = found[0]
    return kernel.duration


def test_a_kernel_takes_the_time_that_was_asked_for(device):
    x = torch.zeros(4, device="simgpu")
    device(kernel=Kernel(seconds=0.02))
    assert duration(lambda: x.add_(1)) == pytest.approx(0.02)
    assert seconds(lambda: [x.add_(1) for _ in range(5)]) >= 0.1


def test_a_kernel_takes_the_time_of_its_work_or_of_its_memory_traffic(device):
    a = torch.ones(64, 64, device="simgpu")
    work = 2 * 64**3
    traffic = 3 * 4 * 64**2
    out = torch.empty(64, 64, device="simgpu")

    def product():
        torch.mm(a, a, out=out)

    device(kernel=Kernel(flops=work / 0.04))
    assert duration(product) == pytest.approx(0.04)
    device(kernel=Kernel(bandwidth=traffic / 0.04))
    assert duration(product) == pytest.approx(0.04, rel=0.4)
    device(kernel=Kernel(flops=work / 0.03, bandwidth=traffic / 0.01, launch=0.01))
    assert duration(product) == pytest.approx(0.04)


def test_a_kernel_that_the_cpu_needs_longer_for_takes_that_time(device):
    a = torch.ones(700, 700, device="simgpu")
    out = torch.empty_like(a)
    device(kernel=Kernel(seconds=1e-6))
    assert duration(lambda: torch.mm(a, a, out=out)) > 1e-4
