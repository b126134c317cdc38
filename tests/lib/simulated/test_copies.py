"""Copies: one engine a direction, and nothing arrives before its time. Who waits for them: see rules/copies.py."""

import pytest
import torch

from lib.simulated import Link, profile, sleep
from tests.lib.simulated.common import new_stream, seconds

BYTES = 4 << 20
SLOW = Link(bandwidth=BYTES / 0.2)  # 0.2 s for each of these tensors


def host():
    return torch.ones(BYTES // 4).pin_memory()


def test_what_reads_a_copy_too_early_finds_nan(device):
    x = host()
    device(host_link=SLOW)
    side = new_stream()
    with side:
        y = x.to("simgpu", non_blocking=True)
    assert torch.isnan(y.sum())
    torch.accelerator.current_stream().wait_stream(side)
    assert y.sum() == y.numel()


def test_one_direction_has_one_engine_and_two_directions_overlap(device):
    x = host()
    back = host()
    y = torch.ones(BYTES // 4, device="simgpu")
    device(host_link=SLOW)
    streams = [new_stream(), new_stream()]

    def both(*copies):
        for stream, copy in zip(streams, copies, strict=True):
            with stream:
                copy()

    def there():
        x.to("simgpu", non_blocking=True)

    def home():
        back.copy_(y, non_blocking=True)

    same = seconds(lambda: both(there, there))
    opposite = seconds(lambda: both(there, home))
    assert same >= 0.4
    assert opposite < 0.75 * same


def test_a_copy_overlaps_with_a_kernel_on_another_stream(device):
    x = host()
    device(host_link=SLOW)
    side = new_stream()

    def run(stream):
        with stream:
            x.to("simgpu", non_blocking=True)
        sleep(0.2)

    assert seconds(lambda: run(side)) < 0.75 * seconds(lambda: run(torch.accelerator.current_stream()))


def test_latency_is_paid_by_the_smallest_copy(device):
    x = torch.ones(1).pin_memory()
    device(host_link=Link(latency=0.03))
    with profile() as found:
        x.to("simgpu", non_blocking=True)
    assert found[0].only(kind="copy").makespan == pytest.approx(0.03, rel=0.01)


def test_another_dtype_and_other_strides_arrive_as_on_the_cpu(device):
    x = torch.arange(12.0).reshape(3, 4)
    y = x.t().to("simgpu").to(torch.float64)[1:, ::2]
    assert torch.equal(y.cpu(), x.t().double()[1:, ::2])
