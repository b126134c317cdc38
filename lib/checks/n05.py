"""Checks of notebook 05: rows of a mini-epoch, a RankDataset, the memory of each way, epochs that reach workers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib.checks import n05_answers as answers
from lib.checks.base import Verdict, check_function, guess, not_attempted, untouched
from lib.data.captions import ROW_BYTES, write_captions
from lib.data.copy_on_read import expected_private
from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from lib.data.ways_model import list_row_bytes, predict

LATE_SECONDS = 0.04  # an acknowledgement that waits to travel with data gives up after so long (Linux)


def number_of(row: str) -> int:
    """Return the number in a row of write_captions: img/000000007.jpg "…" is 7."""
    return int(row[4:13])


# ---- predictions


def guess_list_megabytes(my_guess: object, rows: int) -> Verdict:
    """Comment on the guess of section 1: the size of a list of all rows."""
    size = round(predict("one", rows=rows, row_bytes=ROW_BYTES).total / 1e6)
    return guess(my_guess, size, what="the size of the list", unit="MB", tolerance=0.1)


def guess_peak_megabytes(my_guess: object, rows: int) -> Verdict:
    """Comment on the guess of section 2: the peak of 2 ranks with 2 workers each."""
    model = predict("naive", rows=rows, row_bytes=ROW_BYTES, world_size=2, workers=2)
    return guess(my_guess, round(model.total / 1e6), what="the peak", unit="MB", tolerance=0.15)


def guess_copied_percent(my_guess: object, rows: int) -> Verdict:
    """Comment on the guess of section 3: the share of a list that a worker has copied after a sixteenth of it."""
    each = list_row_bytes(ROW_BYTES) - 8  # the list's own places are not written
    share = expected_private(rows // 16, rows, each) / (rows * each)
    return guess(my_guess, round(100 * share), what="the share copied", unit="%", tolerance=0.08)


def guess_kept(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: whether kept connections make a plain server faster."""
    slower = 1 / LATE_SECONDS < 1000
    return guess(my_guess, "slower" if slower else "faster", what="a kept connection, two small writes")


def guess_rank_megabytes(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: the text that one of 8 ranks holds of 400 million rows, E = 8."""
    size = round(400e6 * ROW_BYTES / (8 * 8) / 1e6)
    return guess(my_guess, size, what="the text of one rank", unit="MB", tolerance=0.1)


def guess_received(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": the epoch whose rows kept workers give in epoch 2."""
    with _tiny(24) as tiny:
        dataset = RankDataset(tiny, 4, 0)
        received, truth = answers.kept_loader(dataset, 3)[2], answers.true_rows(dataset, 3)
    return guess(my_guess, truth.index(received), what="the epoch that the workers deal")


# ---- exercise 1: mini_epoch_ids


def check_mini_epoch_ids(answer: Callable[..., Sequence[int]]) -> Verdict:
    """Check exercise 1 over sizes that divide and sizes that do not, all ranks and mini-epochs, two epochs."""
    mistakes = {
        "A contiguous piece: deal by stride, so that what all ranks used is a prefix.": answers.contiguous_ids,
        "The epoch is not in it: every epoch deals the same rows.": answers.same_epoch_ids,
        "E before W: where it does not divide, the ranks of a mini-epoch get unequal counts, and one waits.": (
            answers.parts_first_ids
        ),
        "The last ranks get a row less: the head of the order is dealt again to make all equal.": answers.unpadded_ids,
        "The tail of the order is left to nobody.": answers.dropped_ids,
        "turns // mini_epochs for each mini-epoch loses the turns that are left.": answers.floored_ids,
        "Every E-th turn: nothing is lost, but what was used is then no prefix of the order.": answers.every_nth_ids,
    }
    cases = [
        {"size": size, "world_size": world_size, "mini_epochs": parts, "mini_epoch": part, "epoch": epoch}
        for size, world_size, parts in ((24, 4, 2), (28, 4, 3), (26, 4, 3), (13, 3, 2), (10, 1, 4), (3, 5, 2))
        for epoch in (0, 1)
        for part in range(parts)
    ]
    if untouched(answer):
        return not_attempted("mini_epoch_ids")
    wrong = {why: _all_ranks(ids) for why, ids in mistakes.items()}
    what = "mini_epoch_ids of all ranks"
    return check_function(_all_ranks(answer), _all_ranks(answers.true_ids), cases, what=what, mistakes=wrong)


def _all_ranks(ids: Callable[..., Sequence[int]]) -> Callable[..., list[list[int]]]:
    def dealt(size: int, world_size: int, mini_epochs: int, mini_epoch: int, epoch: int) -> list[list[int]]:
        return [
            [int(i) for i in ids(size, world_size, rank, mini_epochs, mini_epoch, epoch)]
            for rank in range(world_size)
        ]

    return dealt


# ---- exercise 2: MyRankDataset


def check_rank_dataset(answer: type[Any]) -> Verdict:
    """Check exercise 2 against lib's RankDataset: load (epoch 0, mini-epoch 0), load another, look at all items."""
    if any(untouched(getattr(answer, name)) for name in ("load", "__len__", "__getitem__")):
        return not_attempted("MyRankDataset")
    mistakes: dict[str, type[Any]] = {
        "That is the whole file: only this rank's rows of this mini-epoch may be in memory.": answers.HoldsAll,
        "The rows of the last mini-epoch are still there: replace them.": answers.KeepsOld,
        "The second load changed nothing.": answers.LoadsOnce,
        "Item i is the i-th row in memory, not row i of the file.": answers.RowsOfTheFile,
        "Every epoch must deal the rows anew.": answers.ForgetsTheEpoch,
    }
    cases = [
        {
            "world_size": world_size,
            "rank": rank,
            "mini_epochs": mini_epochs,
            "epoch": epoch,
            "mini_epoch": part,
        }
        for world_size, mini_epochs in ((4, 2), (3, 3))
        for epoch in (0, 2)
        for part in range(mini_epochs)
        for rank in range(world_size)
    ]
    with _tiny(26) as tiny:

        def items(make: type[Any]) -> Callable[..., list[int]]:
            def look(world_size: int, rank: int, mini_epochs: int, epoch: int, mini_epoch: int) -> list[int]:
                dataset = make(tiny, world_size, rank, mini_epochs)
                dataset.load(0, 0)
                dataset.load(epoch, mini_epoch)
                return [number_of(dataset[i]) for i in range(len(dataset))]

            return look

        def ours(world_size: int, rank: int, mini_epochs: int, epoch: int, mini_epoch: int) -> list[int]:
            dataset = RankDataset(tiny, world_size, rank, mini_epochs=mini_epochs)
            dataset.set_epoch(epoch)
            dataset.load(mini_epoch)
            return [number_of(row) for row in dataset.packed.rows(range(len(dataset)))]

        wrong = {why: items(make) for why, make in mistakes.items()}
        return check_function(items(answer), ours, cases, what="the rows of MyRankDataset", mistakes=wrong)


# ---- exercise 3: memory_of


def check_memory_of(answer: Callable[..., float]) -> Verdict:
    """Check exercise 3 over the three ways and several machines."""
    mistakes = {
        "That is one rank; the machine holds W of them.": answers.one_rank_only,
        "Workers share packed rows with their rank: reading them writes nothing.": answers.workers_copy,
        "Workers copy a list of str as they read it: 1 + workers copies a rank.": answers.no_workers,
        "The rank itself holds a copy too: 1 + workers.": answers.only_workers,
        "In a list a row is a Python object: list_bytes.": answers.as_in_the_file,
        "A rank holds one mini-epoch at a time, 1 / E of its rows.": answers.no_mini_epochs,
    }
    cases = [
        {
            "way": way,
            "rows": 960_000,
            "list_bytes": 104,
            "packed_bytes": 52,
            "world_size": world_size,
            "workers": workers,
            "mini_epochs": mini_epochs,
        }
        for world_size, workers, mini_epochs in ((8, 2, 4), (1, 0, 1), (16, 3, 2), (2, 8, 8))
        for way in ("naive", "server", "rank")
    ]
    return check_function(answer, answers.true_memory, cases, what="memory_of", mistakes=mistakes)


# ---- exercise 4: rows_of_epochs


def check_rows_of_epochs(answer: Callable[[RankDataset, int], list[list[str]]]) -> Verdict:
    """Check exercise 4 on a file of 24 rows, with real workers."""
    if untouched(answer):
        return not_attempted("rows_of_epochs")
    mistakes = {
        "The workers are kept: they deal the rows that were loaded when they started.": answers.kept_over_parts,
        "Only mini-epoch 0, and through kept workers.": answers.kept_loader,
        "Only mini-epoch 0 of each epoch.": answers.first_part_only,
        "Every epoch is epoch 0.": answers.no_set_epoch,
    }
    cases = [{"world_size": 2, "mini_epochs": parts, "epochs": 2} for parts in (2, 1)]
    with _tiny(24) as tiny:

        def numbers(loop: Callable[[RankDataset, int], list[list[str]]]) -> Callable[..., list[list[int]]]:
            def run(world_size: int, mini_epochs: int, epochs: int) -> list[list[int]]:
                dataset = RankDataset(tiny, world_size, 1, mini_epochs=mini_epochs)
                return [[number_of(row) for row in rows] for rows in loop(dataset, epochs)]

            return run

        wrong = {why: numbers(loop) for why, loop in mistakes.items()}
        return check_function(
            numbers(answer), numbers(answers.true_rows), cases, what="rows_of_epochs", mistakes=wrong
        )


@contextmanager
def _tiny(rows: int) -> Iterator[MetaFile]:
    """Make a meta file of a few rows, for as long as the body of a `with` runs."""
    with tempfile.TemporaryDirectory() as folder:
        write_captions(Path(folder) / "tiny.txt", rows)
        with MetaFile(Path(folder) / "tiny.txt") as meta_file:
            yield meta_file
