"""How long an operation takes alone, in each of two processes, and in each of two threads that share a lock.

round_of   one round of the three
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from threading import Barrier, Thread
from typing import NamedTuple

import torch

WORKING = 0.012
"""Seconds that a measurement takes, about."""
SOON = 0.004
"""Seconds until two processes begin together."""
PYTHON_LOOP = 0
"""In place of a size: the operation is no product, but a loop in Python."""

_helpers: list[subprocess.Popen[str]] = []


class Seconds(NamedTuple):
    """Say how many seconds an operation takes."""

    alone: float
    processes: float
    threads: float


def round_of(size: int) -> Seconds:
    """Return the seconds of a product of this size, or of a PYTHON_LOOP; of two at once, until both are done."""
    times = max(2, int(WORKING * 20 / _seconds([_run(size, 20)])))
    alone = _seconds([_run(size, times)])
    return Seconds(alone / times, _in_processes(size, times) / times, _in_threads(size, times) / times)


def answer_questions() -> None:
    """Measure for another process: a line is a size, how often, and when to begin; ends with its input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    torch.set_num_threads(1)
    print("up", flush=True)
    for line in sys.stdin:
        size, times, start = line.split()
        print(*_run(int(size), int(times), partial(_wait_until, float(start))), flush=True)


def _operation(size: int) -> Callable[[], object]:
    if size == PYTHON_LOOP:
        return _count
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0))
    return lambda: matrix @ matrix


def _count() -> int:
    total = 0
    for number in range(10_000):
        total += number
    return total


def _run(size: int, times: int, meet: Callable[[], object] = int) -> tuple[float, float]:
    """Return when the operations began, behind `meet`, and when the last had ended: one clock for all processes."""
    torch.set_num_threads(1)
    operation = _operation(size)
    meet()
    begun = time.perf_counter()
    for _ in range(times):
        operation()
    return begun, time.perf_counter()


def _seconds(runs: Sequence[tuple[float, float]]) -> float:
    """Return the seconds from the first begin to the last end: who waits for the lock to begin waits in them."""
    return max(ended for _, ended in runs) - min(begun for begun, _ in runs)


def _wait_until(start: float) -> None:
    while time.perf_counter() < start:
        pass


def _in_threads(size: int, times: int) -> float:
    meeting = Barrier(2)
    found: list[tuple[float, float]] = []
    threads = [Thread(target=lambda: found.append(_run(size, times, meeting.wait))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _seconds(found)


def _in_processes(size: int, times: int) -> float:
    """Ask two processes, which stay for the next question; they end when this one closes their input."""
    while len(_helpers) < 2:
        pipe = subprocess.PIPE
        program = [sys.executable, "-c", "from support.n09.lock import answer_questions; answer_questions()"]
        places = {"PYTHONPATH": os.pathsep.join(sys.path)}
        _helpers.append(
            subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env={**os.environ, **places})
        )
        _read(_helpers[-1])
    start = time.perf_counter() + SOON
    for helper in _helpers:
        assert helper.stdin is not None
        helper.stdin.write(f"{size} {times} {start}\n")
        helper.stdin.flush()
    runs = [_read(helper).split() for helper in _helpers]
    return _seconds([(float(begun), float(ended)) for begun, ended in runs])


def _read(helper: subprocess.Popen[str]) -> str:
    assert helper.stdout is not None
    return helper.stdout.readline()
