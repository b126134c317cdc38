"""Permutation, streamed in full, against torch.randperm: seconds and extra peak memory, paired in one run.

Every measurement runs in a process of its own, else one way's memory would hide the other's.
Run as: python -m tests.bench.bench_permutation
"""

import json
import statistics
import sys
from typing import TypedDict

import numpy as np
import torch

from lib._values import table
from lib.data.permutation import Permutation
from tests.bench.common import in_own_process, timed

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
    found: list[Row] = []
    for n in sizes:
        runs = [{way: in_own_process("tests.bench.bench_permutation", way, n) for way in WAYS} for _ in range(repeats)]
        for way in WAYS:
            seconds = statistics.median(run[way]["seconds"] for run in runs)
            extra = statistics.median(run[way]["bytes"] for run in runs) / 1e6
            found.append(Row(n=n, way=way, seconds=seconds, ids_per_second=n / seconds, extra_peak_mb=extra))
    return found


def stream_permutation(n: int) -> int:
    p = Permutation(n)
    return sum(int(p[np.arange(start, min(n, start + BLOCK))].sum()) for start in range(0, n, BLOCK))


def stream_randperm(n: int) -> int:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return sum(int(order[start : start + BLOCK].sum()) for start in range(0, n, BLOCK))


WAYS = {"Permutation": stream_permutation, "torch.randperm": stream_randperm}


def measure_here(way: str, n: int) -> dict[str, float]:
    """Measure one way in this process."""
    WAYS[way](1000)  # imports, and the first call of everything
    totals: list[int] = []
    found = timed(lambda: totals.append(WAYS[way](n)))
    assert totals == [n * (n - 1) // 2], "every id once"
    return found


def main() -> None:
    """Print the table."""
    lines = [("way", "N", "seconds", "M ids/s", "extra peak MB")]
    for row in rows():
        measured = f"{row['seconds']:.3f}", f"{row['ids_per_second'] / 1e6:.1f}", f"{row['extra_peak_mb']:.1f}"
        lines.append((row["way"], f"{row['n']:,}", *measured))
    print(table(lines))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure_here(sys.argv[1], int(sys.argv[2]))))
    else:
        main()
