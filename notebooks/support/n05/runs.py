"""What notebook 05, 400 million rows, runs and measures: ways to hold rows, pages, queries."""

from __future__ import annotations

import contextlib
import gc
import http.client
import http.server
import importlib
import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from lib._values import integer

# ---- Make a meta file of any size: image names and captions, 44 bytes a row on average, some GB a second.

WORDS = "a an the red blue green small large old young dog cat bird horse girl boy car tree on in by under sea snow"
HEADER = "# image caption\n"
ROW_BYTES = 44.0  # on average


def write_captions(path: str | os.PathLike[str], rows: int) -> int:
    """Write a header and rows like `img/000000007.jpg "a small dog on the grass"`; return how many bytes they take.

    The captions differ in length and repeat every thousand rows; the names do not repeat. Every machine gets the same
    rows. Raises ValueError for more than a billion.
    """
    rows = integer("rows", rows, at_least=0, below=10**9 + 1)
    thousand = _thousand()
    line_starts = np.flatnonzero(np.concatenate([[True], thousand[:-1] == ord("\n")]))
    with open(path, "wb") as file:
        file.write(HEADER.encode())
        for first in range(0, rows, 1_000_000):
            numbers = np.arange(first // 1000, -(-min(rows, first + 1_000_000) // 1000))
            block = np.tile(thousand, (len(numbers), 1))
            for digit in range(6):  # the last three of nine are those of the thousand rows
                value = (numbers // 10 ** (5 - digit) % 10 + ord("0")).astype(np.uint8)
                block[:, line_starts + len("img/") + digit] = value[:, None]
            extra = first + 1000 * len(numbers) - rows
            end = block.size - (len(thousand) - int(line_starts[1000 - extra]) if 0 < extra < 1000 else 0)
            file.write(block.reshape(-1)[:end].data)
        return file.tell()


def _thousand() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Return a thousand rows whose captions have 12 to 34 letters, as bytes."""
    random, words = np.random.default_rng(0), WORDS.split()
    text = []
    for row in range(1000):
        length, caption = random.integers(12, 35), ""
        while len(caption) < length:
            caption += words[random.integers(len(words))] + " "
        text.append(f'img/{row:09}.jpg "{caption[:length].strip().ljust(length, "s")}"\n')
    return np.frombuffer("".join(text).encode(), np.uint8)


# ---- Rows in a memory-mapped Arrow file, as Hugging Face datasets hold them: the peer to compare with.


def mapped_rows(rows: Sequence[str], path: str | os.PathLike[str]) -> Any:
    """Write rows to an Arrow file; return them mapped, an array with `take(ids)`. Raises ImportError without pyarrow.

    What is mapped lies in the page cache, which all processes share; the array keeps the file open.
    """
    pa: Any = importlib.import_module("pyarrow")  # it has no types

    table = pa.table({"row": pa.array(rows, pa.large_string())})
    with pa.OSFile(os.fspath(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=len(table))
    return pa.ipc.open_file(pa.memory_map(os.fspath(path))).read_all()["row"].chunk(0)


# ---- How much memory the rows of a meta file take, predicted: a copy's size, and how many copies.
#
# one      one process parses everything                   1 copy as a list
# naive    every rank does, and each of its workers        W · (1 + workers) copies as a list
# server   one process holds the rows, the others ask      1 copy, packed
# rank     every rank holds its rows of a mini-epoch       W copies of 1 / (W · E), packed, which workers share

Way: TypeAlias = Literal["one", "naive", "server", "rank"]
WAYS: tuple[Way, ...] = get_args(Way)

STR_HEADER, ROUNDED_TO, POINTER = sys.getsizeof(""), 16, 8
"""Bytes of a str beside its ASCII letters, of which its size in memory is a multiple, and of its place in a list."""
OFFSETS = 8
"""Bytes that a packed row takes beside its text: where it begins (4), and which item it is (4)."""


@dataclass(frozen=True)
class Holding:
    """Who holds rows: how many copies there are, and the bytes of each."""

    copies: int
    each: float

    @property
    def total(self) -> float:
        """Bytes on the whole machine."""
        return self.copies * self.each


def list_row_bytes(row_bytes: float) -> float:
    """Return what a row of so many bytes in the file, newline included, takes as a str in a list."""
    letters = row_bytes - 1
    return -(-(STR_HEADER + letters) // ROUNDED_TO) * ROUNDED_TO + POINTER


def predict(
    way: Way, *, rows: int, row_bytes: float, world_size: int = 1, workers: int = 0, mini_epochs: int = 1
) -> Holding:
    """Return who holds the rows when every worker has read enough. Raises ValueError for an unknown way."""
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    if way in ("one", "naive"):
        ranks = 1 if way == "one" else world_size
        return Holding(ranks * (1 + workers), rows * list_row_bytes(row_bytes))
    packed = row_bytes - 1 + OFFSETS
    if way == "server":
        small = rows * row_bytes < 2**32  # in file order, and offsets of 4 bytes reach so far
        return Holding(1, rows * (packed - (4 if small else 0)))
    turns = -(-rows // world_size)
    return Holding(world_size, -(-turns // mini_epochs) * packed)


# ---- Run the ways to hold a meta file's rows in real ranks with workers, and watch everybody's memory.
#
# Every rank is a process, started from one that has imported torch already. Memory is what was not there when
# the ranks were ready: anonymous pages only, so neither shared libraries nor the page cache count.

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


# ---- What the processes of `run_way` do: be the server, be a rank with its DataLoader and workers.

BATCH = 2048


def serve(pipe: Connection, path: str) -> None:
    """Be the server: all rows in memory, packed."""
    from lib.data import MetaServer
    from lib.data.meta import MetaFile

    _ready(pipe)
    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))
    with MetaServer(rows) as server:
        pipe.send(server.port)
        pipe.recv()


def be_rank(pipe: Connection, way: Way, path: str, rank: int, run: Run, seconds: float) -> None:
    """Be a rank: build the dataset, read through DataLoaders, stay until all have been looked at."""
    importlib.import_module("lib.data.server_dataset")  # now, so that it is not counted as rows
    importlib.import_module("lib.data.rank_dataset")
    from lib.data.meta import MetaFile

    with MetaFile(path) as meta_file:
        loaders = _loaders(way, meta_file, _ready(pipe), rank, run)
        held = [next(loaders)]  # until all ranks are done: the dataset, and loaders whose workers stay
        pipe.send("built")
        began, count = time.perf_counter(), 0
        for loader in loaders:
            held.append(loader)
            for batch in loader:
                count += batch
                if time.perf_counter() - began > seconds:
                    break
        pipe.send(count / (time.perf_counter() - began))
        pipe.recv()


def _ready(pipe: Connection) -> Any:
    """Say so, and return what is said to begin."""
    gc.collect()
    gc.freeze()  # else a worker's garbage collector writes to every object that torch has made, and copies its page
    pipe.send("ready")
    return pipe.recv()


def _loaders(way: Way, meta_file: Any, port: int, rank: int, run: Run) -> Iterator[Any]:
    """Yield the dataset, then the loaders of an epoch; a batch is how many rows came."""
    from torch.utils.data import DataLoader

    from lib.data.rank_dataset import NaiveDataset, RankDataset, mini_epoch_loaders
    from lib.data.samplers import DistributedSampler
    from lib.data.server_dataset import ServerDataset

    arguments: dict[str, Any] = {"batch_size": BATCH, "num_workers": run.num_workers, "collate_fn": len}
    if run.num_workers and sys.platform == "linux":
        arguments["multiprocessing_context"] = "fork"  # torch's default there
    if way == "rank":
        share = RankDataset(meta_file, run.world_size, rank, mini_epochs=run.mini_epochs)
        share.load(0)
        yield share
        yield from mini_epoch_loaders(share, 0, **arguments)
        return
    dataset: Any = ServerDataset("127.0.0.1", port) if way == "server" else NaiveDataset(meta_file)
    yield dataset
    sampler = DistributedSampler(range(run.rows), run.world_size, rank, order="feistel")
    yield DataLoader(dataset, sampler=sampler, persistent_workers=run.num_workers > 0, **arguments)


# ---- What a forked worker pays for reading: pages that it shared with its parent and now has for itself.
#
# A forked process shares all pages until one side writes. Reading a Python object writes: its reference count
# goes up and down again. So a list of strings is copied, page by page, as it is read, unlike bytes in one array.

PAGE = 4096
HALVINGS = 10  # looks are taken when 1/1024 of the rows have been read, 1/512, … all


def private_growth(rows: Sequence[Any]) -> list[tuple[int, int]]:
    """Fork a process that reads rows in random order; return (rows read, bytes that became its own), up to all rows.

    Empty where processes are not forked (Windows): there a worker gets a whole copy at once. Raises RuntimeError if
    the process fails.
    """
    if not hasattr(os, "fork"):
        return []
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    order = np.random.default_rng(0).permutation(len(rows))
    worker = context.Process(target=_read, args=(rows, order, theirs), daemon=True)
    worker.start()
    theirs.close()
    try:
        grown: list[tuple[int, int]] = ours.recv()
    except EOFError:
        raise RuntimeError("the forked reader failed; its error is printed above") from None
    finally:
        ours.close()
        worker.join()
    return grown


def _read(rows: Sequence[Any], order: np.ndarray[Any, Any], pipe: Any) -> None:

    gc.disable()
    gc.freeze()  # the collector writes to objects too; here only reading is to count
    private_bytes()
    start, grown = private_bytes(), [(0, 0)]
    for halvings in range(HALVINGS, -1, -1):
        done, until = grown[-1][0], len(order) >> halvings
        for i in order[done:until]:  # an array, not a list: its numbers are made when they are read
            rows[i]
        grown.append((until, private_bytes() - start))
    pipe.send(grown)


def expected_private(reads: int, rows: int, object_bytes: float) -> float:
    """Return the bytes of all pages that so many random reads touch at least once; objects lie one after another."""
    pages = rows * object_bytes / PAGE
    return PAGE * pages * -math.expm1(reads * math.log1p(-1 / pages)) if pages > 1 else PAGE * min(1, reads)


# ---- How many rows a second a central server hands out, by how it is asked and how it was written.
#
# The plain servers are http.server with the same rows: as it comes, then with one change after the other.
#
#     HTTP/1.0          every answer ends its connection: a new one for each query
#     HTTP/1.1          connections stay open; but head and body are two small writes: the second waits for
#                       the acknowledgement of the first (Nagle's algorithm), which comes 40 ms late
#     one write         head and body leave together, and Nagle's algorithm is off
#     MetaServer        ours

QUERIES_BATCH = 256
SERVERS = ("http.server as it comes", "with HTTP/1.1", "and one write", "MetaServer")
HOW = ("a connection a query", "kept alive", f"kept alive, {QUERIES_BATCH} rows a query")


def measure_servers(path: str | os.PathLike[str], seconds: float = 0.2) -> dict[str, dict[str, float]]:
    """Return rows per second by server and by way to ask, each asked by one client for some `seconds`."""
    table: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        servers = {name: stack.enter_context(_running(name, str(path))) for name in SERVERS}
        for name, pipe in servers.items():
            port, size = pipe.recv()
            table[name] = dict(zip(HOW, _rates(name, port, size, seconds), strict=True))
    return table


def _rates(name: str, port: int, size: int, seconds: float) -> Iterator[float]:
    from lib.data.server_dataset import ServerDataset

    make: Any = ServerDataset if name == "MetaServer" else PlainClient
    numbers = random.Random(0)
    batches = [[numbers.randrange(size) for _ in range(QUERIES_BATCH)] for _ in range(16)]
    client = make("127.0.0.1", port)

    def connect_and_ask(count: int) -> int:
        fresh = make("127.0.0.1", port)
        assert isinstance(fresh[count * 7919 % size], str)
        fresh.close()
        return 1

    yield _per_second(connect_and_ask, seconds)
    for count in range(20):  # until the system acknowledges late: it spares a young connection that
        client[count]
    yield _per_second(lambda count: bool(client[count * 7919 % size]), seconds)
    yield _per_second(lambda count: len(client.__getitems__(batches[count % 16])), seconds)
    client.close()


def _per_second(ask: Callable[[int], int], seconds: float) -> float:
    ask(0)
    got = count = 0
    began = time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        got += ask(count)
        count += 1
    return got / took


@contextmanager
def _running(name: str, path: str) -> Iterator[Connection]:
    """Run a server in a process of its own; its pipe gives (port, number of rows) when it serves."""
    context = worker_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, name, path), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.terminate()
        process.join()
        ours.close()


def _serve(pipe: Connection, name: str, path: str) -> None:
    from lib.data import MetaServer
    from lib.data.meta import MetaFile

    with MetaFile(path) as meta_file:
        rows = meta_file.packed(range(len(meta_file)))
    if name == "MetaServer":
        with MetaServer(rows) as server:
            pipe.send((server.port, len(rows)))
            server.serve_forever()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), plain_handler(rows, SERVERS.index(name))) as plain:
        pipe.send((plain.server_port, len(rows)))
        plain.serve_forever()


def plain_handler(rows: Any, step: int) -> type[http.server.BaseHTTPRequestHandler]:
    """Return the handler of a plain server: 0 as it comes, 1 with HTTP/1.1, 2 with one write as well."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if step > 0 else "HTTP/1.0"
        wbufsize = -1 if step > 1 else 0  # 0: every write goes out at once
        disable_nagle_algorithm = step > 1

        def do_GET(self) -> None:
            self.say(rows[int(self.path.rpartition("/")[2])])

        def do_POST(self) -> None:
            self.say(rows.rows(json.loads(self.rfile.read(int(self.headers["Content-Length"])))))

        def say(self, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class PlainClient:
    """The same questions through http.client."""

    def __init__(self, host: str, port: int) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=10)
        self.close = self._connection.close

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        self._connection.request(method, path, body)
        return json.loads(self._connection.getresponse().read())

    def __getitem__(self, index: int) -> Any:
        return self._ask("GET", f"/get/{index}")

    def __getitems__(self, indices: list[int]) -> Any:
        return self._ask("POST", "/rows", json.dumps(indices))
