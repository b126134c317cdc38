"""Predictions and exercises of notebook 05, 400 million rows on a small machine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

from torch.utils.data import DataLoader

from lib.data.meta import MetaFile
from lib.data.permutation import Permutation
from lib.data.rank_dataset import RankDataset
from support.checks import Exercise, Guess, Verdict, cases
from support.n05.runs import ROW_BYTES, expected_private, list_row_bytes, predict, write_captions

LATE_SECONDS = 0.04  # an acknowledgement that waits to travel with data gives up after so long (Linux)


@contextmanager
def _tiny(rows: int) -> Iterator[MetaFile]:
    """Make a meta file of a few rows, for as long as the body of a `with` runs."""
    with tempfile.TemporaryDirectory() as folder:
        write_captions(Path(folder) / "tiny.txt", rows)
        with MetaFile(Path(folder) / "tiny.txt") as meta_file:
            yield meta_file


def _on_tiny(rows: int) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares on a meta file: `view` gets it before the answer."""

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        with _tiny(rows) as tiny:
            return replace(exercise, view=partial(exercise.view, tiny)).compare(answer)

    return judge


def _numbers(rows: Iterable[str]) -> list[int]:
    """Return the numbers in rows of write_captions: img/000000007.jpg "…" is 7."""
    return [int(row[4:13]) for row in rows]


# ---- predictions


def _copied_percent(rows: int) -> int:
    each = list_row_bytes(ROW_BYTES) - 8  # the list's own places are not written
    return round(100 * expected_private(rows // 16, rows, each) / (rows * each))


def _received() -> int:
    with _tiny(24) as tiny:
        dataset = RankDataset(tiny, 4, 0)
        received = _through_one_loader(dataset, 3, parts=1)[2]
        return _without_loader(dataset, 3).index(received)


guess_list_megabytes = Guess(
    "the size of the list",
    lambda rows: round(predict("one", rows=rows, row_bytes=ROW_BYTES).total / 1e6),
    unit="MB",
    tolerance=0.1,
)
"""Section 1: the size of a list of all rows."""
guess_peak_megabytes = Guess(
    "the peak",
    lambda rows: round(predict("naive", rows=rows, row_bytes=ROW_BYTES, world_size=2, workers=2).total / 1e6),
    unit="MB",
    tolerance=0.15,
)
"""Section 2: the peak of 2 ranks with 2 workers each."""
guess_copied_percent = Guess("the share copied", _copied_percent, unit="%", tolerance=0.08)
"""Section 3: the share of a list that a worker has copied after a sixteenth of it."""
guess_kept = Guess(
    "a kept connection, two small writes", lambda: "slower" if 1 / LATE_SECONDS < 1000 else "faster"
)
"""Section 4: whether kept connections make a plain server faster."""
guess_rank_megabytes = Guess(
    "the text of one rank", lambda: round(400e6 * ROW_BYTES / (8 * 8) / 1e6), unit="MB", tolerance=0.1
)
"""Section 5: the text that one of 8 ranks holds of 400 million rows, E = 8."""
guess_received = Guess("the epoch that the workers deal", _received)
"""Of "Break it": the epoch whose rows kept workers give in epoch 2."""


# ---- exercise 1: mini_epoch_ids

Ids: TypeAlias = Callable[[int, int, int, int, int, int], Sequence[int]]


def _all_ranks(ids: Ids) -> Callable[..., list[list[int]]]:
    def dealt(size: int, world_size: int, mini_epochs: int, mini_epoch: int, epoch: int) -> list[list[int]]:
        shares = [ids(size, world_size, rank, mini_epochs, mini_epoch, epoch) for rank in range(world_size)]
        return [[int(i) for i in share] for share in shares]

    return dealt


def _part(turns: int, parts: int, part: int) -> range:
    return range(turns * part // parts, turns * (part + 1) // parts)


def _deal(
    turns_of: Callable[[int, int, int], int] = lambda size, w, rank: -(-size // w),
    cut: Callable[[int, int, int], range] = _part,
    place: Callable[[int, int, int, int], int] = lambda rank, w, turns, turn: rank + w * turn,
) -> Ids:
    """Make an answer: how many turns a rank has, which of them are in a part, and where in the order a turn is."""

    def ids(size: int, w: int, rank: int, parts: int, part: int, epoch: int) -> Sequence[int]:
        order, turns = Permutation(size, seed=0, epoch=epoch), turns_of(size, w, rank)
        return [order[place(rank, w, turns, turn) % size] for turn in cut(turns, parts, part)]

    return ids


check_mini_epoch_ids = Exercise(
    "mini_epoch_ids of all ranks",
    name="mini_epoch_ids",
    reference=_deal(),
    view=_all_ranks,
    cases=cases(
        "size world_size mini_epochs mini_epoch epoch",
        (
            (*sizes, part, epoch)
            for sizes in ((24, 4, 2), (28, 4, 3), (26, 4, 3), (13, 3, 2), (10, 1, 4), (3, 5, 2))
            for epoch in (0, 1)
            for part in range(sizes[-1])
        ),
    ),
    mistakes={
        "A contiguous piece: deal by stride, so that what all ranks used is a prefix.": _deal(
            place=lambda rank, w, turns, turn: rank * turns + turn
        ),
        "The epoch is not in it: every epoch deals the same rows.": (
            lambda size, w, rank, parts, part, epoch: _deal()(size, w, rank, parts, part, 0)
        ),
        "E before W: where it does not divide, the ranks of a mini-epoch get unequal counts, and one waits.": (
            lambda size, w, rank, parts, part, epoch: [
                Permutation(size, seed=0, epoch=epoch)[at] for at in _part(size, parts, part)[rank::w]
            ]
        ),
        "The last ranks get a row less: the head of the order is dealt again to make all equal.": _deal(
            turns_of=lambda size, w, rank: len(range(rank, size, w))
        ),
        "The tail of the order is left to nobody.": _deal(turns_of=lambda size, w, rank: size // w),
        "turns // mini_epochs for each mini-epoch loses the turns that are left.": _deal(
            cut=lambda turns, parts, part: range(turns // parts * part, turns // parts * (part + 1))
        ),
        "Every E-th turn: nothing is lost, but what was used is then no prefix of the order.": _deal(
            cut=lambda turns, parts, part: range(part, turns, parts)
        ),
    },
)
"""Exercise 1: ids as RankDataset deals them, over sizes that divide and sizes that do not, in two epochs."""


# ---- exercise 2: MyRankDataset


class OurRankDataset:
    """What exercise 2 asks for, by lib's RankDataset."""

    def __init__(self, meta_file: MetaFile, world_size: int, rank: int, mini_epochs: int) -> None:
        self.meta_file = meta_file
        self.dataset = RankDataset(meta_file, world_size, rank, mini_epochs=mini_epochs)
        self.rows: list[str] = []

    def dealt(self, epoch: int, mini_epoch: int) -> list[str]:
        """Return the rows of this rank's mini-epoch."""
        self.dataset.set_epoch(epoch)
        self.dataset.load(mini_epoch)
        return list(self.dataset.packed.rows(range(len(self.dataset))))

    def load(self, epoch: int, mini_epoch: int) -> None:
        """Hold the rows of a mini-epoch, and no others."""
        self.rows = self.dealt(epoch, mini_epoch)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.rows[index]


class _RowsOfTheFile(OurRankDataset):
    def __getitem__(self, index: int) -> str:
        return str(self.meta_file.rows([index])[0])


def _holding(rows: Callable[[Any, int, int], list[str]]) -> type[OurRankDataset]:
    """Make a class that holds rows(self, epoch, mini_epoch) after load."""

    class Wrong(OurRankDataset):
        def load(self, epoch: int, mini_epoch: int) -> None:
            self.rows = rows(self, epoch, mini_epoch)

    return Wrong


def _items(tiny: MetaFile, make: type[Any]) -> Callable[..., list[int]]:
    """View a class as the numbers of all items that it has after two loads."""

    def items(world_size: int, rank: int, mini_epochs: int, epoch: int, mini_epoch: int) -> list[int]:
        dataset = make(tiny, world_size, rank, mini_epochs)
        dataset.load(0, 0)
        dataset.load(epoch, mini_epoch)
        return _numbers(dataset[i] for i in range(len(dataset)))

    return items


check_rank_dataset = Exercise(
    "the rows of MyRankDataset",
    name="MyRankDataset",
    methods=("load", "__len__", "__getitem__"),
    reference=OurRankDataset,
    view=_items,
    judge=_on_tiny(26),
    cases=cases(
        "world_size rank mini_epochs epoch mini_epoch",
        (
            (w, rank, parts, epoch, part)
            for w, parts in ((4, 2), (3, 3))
            for epoch, part, rank in product((0, 2), range(parts), range(w))
        ),
    ),
    mistakes={
        "That is the whole file: only this rank's rows of this mini-epoch may be in memory.": _holding(
            lambda self, epoch, part: list(self.meta_file.rows(range(len(self.meta_file))))
        ),
        "The rows of the last mini-epoch are still there: replace them.": _holding(
            lambda self, epoch, part: self.rows + self.dealt(epoch, part)
        ),
        "The second load changed nothing.": _holding(
            lambda self, epoch, part: self.rows or self.dealt(epoch, part)
        ),
        "Item i is the i-th row in memory, not row i of the file.": _RowsOfTheFile,
        "Every epoch must deal the rows anew.": _holding(lambda self, epoch, part: self.dealt(0, part)),
    },
)
"""Exercise 2 against lib's RankDataset: load (epoch 0, mini-epoch 0), load another, look at all items."""


# ---- exercise 3: memory_of


def _memory(
    way: str,
    rows: int,
    list_bytes: int,
    packed_bytes: int,
    world_size: int,
    workers: int,
    mini_epochs: int,
) -> float:
    """Return the bytes on the whole machine."""
    if way == "naive":
        return world_size * (1 + workers) * rows * list_bytes
    return rows * packed_bytes / (1 if way == "server" else mini_epochs)


def _but(way: str, wrong: Callable[..., float]) -> Callable[..., float]:
    """Make an answer that is wrong for one way only."""
    return lambda **case: wrong(**case) if case["way"] == way else _memory(**case)


check_memory_of = Exercise(
    "memory_of",
    reference=_memory,
    cases=cases(
        "way rows list_bytes packed_bytes world_size workers mini_epochs",
        (
            (way, 960_000, 104, 52, *machine)
            for machine in ((8, 2, 4), (1, 0, 1), (16, 3, 2), (2, 8, 8))
            for way in ("naive", "server", "rank")
        ),
    ),
    mistakes={
        "That is one rank; the machine holds W of them.": _but(
            "rank", lambda world_size, **case: _memory(world_size=world_size, **case) / world_size
        ),
        "Workers share packed rows with their rank: reading them writes nothing.": _but(
            "rank", lambda workers, **case: (1 + workers) * _memory(workers=workers, **case)
        ),
        "Workers copy a list of str as they read it: 1 + workers copies a rank.": _but(
            "naive", lambda workers, **case: _memory(workers=0, **case)
        ),
        "The rank itself holds a copy too: 1 + workers.": _but(
            "naive", lambda workers, **case: _memory(workers=workers - 1, **case)
        ),
        "In a list a row is a Python object: list_bytes.": _but(
            "naive", lambda list_bytes, **case: _memory(list_bytes=case["packed_bytes"], **case)
        ),
        "A rank holds one mini-epoch at a time, 1 / E of its rows.": _but(
            "rank", lambda mini_epochs, **case: _memory(mini_epochs=1, **case)
        ),
    },
)
"""Exercise 3: the bytes on the whole machine, for the three ways and several machines."""


# ---- exercise 4: rows_of_epochs

Loop: TypeAlias = Callable[[RankDataset, int], list[list[str]]]


def _rows_of(
    dataset: RankDataset, epochs: int, read: Callable[[], Iterable[str]], parts: int | None = None
) -> list[list[str]]:
    """Load the first `parts` mini-epochs of every epoch, all as given, and read each."""
    received: list[list[str]] = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        received.append([])
        for part in range(parts or dataset.mini_epochs):
            dataset.load(part)
            received[-1] += read()
    return received


def _without_loader(dataset: RankDataset, epochs: int) -> list[list[str]]:
    return _rows_of(dataset, epochs, lambda: dataset.packed.rows(range(len(dataset))))


def _through_one_loader(
    dataset: RankDataset, epochs: int, parts: int | None = None, kept: bool = True
) -> list[list[str]]:
    dataset.load(0)
    loader: DataLoader[str] = DataLoader(dataset, batch_size=4, num_workers=1, persistent_workers=kept)
    return _rows_of(dataset, epochs, lambda: (row for batch in loader for row in batch), parts)


def _received_numbers(tiny: MetaFile, loop: Loop) -> Callable[..., list[list[int]]]:
    def run(world_size: int, mini_epochs: int, epochs: int) -> list[list[int]]:
        dataset = RankDataset(tiny, world_size, 1, mini_epochs=mini_epochs)
        return [_numbers(rows) for rows in loop(dataset, epochs)]

    return run


check_rows_of_epochs = Exercise(
    "rows_of_epochs",
    reference=_without_loader,
    view=_received_numbers,
    judge=_on_tiny(24),
    cases=cases("world_size mini_epochs epochs", [(2, 2, 2), (2, 1, 2)]),
    mistakes={
        "The workers are kept: they deal the rows that were loaded when they started.": _through_one_loader,
        "Only mini-epoch 0, and through kept workers.": partial(_through_one_loader, parts=1),
        "Only mini-epoch 0 of each epoch.": partial(_through_one_loader, parts=1, kept=False),
        "Every epoch is epoch 0.": lambda dataset, epochs: _without_loader(dataset, 1) * epochs,
    },
)
"""Exercise 4 on a file of 24 rows, with real workers."""
