"""What a dataset straight from the file does when it is tried: what it holds, where it reads, what it moves."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from support.kit.raised import in_case
from support.n05.between import fault_between_lines
from support.n05.runs import held_and_most, positions, written
from support.n05.solved import index_of
from support.n05.trials import MANY, ROWS, TEXT, all_read, difference_told, is_kept, random_rows, rows_fault
from support.n05.watched import FileWatch, watching


def fault_of_file(make: Any) -> str:
    """Read a small file, then a large one: what is held, in which order is it read, how often is it opened?"""
    others = ["other rows", "and more"]
    with written(ROWS) as path, in_case(f"for a file of {len(ROWS)} rows"):
        dataset = make(path, index_of(path))
        fault = rows_fault(dataset, "dataset") or _fault_of_indices(dataset)
        with written(others) as elsewhere:
            other = make(elsewhere, index_of(elsewhere))
            fault = fault or rows_fault(dataset, "dataset", "while another file is open, too, ")
            fault = fault or rows_fault(other, "dataset", "opened as the second file, ", others)
            del other
    # descriptors first: an answer that leaves files open would soon leave none for others
    return (
        fault
        or _fault_of_descriptors(make)
        or _fault_of_long_text(make)
        or _fault_of_random_files(make)
        or _fault_of_large_file(make)
        or _fault_of_no_rows(make)
        or _fault_of_batches(make)
        or _fault_of_threads(make)
        or fault_between_lines(make)
        or _fault_of_far_rows(make)
    )


def _fault_of_indices(dataset: Any) -> str:
    return _fault_of_given(dataset, [3, 0, 3]) or _fault_of_given(dataset, [0])


def _fault_of_given(dataset: Any, batch: list[int]) -> str:
    """Ask with an array of indices, and say whether a list of them comes back as it was."""
    wanted = [ROWS[number] for number in batch]
    asked = [*batch]
    got = dataset.__getitems__(asked)
    if asked != batch:
        return f"after dataset.__getitems__({batch}) the list of indices is {asked}, and it belongs to the caller."
    fault = difference_told(got, wanted, f"dataset.__getitems__({batch})")
    if fault:
        return fault
    with in_case(f"for the indices np.array({batch})"):
        array = np.array(batch)
        case = f"dataset.__getitems__(np.array({batch}))"
        fault = difference_told(dataset.__getitems__(array), wanted, case)
        if array.tolist() != batch:
            return f"after {case} the array of indices is {array.tolist()}, and it belongs to the caller."
    return fault


def _fault_of_long_text(make: Any) -> str:
    text = "y" * 70_000  # more than 16 bits count
    with written([text, "z"]) as path, in_case("for a row of 70,000 letters"):
        got = make(path, index_of(path))[0]
    return "" if got == text else f"of a row of 70,000 letters {len(got):,} come back."


def _fault_of_random_files(make: Any) -> str:
    """Read files of random rows, singly and as a batch: a row may have any letter but a newline, also at its end."""
    generator = random.Random(13)
    for _ in range(10):
        rows = [*random_rows(generator), " a row \u2028", "\x85", "returned\r"]
        with written(rows) as path, in_case(f"for a file of the rows {rows}"):
            dataset = make(path, index_of(path))
            fault = rows_fault(dataset, "dataset", rows=rows)
            got = dataset.__getitems__([*range(len(rows))])
            del dataset  # and with it the file that it has opened
        fault = fault or difference_told(got, rows, f"of {rows}, dataset.__getitems__ of all")
        if fault:
            return fault
    return ""


def _fault_of_large_file(make: Any) -> str:
    asked = [2900, 40, 1033, 2900, 7]
    with written(MANY) as path, in_case(f"for a file of {len(MANY)} rows"):
        bounds = index_of(path)
        # First: who copies all bounds for each row would take long for all rows.
        with watching(path, make) as watch:
            fault = _fault_of_one_row(make(path, bounds), watch)
        if fault:
            return fault
        all_read(make(path, bounds))  # what is imported or made once only is no row
        dataset, begun, _ = held_and_most(lambda: _with_one_row_read(make(path, bounds)))
        _, kept, _ = held_and_most(lambda: all_read(make(path, bounds)))
        buffers = _held_of_few_rows(make)
        with watching(path, make) as watch:
            noted = make(path, bounds)
            noted[0]
            watch.clear()
            got, _, at_once = held_and_most(lambda: noted.__getitems__(asked))
            reads = [*watch.reads]
        row_is_kept = is_kept(lambda: dataset[17]) or is_kept(lambda: dataset.__getitems__([17])[0])
    if begun - buffers > TEXT / 8:
        what = "keep `bounds` as it is, mapped, and read a row when it is wanted"
        return f"when one row has been read, {begun // 1000} kB are held: {what}."
    if kept - buffers > TEXT / 2:  # numpy keeps a little for itself
        what = "keep no row, nor anything else that grows with the file"
        return f"when all rows have been read, {kept // 1000} kB are held: {what}."
    if row_is_kept:
        return "the string of row 17 is kept somewhere after it has been read: keep no row."
    if MANY[17] in repr(getattr(dataset, "__dict__", "")):  # as bytes, too, which two threads would mix up
        return "row 17 stands in an attribute after it has been read: keep no row."
    fault = difference_told(got, [MANY[number] for number in asked], f"dataset.__getitems__({asked})")
    return fault or _fault_of_order(asked, reads) or _fault_of_bytes(asked, reads, at_once)


def _held_of_few_rows(make: Any) -> int:
    """Return what is held whatever a file's size, as an open file's buffer is."""
    with written(ROWS) as path:
        _, held, _ = held_and_most(lambda: _with_one_row_read(make(path, index_of(path))))
    return held


def _with_one_row_read(dataset: Any) -> Any:
    _ = dataset[0], dataset.__getitems__([0])
    return dataset


def _fault_of_order(asked: Sequence[int], reads: Sequence[tuple[int | None, int]]) -> str:
    """Say whether a batch is read otherwise than front to back, or by something that is not seen."""
    places = [place for place, _ in reads]
    if asked and not places:
        return f"for the batch {[*asked]} no read was seen: read by os.pread."
    once = len(places) <= len({*asked})  # then rows that lie in one page may be read at one place
    if any(a is None or b is None or a > b or (a == b and not once) for a, b in pairwise(places)):
        return f"the batch {[*asked]} is read at the places {places}: not front to back, each row once."
    return ""


def _fault_of_one_row(dataset: Any, watch: FileWatch) -> str:
    """Say whether one row takes more than two bounds, its own bytes and a page around them, and each time."""
    own = len(MANY[17])
    most = own + 1 + PAGE  # and its newline
    dataset[0]
    watch.clear()
    _, _, at_once = held_and_most(lambda: dataset[17])
    read = sum(size for _, size in watch.reads)
    if read > most:
        return f"for row 17, which has {own} bytes, you read {read}: the bounds say how many."
    if at_once > TEXT / 8:
        only = "take its two bounds and its own bytes only"
        return f"for row 17, which has {own} bytes, {at_once} are in memory at a time: {only}."
    watch.clear()
    dataset[17]
    if read and not watch.reads:
        return "row 17, asked for a second time, is not read again: keep no row."
    return ""


def _fault_of_batches(make: Any) -> str:
    """Ask for a batch that lies wide, and for random ones, some rows twice, as lists and as arrays."""
    generator = random.Random(11)
    with written(MANY) as path, watching(path, make) as watch:
        dataset = make(path, index_of(path))
        dataset[0]
        for number in range(20):
            asked = generator.choices(range(len(MANY)), k=generator.randrange(1, 40))
            if not number:
                asked = [*range(0, len(MANY), 150)]  # between any two lies more than a page
            asked += generator.choices(asked, k=3)
            given: Any = np.array(asked, (np.int64, np.int32)[number % 4 // 2]) if number % 2 else [*asked]
            watch.clear()
            with in_case(f"for the batch {asked}"):
                got = dataset.__getitems__(given)
            wanted = [MANY[index] for index in asked]
            if got != wanted:
                return difference_told(got, wanted, f"dataset.__getitems__({asked})")
            fault = _fault_of_order(asked, watch.reads) or _fault_of_bytes(asked, watch.reads)
            if fault:
                return fault
    return ""


class _Meanwhile:
    """Work that is done once, when `come` is called for the second time."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.came = 0

    def come(self) -> None:
        self.came += 1
        if self.came == 2:
            self.work()


class _Reads(list[tuple[int | None, int]]):
    """Reads that are noted; before each, `meanwhile` is told."""

    def __init__(self, meanwhile: _Meanwhile) -> None:
        super().__init__()
        self.meanwhile = meanwhile

    def append(self, read: tuple[int | None, int]) -> None:
        super().append(read)
        self.meanwhile.come()


class _Bounds(np.ndarray[Any, Any]):
    """Bounds that tell `meanwhile` of each look-up."""

    meanwhile: _Meanwhile | None = None

    def __getitem__(self, key: Any) -> Any:
        if self.meanwhile:
            self.meanwhile.come()
        return super().__getitem__(key)


def _fault_of_threads(make: Any) -> str:
    """Let another thread read a batch of its own in the midst of a batch; who locks it out lets it wait."""
    return _fault_of_thread(make, at="reads") or _fault_of_thread(make, at="bounds")


def _fault_of_thread(make: Any, at: str) -> str:
    asked = [2900, 40, 1033]
    others = [7, 1500, 40, 12]
    came: list[Future[Any]] = []
    case = f"for the batch {asked}, while another thread reads the batch {others}"
    with written(MANY) as path, watching(path, make) as watch, ThreadPoolExecutor(1) as pool:
        bounds = index_of(path).view(_Bounds)
        dataset = make(path, bounds)

        def ask() -> None:
            came.append(pool.submit(dataset.__getitems__, [*others]))
            wait(came, timeout=0.5)

        meanwhile = _Meanwhile(ask)
        if at == "reads":
            watch.reads = _Reads(meanwhile)
        else:
            bounds.meanwhile = meanwhile
        with in_case(case):
            got = dataset.__getitems__([*asked])
            between = [future.result() for future in came]
    for batch, rows in ((asked, got), *((others, rows) for rows in between)):
        fault = difference_told(
            rows, [MANY[index] for index in batch], f"{case}, dataset.__getitems__({batch})"
        )
        if fault:
            return fault
    return ""


def _fault_of_far_rows(make: Any) -> str:
    """Read rows that lie beyond 2 and 4 GB in a file whose rest takes no room on the disk."""
    rows = {2: b"the second", 4: b"the fourth", 6: b"the last"}
    bounds = [2]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "far.txt")
        with open(path, "wb") as file:
            file.write(b"#\n")
            for number in range(7):
                row = rows.get(number, b"")
                file.seek(bounds[-1])
                file.write(row)
                file.seek(bounds[-1] + (len(row) if row else HALF))
                file.write(b"\n")
                bounds.append(file.tell())
        case = f"for a file of {bounds[-1] / 1e9:.1f} GB, of which most is empty"
        asked = [6, 2, 4, 6]
        with in_case(case):
            dataset = make(path, np.array(bounds))
            got = [dataset[number] for number in asked], dataset.__getitems__(asked)
    wanted = [rows[number].decode() for number in asked]
    return difference_told(got, (wanted, wanted), f"{case}, the rows {asked}, singly and together,")


PAGE = 4096  # bytes
HALF = 3 * 2**29 + 77  # bytes of an empty row: two of them lie beyond 2**31, three beyond 2**32


def _fault_of_bytes(asked: Sequence[int], reads: Sequence[tuple[int | None, int]], at_once: int = 0) -> str:
    """Say whether a batch reads much else than its rows: a page around each would be no fault."""
    read = sum(size for _, size in reads)
    own = sum(len(MANY[number]) for number in {*asked})
    most = own + PAGE * len({*asked})
    case = f"for the batch {asked}, whose rows have {own} bytes"
    if read > most:
        return f"{case}, you read {read} bytes: read its rows, and not what lies around them."
    if at_once > most:
        return f"{case}, {at_once} are in memory at a time: take their bounds and their own bytes only."
    return ""


def _fault_of_descriptors(make: Any) -> str:
    with written(ROWS) as path, in_case(f"for a file of {len(ROWS)} rows"), watching(path, make) as watch:
        dataset = make(path, index_of(path))
        before = positions(path)
        watch.clear()
        dataset[0]
        first = watch.opened
        moved = watch.moved
        watch.clear()
        _ = [dataset[number] for number in range(len(ROWS))]
        singly = watch.opened
        moved += watch.moved
        watch.clear()
        dataset.__getitems__([*range(len(ROWS))])
        together = watch.opened
        moved += watch.moved
        after = positions(path)
    again = "open it once, opening costs more than reading 44 bytes"
    if singly or (before and first):
        return f"the file is opened again where a row is read: {again}."
    if together:
        return f"the file is opened again for each batch: {again}."
    if any(before[file] != after[file] for file in before if file in after):
        return "an access moved the position of the open file."
    if moved:
        return "an access moves the position of an open file: leave it where it is."
    return ""


def _fault_of_no_rows(make: Any) -> str:
    with written(ROWS) as path, in_case("for a batch of no rows"):
        dataset = make(path, index_of(path))
        fault = difference_told(dataset.__getitems__([]), [], "dataset.__getitems__([])")
        array = np.array([], np.int64)
        return fault or difference_told(
            dataset.__getitems__(array), [], "dataset.__getitems__(np.array([], np.int64))"
        )
