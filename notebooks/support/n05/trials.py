"""What the answers of notebook 05 do when they are tried: each function says what is wrong with one, "" if nothing."""

from __future__ import annotations

import http.client
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch.utils.data import DataLoader

from lib.data import MetaServer
from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from support.kit.raised import in_case
from support.kit.values import NO_RETURN, kind_of
from support.n05.runs import held_and_most, positions, written
from support.n05.solved import index_of

# ---- what the exercises have in common

ROWS = ['img/000000000.jpg "a dog"', 'img/000000001.jpg "Ärger im Café"', "", 'img/000000003.jpg "犬"', "x"]
MANY = [f"row {number:05} " + "." * (number % 40) for number in range(3000)]
TEXT = sum(map(len, MANY))


def _differs(got: Any, wanted: Any, where: str) -> str:
    if got == wanted:
        return ""
    seen = f"your code {NO_RETURN}" if got is None else f"it is {got!r}"
    return f"{where} should be {wanted!r}, {seen}."


def _fault_of_rows(dataset: Any, name: str) -> str:
    """Compare a dataset of ROWS with them, item by item."""
    fault = _differs(len(dataset), len(ROWS), f"of {len(ROWS)} rows, len({name})")
    for number, row in enumerate(ROWS):
        fault = fault or _differs(dataset[number], row, f"of {ROWS}, {name}[{number}]")
    return fault


def _all_read(dataset: Any) -> Any:
    """Read every row, singly and in batches if it has any, and return the dataset: does it keep them?"""
    _ = [dataset[number] for number in range(len(dataset))]
    if hasattr(dataset, "__getitems__"):
        dataset.__getitems__([*range(len(dataset))])
    return dataset


def _fault_of_width(array: Any, name: str) -> str:
    """Say whether an array of places in the text or the file could not count as far as the real ones go."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        return ""
    return f"{name} of the type {array.dtype} cannot count to 17.2 GB, the real text (32 bits end at 2.1 or 4.3)."


# ---- exercise 1: MyPacked


def fault_of_packed(make: Any) -> str:
    """Pack rows with letters of several bytes, then many rows: what is kept of them?"""
    with in_case(f"for the rows {ROWS}"):
        packed = make(ROWS)
        for what in ("data", "offsets"):
            array = getattr(packed, what, None)
            if not isinstance(array, np.ndarray):
                return f"self.{what} is {type(array).__name__}, not one numpy array."
        bounds = [0, *accumulate(len(row.encode()) for row in ROWS)]
        fault = (
            _differs(packed.offsets.tolist(), bounds, f"of {ROWS}, self.offsets")
            or _fault_of_width(packed.offsets, "self.offsets")
            or _fault_of_rows(packed, "packed")
        )
    if fault:
        return fault
    if packed.data.tobytes() != "".join(ROWS).encode():
        return "self.data is not the UTF-8 text of all rows, one after another and nothing else."
    with in_case(f"for {len(MANY)} rows"):
        _, kept, _ = held_and_most(lambda: _all_read(make([row[:1] + row[1:] for row in MANY])))
    if kept > TEXT + 9 * len(MANY) + 4000:
        most = f"{kept / len(MANY):.0f} bytes are kept for each row, text and offset need {TEXT / len(MANY) + 8:.0f}"
        return f"when all rows have been read, {most}: keep the two arrays only."
    return ""


# ---- exercise 3: index_of

#: Rows of a file, and bytes of a block: also blocks that end within a row and within a letter.
_FILES = ((ROWS, 1 << 20), (ROWS, 7), (ROWS[:1], 3), (["Ä", "b"], 1))


def fault_of_index(index: Any) -> str:
    """Index small files in blocks of several sizes, then a large one: what is in memory meanwhile?"""
    for rows, block in _FILES:
        file = f"a file of {len(rows)} rows, read in blocks of {block} bytes"
        with written(rows) as path:
            wanted = [place + 1 for place, byte in enumerate(Path(path).read_bytes()) if byte == ord("\n")]
            with in_case(f"for {file}"):
                got = index(path, block)
        if not isinstance(got, np.ndarray):
            return f"the index is one numpy array, not {kind_of(got)}."
        fault = _differs(list(map(int, got)), wanted, f"the index of {file},")
        if fault:
            return fault
    return _fault_of_width(got, "the index") or _fault_of_large_index(index)


def _fault_of_large_index(index: Any) -> str:
    rows = [row.ljust(300, ".") for row in MANY]
    case = f"for a file of {len(rows)} rows, read in blocks of 4096 bytes"
    with written(rows) as path, _joins_counted() as joined, in_case(case):
        _, kept, peak = held_and_most(lambda: index(path, 4096))
    if peak > 20 * len(MANY) + 40_000:
        return f"900 kB were read in blocks of 4 kB; at a time {peak / 1e6:.1f} MB were in memory."
    if len(joined) > 2:
        return "the bounds found so far are copied anew with every block."
    return "" if kept < 9 * len(MANY) else f"{kept / len(MANY):.0f} bytes a row stay in memory."


@contextmanager
def _joins_counted() -> Iterator[list[str]]:
    """Note the name of each function of numpy that joins arrays, whenever it is called."""
    joined: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        join = vars(np)[name]

        @wraps(join)
        def joining(*arguments: Any, **named: Any) -> Any:
            joined.append(name)
            return join(*arguments, **named)

        return joining

    with ExitStack() as stack:
        for name in ("append", "concatenate", "hstack"):
            stack.enter_context(mock.patch.object(np, name, counted(name)))
        yield joined


# ---- exercise 4: MyFileDataset


def fault_of_file(make: Any) -> str:
    """Read a small file, then a large one: what is held, in which order is it read, how often is it opened?"""
    with written(ROWS) as path, in_case(f"for a file of {len(ROWS)} rows"):
        fault = _fault_of_rows(make(path, index_of(path)), "dataset")
    return fault or _fault_of_large_file(make) or _fault_of_descriptors(make)


def _fault_of_large_file(make: Any) -> str:
    asked = [2900, 40, 1033, 2900, 7]
    with written(MANY) as path, in_case(f"for a file of {len(MANY)} rows"):
        bounds = index_of(path)
        dataset, begun, _ = held_and_most(lambda: make(path, bounds))
        _, kept, _ = held_and_most(lambda: _all_read(make(path, bounds)))
        with _reads_noted() as reads:
            got = dataset.__getitems__(asked)
    if begun > TEXT / 8:
        what = "a copy of the bounds, or the text. Keep `bounds` as it is, mapped, and read a row when it is wanted"
        return f"before any row is read, {begun // 1000} kB are held: {what}."
    if kept > TEXT / 8:
        return f"when all rows have been read, {kept / TEXT:.0%} of the bytes of their text are held: keep no row."
    fault = _differs(got, [MANY[number] for number in asked], f"dataset.__getitems__({asked})")
    if fault:
        return fault
    if any(a >= b for a, b in pairwise(reads)):
        return f"the batch {asked} is read at the places {reads}: not front to back, each row once."
    return ""


@contextmanager
def _reads_noted() -> Iterator[list[int]]:
    """Note each place at which os.pread reads."""
    reads: list[int] = []
    pread = os.pread

    def noted(file: int, size: int, place: int) -> bytes:
        reads.append(int(place))
        return pread(file, size, place)

    with mock.patch.object(os, "pread", noted):
        yield reads


def _fault_of_descriptors(make: Any) -> str:
    with written(ROWS) as path, in_case(f"for a file of {len(ROWS)} rows"):
        dataset = make(path, index_of(path))
        before = positions(path)
        dataset[0]
        opened = {*positions(path)}
        _all_read(dataset)
        after = positions(path)
    if any(before[file] != after[file] for file in before if file in after):
        return "an access moved the position of the open file."
    if not opened or after.keys() - opened:
        return (
            "the file is opened again for each row: open it once, opening costs more than reading 44 bytes."
        )
    return ""


# ---- exercise 2: MyServerDataset


class _Counted:
    """Rows that a MetaServer serves, and who asked for which: it has a thread for each connection."""

    def __init__(self) -> None:
        self.asked: list[threading.Thread] = []
        self.given: list[int] = []

    def __len__(self) -> int:
        return len(ROWS)

    def rows(self, ids: Sequence[int]) -> list[str]:
        self.asked.append(threading.current_thread())
        self.given += ids
        return [ROWS[index] for index in ids]


def fault_of_client(make: Any) -> str:
    """Ask a server for rows and batches, for too many and for what is not there, and from a forked worker."""
    rows = _Counted()
    with MetaServer(rows) as server, in_case(f"for a server of {len(ROWS)} rows"):
        dataset = make(server.host, server.port)
        return (
            _fault_of_rows(dataset, "dataset")
            or _fault_of_requests(dataset, rows)
            or _fault_of_complaints(dataset)
            or _fault_of_connections(dataset, rows)
        )


def _fault_of_requests(dataset: Any, server: _Counted) -> str:
    """Say whether what was asked of the server is what was wanted; all rows have been, one by one."""
    batch = [3, 0, 3]
    asked = server.asked
    single = [*range(len(ROWS))]
    if server.given != single:
        return f"for the rows {single}, one by one, the server had to give the rows {server.given}."
    before = len(asked)
    wanted = [ROWS[number] for number in batch]
    fault = _differs(dataset.__getitems__(batch), wanted, f"dataset.__getitems__({batch})")
    if fault:
        return fault
    if len(asked) != before + 1:
        return f"for a batch of 3 rows the server had {len(asked) - before} requests: send one POST /rows."
    given = server.given[len(ROWS) :]
    if set(given) != set(batch):
        return f"for the batch {batch} the server had to give the rows {given}."
    dataset[0]
    if len(asked) != before + 2:
        return "dataset[0], asked a second time, was not asked of the server."
    return ""


def _fault_of_complaints(dataset: Any) -> str:
    """Say whether a status of 404 and one of 413 are raised, and the connection can still be used."""
    beyond = len(ROWS)
    there = f"there are {beyond} rows, and dataset[{beyond}]"
    try:
        return f"{there} gives {dataset[beyond]!r}, not an IndexError."
    except IndexError:
        pass
    except Exception as error:
        return f"{there} raises {type(error).__name__}, not an IndexError."
    with suppress(Exception):  # whatever it raises, it has noticed
        got = dataset.__getitems__([0] * 65_537)
        if len(got) != 65_537:
            return f"one request for 65,537 rows is answered with the status 413, and you return {got}."
    try:
        dataset[0]
    except http.client.HTTPException as error:
        return f"the request after a status of 404 or 413 fails with {type(error).__name__}."
    return ""


def _fault_of_connections(dataset: Any, server: _Counted) -> str:
    asked = server.asked
    if len(set(asked)) > 1:
        return f"for {len(asked)} requests you connected {len(set(asked))} times."
    loader: Any = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=20)
    fault = _differs([row for batch in loader for row in batch], ROWS, "what a forked worker reads")
    if fault:
        return fault
    return "" if len(set(asked)) == 2 else "a forked worker asked through its parent's connection."


# ---- exercise 5: MyRankDataset


class _Source:
    """Rows that note which were asked for, and how many bytes were in memory at that moment."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows
        self.asked: list[list[int]] = []
        self.memory: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        ids = [int(index) for index in indices]
        self.asked.append(ids if len(ids) < 100 else [])
        self.memory.append(tracemalloc.get_traced_memory()[0])
        return [row[:1] + row[1:] for row in map(self.rows.__getitem__, ids)]  # strings of their own


#: Rows, ranks and mini-epochs.
_JOBS = ((24, 4, 2), (28, 4, 3), (26, 4, 3), (13, 3, 2), (10, 1, 4), (3, 5, 2))


def fault_of_rank(make: Any) -> str:
    """Compare with lib's rows in jobs of several sizes; then ask what a large order and many rows take."""
    for size, world, parts in _JOBS:
        with written(MANY[:size]) as path, MetaFile(path) as meta_file:
            for rank, epoch, part in product(range(world), (0, 2), range(parts)):
                fault = _fault_of_part(make, meta_file, (world, rank, parts), epoch, part)
                if fault:
                    return fault
    return _fault_of_large_order(make) or _fault_of_kept_rows(make)


def _fault_of_part(make: Any, meta_file: MetaFile, job: tuple[int, int, int], epoch: int, part: int) -> str:
    """Compare one mini-epoch of a rank with lib's; job: ranks, rank, mini-epochs."""
    world, rank, parts = job
    size = len(meta_file)
    seed = 7 if size == 26 else 0
    theirs = RankDataset(meta_file, world, rank, mini_epochs=parts, seed=seed)
    theirs.set_epoch(epoch)
    wanted = [int(number) for block in theirs.ids(part) for number in block]
    source = _Source(MANY[:size])
    case = f"N, W, E = {size}, {world}, {parts}; seed {seed}, rank {rank}, epoch {epoch}, part {part}"
    with in_case(case):
        dataset = make(source, world, rank, parts, seed)
        ids = dataset.ids(epoch, part)
        if not isinstance(ids, np.ndarray):
            return f"ids should return a numpy array, not {kind_of(ids)}."
        fault = _differs(ids.tolist(), wanted, f"{case}: ids")
        if fault:
            return fault
        dataset.load(1, 0)
        source.asked.clear()
        dataset.load(epoch, part)
        fault = _differs(len(dataset), len(wanted), f"{case}: len")
        if fault:
            return fault
        got = [int(dataset[number].split()[1]) for number in range(len(wanted))]
    fault = _differs(got, wanted, f"{case}: the numbers of the items")
    if fault:
        return fault
    if len(source.asked) > 1:
        return f"{case}: for {len(wanted)} rows the source was asked {len(source.asked)} times: ask once."
    asked = sorted({id for ids in source.asked for id in ids})
    new = sorted(set(wanted))
    if asked != new:
        return f"{case}: load read the rows {asked}, not {new}: none may be left from before."
    return ""


def _fault_of_large_order(make: Any) -> str:
    with in_case("for 200,000 rows and 8 ranks"):
        _, _, peak = held_and_most(lambda: make(_Source(range(200_000)), 8, 0, 8).ids(0, 0))
    if peak > 800_000:
        whole = "the whole order, at the real size 3.2 GB in each rank: ask Permutation for this rank's places only"
        return f"for 3,125 ids of 200,000 rows {peak / 1e6:.1f} MB were in memory at a time ({whole})."
    return ""


def _fault_of_kept_rows(make: Any) -> str:
    source = _Source(MANY)

    def loaded() -> Any:
        dataset = make(source, 1, 0, 2)
        dataset.load(0, 0)
        dataset.load(0, 1)
        return dataset

    with in_case(f"for {len(MANY)} rows, one rank and 2 mini-epochs"):
        _, kept, _ = held_and_most(loaded)
    each = kept / (len(MANY) // 2)
    if each > TEXT / len(MANY) + 14:
        most = f"{each:.0f} bytes are kept for each row, and Packed needs {TEXT / len(MANY) + 8:.0f} (text and offset)"
        return f"{most}: keep no list of ids and no strings beside it."
    if source.memory[1] - source.memory[0] > TEXT / 4:
        return "while the rows of a mini-epoch are read, those of the one before are still in memory."
    return ""
