"""The headline, for real: 400 million rows, 8 ranks, 8 mini-epochs, on one machine.

    python -m tests.bench.headline --record                     19 GB of disk, about 10 minutes
    python -m tests.bench.headline --rows 5000000               the same, small; prints and records nothing

Makes the meta file, indexes it, loads every mini-epoch of rank 0 alone, then starts all ranks together. If the disk is
too small, it takes the largest number of rows that fits and says so. Files are deleted at the end, unless --keep.
Each rank is a process of its own, as in training. Memory is what a rank needs above its imports.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.memory import memory
from support import recordings
from support.captions import ROW_BYTES, write_captions
from tests.bench.bench_rank_dataset import wc
from tests.bench.common import ROOT, arguments, in_own_process, peak_bytes, start_of_peak

ROWS = 400_000_000
WORLD_SIZE = 8
MINI_EPOCHS = 8
DISK_MARGIN = 2_000_000_000  # bytes that stay free
INDEX_BYTES = 2.25  # a row
SAMPLE_SECONDS = 0.25


def rows_that_fit(rows: int, free: int) -> int:
    """Return `rows`, or as many whole millions (below that: thousands) as leave the margin free on the disk."""
    fit = int(max(0, free - DISK_MARGIN) / (ROW_BYTES + 0.5 + INDEX_BYTES))
    return rows if rows <= fit else fit // 1_000_000 * 1_000_000


def rank_main(path: Path, rank: int, mini_epochs: list[int]) -> None:
    """Be one rank: say ready, wait for a line, load mini-epochs and print what each took, as JSON lines."""
    dataset = RankDataset(MetaFile(path), WORLD_SIZE, rank, mini_epochs=MINI_EPOCHS)
    base = start_of_peak()
    private = memory(children=False).uss
    print("ready", flush=True)
    sys.stdin.readline()
    for mini_epoch in mini_epochs:
        began = time.perf_counter()
        dataset.load(mini_epoch)
        seconds = time.perf_counter() - began
        now = memory(children=False)
        report = {
            "rank": rank,
            "mini_epoch": mini_epoch,
            "rows": len(dataset),
            "seconds": seconds,
            "payload_bytes": dataset.packed.nbytes,
            "text_bytes": dataset.packed.data.nbytes,
            "peak_bytes": peak_bytes() - base,  # so far: the next load must not add to it
            "private_bytes": None if now.uss is None or private is None else now.uss - private,
        }
        print(json.dumps(report), flush=True)
    sys.stdin.readline()  # stay, so that whoever measures sees all ranks at once


class Rank:
    """A rank's process, started and waiting."""

    def __init__(self, path: Path, rank: int, mini_epochs: list[int]) -> None:
        command = [sys.executable, "-m", "tests.bench.headline", "--rank", str(rank), "--file", str(path)]
        command += ["--mini-epochs", ",".join(map(str, mini_epochs))]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, cwd=ROOT, **pipes)
        self.expected = len(mini_epochs)
        self.reports = []

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a rank ended with {self.process.wait()} instead of answering")
        return line

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def read(self) -> None:
        while len(self.reports) < self.expected:
            self.reports.append(json.loads(self.line()))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def run_ranks(path: Path, ranks: list[int], mini_epochs: list[int]) -> dict[str, Any]:
    """Start ranks together; return their reports, the seconds until all were done, and their PSS over time."""
    started: list[Rank] = []
    try:
        started.extend(Rank(path, rank, mini_epochs) for rank in ranks)
        assert all(one.line() == "ready\n" for one in started)
        samples = []

        def pss() -> int | None:
            each = [memory(one.process.pid, children=False).pss for one in started]
            return None if None in each else sum(size for size in each if size is not None)

        base = pss()
        began = time.perf_counter()
        readers = [threading.Thread(target=one.read, daemon=True) for one in started]
        for one, reader in zip(started, readers, strict=True):
            one.go()
            reader.start()
        while any(reader.is_alive() for reader in readers):
            size = pss()
            if size is not None and base is not None:
                samples.append([round(time.perf_counter() - began, 2), size - base])
            time.sleep(SAMPLE_SECONDS)
        seconds = time.perf_counter() - began
        if any(len(one.reports) < one.expected for one in started):
            raise RuntimeError("a rank ended before it had loaded everything")
        reports = [report for one in started for report in one.reports]
        return {"seconds": seconds, "loads": reports, "pss_over_time": samples}
    finally:
        for one in started:
            one.end()


def measure(path: Path, rows: int, asked: int) -> dict[str, Any]:
    """Make the file and measure everything on it."""

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say(f"making {rows:,} rows")
    began = time.perf_counter()
    size = write_captions(path, rows)
    with open(path, "rb+") as file:
        os.fsync(file)  # else the disk would still be busy with it while the index is timed
    made = time.perf_counter() - began
    say(f"{size / 1e9:.2f} GB in {made:.0f} s; wc -l")
    counted = wc(path)["seconds"]
    say(f"{counted:.1f} s; index")
    indexed = in_own_process("tests.bench.bench_rank_dataset", "--one", "build/index", path)
    with MetaFile(path) as meta:  # the index that stays: that of the measurement was elsewhere
        assert len(meta) == rows
    say(f"{indexed['seconds']:.1f} s; rank 0 alone")
    alone = run_ranks(path, [0], list(range(MINI_EPOCHS)))
    say(f"{alone['seconds']:.1f} s for {MINI_EPOCHS} mini-epochs; {WORLD_SIZE} ranks together")
    together = run_ranks(path, list(range(WORLD_SIZE)), [0, 1])
    say(f"{together['seconds']:.1f} s for 2 mini-epochs")
    return {
        "rows": rows,
        "rows_asked": asked,
        "bytes": size,
        "world_size": WORLD_SIZE,
        "mini_epochs": MINI_EPOCHS,
        "predicted_text_bytes": size / (WORLD_SIZE * MINI_EPOCHS),
        "make_seconds": made,
        "wc_seconds": counted,
        "index": {"seconds": indexed["seconds"], "peak_bytes": indexed["bytes"], "file_bytes": indexed["payload"]},
        "alone": alone,
        "together": together,
    }


def as_text(result: dict[str, Any]) -> str:
    lines = [f"{result['rows']:,} rows, {result['bytes'] / 1e9:.2f} GB, W = {WORLD_SIZE}, E = {MINI_EPOCHS}"]
    seconds, peak, size = (result["index"][name] for name in ("seconds", "peak_bytes", "file_bytes"))
    took = f"{seconds:.1f} s ({seconds / result['wc_seconds']:.1f} x wc -l)"
    lines.append(f"index          {took}, {size / 1e6:.0f} MB file, {peak / 1e6:.0f} MB memory")
    for name, where in (("rank 0 alone", "alone"), (f"{WORLD_SIZE} together", "together")):
        loads = result[where]["loads"]
        seconds, peaks, payloads = ([load[k] for load in loads] for k in ("seconds", "peak_bytes", "payload_bytes"))
        lines.append(
            f"{name:<14} {min(seconds):.1f} to {max(seconds):.1f} s a load, peak {max(peaks) / 1e6:.0f} MB a rank "
            f"(payload {max(payloads) / 1e6:.0f} MB, of it text {loads[0]['text_bytes'] / 1e6:.0f} MB)"
        )
    lines.append(f"M / (W · E)    {result['predicted_text_bytes'] / 1e6:.0f} MB of text, predicted")
    return "\n".join(lines)


def main(given: list[str]) -> int:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where there is room for the file")
    parser.add_argument("--keep", action="store_true", help="leave the file and its index there")
    parser.add_argument("--record", action="store_true", help="write notebooks/recorded/headline.json")
    for hidden in ("--rank", "--file", "--mini-epochs"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.rank is not None:
        rank_main(Path(options.file), int(options.rank), [int(k) for k in options.mini_epochs.split(",")])
        return 0
    rows = rows_that_fit(options.rows, shutil.disk_usage(options.folder).free)
    if rows < 1:
        parser.exit(1, f"no room for a million rows in {options.folder}: give a --folder with more\n")
    if rows < options.rows:
        print(f"the disk has room for {rows:,} of {options.rows:,} rows: taking these", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="headline-", dir=options.folder))
    try:
        result = measure(folder / "captions.txt", rows, options.rows)
    finally:
        print(f"kept: {folder}", file=sys.stderr) if options.keep else shutil.rmtree(folder)
    print(as_text(result))
    if options.record:
        file = recordings.save_recording("headline", result, command="python -m tests.bench.headline --record")
        print(f"recorded: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
