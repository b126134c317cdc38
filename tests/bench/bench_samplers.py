"""Seconds and memory of one pass over a rank's share: our DistributedSampler against torch's.

    python -m tests.bench.bench_samplers            about a minute; prints the table
    python -m tests.bench.bench_samplers --record   and writes notebooks/recorded/samplers_cpu.json

Every measurement is made in a process of its own, and the contenders take turns: a busy neighbour slows all of them.
Memory is the peak above what the process held after its imports.
"""

import argparse
import functools
import json
import statistics
from typing import Any

from torch.utils.data import BatchSampler
from torch.utils.data import DistributedSampler as Torchs

from lib import DistributedSampler
from lib._values import table
from support import recordings
from tests.bench import bench_permutation
from tests.bench.common import ROOT, arguments, in_own_process, timed

SIZES, WORLD_SIZE, ROUNDS = (1_000_000, 20_000_000), 8, 3
BATCH = 256
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


def rows(sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return a row per contender and size: medians of seconds and of extra peak bytes, and their ratios to torch's."""
    found = []
    for size in sizes:
        apart = functools.partial(in_own_process, "tests.bench.bench_samplers", "--one")
        runs = [{who: apart(who, size) for who in CONTENDERS} for _ in range(rounds)]
        for who in CONTENDERS:
            row: dict[str, Any] = {"who": who, "size": size}
            for quantity in ("seconds", "bytes"):
                row[quantity] = float(f"{statistics.median(run[who][quantity] for run in runs):.4g}")
                ratios = [run[who][quantity] / max(run["torch"][quantity], 1e-9) for run in runs]
                row[f"{quantity}_ratio"] = float(f"{statistics.median(ratios):.3g}")
            found.append(row)
    return found


def as_text(found: list[dict[str, Any]]) -> str:
    """Lay the rows out as a table: seconds and extra peak memory, each with its ratio to torch's."""
    lines = [("sampler", "N", "seconds", "x torch", "extra MB", "x torch")]
    for row in found:
        seconds, extra = (f"{row['seconds']:.3f}", f"{row['bytes'] / 1e6:.1f}")
        ratios = f"{row['seconds_ratio']:.3f}", f"{row['bytes_ratio']:.3f}"
        lines.append((row["who"], f"{row['size']:,}", seconds, ratios[0], extra, ratios[1]))
    return table(lines)


def main() -> None:
    """Run the command line."""
    parser = arguments(__doc__)
    parser.add_argument("--record", action="store_true", help="write notebooks/recorded/samplers_cpu.json")
    parser.add_argument("--one", nargs=2, metavar=("WHO", "N"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one_pass(options.one[0], int(options.one[1]))))
        return
    print(f"Rank 0 of {WORLD_SIZE} goes once over its share, in batches of {BATCH}; median of {ROUNDS} runs.")
    samplers = rows()
    print(as_text(samplers))
    if options.record:
        data = {"world_size": WORLD_SIZE, "rounds": ROUNDS, "samplers": samplers}
        data["permutation"] = bench_permutation.rows()
        command = "python -m tests.bench.bench_samplers --record"
        print(f"Recorded in {recordings.save('samplers_cpu', data, command=command).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
