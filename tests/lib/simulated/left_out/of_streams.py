"""Programs on lib.streams: each batch is there when it is read, and its memory is nobody else's until it has been."""

import torch

from lib.simulated import Link
from lib.streams import DevicePrefetcher, PretendGPU, StreamPipeline
from tests.lib.races import assert_no_race
from tests.lib.simulated.left_out.scenario import WHERE, assert_same, busy, costs, late, rows, scenario

HERE = torch.device(WHERE[0])
SIZE = 1000


def batches(number):
    return [torch.full((SIZE,), float(k)).pin_memory() for k in range(number)]


@scenario
def a_step_reads_the_batch_that_was_copied(delay):
    costs(host_link=Link(latency=delay))
    sums = [batch.sum() for batch in DevicePrefetcher(batches(4), WHERE[0])]
    assert_same(sums, [batch.sum() for batch in batches(4)])


@scenario
def a_step_drops_its_batch_before_the_device_has_read_it(delay):
    costs()
    sums = []
    prefetched = DevicePrefetcher(batches(4), WHERE[0], depth=1)
    for batch in prefetched:
        busy(HERE, delay)
        sums.append(batch.sum())
        del batch
    assert_same(sums, [batch.sum() for batch in batches(4)])


@scenario
def the_host_is_not_further_ahead_than_depth(delay):
    costs()
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(HERE)
    before = torch.accelerator.memory_stats(HERE)["active_bytes.all.current"]
    for batch in DevicePrefetcher(batches(16), WHERE[0], depth=2):
        busy(HERE, delay / 10)
        batch.add_(1)
    peak = torch.accelerator.memory_stats(HERE)["active_bytes.all.peak"] - before
    # A batch's memory is back when the device comes to where it was let go of: behind the wait for the next copy.
    assert peak <= (2 * 2 + 1) * 4096, f"{peak} bytes are {peak / 4096:.0f} batches"


@scenario
def batches_of_a_pretend_gpu_are_in_no_race(delay):
    gpu = PretendGPU()
    for batch in DevicePrefetcher([gpu.host(torch.ones(8)) for _ in range(5)], gpu, depth=1):
        batch * 2
    assert_no_race(gpu.operations)


# ---- StreamPipeline


def slow_stage(delay):
    def stage(x):
        busy(x.device, delay)
        return x * 2

    return stage


@scenario
def chunks_are_computed_late(delay):
    costs()
    x = rows(12).pin_memory()
    assert_same(StreamPipeline(slow_stage(delay), chunks=4, device=HERE)(x), x * 2)


@scenario
def chunks_arrive_late(delay):
    costs(host_link=Link(latency=delay))
    x = rows(12).pin_memory()
    assert_same(StreamPipeline(lambda x: x * 2, chunks=4, device=HERE)(x), x * 2)


@scenario
def results_leave_late(delay):
    x = rows(12).pin_memory()
    wide = 1000
    costs(host_link=Link(bandwidth=3 * 4 * 8 * wide / delay))  # what comes back has so many times the bytes
    assert_same(StreamPipeline(lambda x: torch.cat([x] * wide, 1), chunks=4, device=HERE)(x), torch.cat([x] * wide, 1))


@scenario
def the_input_is_on_the_device_and_still_being_written(delay):
    costs()
    x = rows(12)
    assert_same(StreamPipeline(lambda x: x * 2, chunks=4, device=HERE)(late(x, HERE, delay)), x * 2)


@scenario
def chunks_of_a_pretend_gpu_are_in_no_race(delay):
    for depth in (1, 2):
        gpu = PretendGPU()
        x = gpu.host(rows(12))
        assert_same(StreamPipeline(lambda x: x * 2, chunks=4, device=gpu, depth=depth)(x).clone(), rows(12) * 2)
        assert_no_race(gpu.operations)
