"""Ends of the process, forks, threads, Ctrl-C: nothing hangs, nothing crashes."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from lib.simulated import Kernel, sleep
from tests.lib.simulated.common import new_stream
from tests.sizes import size


def python(code, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


STARTED = size(suite=10, prove=100)  # an end costs 1.5 seconds of a core

# One process imports torch; each start is in a child of it, made before any device was started.
STARTS = """
    import os, sys, torch
    from lib.simulated import Kernel, start
    from lib.simulated.build import build_library
    build_library()
    torch.ones(1, device="meta").mul(2)   # what start imports: once, not in each child
    ended = []
    for k in range(int(sys.argv[1])):
        child = os.fork()
        if not child:
            start(3, kernel=Kernel(seconds=0.01))
            streams = [torch.Stream(f"simgpu:{j % 3}") for j in range(7)]
            kept = []
            for stream in streams:
                with stream:
                    x = torch.ones(1000, device=stream.device)
                    for _ in range(k % 5 + 1):
                        x = x * 2
                    kept.append(x)
                    torch.simgpu.sleep(20)   # far more than anybody would wait for
            sys.exit(0)
        ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(set(ended))
"""


@pytest.mark.costly
@pytest.mark.timeout(1500)
def test_a_process_ends_at_once_with_all_its_streams_at_work(device):
    """Of five, each has another number of tasks still to do on each stream."""
    code = textwrap.dedent(STARTS)
    arguments = [sys.executable, "-c", code, str(STARTED)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=1200)
    assert (done.stdout, done.returncode) == ("{0}\n", 0), done.stderr


ENDS_MEANWHILE = """
    import threading, time, torch
    from lib.simulated import Kernel, start
    start(1, kernel=Kernel(seconds=30))  # nobody is woken but by the end
    x = torch.ones(30, device="simgpu")
    x.mul(2)
    for _ in range(3):
        threading.Thread(target=torch.accelerator.synchronize, daemon=True).start()
    time.sleep(1)  # so that they do wait, on a busy machine, too
"""


@pytest.mark.costly
def test_a_process_may_end_while_daemon_threads_wait_for_a_device(device):
    """They wake up while the interpreter ends, and ask for its lock."""
    for _ in range(size(suite=4, prove=40)):
        process = python(ENDS_MEANWHILE)
        _, told = process.communicate(timeout=60)
        assert process.returncode == 0, told


SLOW_END = """
    class Slow:
        def __del__(self):
            begun = time.monotonic()
            while time.monotonic() - begun < 12:
                pass

    kept = Slow()
"""


@pytest.mark.prove  # 12 seconds of a core
def test_daemon_threads_that_wait_for_a_device_outlast_the_slowest_end(device):
    """Once they waited for ten seconds and then asked for the lock of an interpreter that was still about to end."""
    process = python(textwrap.dedent(ENDS_MEANWHILE) + textwrap.dedent(SLOW_END))
    _, told = process.communicate(timeout=120)
    assert process.returncode == 0, told


def in_a_fork(function):
    """Call a function in a forked child; return what it says, within 20 seconds."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, str(function()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    threading.Timer(20, lambda: None)
    with os.fdopen(read) as answers:
        said = answers.read()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_is_told_that_it_has_no_device(device):
    x = torch.ones(3, device="simgpu")
    sleep(0.05)
    assert in_a_fork(lambda: x + 1).startswith("RuntimeError: the simulated device can't be used in a forked process")
    assert in_a_fork(lambda: torch.ones(3, device="simgpu")).startswith(
        "RuntimeError: the simulated device can't be used"
    )
    assert in_a_fork(lambda: torch.simgpu._is_in_bad_fork()) == "True"
    assert x.sum() == 3


def test_a_forked_child_that_lets_go_of_the_devices_memory_ends(device):
    held = [torch.ones(3, device="simgpu") for _ in range(10)]
    assert in_a_fork(lambda: held.clear() or torch.ones(2).sum().item()) == "2.0"
    assert sum(x.sum().item() for x in held) == 30


def ask_for_all_that_has_a_lock():
    """In a forked child: each says no or answers, and none waits for a lock that nobody will give back."""
    x = torch.ones(100)
    assert not x.is_pinned()
    refused = 0
    for use in (x.pin_memory, torch.simgpu.memory_allocated, torch.accelerator.synchronize, lambda: x.to("simgpu")):
        try:
            use()
        except RuntimeError:
            refused += 1
    torch.manual_seed(3)
    return refused, (x * 2).sum().item()


def test_a_child_that_is_forked_while_threads_are_at_work_waits_for_no_lock_of_theirs(device):
    over = threading.Event()

    def work():
        while not over.is_set():
            torch.ones(10).pin_memory().to("simgpu:1", non_blocking=True).add_(1)

    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    try:
        said = {in_a_fork(ask_for_all_that_has_a_lock) for _ in range(20)}
    finally:
        over.set()
        for worker in workers:
            worker.join(60)
    assert said == {"(4, 200.0)"}


def test_a_dataloader_with_workers_feeds_the_device(device):
    data = TensorDataset(torch.arange(20.0))
    loader = DataLoader(data, batch_size=5, num_workers=2, pin_memory=True)
    total = torch.zeros((), device="simgpu")
    for (x,) in loader:
        total += x.to("simgpu", non_blocking=True).sum()
    assert total == 190


def test_ctrl_c_reaches_a_caller_that_waits_for_the_device(device):
    process = python(
        """
        import torch
        from lib.simulated import start, sleep
        start(1)
        torch.ones(1, device="simgpu").sum().item()
        print("ready", flush=True)
        try:
            sleep(1.0)
            torch.accelerator.synchronize()
            sleep(3.0)
            print("not interrupted")
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=30)
    assert said == "interrupted\n", errors
    assert process.returncode == 0


def test_many_threads_launch_into_many_streams(device):
    device(kernel=Kernel(seconds=0.0005))
    totals = {}

    def work(number):
        stream = new_stream(number % 2)
        with stream:
            x = torch.zeros(10, device=stream.device)
            for _ in range(30):
                x = x + number
        stream.synchronize()
        totals[number] = x.sum().item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert totals == {number: 300.0 * number for number in range(8)}


def test_threads_that_make_streams_at_once_leave_the_number_of_threads_alone(device):
    before = number_of_threads()
    go = threading.Barrier(8)

    def work(number):
        go.wait()
        new_stream(number % 2).synchronize()

    for _ in range(20):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert number_in_a_new_thread() == before


def number_of_threads():
    """Return the number of this thread, and make it that of new ones: a DataLoader that pins has left 1 there."""
    torch.set_num_threads(torch.get_num_threads())
    return torch.get_num_threads()


def number_in_a_new_thread():
    """Return with how many threads of its own torch computes in a thread that begins now."""
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return seen[0]


def test_the_callers_number_of_threads_is_left_alone(device):
    before = number_of_threads()
    new_stream().synchronize()
    assert torch.get_num_threads() == before
    assert number_in_a_new_thread() == before
