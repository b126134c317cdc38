"""A meta file in one rank of eight: index, rows of a share, access, workers; RankDataset against three other ways.

    python -m tests.bench.bench_rank_dataset                      5 million rows, about 3 minutes
    python -m tests.bench.bench_rank_dataset --rows 20000000      the size of the targets; needs 6 GB of memory

Every measurement is made in a process of its own, in turn with the others and with `wc -l`, on one file that is in the
page cache. Memory is the peak above what the process held after its imports.
"""

import argparse
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lib.data.meta import MetaFile
from lib.data.permutation import Permutation
from lib.data.rank_dataset import NaiveDataset, RankDataset
from lib.text import table
from support.captions import write_captions
from tests.bench.common import arguments, in_own_process, timed

#: Seconds on a calm machine with 2 cores.
TAKES = 160

ROWS = 5_000_000
ROUNDS = 3
WORLD_SIZE = 8
READ = 1 << 20
ACCESSES = 500_000

Result = dict[str, float]


def wc(path: Path) -> Result:
    """`wc -l`: since GNU coreutils 9 with vector instructions, before that a search for one newline after the other."""
    began = time.perf_counter()
    subprocess.run(["wc", "-l", path], check=True, stdout=subprocess.DEVNULL)
    return {"seconds": time.perf_counter() - began}


def _blocks(path: Path) -> Any:
    with open(path, "rb", buffering=0) as file:
        while block := file.read(READ):
            yield block


def index(path: Path) -> Result:
    """MetaFile(path) where there is no index yet."""
    with contextlib.suppress(ImportError):
        importlib.import_module("tqdm")  # as torch would have: no part of what is measured
    elsewhere = path.with_suffix(".bench.idx")
    elsewhere.unlink(missing_ok=True)
    try:
        result = timed(lambda: MetaFile(path, index=elsewhere))
        return {**result, "payload": float(elsewhere.stat().st_size)}
    finally:
        elsewhere.unlink()


def _dataset(path: Path, mini_epochs: int = 1) -> RankDataset:
    return RankDataset(MetaFile(path), WORLD_SIZE, 3, mini_epochs=mini_epochs)


def _loaded(dataset: RankDataset, mini_epoch: int = 0) -> RankDataset:
    dataset.load(mini_epoch)
    return dataset


def _share(path: Path) -> RankDataset:
    return _loaded(_dataset(path))


def _load(dataset: RankDataset, mini_epoch: int = 0) -> Result:
    return timed(lambda: _loaded(dataset, mini_epoch).packed)


def rebuild(path: Path) -> Result:
    """The second mini-epoch of four, once the first is there: the peak must not be that of two."""
    dataset = _loaded(_dataset(path, 4))
    before = dataset.packed.nbytes
    result = _load(dataset, 1)
    return {**result, "bytes": result["bytes"] + before}


class Rows(list[str]):
    """A list of rows that may be asked for its payload, as text."""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self))


def naive(path: Path) -> Result:
    """NaiveDataset: all rows as strings."""
    meta = MetaFile(path)
    return timed(lambda: Rows(NaiveDataset(meta).rows))


def line_by_line(path: Path) -> Result:
    """The article's way: go through all lines, keep those of this rank as strings."""

    def keep() -> Any:
        with open(path, encoding="utf-8") as file:
            return Rows(line for i, line in enumerate(file) if i % WORLD_SIZE == 3)

    return timed(keep)


def arrow_take(path: Path) -> Result:
    """As Hugging Face datasets do: rows in a mapped Arrow file, `take` the sorted ids of the share."""
    import pyarrow as pa

    arrow = path.with_suffix(".arrow")
    meta = MetaFile(path)
    if not arrow.exists():
        schema = pa.schema([("row", pa.large_string())])
        with pa.OSFile(str(arrow), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for start in range(0, len(meta), 1_000_000):
                rows = meta.rows(np.arange(start, min(len(meta), start + 1_000_000)))
                writer.write_batch(pa.record_batch([pa.array(rows, pa.large_string())], schema=schema))
    table = pa.ipc.open_file(pa.memory_map(str(arrow))).read_all()
    order = Permutation(len(meta))
    return timed(lambda: table.take(pa.array(np.sort(order[np.arange(3, len(meta), WORLD_SIZE)]))))


def _ask(read: Callable[[Any], Any], asked: list[Any], rows: int) -> Result:
    """Ask for all of `asked`, which are so many rows."""
    began = time.perf_counter()
    for one in asked:
        read(one)
    return {"rows per second": rows / (time.perf_counter() - began)}


def _accesses(read: Callable[[Any], Any], rows: int, batch: int = 0) -> Result:
    """Read rows in order: one at a time in a Python loop, or in lists of `batch`, as a DataLoader asks."""
    order = range(min(rows, ACCESSES))
    asked = [list(order[start : start + batch]) for start in order[::batch]] if batch else list(order)
    return _ask(read, asked, len(order))


def access_file(path: Path) -> Result:
    """MetaFile.rows, 256 random rows of the file at a time: what a server does."""
    meta = MetaFile(path)
    batches = np.random.default_rng(0).integers(0, len(meta), (50_000 // 256, 256))
    return _ask(meta.rows, list(batches), batches.size)


def _private_growth(rows: Any) -> Result:
    """Fork two workers that read everything; the mean of what became private to one."""
    import psutil

    def read(end: Any) -> None:
        gc.freeze()
        process = psutil.Process()
        before = process.memory_full_info().uss
        for i in range(len(rows)):
            rows[i]
        end.send(process.memory_full_info().uss - before)

    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(2)]
    workers = [context.Process(target=read, args=(theirs,)) for _, theirs in pipes]
    for worker in workers:
        worker.start()
    grown = [ours.recv() for ours, _ in pipes]
    for worker in workers:
        worker.join()
    return {"private": statistics.mean(grown)}


SECTIONS: dict[str, dict[str, Callable[[Path], Result]]] = {
    "build": {
        "wc -l": wc,
        "plain read": lambda path: timed(lambda: sum(map(len, _blocks(path)))),
        "count newlines, memchr": lambda path: timed(lambda: sum(block.count(b"\n") for block in _blocks(path))),
        "index": index,
        "RankDataset": lambda path: _load(_dataset(path)),  # an eighth of the rows
        "RankDataset, E = 4": lambda path: _load(_dataset(path, 4)),  # one row in 32
        "the next mini-epoch": rebuild,
        "article, line by line": line_by_line,
        "Naive": naive,
        "pyarrow take": arrow_take,
    },
    "access": {
        "ds[i]": lambda path: _accesses((dataset := _share(path)).__getitem__, len(dataset)),
        "ds.__getitems__, 256": lambda path: _accesses((dataset := _share(path)).__getitems__, len(dataset), 256),
        "list of str [i]": lambda path: _accesses((rows := list(_share(path))).__getitem__, len(rows)),
        "MetaFile.rows, 256 random": access_file,
    },
    "workers": {  # over the same rows
        "RankDataset": lambda path: _private_growth(_share(path)),
        "list of str": lambda path: _private_growth(list(_share(path))),
    },
}
ALL = {f"{section}/{name}": work for section, functions in SECTIONS.items() for name, work in functions.items()}
apart = functools.partial(in_own_process, "tests.bench.bench_rank_dataset", "--one")


def available(name: str) -> bool:
    """Whether what a measurement needs is there."""
    if name.startswith("workers/"):
        return hasattr(os, "fork") and importlib.util.find_spec("psutil") is not None
    if name == "build/wc -l":
        return shutil.which("wc") is not None
    return name != "build/pyarrow take" or importlib.util.find_spec("pyarrow") is not None


def measure(path: Path, rounds: int = ROUNDS) -> dict[str, list[Result]]:
    """Run every measurement once a round, in turn; the reference is run again before each, so that pairs are close."""
    found: dict[str, list[Result]] = {name: [] for name in ALL}
    for turn in range(rounds):
        for name in ALL:
            slow = name.startswith(("build/Naive", "workers/")) or name == "access/list of str [i]"
            if available(name) and not (slow and turn):
                references = {
                    kind: apart(f"build/{kind}", path)["seconds"]
                    for kind in ("wc -l", "count newlines, memchr")
                    if name.startswith("build/") and available(f"build/{kind}")
                }
                result = apart(name, path)
                ratios = {f"x {kind}": result["seconds"] / seconds for kind, seconds in references.items()}
                found[name].append({**result, **ratios})
    return found


COLUMNS = {  # by section: title, what was measured, what it is divided by, digits
    "build": (("seconds", "seconds", 1, 3), ("x wc -l", "x wc -l", 1, 2),
              ("x memchr", "x count newlines, memchr", 1, 2), ("payload MB", "payload", 1e6, 1),
              ("extra MB", "bytes", 1e6, 1)),
    "access": (("M rows/s", "rows per second", 1e6, 2),),
    "workers": (("MB private to each of 2", "private", 1e6, 1),),
}  # fmt: skip


def cell(results: list[Result], quantity: str, scale: float, digits: int) -> str:
    """Return the median over the rounds; a dash where it was not measured: a package, or `wc`, is missing."""
    values = [result[quantity] for result in results if quantity in result]
    return f"{statistics.median(values) / scale:.{digits}f}" if values else "-"


def as_text(found: dict[str, list[Result]], path: Path, rows: int) -> str:
    """Lay the results out as three tables."""
    parts = [f"{rows:,} rows, {path.stat().st_size / 1e6:.0f} MB, rank 3 of {WORLD_SIZE}"]
    for section, columns in COLUMNS.items():
        lines = [(section, *(title for title, *_ in columns))]
        for name in (name for name in found if name.startswith(f"{section}/")):
            lines.append((name.partition("/")[2], *(cell(found[name], *what) for _, *what in columns)))
        parts.append(table(lines))
    return "\n\n".join(parts)


def main(given: Sequence[str] = ()) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", help="where the file is made (and deleted); a temporary folder by default")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if options.one:
        print(json.dumps(ALL[options.one[0]](Path(options.one[1]))))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "captions.txt"
        write_captions(path, options.rows)
        MetaFile(path).close()
        print(as_text(measure(path, options.rounds), path, options.rows))


if __name__ == "__main__":
    main(sys.argv[1:])
