"""What was measured is what ran, in the order it ran; no test here depends on how fast the machine is."""

import time

import pytest
import torch

from lib.measure import Comparison, Timing, compare, measure
from lib.memory import device_peak
from tests.lib.accelerators import FakeAccelerator
from tests.lib.refusal import refuses


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_warm_up_runs_are_run_but_do_not_count_and_the_functions_of_a_comparison_take_turns(device):
    runs: list[int] = []
    timing = measure(lambda: runs.append(1), warmup=2, repeats=3, device=device)
    assert len(runs) == 5
    assert len(timing.samples) == 3
    assert (timing.device, timing.clock) == ("cpu", "perf_counter")
    assert all(sample >= 0 for sample in timing.samples)
    order = []
    compare({name: lambda name=name: order.append(name) for name in "ABC"}, warmup=1, repeats=2)
    assert "".join(order) == "ABC" * 3


def test_one_slow_run_moves_neither_the_median_nor_the_spread_far():
    timing = Timing((1.0, 2.0, 3.0, 4.0, 1000.0), "cpu", "perf_counter")
    assert timing.median == 3.0
    assert timing.spread == 2.0
    assert str(timing) == "3.00 s, spread 2.00 s (5 runs, cpu, perf_counter)"
    assert Timing((1.0,), "cpu", "perf_counter").spread == 0.0


def test_a_ratio_compares_within_a_round_so_a_machine_that_slows_down_does_not_matter():
    times = {"ours": (1.0, 10.0, 100.0), "torch": (2.0, 20.0, 200.0)}
    slowing = Comparison({name: Timing(samples, "cpu", "perf_counter") for name, samples in times.items()})
    assert (slowing.ratio("torch", "ours"), slowing.ratio("ours", "torch")) == (2.0, 0.5)
    assert list(slowing) == ["ours", "torch"]
    assert len(slowing) == 2
    refuses(KeyError, "nothing named 'C' was measured, only ours, torch", slowing.ratio, "ours", "C")
    timings = compare({"short": lambda: time.sleep(0.002), "long": lambda: time.sleep(0.02)}, repeats=3)
    assert timings.ratio("long", "short") > 1, "more work takes longer"


def test_the_table_of_a_comparison_is_aligned():
    times = {"ours": (0.0012, 0.0012), "torch's own": (0.0030, 0.0030)}
    table = Comparison({name: Timing(samples, "cpu", "perf_counter") for name, samples in times.items()})
    assert str(table).splitlines() == [
        "              median  spread  x ours",
        "ours         1.20 ms     0 s    1.00",
        "torch's own  3.00 ms     0 s    2.50",
        "2 rounds in turn, cpu, perf_counter",
    ]


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (dict(repeats=0), ValueError, "repeats must be at least 1, not 0"),
    (dict(warmup=-1), ValueError, "warmup must be at least 0, not -1"),
    (dict(repeats=2.5), TypeError, "repeats must be an integer"),
    (dict(device="meta"), ValueError, "device must be an accelerator with streams, such as 'cuda', not 'meta'"),
])  # fmt: skip
def test_bad_arguments_raise_before_anything_runs(arguments, error, message):
    runs: list[int] = []
    refuses(error, message, measure, lambda: runs.append(1), **arguments)
    assert runs == []
    with pytest.raises(TypeError, match="functions must be a mapping from names to functions, not function"):
        compare(lambda: 45)
    with pytest.raises(TypeError, match=r"ours must be a function of no arguments, not 45; write `lambda: work\(x\)`"):
        compare({"ours": sum(range(10))})
    refuses(ValueError, "nothing to compare", compare, {})


def test_on_a_gpu_the_time_is_that_between_two_events(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    gpu.work(7.0)  # what was launched before does not count
    timing = measure(lambda: gpu.work(2.0), device=gpu.devices[1], warmup=0, repeats=3)
    assert timing.samples == pytest.approx((2.0, 2.0, 2.0))
    assert timing.device == str(gpu.devices[1])
    assert timing.clock == "privateuseone events"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_its_peak_is_unknown_a_cuda_device_refused_and_cuda_stays_untouched():
    with pytest.raises(RuntimeError, match="torch sees no CUDA device here.*'cuda:1'; use 'cpu'"):
        measure(lambda: None, device="cuda:1")
    with device_peak() as peak:
        torch.zeros(10)
    assert peak.allocated is None
    assert peak.extra is None
    assert not torch.cuda.is_initialized()
