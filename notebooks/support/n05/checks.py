"""Predictions and exercises of notebook 05, 400 million rows on a small machine."""

from __future__ import annotations

import http.client
import json
import os
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from lib.data import MetaServer
from lib.data.meta import MetaFile
from lib.data.permutation import Permutation
from lib.data.rank_dataset import RankDataset
from support.captions import ROW_BYTES, expected_private, list_row_bytes, predict
from support.checks import Exercise, Guess, Verdict
from support.n05.solved import MyFileDataset, MyPacked, MyRankDataset, MyServerDataset, index_of
from support.ranks import source_of

# ---- predictions


def _copied_percent(rows: int) -> int:
    each = list_row_bytes(ROW_BYTES) - 8  # the list's own places are not written
    return round(100 * expected_private(rows // 16, rows, each) / (rows * each))


def _naive_megabytes(rows: int, **machine: int) -> int:
    return round(predict("naive", rows=rows, row_bytes=ROW_BYTES, **machine).total / 1e6)


guess_list_megabytes = Guess("the size of the list", _naive_megabytes, unit="MB", tolerance=0.1)
_machine = partial(_naive_megabytes, world_size=2, workers=2)
guess_peak_megabytes = Guess("the peak", _machine, unit="MB", tolerance=0.1)
guess_copied_percent = Guess("the share copied", _copied_percent, unit="%", tolerance=0.05)
_hours = round(400e6 / 16_000 / 3600, 1)  # single reads, at so many per second
guess_cold_hours = Guess("the reading of an epoch", lambda: _hours, unit="hours", tolerance=0.15)
guess_received = Guess("the epoch that the workers deal", lambda: 0)


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


def _wrong(thing: Any, mistakes: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return solutions with some of their text otherwise, (old, new, old, new, …): famous mistakes by sentence."""
    wrong, names = {}, {"json": json, "http": http, "MyPacked": MyPacked, "Permutation": Permutation}
    for sentence, changes in mistakes.items():
        text = source_of(thing)
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert old in text, f"{thing.__name__} has no {old!r}"
            text = text.replace(old, new)
        space: dict[str, Any] = {"np": np, "os": os, "Any": Any, "Sequence": Sequence, **names}
        exec(text, space)
        wrong[sentence] = space[thing.__name__]
    return wrong


@contextmanager
def _written(rows: Sequence[str]) -> Iterator[str]:
    """Write a meta file of these rows, for as long as the body of a `with` runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.txt"
        path.write_text("\n".join(["# image caption", *rows, ""]), encoding="utf-8")
        yield str(path)


def _held(make: Callable[[], Any]) -> tuple[Any, int, int]:
    """Return what `make` returns, the bytes that stay, and the most that there were at a time."""
    tracemalloc.start()
    try:
        result = make()
        return result, *tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()


def _differs(got: Any, wanted: Any, where: str) -> str:
    return "" if got == wanted else f"{where} should be {wanted!r}, it is {got!r}."


def _of_rows(dataset: Any, name: str) -> str:
    """Compare a dataset of ROWS with them, item by item."""
    fault = _differs(len(dataset), len(ROWS), f"of {len(ROWS)} rows, len({name})")
    for number, row in enumerate(ROWS):
        fault = fault or _differs(dataset[number], row, f"of {ROWS}, {name}[{number}]")
    return fault


MANY = [f"row {number:05} " + "." * (number % 40) for number in range(3000)]
TEXT = sum(map(len, MANY))


# ---- exercise 1: MyPacked


def _fault_of_packed(make: Any) -> str:
    packed, kept, _ = _held(lambda: make([row[:1] + row[1:] for row in MANY]))
    for what in ("data", "offsets"):
        if not isinstance(getattr(packed, what, None), np.ndarray):
            return f"self.{what} is {type(getattr(packed, what, None)).__name__}, not one numpy array."
    if fault := _of_rows(make(ROWS), "packed"):
        return fault
    if packed.data.tobytes() != "".join(MANY).encode():
        return "self.data is not the text of all rows, one after another and nothing else."
    if kept > TEXT + 9 * len(MANY) + 4000:
        return f"{len(MANY)} rows of {TEXT} bytes of text keep {kept / len(MANY):.0f} bytes a row in memory."
    return ""


check_packed = Exercise(
    "MyPacked",
    reference=MyPacked,
    methods=("__init__", "__len__", "__getitem__"),
    judge=_judged(_fault_of_packed, f"all rows come back; of {len(MANY)} each takes its text and 8 bytes, measured."),
    mistakes=_wrong(MyPacked, {
        "An offset in a list is a Python object again, whose page is copied when it is read.": (
            "np.cumsum([0] + [len(row) for row in encoded])", "np.cumsum([0, *map(len, encoded)]).tolist()",
        ),
        "Count bytes, not letters: an Ä takes two bytes.": ("len(row) for row in encoded", "len(row) for row in rows"),
        "N rows have N + 1 bounds, and the first is 0.": ("[0] + [len", "[len"),
        "A row is a str: decode its bytes.": (".tobytes().decode()", ".tobytes()"),
        "The strings are still there: keep nothing of what __init__ gets.": (
            "encoded = [", "self.rows = list(map(str.swapcase, rows)); encoded = [",
        ),
        "An array of objects is a list of pointers: each row is a Python object, as before.": (
            'np.frombuffer(b"".join(encoded), np.uint8)', "np.array(rows, object)",
            "self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()", "self.data[i]",
        ),
    }),
)  # fmt: skip


# ---- exercise 2: index_of


def _fault_of_index(index: Any) -> str:
    for rows, block in ((ROWS, 1 << 20), (ROWS, 7), (ROWS[:1], 3), (["Ä", "b"], 1)):
        with _written(rows) as path:
            wanted = [place + 1 for place, byte in enumerate(Path(path).read_bytes()) if byte == ord("\n")]
            got = index(path, block)
        if got is None:
            return "your function returned None (is a `return` missing?)."
        where = f"the index of a file of {len(rows)} rows, read in blocks of {block} bytes,"
        if fault := _differs(list(map(int, got)), wanted, where):
            return fault
    with _written(MANY) as path:
        _, kept, peak = _held(lambda: index(path, 4096))
    if peak > 20 * len(MANY) + 40_000:
        return (
            f"{TEXT // 1000} kB were read in blocks of 4 kB, and at a time {peak // 1000} kB were in memory."
        )
    return "" if kept < 9 * len(MANY) else f"{kept / len(MANY):.0f} bytes a row stay in memory."


check_index = Exercise(
    "index_of",
    reference=index_of,
    judge=_judged(_fault_of_index, "every bound is right, also across blocks, and only a block of text was in memory."),
    mistakes=_wrong(index_of, {
        "The header became row 0: row 0 begins after the first newline.": ("place = [], 0", "place = [[0]], 0"),
        "That is the newline itself; the next row begins one byte later.": ("newlines + 1", "newlines"),
        "Places count from the start of each block: add the bytes before it.": ("place + newlines", "newlines"),
        "The end of the last row is missing: N rows have N + 1 bounds.": (
            "np.concatenate(bounds)", "np.concatenate(bounds)[:-1]",
        ),
        "The whole text was read at once: read it in blocks.": ("file.read(block)", "file.read()"),
        'Letters are not bytes: open the file with "rb".': (
            'open(path, "rb")', 'open(path, encoding="utf-8")',
            'np.frombuffer(text, np.uint8) == ord("\\n")', 'np.array(list(text)) == "\\n"',
        ),
    }),
)  # fmt: skip


# ---- exercise 3: MyFileDataset


def _positions(path: str) -> dict[int, int]:
    """Return the position of every open descriptor of a file: what forked processes share."""
    found = {}
    for number in range(3, 400):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), os.stat(path)):
                found[number] = os.lseek(number, 0, os.SEEK_CUR)
    return found


def _fault_of_file(make: Any) -> str:
    reads: list[int] = []
    pread = os.pread

    def noted(file: int, size: int, place: int) -> bytes:
        reads.append(place)
        return pread(file, size, place)

    with _written(ROWS) as path:
        dataset = make(path, index_of(path))
        before = _positions(path)
        if fault := _of_rows(dataset, "dataset"):
            return fault
        if any(before[file] != now for file, now in _positions(path).items() if file in before):
            return "an access moved the position of the open file."
        asked = [3, 0, 4, 3]
        os.pread = noted
        try:
            got = dataset.__getitems__(asked)
        finally:
            os.pread = pread
        if fault := _differs(got, [ROWS[number] for number in asked], f"dataset.__getitems__({asked})"):
            return fault
        if any(a > b for a, b in pairwise(reads)):
            return f"for the batch {asked} the file was read at the places {reads}."
    with _written(MANY) as path:
        bounds = index_of(path)
        _, kept, _ = _held(lambda: (dataset := make(path, bounds), dataset[7]))
    return "" if kept < TEXT / 8 else f"about {kept / TEXT:.0%} of the text is held in memory."


check_file = Exercise(
    "MyFileDataset",
    reference=MyFileDataset,
    methods=("__init__", "__len__", "__getitem__", "__getitems__"),
    judge=_judged(_fault_of_file, "every row, every batch in the order asked for, and nothing is held or shared."),
    mistakes=_wrong(MyFileDataset, {
        "Forked workers share that position, and move it while another one reads: os.pread needs none.": (
            "os.open(path, os.O_RDONLY)", "open(path, 'rb', buffering=0)",
            "return os.pread(self.file, end - 1 - begin, begin)",
            "self.file.seek(begin); return self.file.read(end - 1 - begin)",
        ),
        "The newline belongs to the line, not to the row.": ("end - 1 - begin", "end - begin"),
        "Read front to back, so that neighbours are read together: sort first.": ("sorted(set(indices))", "indices"),
        "The loader wants the rows in the order in which it asked.": ("for index in indices]", "for index in rows]"),
        "The whole text is in memory: read a row when it is asked for.": (
            "os.open(path, os.O_RDONLY)", "open(path, 'rb').read()",
            "os.pread(self.file, end - 1 - begin, begin)", "self.file[begin : end - 1]",
        ),
    }),
)  # fmt: skip


# ---- exercise 4: MyServerDataset


class _Counted:
    """Rows that a MetaServer serves, and who asked for them: it has a thread for each connection."""

    def __init__(self) -> None:
        self.asked: list[threading.Thread] = []

    def __len__(self) -> int:
        return len(ROWS)

    def rows(self, ids: Sequence[int]) -> list[str]:
        self.asked.append(threading.current_thread())
        return [ROWS[index] for index in ids]


def _fault_of_client(make: Any) -> str:
    rows = _Counted()
    with MetaServer(rows) as server:
        return _fault_of_asked(make(server.host, server.port), rows.asked)


def _fault_of_asked(dataset: Any, asked: list[threading.Thread]) -> str:
    batch = [3, 0, 3]
    fault = _of_rows(dataset, "dataset")
    before, wanted = len(asked), [ROWS[number] for number in batch]
    if fault := fault or _differs(dataset.__getitems__(batch), wanted, f"dataset.__getitems__({batch})"):
        return fault
    if len(asked) > before + 1:
        return f"for a batch of 3 rows the server had {len(asked) - before} requests."
    with suppress(IndexError):
        return f"there are {len(ROWS)} rows, and dataset[{len(ROWS)}] gives {dataset[len(ROWS)]!r}, not an IndexError."
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
    mistakes=_wrong(MyServerDataset, {
        "A new connection a request is what makes such servers slow: keep it.": ("self.owner != os.getpid()", "True"),
        "Two processes on one connection take each other's answers: connect anew where os.getpid() is another.": (
            "self.owner != os.getpid()", "not self.owner",
        ),
        "A batch is one request: POST /rows with the list of ids.": (
            'self.ask("POST", "/rows", json.dumps([int(index) for index in indices]))', "[self[i] for i in indices]",
        ),
        "That is the server's complaint, and a loader would train on it.": ("answer.status == 404", "False"),
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
        rows = MANY[:size]
        with _written(rows) as path, MetaFile(path) as meta_file:
            for rank, epoch, part in product(range(world), (0, 2), range(parts)):
                theirs, source = RankDataset(meta_file, world, rank, mini_epochs=parts), _Source(rows)
                theirs.set_epoch(epoch)
                wanted = [int(number) for block in theirs.ids(part) for number in block]
                dataset = make(source, world, rank, parts)
                where = f"N, W, E = {size}, {world}, {parts}; rank {rank}, epoch {epoch}, mini-epoch {part}:"
                got = [int(number) for number in dataset.ids(epoch, part)]
                if fault := _differs(got, wanted, f"{where} ids"):
                    return fault
                dataset.load(0, 0)
                source.asked.clear()
                dataset.load(epoch, part)
                if fault := _differs(len(dataset), len(wanted), f"{where} len"):
                    return fault
                got = [int(dataset[number].split()[1]) for number in range(len(wanted))]
                if fault := _differs(got, wanted, f"{where} the numbers of the items"):
                    return fault
                if len(source.asked) > 1 or (wanted and sorted(set(source.asked[0])) != sorted(set(wanted))):
                    return f"{where} for {len(wanted)} rows the source was asked {len(source.asked)} times."
    source = _Source(MANY)
    _, kept, _ = _held(lambda: [data := make(source, 1, 0, 2), data.load(0, 0), data.load(0, 1)])
    each = kept / (len(MANY) // 2)
    if each > TEXT / len(MANY) + 14:
        return f"rows of {TEXT / len(MANY):.0f} bytes take {each:.0f} bytes each in memory."
    if source.memory[1] - source.memory[0] > TEXT / 4:
        return "while the rows of a mini-epoch are read, those of the one before are still in memory."
    return ""


check_rank_dataset = Exercise(
    "MyRankDataset",
    reference=MyRankDataset,
    methods=("ids", "load", "__len__", "__getitem__"),
    judge=_judged(_fault_of_rank, "lib's rows in all cases, packed, one reading a mini-epoch, and old rows go first."),
    mistakes=_wrong(MyRankDataset, {
        "A contiguous piece: deal in turns, so that what all ranks used is the head of the order.": (
            "self.rank + self.world_size * np", "self.rank * turns + np",
        ),
        "The epoch is not in the order: every epoch deals the same rows.": ("epoch=epoch)", "epoch=0)"),
        "The last ranks get a row less: the head of the order is dealt again, so that all are equal.": (
            "-(-size // self.world_size)", "len(range(self.rank, size, self.world_size))",
        ),
        "The tail of the order is left to nobody.": ("-(-size // self.world_size)", "size // self.world_size"),
        "turns // E for each mini-epoch loses the turns that are left over.": (
            "turns * mini_epoch // self.mini_epochs", "turns // self.mini_epochs * mini_epoch",
            "turns * (mini_epoch + 1) // self.mini_epochs", "begin + turns // self.mini_epochs",
        ),
        "The rank is in the seed: then each rank shuffles otherwise, and rows are dealt twice or never.": (
            "seed=self.seed,", "seed=self.seed + self.rank,",
        ),
        "Pack them: a list of strings is copied by every worker.": (
            "MyPacked(self.source.__getitems__(self.ids(epoch, mini_epoch)))",
            "self.source.__getitems__(self.ids(epoch, mini_epoch))",
        ),
        "Let the old rows go before you read the new ones: self.rows = None.": ("        self.rows = None\n", ""),
        "That reads row by row: ask for all at once, so that the file is swept once.": (
            "self.source.__getitems__(self.ids(epoch, mini_epoch))",
            "[self.source[i] for i in self.ids(epoch, mini_epoch)]",
        ),
        "Item i is the i-th row in memory, not row i of the file.": ("return self.rows[i]", "return self.source[i]"),
    }),
)  # fmt: skip
