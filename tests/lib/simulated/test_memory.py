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


def test_of_several_freed_blocks_the_one_made_first_is_given_away_first():
    blocks = [block() for _ in range(3)]
    addresses = [x.data_ptr() for x in blocks]
    del blocks[1]
    del blocks[0]
    again = [block(), block()]
    assert [x.data_ptr() for x in again] == addresses[:2]


def test_memory_is_nan_again_in_the_order_of_its_stream():
    x = torch.ones(1000, device="simgpu")
    sleep(0.3)
    total = x.sum()  # launched before x is freed: it reads ones
    del x
    y = torch.empty(1000, device="simgpu")
    assert total == 1000
    assert y.isnan().all()


def test_freed_memory_is_left_alone_until_its_stream_takes_it_again():
    side = new_stream()
    with side:
        x = torch.ones(1000, device="simgpu")
    side.synchronize()
    sleep(0.3)
    total = x.sum()
    del x  # nobody else will have it before the two streams have met
    side.synchronize()
    side.wait_stream(torch.accelerator.current_stream())
    with side:
        torch.zeros(1000, device="simgpu")
    assert total == 1000


def test_memory_is_left_alone_until_somebody_uses_it_again():
    # here that is a copy between devices, in a stream of the source, which has waited for the reader
    reader = new_stream(1)
    source = torch.ones(1000, device="simgpu:0")
    x = torch.full((1000,), 5.0, device="simgpu:1")
    for index in range(2):
        torch.accelerator.synchronize(index)
    with reader:
        sleep(0.3)
        total = x.sum()
    torch.accelerator.current_stream(0).wait_stream(reader)
    del x
    y = source.to("simgpu:1", non_blocking=True)
    assert total.item() == 5000
    assert y.sum() == 1000


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


def test_a_recorded_stream_of_another_device_keeps_the_block_too():
    there = new_stream(1)
    x = block()
    address = x.data_ptr()
    with there:
        sleep(0.3)
    x.record_stream(there)
    del x
    torch.accelerator.synchronize(0)
    assert block().data_ptr() != address
    there.synchronize()
    assert block().data_ptr() == address


def test_the_default_stream_of_another_device_is_not_the_one_of_the_block():
    x = block()
    address = x.data_ptr()
    with torch.simgpu.device(1):
        sleep(0.3)
    x.record_stream(torch.accelerator.current_stream(1))
    del x
    torch.accelerator.synchronize(0)
    assert block().data_ptr() != address


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
    others = torch.accelerator.memory_reserved()  # what another test has left alive
    x = block(40 << 20)
    del x
    assert torch.accelerator.memory_reserved() - others == 40 << 20
    y = block(50 << 20)
    assert torch.accelerator.memory_reserved() - others == y.numel()


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
