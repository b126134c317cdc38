"""Seconds and memory of one pass over a rank's share: our DistributedSampler against torch's.

    python -m tests.bench.bench_samplers            about a minute; prints the table
    python -m tests.bench.bench_samplers --record   and writes notebooks/recorded/samplers_cpu.json

Every measurement is made in a process of its own, and the contenders take turns: a busy neighbour slows all of them.
Memory is the peak above what the process held after its imports.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SIZES, WORLD_SIZE, ROUNDS = (1_000_000, 20_000_000), 8, 3
BATCH = 256
CONTENDERS = ("torch", 'ours, order="torch"', 'ours, order="feistel"')
ROOT = Path(__file__).resolve().parents[2]


def make_sampler(who: str, size: int) -> Any:
    """Build one contender for rank 0 of the world."""
    import torch

    import lib

    share = {"num_replicas": WORLD_SIZE, "rank": 0, "shuffle": True}
    if who == "torch":
        return torch.utils.data.DistributedSampler(range(size), **share)
    return lib.DistributedSampler(range(size), **share, order=who.split('"')[1])


def one_pass(who: str, size: int) -> dict[str, float]:
    """Go once over rank 0's share, in batches as a DataLoader does; return seconds and extra peak bytes."""
    from torch.utils.data import BatchSampler

    before = start_of_peak()
    began = time.perf_counter()
    indices = sum(map(len, BatchSampler(make_sampler(who, size), BATCH, drop_last=False)))
    seconds = time.perf_counter() - began
    assert indices == -(-size // WORLD_SIZE)
    return {"seconds": seconds, "bytes": max(0, peak_bytes() - before)}


def start_of_peak() -> int:
    """Forget the peak so far and return the bytes that the process holds now."""
    make_sampler("torch", 8), make_sampler(CONTENDERS[2], 8)  # imports are not what we measure
    with contextlib.suppress(OSError):  # Linux only: the high-water mark starts anew
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_bytes()


def peak_bytes() -> int:
    """Return the most bytes of memory that this process ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # not ru_maxrss, which on Linux also remembers the process that started this one
        line = next(line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def in_own_process(who: str, size: int) -> dict[str, float]:
    """Run `one_pass` in a fresh Python."""
    command = [sys.executable, "-m", "tests.bench.bench_samplers", "--one", who, str(size)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"{who}, N = {size}: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def compare(
    contenders: tuple[str, ...], sizes: tuple[int, ...], measure: Callable[[str, int], dict[str, float]], rounds: int
) -> list[dict[str, Any]]:
    """Measure all contenders in turn, `rounds` times; the first one is what the ratios refer to."""
    table = []
    for size in sizes:
        runs = [{who: measure(who, size) for who in contenders} for _ in range(rounds)]
        for who in contenders:
            row: dict[str, Any] = {"who": who, "size": size}
            for quantity in ("seconds", "bytes"):
                row[quantity] = float(f"{statistics.median(run[who][quantity] for run in runs):.4g}")
                ratios = [run[who][quantity] / max(run[contenders[0]][quantity], 1e-9) for run in runs]
                row[f"{quantity}_ratio"] = float(f"{statistics.median(ratios):.3g}")
            table.append(row)
    return table


def rows(sizes: tuple[int, ...] = SIZES, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Return a row per contender and size: medians of seconds and of extra peak bytes, and their ratios to torch's."""
    return compare(CONTENDERS, sizes, in_own_process, rounds)


def as_text(table: list[dict[str, Any]]) -> str:
    """Lay the rows out as a table: seconds and extra peak memory, each with its ratio to torch's."""
    lines = [f"{'sampler':<22}{'N':>12}{'seconds':>9}{'x torch':>9}{'extra MB':>10}{'x torch':>9}"]
    for row in table:
        lines.append(
            f"{row['who']:<22}{row['size']:>12,}{row['seconds']:>9.3f}{row['seconds_ratio']:>9.3f}"
            f"{row['bytes'] / 1e6:>10.1f}{row['bytes_ratio']:>9.3f}"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
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
        from support import recordings

        from tests.bench import bench_permutation

        data = {"world_size": WORLD_SIZE, "rounds": ROUNDS, "samplers": samplers}
        data["permutation"] = bench_permutation.rows()
        command = "python -m tests.bench.bench_samplers --record"
        print(f"Recorded in {recordings.save('samplers_cpu', data, command=command).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
