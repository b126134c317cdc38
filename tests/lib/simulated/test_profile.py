"""The device's own profiler: a Trace of what each stream has done, on the devices' clock."""

import pytest
import torch

from lib.simulated import Kernel, Link, counters, profile, sleep
from lib.timeline import overlap_share
from tests.lib.simulated.common import new_stream


def test_a_lane_a_stream_with_kernels_copies_and_waits(device):
    side = new_stream()
    x = torch.ones(1 << 20).pin_memory()
    device(kernel=Kernel(seconds=0.01), host_link=Link(latency=0.3))  # a busy host comes in time to wait
    with profile() as found:
        with side:
            y = x.to("simgpu", non_blocking=True)
        torch.accelerator.current_stream().wait_stream(side)
        y.add_(1)
    (trace,) = found
    assert [(span.kind, span.label) for span in trace.only(lane="simgpu:0 stream 0")] == [
        ("wait", "wait"),
        ("compute", "add"),
    ]
    (copy,) = trace.only(kind="copy")
    (kernel,) = trace.only(kind="compute")
    assert copy.label == "copy from host"
    assert copy.duration == pytest.approx(0.3, abs=1e-3)
    assert kernel.duration == pytest.approx(0.01, abs=1e-3)
    assert kernel.start >= copy.end - 1e-6


def test_overlap_is_measured(device):
    side = new_stream()
    x = torch.ones(1 << 20).pin_memory()
    device(host_link=Link(latency=0.05))

    def run(stream):
        with profile() as found:
            with stream:
                x.to("simgpu", non_blocking=True)
            sleep(0.05)
        return overlap_share(found[0])

    run(side)
    assert run(side) > 0.8
    assert run(torch.accelerator.current_stream()) == 0


def test_only_what_runs_within_the_profile_is_in_it(device):
    sleep(0.01)
    with profile() as found:
        pass
    sleep(0.01)
    assert len(found[0]) == 0


def test_tasks_for_which_the_cpu_took_longer_than_modelled_are_counted(device):
    x = torch.ones(700, 700, device="simgpu")
    torch.accelerator.synchronize()
    counters(reset=True)
    device(kernel=Kernel(seconds=1e-6))
    for _ in range(3):
        x @ x
    torch.accelerator.synchronize()
    found = counters(reset=True)
    assert (found.tasks, found.overruns) == (3, 3)
    device(kernel=Kernel(seconds=0.2))
    x @ x
    torch.accelerator.synchronize()
    assert counters().overruns == 0
