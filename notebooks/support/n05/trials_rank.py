"""What RankDataset does when it is tried: a function says what is wrong with an answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise, product
from typing import Any
from unittest import mock

import numpy as np
import torch

from lib.data.meta import MetaFile
from lib.data.permutation import Permutation
from lib.data.rank_dataset import RankDataset
from support.kit.raised import in_case
from support.kit.values import kind_of
from support.n05.runs import held_and_most, only_new_objects, written
from support.n05.solved import MyRankDataset
from support.n05.sources import Many, Source, fault_of_requests
from support.n05.trials import MANY, TEXT, all_read, difference_told, length_fault

#: Rows, ranks and mini-epochs.
_JOBS = (
    (24, 4, 2),
    (28, 4, 3),
    (26, 4, 3),
    (13, 3, 2),
    (10, 1, 4),
    (3, 5, 2),
    (1, 5, 1),
    (2, 5, 1),
    (15, 1, 11),
    (55, 1, 11),
    (30, 1, 22),
)


@only_new_objects()
def fault_of_rank(make: Any) -> str:
    """Compare with lib's rows in jobs of several sizes; then ask what a large order and many rows take."""
    for size, world, parts in _JOBS:
        with written(MANY[:size]) as path, MetaFile(path) as meta_file:
            for rank, epoch, part in product(range(world), (0, 1_001), range(parts)):
                fault = _fault_of_part(make, meta_file, (world, rank, parts), epoch, part)
                if fault:
                    return fault
    # Generators before kept rows: torch keeps something of each call of manual_seed. These before the large order: who
    # keeps all rows would take half a minute there. And that before the far rows: what computes too much would not end.
    return (
        _fault_of_two(make)
        or _fault_of_generators(make)
        or _fault_of_kept_rows(make)
        or _fault_of_large_order(make)
        or _fault_of_pieces(make)
        or _fault_of_sequence(make)
        or _fault_of_failed_load(make)
        or _fault_of_half_a_load(make)
        or _fault_of_far_rows(make)
    )


def _fault_of_part(make: Any, meta_file: MetaFile, job: tuple[int, int, int], epoch: int, part: int) -> str:
    """Compare one mini-epoch of a rank with lib's; job: ranks, rank, mini-epochs."""
    world, rank, parts = job
    size = len(meta_file)
    rows = [f" {row}é犬 " for row in MANY[:size]]
    seed = 1_000_003 if size == 26 else 0
    theirs = RankDataset(meta_file, world, rank, mini_epochs=parts, seed=seed)
    theirs.set_epoch(epoch)
    wanted = [int(number) for block in theirs.ids(part) for number in block]
    source = Source(rows)
    case = f"N, W, E = {size}, {world}, {parts}; seed {seed}, rank {rank}, epoch {epoch}, part {part}"
    with in_case(case):
        dataset = make(source, world, rank, parts, seed)
        ids = dataset.ids(epoch, part)
        if not isinstance(ids, np.ndarray):
            return f"ids should return a numpy array, not {kind_of(ids)}."
        if ids.dtype.kind not in "iu":
            return f"{case}: ids has the type {ids.dtype}, not one of integers."
        fault = difference_told(ids.tolist(), wanted, f"{case}: ids")
        if fault:
            return fault
        dataset.load(1, parts - 1)  # never empty
        source.asked.clear()
        dataset.load(epoch, part)
        fault = fault_of_requests(source.asked)
        if fault:
            return f"{case}: {fault}."
        asked = sorted({id for request in source.asked for id in request.ids})
        new = sorted(set(wanted))
        if asked != new:
            fewer = ": none may be left from before" * (set() < set(asked) < set(new))
            return f"{case}: load read the rows {asked}, not {new}{fewer}."
        fault = difference_told(len(dataset), len(wanted), f"{case}: len")
        return fault or _fault_of_items(dataset, rows, wanted, case)


def _fault_of_items(dataset: Any, rows: Sequence[str], wanted: Sequence[int], case: str) -> str:
    """Compare items with the rows of these numbers: by number if each is a row, otherwise the first that is none."""
    got = [dataset[place] for place in range(len(wanted))]
    if all(isinstance(item, str) and item in rows for item in got):
        return difference_told(
            [rows.index(item) for item in got], wanted, f"{case}: the numbers of the items"
        )
    place = next(place for place, number in enumerate(wanted) if got[place] != rows[number])
    return difference_told(got[place], rows[wanted[place]], f"{case}: item {place}")


def _fault_of_sequence(make: Any) -> str:
    """Ask one dataset for ids and loads of random epochs and mini-epochs, again and again: nothing may stay of them."""
    generator = random.Random(17)
    for _ in range(6):
        size = generator.randrange(5, 60)
        world = generator.randrange(1, 6)
        rank = generator.randrange(world)
        parts = generator.randrange(1, 4)
        dataset = make(Source(MANY[:size]), world, rank, parts, 3)
        truth = MyRankDataset(MANY[:size], world, rank, parts, 3)
        before = ""
        held: list[int] | None = None  # the rows of the last load
        for _ in range(12):
            epoch = generator.choice((0, 1, 2, 9))
            part = generator.randrange(parts)
            call = f"{generator.choice(('ids', 'load'))}({epoch}, {part})"
            case = f"N, W, E = {size}, {world}, {parts}; seed 3, rank {rank}{before}"
            wanted = truth.ids(epoch, part).tolist()
            with in_case(f"{case}: {call}"):
                fault = ""
                if call.startswith("ids"):
                    fault = difference_told(dataset.ids(epoch, part).tolist(), wanted, f"{case}: {call}")
                else:
                    dataset.load(epoch, part)
                    held = wanted
                if held is not None and not fault:
                    got = [int(dataset[number].split()[1]) for number in range(len(dataset))]
                    fault = difference_told(got, held, f"{case}: {call}, and then the numbers of the items")
            if fault:
                return fault
            before = f", after {call} of the same dataset"
    return ""


class _Failing(Source):
    """Rows whose next request fails if it is told so: whoever asks a second time gets them."""

    fails: type[Exception] | None = None

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        fails = self.fails
        self.fails = None
        if fails:
            raise fails("rows that cannot be read")
        return super().__getitems__(indices)


def _fault_of_failed_load(make: Any) -> str:
    """Let load(0, 1) fail after load(0, 0): its error must come out, and either load brings its rows afterwards."""
    for kind, part in product((OSError, ValueError, RuntimeError, IndexError), (0, 1)):
        fault = _fault_after_failed_load(make, kind, part)
        if fault:
            return fault
    return ""


def _fault_after_failed_load(make: Any, kind: type[Exception], part: int) -> str:
    source = _Failing(MANY[:24])
    wanted = MyRankDataset(MANY[:24], 4, 1, 2).ids(0, part).tolist()
    case = f"load(0, {part}) after a load in which the source failed"
    with in_case(case):
        dataset = make(source, 4, 1, 2)
        dataset.load(0, 0)
        source.fails = kind
        lost = False
        with suppress(Exception):  # the source's, or what the answer makes of it
            dataset.load(0, 1)
            lost = True
        if lost:
            return "an error of the source is lost: load returns as if all had been read at once."
        fault = length_fault(dataset, "a load in which the source failed")
        dataset.load(0, part)
        got = [int(dataset[number].split()[1]) for number in range(len(dataset))]
    return fault or difference_told(got, wanted, f"{case}: the numbers of the items")


class _FailingLater(Source):
    """Rows of which, while it fails, only the first request can be read."""

    fails = False

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        if self.fails and self.asked:
            raise OSError("rows that cannot be read")
        return super().__getitems__(indices)


def _fault_of_half_a_load(make: Any) -> str:
    """Let the second request of a load fail, if there is one, and load again."""
    source = _FailingLater(MANY)
    wanted = MyRankDataset(MANY, 1, 0, 2).ids(0, 1).tolist()
    case = "load(0, 1) after a load in which the second request failed"
    with in_case(case):
        dataset = make(source, 1, 0, 2)
        source.fails = True
        with suppress(Exception):  # the source's, or what the answer makes of it
            dataset.load(0, 1)
        source.fails = False
        fault = length_fault(dataset, "a load in which the second request failed")
        dataset.load(0, 1)
        got = [int(dataset[number].split()[1]) for number in range(len(dataset))]
    if got == wanted:
        return fault
    return f"{case}: {len(got)} items, not those of {len(wanted)} ids."


def _fault_of_two(make: Any) -> str:
    """Load a dataset without a seed, then another one: what does the first say now?"""
    wanted = MyRankDataset(MANY[:24], 4, 1, 2).ids(3, 0).tolist()
    with in_case("for two datasets of 24 rows and 4 ranks, one after the other"):
        first = make(Source(MANY[:24]), 4, 1, 2)
        fault = difference_told(
            first.ids(3, 0).tolist(), wanted, "without a seed, which is then 0, ids(3, 0)"
        )
        if fault:
            return fault
        first.load(3, 0)
        make(Source(MANY[:20]), 2, 0, 5, 9).load(0, 0)
        got = [first.ids(3, 0).tolist(), [int(first[number].split()[1]) for number in range(len(first))]]
    return difference_told(got, [wanted] * 2, "ids and items of a dataset, after another one was loaded,")


def _fault_of_large_order(make: Any) -> str:
    """Say whether more than a rank's places in a mini-epoch are made, or asked of Permutation."""
    rows = Many(2_000_003)
    count = len(MyRankDataset(rows, 64, 5, 60).ids(0, 30))
    case = f"for {count} ids of {len(rows):,} rows, 64 ranks and 60 mini-epochs"
    with in_case(case), _places_counted() as asked:
        _, _, of_ids = held_and_most(lambda: make(Source(rows), 64, 5, 60).ids(0, 30))
    if sum(asked) > 2 * count:
        return f"{case} Permutation had to compute {sum(asked):,}: ask it for this mini-epoch's places only."
    with in_case(case):
        _, _, of_making = held_and_most(lambda: make(Source(rows), 64, 5, 60))
    if of_making > 100_000:
        made = case.replace(f"for {count} ids", "to make the dataset", 1)
        return f"{made} {of_making / 1e3:.0f} kB were in memory: it holds no row before load."
    if of_ids > 100_000:  # 31,251 turns of 4 bytes, or the places of 64 ranks, are more
        return (
            f"{case} {of_ids / 1e3:.0f} kB were in memory: make this rank's places of this mini-epoch only."
        )
    with in_case(case):
        dataset = make(Source(rows), 64, 5, 60)
        _, _, of_load = held_and_most(lambda: dataset.load(0, 30))
    if of_load > 400_000:
        load = case.replace("for", "to load", 1).replace("ids", "rows", 1)
        return f"{load} {of_load / 1e6:.1f} MB were in memory at a time: hold nothing for the other rows."
    return ""


def _fault_of_pieces(make: Any) -> str:
    """Load many rows, and few of a long file: in how many requests, front to back? More items than 16 bits count."""
    for size, world, parts in ((200_003, 1, 2), (2_000_003, 64, 60)):
        source = Source(Many(size))
        case = f"N, W, E = {size:,}, {world}, {parts}"
        wanted = MyRankDataset(source, world, 0, parts).ids(0, 0)
        places = range(0, len(wanted), 997)
        with in_case(f"{case}, in a load"):
            dataset = make(source, world, 0, parts)
            dataset.load(0, 0)
            got = [dataset[place] for place in places]
        fault = fault_of_requests(source.asked)
        if fault:
            return f"{case}, in a load {fault}."
        for place, item in zip(places, got, strict=True):
            fault = difference_told(item, f"row {wanted[place]}", f"{case}, after a load item {place:,}")
            if fault:
                return fault
    return ""


@contextmanager
def _places_counted() -> Iterator[list[int]]:
    """Note how many places each question to a Permutation has."""
    asked: list[int] = []
    compute = Permutation._map

    def counted(order: Permutation, index: Any, *, inverse: bool) -> Any:
        asked.append(int(np.size(index)))
        return compute(order, index, inverse=inverse)

    with mock.patch.object(Permutation, "_map", counted):
        yield asked


def _fault_of_far_rows(make: Any) -> str:
    """Compare ids of rows beyond 32 bits; so many ranks that even all turns of one are few."""
    rows = range(2**33 + 3)
    world = 2**20
    parts = 2**11
    with in_case(f"for {len(rows):,} rows, {world:,} ranks and {parts:,} mini-epochs"):
        for part in (0, parts // 3, parts - 1):
            wanted = MyRankDataset(rows, world, world - 1, parts).ids(1, part).tolist()
            got = make(Source(rows), world, world - 1, parts).ids(1, part).tolist()
            fault = difference_told(
                got,
                wanted,
                f"for {len(rows):,} rows, the last of {world:,} ranks, part {part} of {parts:,}: ids",
            )
            if fault:
                return fault
    return ""


def _fault_of_kept_rows(make: Any) -> str:
    second = MyRankDataset(MANY, 1, 0, 2).ids(0, 1).tolist()
    rows = [*MANY]
    rows[second[0]] += "." * 3000  # much longer than all others: who makes them as wide keeps more
    text = sum(len(rows[number]) for number in second) / len(second)
    source = Source(rows)
    case = f"for {len(MANY)} rows, one rank and 2 mini-epochs"
    first_of_second = 0

    def loaded() -> Any:
        nonlocal first_of_second
        dataset = make(source, 1, 0, 2)
        dataset.load(0, 0)
        first_of_second = len(source.memory)
        source.asked.clear()
        dataset.load(0, 1)
        return all_read(dataset)

    with in_case(case):
        loaded()  # what is imported or made once only is kept for no row
        source.memory.clear()
        _, kept, _ = held_and_most(loaded)
    if not source.asked:
        return f"{case}: load(0, 1) after load(0, 0) asked the source for no row."
    fault = fault_of_requests(source.asked)
    if fault:
        return f"{case}, in a load {fault}."
    each = kept / len(second)
    if each > text + 22:
        most = f"{each:.0f} bytes are kept for each row: text and offset need {text + 8:.0f}"
        return f"{most}, and an array that says which item is where takes 8 more."
    if source.memory[first_of_second] - source.memory[0] > TEXT / 4:
        return "while the rows of a mini-epoch are read, those of the one before are still in memory."
    return ""


def global_states() -> dict[str, Any]:
    """Return the states of the global random generators, as what can be compared."""
    of_numpy: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    return {
        "Python's": random.getstate(),
        "numpy's": (of_numpy[0], of_numpy[1].tolist(), *of_numpy[2:]),
        "torch's": torch.random.get_rng_state().tolist(),
    }


@contextmanager
def generators_at(seed: int) -> Iterator[None]:
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
    calls = ("making the dataset", "load", "ids", "reading an item")
    moved: dict[str, set[str]] = {call: set() for call in calls}
    for seed in (20_261, 20_262):
        with generators_at(seed), in_case("for 24 rows, 4 ranks and 2 mini-epochs"):
            _ = random.random(), np.random.random(), torch.rand(1)  # noqa: NPY002 – who seeds with the same is seen
            states = [global_states()]
            dataset = make(Source(MANY[:24]), 4, 1, 2)
            states.append(global_states())
            dataset.load(0, 1)
            states.append(global_states())
            dataset.ids(0, 1)
            states.append(global_states())
            _ = [dataset[number] for number in range(len(dataset))]
            states.append(global_states())
        for call, (before, after) in zip(calls, pairwise(states), strict=True):
            moved[call] |= {name for name in before if before[name] != after[name]}
    for call, whose in moved.items():
        if whose:
            return (
                f"{call} leaves {' and '.join(sorted(whose))} global random generator elsewhere than it stood: what "
                "augments with it would draw alike on all ranks."
            )
    return ""
