"""Run the ways to hold a meta file's rows in real ranks with real DataLoader workers, and watch everybody's memory.

Every rank is a process, started from one that has imported torch already. Memory is what was not there when the ranks
were ready: anonymous pages only, so neither shared libraries nor the page cache count.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from lib._arguments import integer
from lib.data.ways_model import WAYS, Holding, Way, predict
from lib.data.ways_ranks import be_rank, serve

PATIENCE = 120.0  # seconds without a word from any rank


@dataclass
class Run:
    """What was seen of one way: `times` in seconds since the start, and bytes at each of them.

    ranks, workers, server: private pages (USS) of these processes; shared: the rest of their PSS, pages that several
    of them hold. built: seconds until every rank had its dataset; rows_per_second: of all ranks together, from then on.
    """

    way: Way
    rows: int
    row_bytes: float
    world_size: int
    num_workers: int
    mini_epochs: int
    times: list[float] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)
    server: list[int] = field(default_factory=list)
    shared: list[int] = field(default_factory=list)
    built: float = 0.0
    rows_per_second: float = 0.0

    @property
    def totals(self) -> list[int]:
        """Bytes of all processes together at each time: their PSS."""
        return [sum(parts) for parts in zip(self.ranks, self.workers, self.server, self.shared, strict=True)]

    @property
    def peak(self) -> int:
        """The most bytes seen at once."""
        return max(self.totals)

    @property
    def predicted(self) -> Holding:
        """What the model says for this run."""
        return predict(
            self.way,
            rows=self.rows,
            row_bytes=self.row_bytes,
            world_size=self.world_size,
            workers=self.num_workers,
            mini_epochs=self.mini_epochs,
        )


def run_way(
    way: Way,
    path: str | os.PathLike[str],
    *,
    world_size: int = 2,
    num_workers: int = 2,
    mini_epochs: int = 4,
    seconds: float = 30.0,
    interval: float = 0.04,
) -> Run:
    """Start the ranks of one way, let them read an epoch (or as much as they can in `seconds`), and watch.

    "one" is one rank without workers. Raises ValueError for an unknown way, RuntimeError when a process fails.
    """
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    from lib.data.meta import MetaFile

    world_size = 1 if way == "one" else integer("world_size", world_size, at_least=1)
    num_workers = 0 if way == "one" else integer("num_workers", num_workers, at_least=0)
    mini_epochs = integer("mini_epochs", mini_epochs, at_least=1) if way == "rank" else 1
    with MetaFile(path) as meta_file:
        rows = len(meta_file)
    run = Run(way, rows, os.stat(path).st_size / max(1, rows), world_size, num_workers, mini_epochs)
    crew = _Crew()
    try:
        if way == "server":
            crew.start("server", serve, str(path))
        for rank in range(world_size):
            crew.start(f"rank {rank}", be_rank, way, str(path), rank, run, seconds)
        crew.watch(run, interval)
    finally:
        crew.end()
    return run


def worker_context() -> Any:
    """Return how clean processes are started: from one that has imported torch, where the system can fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.utils.data"])
    return context


class _Crew:
    """The processes of one run: start them, hear from them, look at their memory, end them."""

    def __init__(self) -> None:
        self._context = worker_context()
        self.processes: dict[str, Any] = {}
        self.pipes: dict[str, Connection] = {}

    def start(self, name: str, target: Any, *arguments: Any) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=target, args=(theirs, *arguments), name=name)
        process.start()
        theirs.close()
        self.processes[name], self.pipes[name] = process, ours

    def hear(self, name: str) -> Any:
        try:
            return self.pipes[name].recv()
        except EOFError:
            self.processes[name].join(5)
            code = self.processes[name].exitcode
            raise RuntimeError(f"{name} ended with exit code {code}; its error is printed above") from None

    def watch(self, run: Run, interval: float) -> None:
        """Say go when all are ready, and take samples until the last rank is done."""
        ranks = [name for name in self.processes if name.startswith("rank")]
        for name in self.processes:
            self.hear(name)
        base, began = self._memory(), time.perf_counter()
        port = None
        if run.way == "server":
            self.pipes["server"].send("go")
            port = self.hear("server")
        for name in ranks:
            self.pipes[name].send(port)
        busy, heard = set(ranks), began
        while busy:
            for pipe in wait([self.pipes[name] for name in busy], timeout=interval):
                name = next(name for name in busy if self.pipes[name] is pipe)
                word = self.hear(name)
                heard = time.perf_counter()
                if word == "built":
                    run.built = heard - began
                else:
                    run.rows_per_second += word
                    busy.discard(name)
            if time.perf_counter() - heard > PATIENCE:
                raise RuntimeError(f"{', '.join(sorted(busy))} said nothing for {PATIENCE:g} s")
            self._sample(run, base, time.perf_counter() - began)

    def _sample(self, run: Run, base: dict[str, int], now: float) -> None:
        """Divide what is new: by whose private pages it is; what is nobody's is shared."""
        left = max(0, (found := self._memory())["pss"] - base["pss"])
        run.times.append(now)
        for name in ("workers", "server", "ranks"):
            part = min(left, max(0, found[name] - base[name]))
            getattr(run, name).append(part)
            left -= part
        run.shared.append(left)

    def _memory(self) -> dict[str, int]:
        """Return the private bytes of each kind of process, and the PSS of all, that of their parent included."""
        import psutil

        known = {process.pid: name for name, process in self.processes.items()}
        found = {"ranks": 0, "workers": 0, "server": 0, "parent": 0, "pss": 0}
        root = psutil.Process(psutil.Process(next(iter(known))).ppid())
        for process in [root, *root.children(recursive=True)]:
            name = known.get(process.pid, "parent" if process.pid == root.pid else "worker")
            try:
                private, pss = _private_and_pss(process)
            except (psutil.Error, OSError):  # it has just ended
                continue
            kind = "ranks" if name.startswith("rank") else "workers" if name == "worker" else name
            found[kind] += private
            found["pss"] += pss
        return found

    def end(self) -> None:
        for pipe in self.pipes.values():
            with contextlib.suppress(OSError):  # it is gone already
                pipe.send("end")
        for process in self.processes.values():
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.pipes.values():
            pipe.close()


def private_bytes() -> int:
    """Return the bytes of this process's private pages, as `Run` counts them."""
    import psutil

    return _private_and_pss(psutil.Process())[0]


def _private_and_pss(process: Any) -> tuple[int, int]:
    """Return USS and PSS of a process, of anonymous pages where the system tells them apart (Linux)."""
    try:
        text = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
        private, pss = (1024 * int(fields[name].split()[0]) for name in ("Private_Dirty", "Pss_Anon"))
    except (FileNotFoundError, KeyError):
        full = process.memory_full_info()
        private, pss = full.uss, getattr(full, "pss", full.uss)
    return private, pss
