"""Memory is given away as CUDA's caching allocator gives it away, and what is read too early is loud."""

import pytest
import torch

from lib.simulated import sleep
from tests.lib.simulated.common import new_stream
from tests.lib.simulated.conftest import MEMORY

SIZE = 1 << 20


@pytest.fixture(autouse=True)
def _empty(device):
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats()


def block(size=SIZE):
    return torch.empty(size, dtype=torch.uint8, device="simgpu")


def test_new_memory_is_nan_and_minus_one():
    assert torch.empty(5, device="simgpu").isnan().all()
    assert torch.empty(5, dtype=torch.int64, device="simgpu").tolist() == [-1] * 5


def test_a_freed_block_goes_to_the_next_tensor_of_its_stream_at_once():
    x = block()
    sleep(0.3)  # the stream is busy, and still
    address = x.data_ptr()
    del x
    assert block().data_ptr() == address


def test_a_freed_block_goes_to_no_other_stream():
    x = block()
    address = x.data_ptr()
    del x
    with new_stream():
        assert block().data_ptr() != address


def test_freed_memory_becomes_nan_in_the_order_of_its_stream():
    x = torch.ones(1000, device="simgpu")
    total = x.sum()  # launched before x is freed: it reads ones
    stale = torch.as_strided(x, (1000,), (1,))
    pointer = stale.untyped_storage()
    del x, stale
    assert total == 1000
    y = torch.empty(0, device="simgpu").set_(pointer)
    del pointer
    assert y.sum() == 1000, "it was not freed: the storage was held"


def test_a_stream_that_was_recorded_keeps_the_block_until_it_is_done():
    side = new_stream()
    x = block()
    address = x.data_ptr()
    with side:
        sleep(0.3)
    x.record_stream(side)
    del x
    assert block().data_ptr() != address
    side.synchronize()
    assert block().data_ptr() == address


def test_a_forgotten_record_stream_gives_a_wrong_number(device):
    def run():
        side = new_stream()
        x = torch.ones(1000, device="simgpu")
        torch.accelerator.synchronize()
        with side:
            sleep(0.3)
            total = x.sum()
        x.record_stream(side)
        del x
        torch.empty(1000, device="simgpu").fill_(5)
        side.synchronize()
        return total.item()

    assert run() == 1000
    device(forgets={"record_stream"})
    assert run() != 1000


def test_record_stream_of_its_own_stream_changes_nothing():
    x = block()
    address = x.data_ptr()
    x.record_stream(torch.accelerator.current_stream())
    sleep(0.3)
    del x
    assert block().data_ptr() == address


def test_more_than_there_is_raises_the_error_of_torch_with_the_numbers():
    held = block(40 << 20)
    with pytest.raises(
        torch.OutOfMemoryError, match="Tried to allocate 30.00 MiB.*capacity of 64.00 MiB of which 24.00 MiB is free"
    ):
        block(30 << 20)
    assert held.numel() == 40 << 20


def test_the_device_goes_on_after_it_was_full():
    with pytest.raises(torch.OutOfMemoryError):
        block(MEMORY + 1)
    assert torch.ones(3, device="simgpu").sum() == 3


def test_the_cache_is_given_back_before_memory_runs_out():
    x = block(40 << 20)
    del x
    assert torch.accelerator.memory_reserved() == 40 << 20
    y = block(50 << 20)
    assert torch.accelerator.memory_reserved() == y.numel()


def test_what_another_stream_still_uses_is_waited_for_before_memory_runs_out():
    side = new_stream()
    x = block(40 << 20)
    with side:
        sleep(0.3)
    x.record_stream(side)
    del x
    assert block(50 << 20).numel() == 50 << 20


def test_the_devices_have_memory_of_their_own():
    here = block(40 << 20)
    there = torch.empty(40 << 20, dtype=torch.uint8, device="simgpu:1")
    assert here.numel() == there.numel()


def test_statistics_count_what_is_held_and_the_peak():
    before = torch.accelerator.memory_allocated()
    x = block()
    y = block()
    assert torch.accelerator.memory_allocated() - before == 2 * SIZE
    del x
    assert torch.accelerator.memory_allocated() - before == SIZE
    assert torch.accelerator.max_memory_allocated() - before == 2 * SIZE
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() - before == SIZE
    del y


def test_sizes_are_rounded_to_512_bytes():
    before = torch.accelerator.memory_allocated()
    x = block(1)
    assert torch.accelerator.memory_allocated() - before == 512
    assert x.numel() == 1


def test_empty_cache_gives_back_what_nobody_holds():
    x = block()
    del x
    torch.accelerator.empty_cache()
    assert torch.accelerator.memory_reserved() == torch.accelerator.memory_allocated()
