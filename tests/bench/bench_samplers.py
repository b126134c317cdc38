"""Seconds and memory of one pass: over a rank's share, ours against torch's; over Permutation, against torch.randperm.

    python -m tests.bench.bench_samplers            about a minute; prints both tables
    python -m tests.bench.bench_samplers --record   and writes notebooks/recorded/samplers_cpu.json

Every measurement is made in a process of its own, and the contenders take turns: a busy neighbour slows all of them.
Memory is the peak above what the process held after its imports.
"""

import argparse
import functools
import json
import statistics
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler
from torch.utils.data import DistributedSampler as Torchs

from lib import DistributedSampler
from lib.data.permutation import Permutation
from lib.text import table
from support import recordings
from tests.bench.common import ROOT, arguments, in_own_process, timed

#: Seconds on a calm machine with 2 cores.
TAKES = 75

SIZES = (1_000_000, 20_000_000)
WORLD_SIZE = 8
ROUNDS = 3
BATCH = 256  # indices of a rank's batch
BLOCK = 65_536  # ids of a whole order that the consumer takes at a time
CONTENDERS = ("torch", 'ours, order="torch"', 'ours, order="feistel"')


def make_sampler(who: str, size: int) -> Any:
    """Build one contender for rank 0 of the world."""
    share = {"num_replicas": WORLD_SIZE, "rank": 0, "shuffle": True}
    if who == "torch":
        return Torchs(range(size), **share)
    return DistributedSampler(range(size), **share, order=who.split('"')[1])


def one_pass(who: str, size: int) -> dict[str, float]:
    """Go once over rank 0's share, in batches as a DataLoader does; return seconds and extra peak bytes."""
    make_sampler("torch", 8), make_sampler(CONTENDERS[2], 8)  # what a first call costs is not what we measure
    batches: list[int] = []
    found = timed(lambda: batches.extend(map(len, BatchSampler(make_sampler(who, size), BATCH, drop_last=False))))
    assert sum(batches) == -(-size // WORLD_SIZE)
    return {**found, "bytes": max(0, found["bytes"])}


def stream_permutation(n: int) -> int:
    p = Permutation(n)
    return sum(int(p[np.arange(start, min(n, start + BLOCK))].sum()) for start in range(0, n, BLOCK))


def stream_randperm(n: int) -> int:
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    return sum(int(order[start : start + BLOCK].sum()) for start in range(0, n, BLOCK))


WAYS = {"Permutation": stream_permutation, "torch.randperm": stream_randperm}


def stream(way: str, n: int) -> dict[str, float]:
    """Stream a whole order; return seconds and extra peak bytes."""
    WAYS[way](1000)  # imports, and the first call of everything
    totals: list[int] = []
    found = timed(lambda: totals.append(WAYS[way](n)))
    assert totals == [n * (n - 1) // 2], "every id once"
    return found


def in_turn(names: tuple[str, ...], size: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    apart = functools.partial(in_own_process, "tests.bench.bench_samplers", "--one")
    return [{name: apart(name, size) for name in names} for _ in range(rounds)]


def rows(sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return a row per contender and size: medians of seconds and of extra peak bytes, and their ratios to torch's."""
    found = []
    for size in sizes:
        runs = in_turn(CONTENDERS, size, rounds)
        for who in CONTENDERS:
            row: dict[str, Any] = {"who": who, "size": size}
            for quantity in ("seconds", "bytes"):
                row[quantity] = float(f"{statistics.median(run[who][quantity] for run in runs):.4g}")
                ratios = [run[who][quantity] / max(run["torch"][quantity], 1e-9) for run in runs]
                row[f"{quantity}_ratio"] = float(f"{statistics.median(ratios):.3g}")
            found.append(row)
    return found


def permutation_rows(sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return a row of medians for each way to stream a whole order, and size."""
    found = []
    for n in sizes:
        runs = in_turn((*WAYS,), n, rounds)
        for way in WAYS:
            seconds, extra = (statistics.median(run[way][what] for run in runs) for what in ("seconds", "bytes"))
            found.append(dict(n=n, way=way, seconds=seconds, ids_per_second=n / seconds, extra_peak_mb=extra / 1e6))
    return found


def as_text(found: list[dict[str, Any]]) -> str:
    """Lay the rows out as a table: seconds and extra peak memory, each with its ratio to torch's."""
    lines = [("sampler", "N", "seconds", "x torch", "extra MB", "x torch")]
    for row in found:
        seconds = f"{row['seconds']:.3f}", f"{row['seconds_ratio']:.3f}"
        lines.append(
            (row["who"], f"{row['size']:,}", *seconds, f"{row['bytes'] / 1e6:.1f}", f"{row['bytes_ratio']:.3f}")
        )
    return table(lines)


def permutation_text(found: list[dict[str, Any]]) -> str:
    lines = [("way", "N", "seconds", "M ids/s", "extra peak MB")]
    for row in found:
        measured = f"{row['seconds']:.3f}", f"{row['ids_per_second'] / 1e6:.1f}", f"{row['extra_peak_mb']:.1f}"
        lines.append((row["way"], f"{row['n']:,}", *measured))
    return table(lines)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--record", action="store_true", help="write notebooks/recorded/samplers_cpu.json")
    parser.add_argument("--one", nargs=2, metavar=("WHO", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        work = stream if options.one[0] in WAYS else one_pass
        print(json.dumps(work(options.one[0], int(options.one[1]))))
        return
    print(f"Rank 0 of {WORLD_SIZE} goes once over its share, in batches of {BATCH}; median of {ROUNDS} runs.")
    samplers = rows()
    permutation = permutation_rows()
    print(as_text(samplers), permutation_text(permutation), sep="\n\n")
    if options.record:
        data = {"world_size": WORLD_SIZE, "rounds": ROUNDS, "samplers": samplers, "permutation": permutation}
        command = "python -m tests.bench.bench_samplers --record"
        print(f"Recorded in {recordings.save_recording('samplers_cpu', data, command=command).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
