"""Copies: one engine a direction, `non_blocking` as CUDA has it, and nothing arrives before its time."""

import pytest
import torch

from lib.simulated import Link, profile, sleep
from tests.lib.simulated.common import new_stream, seconds

BYTES = 4 << 20
SLOW = Link(bandwidth=BYTES / 0.2)  # 0.2 s for each of these tensors


def host(value=1.0, pinned=True):
    x = torch.full((BYTES // 4,), value)
    return x.pin_memory() if pinned else x


def caller_waits(function):
    """Say whether a call returned only when the copy was there."""
    torch.accelerator.synchronize()
    held = function()  # else its memory is written to once more, when it is freed
    done = torch.accelerator.current_stream().query()
    del held
    return done


def test_to_the_device_only_non_blocking_returns_at_once(device):
    x = host()
    device(host_link=SLOW)
    assert not caller_waits(lambda: x.to("simgpu", non_blocking=True))
    assert caller_waits(lambda: x.to("simgpu"))


def test_pageable_memory_is_staged_so_its_owner_may_change_it_at_once(device):
    x = host(pinned=False)
    device(host_link=SLOW)
    y = x.to("simgpu", non_blocking=True)
    x.fill_(2)
    assert y.sum() == y.numel()


def test_pinned_memory_is_read_while_it_is_copied_so_a_change_is_a_race(device):
    x = host()
    device(host_link=SLOW)
    y = x.to("simgpu", non_blocking=True)
    x.fill_(2)
    assert y.sum() == 2 * y.numel()


def test_pinned_memory_that_its_owner_lets_go_of_is_held_until_it_has_been_copied(device):
    x = host(3.0)
    device(host_link=SLOW)
    y = x.to("simgpu", non_blocking=True)
    del x
    again = host(5.0)
    assert y.sum() == 3 * y.numel()
    assert again[0] == 5


def test_to_the_host_non_blocking_returns_at_once_only_into_pinned_memory(device):
    x = torch.ones(BYTES // 4, device="simgpu")
    pinned = torch.zeros(BYTES // 4).pin_memory()
    pageable = torch.zeros(BYTES // 4)
    device(host_link=SLOW)
    assert not caller_waits(lambda: pinned.copy_(x, non_blocking=True))
    assert pinned[0] == 0, "it isn't there yet"
    torch.accelerator.synchronize()
    assert pinned[0] == 1
    assert caller_waits(lambda: pageable.copy_(x, non_blocking=True))
    assert pageable[0] == 1


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


def test_between_devices_a_copy_waits_for_both_and_both_wait_for_it(device):
    device(peer_link=Link(latency=0.03))
    with torch.simgpu.device(0):
        x = torch.empty(1000, device="simgpu:0")
        sleep(0.03)
        x.fill_(7)
    y = x.to("simgpu:1")
    x.fill_(8)  # behind the copy
    assert y.sum() == 7000
    assert y.device == torch.device("simgpu:1")


def test_another_dtype_and_other_strides_arrive_as_on_the_cpu(device):
    x = torch.arange(12.0).reshape(3, 4)
    y = x.t().to("simgpu").to(torch.float64)[1:, ::2]
    assert torch.equal(y.cpu(), x.t().double()[1:, ::2])
