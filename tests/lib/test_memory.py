"""Memory is what the system says of a process: what is held, what is shared, what was freed."""

import multiprocessing
import os
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest

from lib.machine import machine_card
from lib.memory import Memory, MemoryWatch, device_peak, memory
from tests.lib.accelerators import FakeAccelerator
from tests.lib.refusal import refuses

MEGABYTES = 1_000_000


def test_an_interval_between_samples_is_above_zero():
    for interval in (0, -1, float("nan")):
        refuses(ValueError, "interval must be a number of seconds above 0", MemoryWatch, interval)


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
