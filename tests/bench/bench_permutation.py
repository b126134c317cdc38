"""Permutation, streamed in full, against torch.randperm: seconds and extra peak memory, paired in one run.

Every measurement runs in a process of its own, else one way's memory would hide the other's.
Run as: python -m tests.bench.bench_permutation
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TypedDict

ROOT = Path(__file__).parents[2]
SIZES = (1_000_000, 20_000_000)
REPEATS = 3
BLOCK = 65_536  # ids that the consumer takes at a time


class Row(TypedDict):
    n: int
    way: str
    seconds: float
    ids_per_second: float
    extra_peak_mb: float


def rows(sizes: tuple[int, ...] = SIZES, repeats: int = REPEATS) -> list[Row]:
    """Measure both ways at each size in turn, `repeats` times; return a row of medians for each way and size."""
    table: list[Row] = []
    for n in sizes:
        runs = [{way: _measure_apart(way, n) for way in WAYS} for _ in range(repeats)]
        for way in WAYS:
            seconds = statistics.median(run[way][0] for run in runs)
            extra = statistics.median(run[way][1] for run in runs)
            table.append(Row(n=n, way=way, seconds=seconds, ids_per_second=n / seconds, extra_peak_mb=extra))
    return table


def stream_permutation(n: int) -> int:
    import numpy as np

    from lib.data.permutation import Permutation

    p = Permutation(n)
    return sum(int(p[np.arange(start, min(n, start + BLOCK))].sum()) for start in range(0, n, BLOCK))


def stream_randperm(n: int) -> int:
    import torch

    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return sum(int(order[start : start + BLOCK].sum()) for start in range(0, n, BLOCK))


WAYS = {"Permutation": stream_permutation, "torch.randperm": stream_randperm}


def _measure_apart(way: str, n: int) -> tuple[float, float]:
    command = [sys.executable, "-m", "tests.bench.bench_permutation", way, str(n)]
    run = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    seconds, extra = json.loads(run.stdout)
    return seconds, extra


def _measure_here(way: str, n: int) -> tuple[float, float]:
    WAYS[way](1000)  # imports, and the first call of everything
    before = _peak_mb()
    start = time.perf_counter()
    total = WAYS[way](n)
    seconds = time.perf_counter() - start
    assert total == n * (n - 1) // 2, "every id once"
    return seconds, _peak_mb() - before


def _peak_mb() -> float:
    """Peak resident memory of this process, in MB."""
    try:  # a child begins with its parent's ru_maxrss, so on Linux ask for the peak of this program alone
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6
    except FileNotFoundError:  # macOS, where ru_maxrss is in bytes
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def main() -> None:
    """Print the table."""
    print(f"{'N':>12}  {'way':<15} {'seconds':>8} {'M ids/s':>8} {'extra peak MB':>14}")
    for row in rows():
        rate = row["ids_per_second"] / 1e6
        print(f"{row['n']:>12,}  {row['way']:<15} {row['seconds']:>8.3f} {rate:>8.1f} {row['extra_peak_mb']:>14.1f}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(_measure_here(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
