"""How long a product takes alone, in each of two processes, and in each of two threads that share a lock."""

from __future__ import annotations

import subprocess
import sys
import time
from threading import Barrier, Thread

import torch

WORKING = 0.012
"""Seconds that a measurement takes, about."""

_PROGRAM = """
import sys, time, torch
torch.set_num_threads(1)
sys.stdout.write("up\\n")
sys.stdout.flush()
for line in sys.stdin:
    size, times = map(int, line.split())
    matrix = torch.randn(size, size)
    begun = time.perf_counter()
    for _ in range(times):
        matrix @ matrix
    sys.stdout.write(f"{(time.perf_counter() - begun) / times}\\n")
    sys.stdout.flush()
"""
_helpers: list[subprocess.Popen[str]] = []


def product_seconds(size: int) -> tuple[float, float, float]:
    """Return the seconds of a product of this size: alone, in the slower of two processes, of two threads."""
    alone = _products(size, 20)
    times = max(2, int(WORKING / alone))
    return _products(size, times), _in_processes(size, times), _in_threads(size, times)


def _products(size: int, times: int, meeting: Barrier | None = None) -> float:
    torch.set_num_threads(1)
    matrix = torch.randn(size, size)
    if meeting is not None:
        meeting.wait()
    begun = time.perf_counter()
    for _ in range(times):
        matrix @ matrix
    return (time.perf_counter() - begun) / times


def _in_threads(size: int, times: int) -> float:
    meeting = Barrier(2)
    found: list[float] = []
    threads = [Thread(target=lambda: found.append(_products(size, times, meeting))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(found)


def _in_processes(size: int, times: int) -> float:
    """Ask two processes, which stay for the next question; they end when this one closes their input."""
    while len(_helpers) < 2:
        pipe = subprocess.PIPE
        _helpers.append(
            subprocess.Popen([sys.executable, "-c", _PROGRAM], stdin=pipe, stdout=pipe, text=True)
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
