"""How long an operation takes alone, in each of two processes, and in each of two threads that share a lock.

seconds_of   one round of the three
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from threading import Barrier, Thread
from typing import NamedTuple

import torch

WORKING = 0.012
"""Seconds that a measurement takes, about."""
PYTHON_LOOP = 0
"""In place of a size: the operation is no product, but a loop in Python."""

_helpers: list[subprocess.Popen[str]] = []


class Seconds(NamedTuple):
    """Say how many seconds an operation takes."""

    alone: float
    processes: float
    threads: float


def seconds_of(size: int) -> Seconds:
    """Return the seconds of a product of this size, or of a PYTHON_LOOP; of two at once, those of the slower one."""
    alone = _measured(size, 20)
    times = max(2, int(WORKING / alone))
    return Seconds(_measured(size, times), _in_processes(size, times), _in_threads(size, times))


def answer_questions() -> None:
    """Measure for another process: a line is a size and how often; ends with its input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    torch.set_num_threads(1)
    print("up", flush=True)
    for line in sys.stdin:
        size, times = map(int, line.split())
        print(_measured(size, times), flush=True)


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


def _measured(size: int, times: int, meeting: Barrier | None = None) -> float:
    torch.set_num_threads(1)
    operation = _operation(size)
    if meeting is not None:
        meeting.wait()
    begun = time.perf_counter()
    for _ in range(times):
        operation()
    return (time.perf_counter() - begun) / times


def _in_threads(size: int, times: int) -> float:
    meeting = Barrier(2)
    found: list[float] = []
    threads = [Thread(target=lambda: found.append(_measured(size, times, meeting))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(found)


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
    for helper in _helpers:
        assert helper.stdin is not None
        helper.stdin.write(f"{size} {times}\n")
        helper.stdin.flush()
    return max(float(_read(helper)) for helper in _helpers)


def _read(helper: subprocess.Popen[str]) -> str:
    assert helper.stdout is not None
    return helper.stdout.readline()
