"""The numbers that `make bench` prints of the simulated device, as ratios within one run; it has four devices."""

import pytest

from tests.bench.bench_simulated import CLOCKS, DEVICES, LAYERS, MICRO_BATCHES, predictions
from tests.bench.common import in_own_process

LONG = 4.0  # ms


@pytest.fixture(scope="module")
def measured():
    return in_own_process("tests.bench.bench_simulated", "json")


def test_kernels_and_copies_take_the_time_that_was_asked_for_by_the_devices_events(measured):
    for what, (asked, by_events, by_the_host) in measured["taken"].items():
        assert 0.999 < by_events / asked < 1.25, what
        assert by_the_host > 0.9 * asked, what


def test_a_launch_costs_more_than_a_call_on_the_cpu_and_not_a_hundred_times_as_much(measured):
    us = measured["us"]
    assert us["the same on the CPU"] < us["launch"] < 100 * us["the same on the CPU"]


@pytest.mark.parametrize("way", ["forward", "and backward"])
def test_the_overhead_of_two_kernel_times_predicts_the_makespan_of_the_long_one(measured, way):
    path, makespans = measured[way]
    makespans = {float(ms): seconds for ms, seconds in makespans.items()}
    _, predicted = predictions(path, makespans)[LONG]
    assert 0.4 < predicted / makespans[LONG] < 2.5  # 1 on a calm machine; a busy one stops a step for a while


def test_four_devices_beat_the_kernels_of_one_and_not_the_clock(measured):
    path, makespans = measured["forward"]
    seconds = makespans[str(LONG)]
    kernels_of_one_device = LAYERS * DEVICES * MICRO_BATCHES * LONG / 1000
    assert path >= CLOCKS * LAYERS
    assert CLOCKS * LAYERS * LONG / 1000 <= seconds < 0.75 * kernels_of_one_device


def test_what_is_predicted_is_the_path_at_the_overhead_that_was_put_in():
    path = 22.0
    o = 3e-4
    exact = {ms: path * (ms / 1000 + o) for ms in (0.25, 1.0, 4.0)}
    for ms, (fitted, predicted) in predictions(path, exact).items():
        assert fitted == pytest.approx(o)
        assert predicted == pytest.approx(exact[ms])
