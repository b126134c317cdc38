"""Exercises of notebook 05, 400 million rows on a small machine; its predictions stand in guesses.py."""

from __future__ import annotations

import http.client
import os
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from torch.utils.data import DataLoader

from lib.data import MetaServer
from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from support.checks import Exercise, Verdict
from support.n05.guesses import guess_cold_hours as guess_cold_hours
from support.n05.guesses import guess_copied_percent as guess_copied_percent
from support.n05.guesses import guess_list_megabytes as guess_list_megabytes
from support.n05.guesses import guess_peak_megabytes as guess_peak_megabytes
from support.n05.guesses import guess_received as guess_received
from support.n05.runs import held_and_most, positions, written
from support.n05.solved import MyFileDataset, MyPacked, MyRankDataset, MyServerDataset, index_of, wrong

# ---- what the exercises have in common
ROWS = ['img/000000000.jpg "a dog"', 'img/000000001.jpg "Ärger im Café"', "", 'img/000000003.jpg "犬"', "x"]
Fault = Callable[[Any], str]  # says what is wrong with an answer, "" if nothing


def _judged(fault: Fault, praise: str) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge: a mistake is recognised by its fault, which is that of the reader's answer."""

    def told(answer: Any) -> str:
        try:
            return fault(answer)
        except Exception as error:
            return f"your code raised {type(error).__name__}: {error}."

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        if not (found := told(answer)):
            return exercise.right(praise)
        reasons = (f" {why}" for why, wrong in exercise.mistakes.items() if told(wrong) == found)
        return exercise.wrong(found + next(reasons, ""))

    return judge


def _differs(got: Any, wanted: Any, where: str) -> str:
    return "" if got == wanted else f"{where} should be {wanted!r}, it is {got!r}."


def _of_rows(dataset: Any, name: str) -> str:
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


MANY = [f"row {number:05} " + "." * (number % 40) for number in range(3000)]
TEXT = sum(map(len, MANY))


# ---- exercise 1: MyPacked
def _fault_of_packed(make: Any) -> str:
    packed = make(ROWS)
    for what in ("data", "offsets"):
        if not isinstance(array := getattr(packed, what, None), np.ndarray):
            return f"self.{what} is {type(array).__name__}, not one numpy array."
    bounds = [0, *accumulate(len(row.encode()) for row in ROWS)]
    fault = _differs(packed.offsets.tolist(), bounds, f"of {ROWS}, self.offsets")
    if fault := fault or _narrow(packed.offsets, "self.offsets") or _of_rows(packed, "packed"):
        return fault
    if packed.data.tobytes() != "".join(ROWS).encode():
        return "self.data is not the UTF-8 text of all rows, one after another and nothing else."
    _, kept, _ = held_and_most(lambda: _all_read(make([row[:1] + row[1:] for row in MANY])))
    if kept > TEXT + 9 * len(MANY) + 4000:
        most = f"{kept / len(MANY):.0f} bytes are kept for each row, text and offset need {TEXT / len(MANY) + 8:.0f}"
        return f"when all rows have been read, {most}: keep the two arrays only."
    return ""


check_packed = Exercise(
    "MyPacked",
    reference=MyPacked,
    methods=("__init__", "__len__", "__getitem__"),
    judge=_judged(_fault_of_packed, f"all rows come back; of {len(MANY)} each takes text and offset, measured."),
    mistakes=wrong(MyPacked, {
        "An offset in a list is a Python object again, whose page is copied when it is read.": (
            "np.cumsum([0] + [len(row) for row in encoded])", "np.cumsum([0, *map(len, encoded)]).tolist()"),
        "Count bytes, not letters: an Ä takes two bytes.": ("len(row) for row in encoded", "len(row) for row in rows"),
        "N rows have N + 1 bounds, and the first is 0.": (
            "[0] + [len", "[len", "len(self.offsets) - 1", "len(self.offsets)",
            "self.offsets[i] : self.offsets[i + 1]", "self.offsets[i - 1] if i else 0 : self.offsets[i]"),
        "The real file's text is longer than 32 bits can count.": (
            "for row in encoded])", "for row in encoded]).astype(np.int32)"),
        "A row is a str: decode its bytes.": (".tobytes().decode()", ".tobytes()"),
    }),
)  # fmt: skip


# ---- exercise 3: index_of
def _narrow(array: Any, name: str) -> str:
    """Say whether an array of places in the text or the file could not count as far as the real ones go."""
    told = f"{name} of the type {array.dtype} cannot count to 17.2 GB, the real text (32 bits end at 2.1 or 4.3)."
    return "" if array.dtype.kind in "iu" and array.dtype.itemsize == 8 else told


def _fault_of_index(index: Any) -> str:
    for rows, block in ((ROWS, 1 << 20), (ROWS, 7), (ROWS[:1], 3), (["Ä", "b"], 1)):
        with written(rows) as path:
            wanted = [place + 1 for place, byte in enumerate(Path(path).read_bytes()) if byte == ord("\n")]
            got = index(path, block)
        if got is None:
            return "your function returned None (is a `return` missing?)."
        if not isinstance(got, np.ndarray):
            return f"the index is one numpy array, not {type(got).__name__}."
        where = f"the index of a file of {len(rows)} rows, read in blocks of {block} bytes,"
        if fault := _differs(list(map(int, got)), wanted, where):
            return fault
    if fault := _narrow(got, "the index"):
        return fault
    joined: list[str] = []
    with written([row.ljust(300, ".") for row in MANY]) as path, ExitStack() as stack:
        for name in ("append", "concatenate", "hstack"):
            counted = partial(lambda join, *a, **k: (joined.__iadd__([""]), join(*a, **k))[1], vars(np)[name])
            stack.enter_context(mock.patch.object(np, name, counted))
        _, kept, peak = held_and_most(lambda: index(path, 4096))
    if peak > 20 * len(MANY) + 40_000:
        return f"900 kB were read in blocks of 4 kB; at a time {peak / 1e6:.1f} MB were in memory."
    if len(joined) > 2:
        return "the bounds found so far are copied anew with every block."
    return "" if kept < 9 * len(MANY) else f"{kept / len(MANY):.0f} bytes a row stay in memory."


check_index = Exercise(
    "index_of",
    reference=index_of,
    judge=_judged(_fault_of_index, "every bound is right, also across blocks, and only a block of text was in memory."),
    mistakes=wrong(index_of, {
        "The header became row 0: row 0 begins after the first newline.": ("place = [], 0", "place = [[0]], 0"),
        "That is the newline itself; the next row begins one byte later.": ("newlines + 1", "newlines"),
        "Places count from the start of each block: add the bytes before it.": ("place + newlines", "newlines"),
        "The end of the last row is missing: N rows have N + 1 bounds.": ("(bounds)", "(bounds)[:-1]"),
        "The whole text was read at once: read it in blocks.": ("file.read(block)", "file.read()"),
        "Collect the arrays of the blocks in a list, and join them once, at the end.": (
            "bounds.append(place + newlines + 1)", "bounds = np.append(bounds, place + newlines + 1)",
            "np.concatenate(bounds)", "np.array(bounds, np.int64)"),
        'Letters are not bytes: open the file with "rb".': (
            'open(path, "rb")', 'open(path, encoding="utf-8")',
            'np.frombuffer(text, np.uint8) == ord("\\n")', 'np.array(list(text)) == "\\n"'),
    }),
)  # fmt: skip


# ---- exercise 4: MyFileDataset
def _fault_of_file(make: Any) -> str:
    reads: list[int] = []
    pread = os.pread
    with written(ROWS) as path:
        dataset = make(path, index_of(path))
        if fault := _of_rows(dataset, "dataset"):
            return fault
    with written(MANY) as path:
        bounds, asked = index_of(path), [2900, 40, 1033, 2900, 7]
        dataset, begun, _ = held_and_most(lambda: make(path, bounds))
        _, kept, _ = held_and_most(lambda: _all_read(make(path, bounds)))
        os.pread = lambda file, size, place: (reads.__iadd__([int(place)]), pread(file, size, place))[1]
        try:
            got = dataset.__getitems__(asked)
        finally:
            os.pread = pread
    if begun > TEXT / 8:
        what = "a copy of the bounds, or the text. Keep `bounds` as it is, mapped, and read a row when it is wanted"
        return f"before any row is read, {begun // 1000} kB are held: {what}."
    if kept > TEXT / 8:
        return f"when all rows have been read, {kept / TEXT:.0%} of the bytes of their text are held: keep no row."
    if fault := _differs(got, [MANY[number] for number in asked], f"dataset.__getitems__({asked})"):
        return fault
    if any(a >= b for a, b in pairwise(reads)):
        return f"the batch {asked} is read at the places {reads}: not front to back, each row once."
    with written(ROWS) as path:
        dataset = make(path, index_of(path))
        before = positions(path)
        dataset[0]
        opened = {*positions(path)}
        after = positions(_all_read(dataset) and path)
        if any(before[file] != after[file] for file in before if file in after):
            return "an access moved the position of the open file."
        if not opened or after.keys() - opened:
            return "the file is opened again for each row: open it once, opening costs more than reading 44 bytes."
    return ""


check_file = Exercise(
    "MyFileDataset",
    reference=MyFileDataset,
    methods=("__init__", "__len__", "__getitem__", "__getitems__"),
    judge=_judged(_fault_of_file, "every row, each batch in the order asked for; opened once, nothing held or shared."),
    mistakes=wrong(MyFileDataset, {
        "Forked workers share that position, and move it while another one reads: os.pread needs none.": (
            "os.open(path, os.O_RDONLY)", "open(path, 'rb', buffering=0)",
            "return os.pread(self.file, end - 1 - begin, begin)",
            "self.file.seek(begin); return self.file.read(end - 1 - begin)"),
        "The newline belongs to the line, not to the row.": ("end - 1 - begin", "end - begin"),
        "Read front to back, so that neighbours are read together: sort first.": ("sorted(set(indices))", "indices"),
        "A set has no order: sort it.": ("sorted(set(indices))", "set(indices)"),
        "A row that is asked for twice is read twice: use set(indices).": ("sorted(set(indices))", "sorted(indices)"),
        "The loader wants the rows in the order in which it asked.": ("for index in indices]", "for index in rows]"),
    }),
)  # fmt: skip


# ---- exercise 2: MyServerDataset
class _Counted:
    """Rows that a MetaServer serves, and who asked for which: it has a thread for each connection."""

    def __init__(self) -> None:
        self.asked, self.given = list[threading.Thread](), list[int]()

    def __len__(self) -> int:
        return len(ROWS)

    def rows(self, ids: Sequence[int]) -> list[str]:
        self.asked.append(threading.current_thread())
        self.given += ids
        return [ROWS[index] for index in ids]


def _fault_of_client(make: Any) -> str:
    rows = _Counted()
    with MetaServer(rows) as server:
        return _fault_of_asked(make(server.host, server.port), rows)


def _fault_of_asked(dataset: Any, server: _Counted) -> str:
    batch, beyond, asked = [3, 0, 3], len(ROWS), server.asked
    if fault := _of_rows(dataset, "dataset"):
        return fault
    if server.given != [*range(beyond)]:
        return f"for the rows {[*range(beyond)]}, one by one, the server had to give the rows {server.given}."
    before, wanted = len(asked), [ROWS[number] for number in batch]
    if fault := _differs(dataset.__getitems__(batch), wanted, f"dataset.__getitems__({batch})"):
        return fault
    if len(asked) != before + 1:
        return f"for a batch of 3 rows the server had {len(asked) - before} requests: send one POST /rows."
    if set(server.given[beyond:]) != set(batch):
        return f"for the batch {batch} the server had to give the rows {server.given[beyond:]}."
    dataset[0]
    if len(asked) != before + 2:
        return "dataset[0], asked a second time, was not asked of the server."
    there = f"there are {beyond} rows, and dataset[{beyond}]"
    try:
        return f"{there} gives {dataset[beyond]!r}, not an IndexError."
    except IndexError:
        pass
    except Exception as error:
        return f"{there} raises {type(error).__name__}, not an IndexError."
    with suppress(Exception):
        if len(got := dataset.__getitems__([0] * 65_537)) != 65_537:
            return f"one request for 65,537 rows is answered with the status 413, and you return {got}."
    try:
        dataset[0]
    except http.client.HTTPException as error:
        return f"the request after a status of 404 or 413 fails with {type(error).__name__}."
    if len(set(asked)) > 1:
        return f"for {len(asked)} requests you connected {len(set(asked))} times."
    loader: Any = DataLoader(dataset, batch_size=2, num_workers=1, multiprocessing_context="fork", timeout=20)
    fault = _differs([row for batch in loader for row in batch], ROWS, "what a forked worker reads")
    shared = "" if len(set(asked)) == 2 else "a forked worker asked through its parent's connection."
    return fault or shared


check_client = Exercise(
    "MyServerDataset",
    reference=MyServerDataset,
    methods=("__init__", "ask", "__len__", "__getitem__", "__getitems__"),
    judge=_judged(_fault_of_client, "right rows, one connection in each process and one request a batch, counted."),
    mistakes=wrong(MyServerDataset, {
        "A new connection a request is what makes such servers slow: keep it.": ("self.owner != os.getpid()", "True"),
        "Two processes on one connection take each other's answers: connect anew where os.getpid() is another.": (
            "self.owner != os.getpid()", "not self.owner"),
        "That is the server's complaint, and a loader would train on it.": ("answer.status != 200", "False"),
        "A complaint as well: every status but 200 must raise.": ("answer.status != 200", "answer.status == 404"),
        "Rows between those of the batch are not wanted.": (
            'return self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))',
            'low = min(indices); rows = self.ask("POST", "/rows", json.dumps([*range(low, max(indices) + 1)])); '
            'return [rows[index - low] for index in indices]'),
        "The answer was not read to its end, and what is left of it is in the way.": (
            "value = json.loads(answer.read())", "",
            'value["message"]', 'path', 'return value', 'return json.loads(answer.read())'),
        "The answer is JSON: read it with json.loads.": ("json.loads(answer.read())", "answer.read().decode()"),
    }),
)  # fmt: skip


# ---- exercise 5: MyRankDataset
class _Source:
    """Rows that note which were asked for, and how many bytes were in memory at that moment."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows, self.asked, self.memory = rows, list[list[int]](), list[int]()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        ids = [int(index) for index in indices]
        self.asked.append(ids if len(ids) < 100 else [])
        self.memory.append(tracemalloc.get_traced_memory()[0])
        return [row[:1] + row[1:] for row in map(self.rows.__getitem__, ids)]  # strings of their own


def _fault_of_rank(make: Any) -> str:
    for size, world, parts in ((24, 4, 2), (28, 4, 3), (26, 4, 3), (13, 3, 2), (10, 1, 4), (3, 5, 2)):
        rows, seed = MANY[:size], 7 * (size == 26)
        with written(rows) as path, MetaFile(path) as meta_file:
            for rank, epoch, part in product(range(world), (0, 2), range(parts)):
                theirs = RankDataset(meta_file, world, rank, mini_epochs=parts, seed=seed)
                theirs.set_epoch(epoch)
                source = _Source(rows)
                wanted = [int(number) for block in theirs.ids(part) for number in block]
                dataset = make(source, world, rank, parts, seed)
                where = f"N, W, E = {size}, {world}, {parts}; seed {seed}, rank {rank}, epoch {epoch}, part {part}:"
                ids = dataset.ids(epoch, part)
                if not isinstance(ids, np.ndarray):
                    return f"ids should return a numpy array, not {type(ids).__name__}."
                if fault := _differs(ids.tolist(), wanted, f"{where} ids"):
                    return fault
                dataset.load(1, 0)
                source.asked.clear()
                dataset.load(epoch, part)
                if fault := _differs(len(dataset), len(wanted), f"{where} len"):
                    return fault
                got = [int(dataset[number].split()[1]) for number in range(len(wanted))]
                if fault := _differs(got, wanted, f"{where} the numbers of the items"):
                    return fault
                if len(source.asked) > 1:
                    return f"{where} for {len(wanted)} rows the source was asked {len(source.asked)} times: ask once."
                asked, new = sorted({id for ids in source.asked for id in ids}), sorted(set(wanted))
                if asked != new:
                    return f"{where} load read the rows {asked}, not {new}: none may be left from before."
    _, _, peak = held_and_most(lambda: make(_Source(range(200_000)), 8, 0, 8).ids(0, 0))  # type: ignore[arg-type]
    if peak > 800_000:
        whole = "the whole order, at the real size 3.2 GB in each rank: ask Permutation for this rank's places only"
        return f"for 3,125 ids of 200,000 rows {peak / 1e6:.1f} MB were in memory at a time ({whole})."
    source = _Source(MANY)
    _, kept, _ = held_and_most(lambda: [data := make(source, 1, 0, 2), data.load(0, 0), data.load(0, 1)])
    each = kept / (len(MANY) // 2)
    if each > TEXT / len(MANY) + 14:
        most = f"{each:.0f} bytes are kept for each row, and Packed needs {TEXT / len(MANY) + 8:.0f} (text and offset)"
        return f"{most}: keep no list of ids and no strings beside it."
    if source.memory[1] - source.memory[0] > TEXT / 4:
        return "while the rows of a mini-epoch are read, those of the one before are still in memory."
    return ""


check_rank_dataset = Exercise(
    "MyRankDataset",
    reference=MyRankDataset,
    methods=("ids", "load", "__len__", "__getitem__"),
    judge=_judged(_fault_of_rank, "lib's rows in all cases, packed, one reading a mini-epoch, and old rows go first."),
    mistakes=wrong(MyRankDataset, {
        "A contiguous piece: deal in turns, so that what all ranks used is the head of the order.": (
            "self.rank + self.world_size * np", "self.rank * turns + np"),
        "The epoch is not in the order: every epoch deals the same rows.": ("epoch=epoch)", "epoch=0)"),
        "The seed is not in the order: whoever chooses another one gets the same.": ("seed=self.seed,", "seed=0,"),
        "The last ranks get a row less: the head of the order is dealt again, so that all are equal.": (
            "-(-size // self.world_size)", "len(range(self.rank, size, self.world_size))"),
        "The tail of the order is left to nobody.": ("-(-size // self.world_size)", "size // self.world_size"),
        "turns // E for each mini-epoch loses the turns that are left over.": (
            "turns * mini_epoch // self.mini_epochs", "turns // self.mini_epochs * mini_epoch",
            "turns * (mini_epoch + 1) // self.mini_epochs", "begin + turns // self.mini_epochs"),
        "The parts are not as even as can be: mini-epoch k begins with turn T k // E.": (
            "turns * mini_epoch // self.mini_epochs", "-(-turns // self.mini_epochs) * mini_epoch",
            "turns * (mini_epoch + 1) // self.mini_epochs", "min(turns, begin - (-turns // self.mini_epochs))"),
        "A mini-epoch is one piece of the turns, not every E-th of them.": (
            "np.arange(begin, end)", "np.arange(mini_epoch, turns, self.mini_epochs)"),
        "The items come in the order of the epoch: what sorts is the source, not ids.": (
            "return Permutation", "return np.sort(Permutation", "places % size]", "places % size])"),
        "Where the order ends, its head is dealt again, not its last row.": (
            "places % size", "np.minimum(places, size - 1)"),
        "Those are places in the order: ask Permutation for the rows at them.": (
            "return Permutation(size, seed=self.seed, epoch=epoch)[places % size]", "return places % size"),
        "The epoch is in the seed as well: Permutation gets it as epoch=epoch only.": (
            "seed=self.seed,", "seed=self.seed + epoch,"),
        "The rank is in the seed: then each rank shuffles otherwise, and rows are dealt twice or never.": (
            "seed=self.seed,", "seed=self.seed + self.rank,"),
        "Let the old rows go before you read the new ones: self.rows = None.": ("        self.rows = None\n", ""),
        "Item i is the i-th row in memory, not row i of the file.": ("return self.rows[i]", "return self.source[i]"),
    }),
)  # fmt: skip
