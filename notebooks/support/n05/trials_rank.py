"""What RankDataset and its loaders do when they are tried: a function says what is wrong with an answer."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise, product
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from lib.data.meta import MetaFile
from lib.data.rank_dataset import RankDataset
from support.kit.raised import in_case
from support.kit.values import kind_of
from support.n05.runs import held_and_most, written
from support.n05.solved import MyRankDataset, epoch_batches
from support.n05.trials import MANY, TEXT, difference_told


@dataclass(frozen=True)
class _Request:
    """What was asked of a source at once. ids: of a short request; of a long one they would count as memory."""

    lowest: int
    highest: int
    count: int
    ids: tuple[int, ...]


class _Source:
    """Rows that note what was asked for, and how many bytes were in memory at that moment."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows[:]  # nobody's change of it shall reach the next trial
        self.asked: list[_Request] = []
        self.memory: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        ids = [int(index) for index in indices]
        if ids:
            self.asked.append(_Request(min(ids), max(ids), len(ids), tuple(ids if len(ids) < 100 else ())))
        self.memory.append(tracemalloc.get_traced_memory()[0])
        return [row[:1] + row[1:] for row in map(self.rows.__getitem__, ids)]  # strings of their own


#: Rows of a request that are worth one: fewer are asked for only where there are no more.
WORTH_A_REQUEST = 1000


def _fault_of_requests(asked: Sequence[_Request]) -> str:
    """Say whether rows came in more requests than they are worth, or not front to back."""
    count = sum(request.count for request in asked)
    if len(asked) > 1 + count // WORTH_A_REQUEST:
        return (
            f"for {count:,} rows the source was asked {len(asked):,} times: it can read rows together only if it is "
            "asked for them together"
        )
    back = sum(after.lowest < before.highest for before, after in pairwise(asked))
    if back:
        return f"{len(asked)} requests go back in the file {back} times: it is swept {back + 1} times"
    return ""


# ---- exercise 4: MyRankDataset

#: Rows, ranks and mini-epochs.
_JOBS = ((24, 4, 2), (28, 4, 3), (26, 4, 3), (13, 3, 2), (10, 1, 4), (3, 5, 2), (1, 5, 1), (2, 5, 1))


def fault_of_rank(make: Any) -> str:
    """Compare with lib's rows in jobs of several sizes; then ask what a large order and many rows take."""
    for size, world, parts in _JOBS:
        with written(MANY[:size]) as path, MetaFile(path) as meta_file:
            for rank, epoch, part in product(range(world), (0, 1_001), range(parts)):
                fault = _fault_of_part(make, meta_file, (world, rank, parts), epoch, part)
                if fault:
                    return fault
    return (
        _fault_of_two(make)
        or _fault_of_large_order(make)
        or _fault_of_kept_rows(make)
        or _fault_of_far_rows(make)
        or _fault_of_generators(make)
    )


def _fault_of_part(make: Any, meta_file: MetaFile, job: tuple[int, int, int], epoch: int, part: int) -> str:
    """Compare one mini-epoch of a rank with lib's; job: ranks, rank, mini-epochs."""
    world, rank, parts = job
    size = len(meta_file)
    seed = 1_000_003 if size == 26 else 0
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
        fault = difference_told(ids.tolist(), wanted, f"{case}: ids")
        if fault:
            return fault
        dataset.load(1, 0)
        source.asked.clear()
        dataset.load(epoch, part)
        fault = difference_told(len(dataset), len(wanted), f"{case}: len")
        if fault:
            return fault
        got = [int(dataset[number].split()[1]) for number in range(len(wanted))]
    fault = difference_told(got, wanted, f"{case}: the numbers of the items")
    if fault:
        return fault
    fault = _fault_of_requests(source.asked)
    if fault:
        return f"{case}: {fault}."
    asked = sorted({id for request in source.asked for id in request.ids})
    new = sorted(set(wanted))
    if asked != new:
        return f"{case}: load read the rows {asked}, not {new}: none may be left from before."
    return ""


def _fault_of_two(make: Any) -> str:
    """Load a dataset without a seed, then another one: what does the first say now?"""
    wanted = MyRankDataset(MANY[:24], 4, 1, 2).ids(3, 0).tolist()
    with in_case("for two datasets of 24 rows and 4 ranks, one after the other"):
        first = make(_Source(MANY[:24]), 4, 1, 2)
        fault = difference_told(
            first.ids(3, 0).tolist(), wanted, "without a seed, which is then 0, ids(3, 0)"
        )
        if fault:
            return fault
        first.load(3, 0)
        make(_Source(MANY[:20]), 2, 0, 5, 9).load(0, 0)
        got = [first.ids(3, 0).tolist(), [int(first[number].split()[1]) for number in range(len(first))]]
    return difference_told(got, [wanted] * 2, "ids and items of a dataset, after another one was loaded,")


def _fault_of_large_order(make: Any) -> str:
    with in_case("for 200,000 rows and 8 ranks"):
        _, _, peak = held_and_most(lambda: make(_Source(range(200_000)), 8, 0, 8).ids(0, 0))
    if peak > 800_000:
        whole = "the whole order, at the real size 3.2 GB in each rank: ask Permutation for this rank's places only"
        return f"for 3,125 ids of 200,000 rows {peak / 1e6:.1f} MB were in memory at a time ({whole})."
    return ""


def _fault_of_far_rows(make: Any) -> str:
    """Compare ids of rows beyond 32 bits; so many mini-epochs that each has a few."""
    rows = range(2**33 + 3)
    parts = 2**28
    with in_case(f"for {len(rows):,} rows, 8 ranks and {parts:,} mini-epochs"):
        for part in (0, parts // 3, parts - 1):
            wanted = MyRankDataset(rows, 8, 7, parts).ids(1, part).tolist()
            got = make(_Source(rows), 8, 7, parts).ids(1, part).tolist()
            fault = difference_told(
                got, wanted, f"for {len(rows):,} rows, rank 7 of 8, part {part} of {parts:,}: ids"
            )
            if fault:
                return fault
    return ""


def _fault_of_kept_rows(make: Any) -> str:
    source = _Source(MANY)
    case = f"for {len(MANY)} rows, one rank and 2 mini-epochs"
    first_of_second = 0

    def loaded() -> Any:
        nonlocal first_of_second
        dataset = make(source, 1, 0, 2)
        dataset.load(0, 0)
        first_of_second = len(source.memory)
        source.asked.clear()
        dataset.load(0, 1)
        return dataset

    with in_case(case):
        _, kept, _ = held_and_most(loaded)
    if not source.asked:
        return f"{case}: load(0, 1) after load(0, 0) asked the source for no row."
    fault = _fault_of_requests(source.asked)
    if fault:
        return f"{case}, in a load {fault}."
    each = kept / (len(MANY) // 2)
    if each > TEXT / len(MANY) + 14:
        most = f"{each:.0f} bytes are kept for each row, and Packed needs {TEXT / len(MANY) + 8:.0f} (text and offset)"
        return f"{most}: keep no list of ids and no strings beside it."
    if source.memory[first_of_second] - source.memory[0] > TEXT / 4:
        return "while the rows of a mini-epoch are read, those of the one before are still in memory."
    return ""


def _states() -> dict[str, Any]:
    """Return the states of the global random generators, as what can be compared."""
    of_numpy: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "Python's": random.getstate(),
        "numpy's": (of_numpy[0], of_numpy[1].tolist(), *of_numpy[2:]),
        "torch's": torch.random.get_rng_state().tolist(),
    }


@contextmanager
def _generators_at(seed: int) -> Iterator[None]:
    """Seed the global random generators; at the end they are as they were."""
    python = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            torch.manual_seed(seed)
            yield
        finally:
            random.setstate(python)
            np.random.set_state(of_numpy)  # noqa: NPY002


def _fault_of_generators(make: Any) -> str:
    """Say whose global random generator an answer moves. Two seeds: one of them might be the answer's own."""
    by_load: set[str] = set()
    by_item: set[str] = set()
    for seed in (20_261, 20_262):
        with _generators_at(seed), in_case("for 24 rows, 4 ranks and 2 mini-epochs"):
            before = _states()
            dataset = make(_Source(MANY[:24]), 4, 1, 2)
            dataset.load(0, 1)
            loaded = _states()
            _ = [dataset[number] for number in range(len(dataset))]
            after = _states()
        by_load |= {name for name in before if before[name] != loaded[name]}
        by_item |= {name for name in before if loaded[name] != after[name]}
    for what, whose in (("load", by_load), ("reading an item", by_item)):
        if whose:
            return (
                f"{what} leaves {' and '.join(sorted(whose))} global random generator elsewhere than it stood: what "
                "augments with it would draw alike on all ranks."
            )
    return ""


# ---- exercise 5: epoch_batches


def _signed(rows: list[str]) -> list[str]:
    """Put rows together, with a sign where a worker does it."""
    return [*rows, *(["by worker"] if get_worker_info() else [])]


_PLAIN: dict[str, Any] = {"batch_size": 2}
_WORKERS: dict[str, Any] = {
    "batch_size": 3,
    "num_workers": 1,
    "persistent_workers": True,
    "collate_fn": _signed,
    "multiprocessing_context": "fork",
    "timeout": 20,
}
_NOTHING = {"has no len": "Nothing was loaded when the loader was made or iterated."}


def fault_of_epoch(answer: Any) -> str:
    """Deal epochs of one dataset, without workers and with one that persists; then ask for loads and options."""
    for options in (_PLAIN, _WORKERS):
        dataset = MyRankDataset(_Source(MANY[:26]), 4, 1, 3)
        for epoch in (0, 1, 5):
            fault = _fault_of_batches(answer, dataset, epoch, options)
            if fault:
                return fault
    for parts in (3, 1, 4):
        fault = _fault_of_loads(answer, parts)
        if fault:
            return fault
    return _fault_of_options(answer) or _fault_of_seeding(answer)


def _fault_of_batches(answer: Any, dataset: Any, epoch: int, options: dict[str, Any]) -> str:
    truth = MyRankDataset(MANY[:26], 4, 1, 3)  # whatever the answer does to its dataset
    size = options["batch_size"]
    workers = "num_workers" in options
    wanted = []
    for part in range(3):
        rows = [MANY[number][:9] for number in truth.ids(epoch, part).tolist()]
        batches = [rows[place : place + size] for place in range(0, len(rows), size)]
        wanted += [batch + ["by worker"] * workers for batch in batches]
    how = "a worker that persists and signs" if workers else "no workers"
    before = {0: "", 1: ", after epoch 0 of the same dataset"}.get(
        epoch, ", after epochs 0 and 1 of the same dataset"
    )
    case = f"for 26 rows, rank 1 of 4, 3 mini-epochs, batches of {size}, {how}, epoch {epoch}{before}"
    with in_case(case, _NOTHING):
        dealt = answer(dataset, epoch, **options)
        if not hasattr(dealt, "__iter__"):
            return f"an iterator of batches is asked for, not {kind_of(dealt)}."
        got = [_begins(batch) for batch in islice(dealt, len(wanted) + 1)]
    return difference_told(got, wanted, f"{case}: the batches, of each row its first letters,")


def _begins(batch: Any) -> Any:
    return [row[:9] for row in batch] if isinstance(batch, (list, tuple)) else batch


class _Loads(MyRankDataset):
    """A rank's dataset that notes which mini-epochs it was told to load."""

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self.loads: list[int] = []

    def load(self, epoch: int, mini_epoch: int) -> None:
        self.loads.append(mini_epoch)
        super().load(epoch, mini_epoch)


def _fault_of_loads(answer: Any, parts: int) -> str:
    """Say whether every mini-epoch is loaded once, and not before the batches of the one before are out."""
    dataset = _Loads(_Source(MANY[:24]), 2, 0, parts)
    case = f"for 24 rows, 2 ranks, mini_epochs = {parts}"
    batches_of = [-(-len(dataset.ids(0, part)) // 2) for part in range(parts)]
    with in_case(case):
        dealt = iter(answer(dataset, 0, batch_size=2))
        for part, batches in enumerate(batches_of):
            for number in range(batches):
                if next(dealt, None) is None:
                    return f"{case}: in mini-epoch {part} there is no batch {number}."
                if dataset.loads != [*range(part + 1)]:
                    there = f"when batch {number} of mini-epoch {part} comes"
                    return (
                        f"{case}: {there}, load was called for {dataset.loads}, not for {[*range(part + 1)]}."
                    )
        beyond = next(dealt, None)
    if beyond is not None or dataset.loads != [*range(parts)]:
        return f"{case}: at the end load was called for {dataset.loads}, not for {[*range(parts)]}."
    return ""


def _fault_of_options(answer: Any) -> str:
    """Say whether options that no other trial has reach the loader."""
    for options in ({"batch_size": 2, "drop_last": True}, {"batch_sampler": [[1], [0, 1]]}):
        truth = MyRankDataset(_Source(MANY[:26]), 4, 1, 3)
        wanted = [_begins(batch) for batch in epoch_batches(truth, 0, **options)]
        with in_case(f"for the options {options}"):
            dealt = answer(MyRankDataset(_Source(MANY[:26]), 4, 1, 3), 0, **options)
            got = [_begins(batch) for batch in islice(dealt, len(wanted) + 1)]
        fault = difference_told(got, wanted, f"with the options {options} the batches")
        if fault:
            return fault
    dataset = MyRankDataset(_Source(MANY[:64]), 1, 0, 1)
    in_order = [MANY[number] for number in dataset.ids(0, 0).tolist()]
    generator = torch.Generator().manual_seed(0)
    with in_case("for shuffle=True and a generator"):
        dealt = answer(dataset, 0, batch_size=4, shuffle=True, generator=generator)
        rows = [row for batch in dealt for row in batch]
    if rows == in_order:
        return "with shuffle=True the rows come in the order of ids: this option has not reached the loader."
    return difference_told(sorted(rows), sorted(in_order), "with shuffle=True the rows, sorted,")


def _fault_of_seeding(answer: Any) -> str:
    """Say whose global random generator is set. A loader draws from torch's, so where that stands may differ."""
    ends = []
    for seed in (20_261, 20_262):
        with _generators_at(seed), in_case("for 24 rows, 2 ranks, 3 mini-epochs"):
            _ = [*answer(MyRankDataset(_Source(MANY[:24]), 2, 0, 3), 1, batch_size=2)]
            ends.append(_states())
    whose = [name for name in ends[0] if ends[0][name] == ends[1][name]]
    if whose:
        return (
            f"{' and '.join(whose)} global random generator is set to a seed: all ranks would augment alike."
        )
    return ""
