"""What was measured is what ran, in the order it ran; no test here depends on how fast the machine is."""

import getpass
import importlib
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
import torch

from lib.measure import Comparison, Memory, MemoryWatch, Timing, compare, device_peak, machine_card, measure, memory
from lib.text import format_bytes, format_share, format_time, plural, table
from tests.lib.accelerators import FakeAccelerator
from tests.lib.refusal import refuses

# --- time ---------------------------------------------------------------------------------------------------------
MODULE = importlib.import_module("lib.measure")  # lib.measure itself is the function


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
    (dict(device="meta"), ValueError, "device must be cpu or cuda, or another accelerator with streams, not 'meta'"),
])  # fmt: skip
def test_bad_arguments_raise_before_anything_runs(arguments, error, message):
    runs: list[int] = []
    refuses(error, message, measure, lambda: runs.append(1), **arguments)
    assert runs == []
    with pytest.raises(TypeError, match=r"ours must be a function of no arguments, not 45; write `lambda: work\(x\)`"):
        compare({"ours": sum(range(10))})
    refuses(ValueError, "nothing to compare", compare, {})
    for interval in (0, -1, float("nan")):
        refuses(ValueError, "interval must be a number of seconds above 0", MemoryWatch, interval)


# --- units --------------------------------------------------------------------------------------------------------
def test_numbers_are_written_with_three_digits_and_a_fitting_unit():
    times = (0.0, 1e-10, 5e-7, 0.000123456, 0.0594, 0.99949, 0.9996, 12.345, 1234.5)
    assert [format_time(seconds) for seconds in times] == (
        ["0 s", "0.100 ns", "500 ns", "123 µs", "59.4 ms", "999 ms", "1.00 s", "12.3 s", "1234 s"]
    )
    in_units = (format_time(0.5, "ms"), format_time(7, "clock"), format_time(1, "clock"), format_time(1.5, "clock"))
    assert in_units == ("500 ms", "7 clocks", "1 clock", "1.5 clocks")
    sizes = [format_bytes(size) for size in (0, 999, 1000, 2.5e9, -1e6)]
    assert sizes == ["0 B", "999 B", "1.00 kB", "2.50 GB", "-1.00 MB"]
    assert format_share(0.204) == "20 %"
    assert [plural(n, "rank") for n in (0, 1, 2, 1234567)] == ["0 ranks", "1 rank", "2 ranks", "1234567 ranks"]
    assert [plural(n, "copy", "copies") for n in (1, 2)] == ["1 copy", "2 copies"]
    aligned = table([("lane", "spans"), ("a", "7"), ("longer", "")])
    assert aligned.splitlines() == ["lane    spans", "a           7", "longer"]


# --- memory -------------------------------------------------------------------------------------------------------
MEGABYTES = 1_000_000


def test_memory_adds_up_and_what_is_unknown_stays_unknown():
    assert Memory(3, 2, 1) + Memory(30, 20, 10) == Memory(33, 22, 11)
    assert Memory(3, 2, 1) - Memory(1, 1, 1) == Memory(2, 1, 0)
    assert (Memory(3, None, 1) + Memory(3, 2, None)) == Memory(6, None, None)
    assert str(Memory(2_000_000, None, 1000)) == "PSS unknown, USS 1.00 kB, RSS 2.00 MB"


def test_what_is_held_is_seen_and_what_is_freed_is_seen_in_the_peak_only():
    with MemoryWatch(interval=0.002) as watch:
        held = bytearray(60 * MEGABYTES)
        before = len(watch.samples)
        while len(watch.samples) < before + 2:  # one may have begun before there was anything to see
            time.sleep(0.001)
        del held
    assert watch.extra.uss > 50 * MEGABYTES
    first = watch.samples[0]
    last = watch.samples[-1]
    with pytest.raises(ZeroDivisionError), MemoryWatch() as broken:
        _ = 1 / 0
    assert not broken._thread.is_alive()
    assert len(broken.samples) >= 2, "it ends with its body even when that raises"
    assert first[0] < last[0]
    assert len(watch.samples) > 2
    assert last[1].uss < watch.peak.uss - 50 * MEGABYTES


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the PSS")
def test_a_page_that_a_forked_child_shares_counts_once_in_pss_and_twice_in_rss():
    held = bytearray(os.urandom(1)) * (60 * MEGABYTES)
    alone = memory()
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    done = fork.Event()

    def child():
        ready.set()
        done.wait(60)

    process = fork.Process(target=child)
    process.start()
    ready.wait(60)
    together = memory()
    parent_only = memory(children=False)
    done.set()
    process.join()
    assert together.rss - alone.rss > 50 * MEGABYTES, "RSS counts the shared pages again"
    assert together.pss - alone.pss < 30 * MEGABYTES, "PSS does not"
    assert parent_only.pss < together.pss
    assert len(held) == 60 * MEGABYTES


def test_what_a_child_holds_is_counted_and_can_be_left_out_and_a_dead_one_is_named():
    before = memory()
    code = f"import sys; held = bytes(1) * {60 * MEGABYTES}; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.stdout.readline()
    after = memory()
    child = memory(process.pid)
    without = memory(children=False)
    process.communicate()
    assert child.uss > 60 * MEGABYTES
    assert abs(after.uss - before.uss - child.uss) < 20 * MEGABYTES
    assert without.uss < after.uss - 50 * MEGABYTES
    refuses(ProcessLookupError, f"there is no process {process.pid}", memory, process.pid)
    gone = mock.Mock(memory_full_info=mock.Mock(side_effect=psutil.NoSuchProcess(1)))
    with mock.patch.object(psutil.Process, "children", return_value=[gone]):
        assert memory().rss > 0, "one that ends while it is counted is left out"


def test_a_system_that_tells_no_pss_or_denies_it_gives_none(monkeypatch):
    monkeypatch.setattr(psutil.Process, "memory_full_info", lambda self: SimpleNamespace(rss=5, uss=3))
    assert memory(children=False) == Memory(5, None, 3)
    monkeypatch.setattr(psutil.Process, "memory_full_info", mock.Mock(side_effect=psutil.AccessDenied(1)))
    assert memory(children=False).rss > 0
    assert memory(children=False).uss is None


def test_without_psutil_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    for use in (memory, MemoryWatch):
        refuses(ImportError, "measuring memory needs psutil: pip install psutil", use)
    card = machine_card()
    assert card.cores_physical is None
    assert card.threads >= 1


def test_the_peak_of_a_device_counts_what_a_stream_still_uses_after_python_has_let_go(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    with device_peak(gpu.device) as peak:
        gpu.bytes["active_bytes.all.peak"] = 70
        gpu.bytes["allocated_bytes.all.peak"] = 30
    assert peak.allocated == 70
    assert peak.extra == 60, "10 were there before"


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


# --- the machine card ---------------------------------------------------------------------------------------------
def test_the_card_names_what_a_number_depends_on():
    card = machine_card()
    assert 1 <= card.cores_usable <= card.cores_logical
    assert card.torch == torch.__version__
    assert card.python == platform.python_version()
    assert card.device == (card.gpu or card.cpu)
    lines = str(card).splitlines()
    assert [line.split()[0] for line in lines] == ["cpu", "gpu", "torch"]
    assert torch.__version__ in lines[2]
    text = str(card)  # gives away no host, no user and no path
    assert not {platform.node(), getpass.getuser()} & {*text.replace(",", " ").split()}
    assert str(Path.home()) not in text
    assert os.sep + "sys" not in text


def test_a_gpu_that_torch_sees_is_on_the_card(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA Test 9000", total_memory=80 * 10**9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(MODULE, "_driver", lambda: "570.1")
    card = machine_card()
    assert card.device == "NVIDIA Test 9000"
    assert "gpu    NVIDIA Test 9000, 80.0 GB, driver 570.1, CUDA 12.8" in str(card)


def test_a_container_that_may_use_fewer_cores_says_so(monkeypatch):
    def quota(text):
        monkeypatch.setattr(Path, "read_text", lambda self: text)
        return MODULE.usable_cores()

    free = quota("max 100000")
    assert free == quota("not what we expect")
    assert quota("100000 100000") == 1
    assert quota("50000 100000") == 1, "half a core is still a core to run on"
    assert quota(f"{100 * free * 100000} 100000") == free
