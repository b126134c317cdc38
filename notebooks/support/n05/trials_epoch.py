"""What the loop over an epoch's loaders does when it is tried: a function says what is wrong with an answer."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice, product
from typing import Any, TypeAlias
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data.dataloader import _BaseDataLoaderIter

from support.kit.raised import in_case
from support.kit.values import kind_of
from support.n05.runs import only_new_objects
from support.n05.solved import MyRankDataset, epoch_batches
from support.n05.sources import Source
from support.n05.trials import MANY, difference_told
from support.n05.trials_rank import generators_at, global_states

_signs = ["by worker"]


def _learn_to_sign(_: int) -> None:
    """Give the worker that begins with this a sign of its own."""
    _signs.append("initiated")


def _signed(rows: list[str]) -> list[str]:
    """Put rows together, with a sign where a worker does it, and with what it draws from each global generator."""
    if not get_worker_info():
        return rows
    drawn = random.random(), np.random.random(), torch.rand(1).item()  # noqa: NPY002
    return [*rows, " ".join(map(str, (_signs[-1], *drawn)))]


_PLAIN: dict[str, Any] = {"batch_size": 2, "collate_fn": _signed}
_WORKERS: dict[str, Any] = {
    "batch_size": 3,
    "num_workers": 1,
    "persistent_workers": True,
    "worker_init_fn": _learn_to_sign,
    "collate_fn": _signed,
    "multiprocessing_context": "fork",
    "timeout": 20,
}


@only_new_objects()
def fault_of_epoch(answer: Any) -> str:
    """Deal epochs of one dataset, without workers and with one that persists; then ask for loads and options."""
    return (
        _fault_of_epochs(answer)
        or _fault_of_loads(answer, 3)
        or _fault_of_loads(answer, 1)
        or _fault_of_loads(answer, 4)
        or _fault_of_small_jobs(answer)
        or _fault_of_options(answer)
        or _fault_of_seeding(answer)
        or _fault_of_errors(answer)
    )


def _fault_of_epochs(answer: Any) -> str:
    unsaid = {name: value for name, value in _WORKERS.items() if name != "worker_init_fn"}
    for options, once, epochs in ((_PLAIN, _PLAIN, (0, 1, 5)), (_WORKERS, unsaid, (0, 1, 1))):
        dataset = _Noted(Source(MANY[:26]), 4, 1, 3)
        drawn: list[_Draws] = []
        for number, epoch in enumerate(epochs):
            said = once if epoch == 1 else options
            fault = _fault_of_batches(answer, dataset, epoch, said, _BEFORE[number], drawn)
            if fault:
                return fault
    return ""


def _fault_of_small_jobs(answer: Any) -> str:
    """Deal epochs of a few rows to many ranks, so that mini-epochs are empty: the first, one between, the last."""
    generator = random.Random(19)
    jobs = [(3, 5, 0, 2), (3, 5, 4, 3), (4, 2, 1, 5)]
    for _ in range(12):
        world = generator.randrange(1, 6)
        jobs.append(
            (generator.randrange(1, 12), world, generator.randrange(world), generator.randrange(1, 7))
        )
    for size, world, rank, parts in jobs:
        dataset = _Noted(Source(MANY[:size]), world, rank, parts)
        truth = MyRankDataset(MANY[:size], world, rank, parts)
        wanted = [MANY[number] for part in range(parts) for number in truth.ids(1, part).tolist()]
        turns = [len(truth.ids(1, part)) for part in range(parts)]
        job = f"for {size} rows, rank {rank} of {world}, {parts} mini-epochs of {turns} rows"
        case = f"{job}, the rows of an epoch"
        with in_case(case):
            batches = [*answer(dataset, 1, batch_size=2)]
            got = [row for batch in batches for row in batch]
        fault = difference_told([row[:9] for row in got], [row[:9] for row in wanted], case)
        if fault:
            return fault
        if not all(batches):
            return f"{job}: a mini-epoch of no rows has no batch, and you hand out an empty one."
        if dataset.loads != [*range(parts)]:
            return f"{job}: load was called for {dataset.loads}, not for {[*range(parts)]}."
        case = case.replace("the rows of an epoch", "with shuffle=True the rows of an epoch, sorted,")
        with in_case(case):
            got = sorted(row for batch in answer(dataset, 1, batch_size=2, shuffle=True) for row in batch)
        fault = difference_told([row[:9] for row in got], [row[:9] for row in sorted(wanted)], case)
        if fault:
            return fault
    return ""


_BEFORE = ("", ", after epoch 0 of the same dataset", ", after epochs 0 and 1 of the same dataset")
#: Of each global generator what the mini-epochs' workers have drawn.
_Draws: TypeAlias = tuple[tuple[str, ...], ...]


def _fault_of_batches(
    answer: Any, dataset: Any, epoch: int, options: dict[str, Any], before: str, drawn: list[_Draws]
) -> str:
    """Deal an epoch; drawn: what workers drew in epochs before, to which that of these is added."""
    truth = MyRankDataset(MANY[:26], 4, 1, 3)  # whatever the answer does to its dataset
    size = options["batch_size"]
    workers = "num_workers" in options
    initiated = "worker_init_fn" in options
    wanted = []
    for part in range(3):
        rows = [MANY[number][:9] for number in truth.ids(epoch, part).tolist()]
        batches = [rows[place : place + size] for place in range(0, len(rows), size)]
        wanted += [batch + ["initiated" if initiated else "by worker"] * workers for batch in batches]
    how = "a worker that persists" + " and signs as its worker_init_fn says" * initiated
    loader = how if workers else "no workers"
    case = f"for 26 rows, rank 1 of 4, 3 mini-epochs, batches of {size}, {loader}, epoch {epoch}{before}"
    with in_case(case):
        dealt = answer(dataset, epoch, **options)
        if not hasattr(dealt, "__iter__"):
            return f"an iterator of batches is asked for, not {kind_of(dealt)}."
        came = [*islice(dealt, len(wanted) + 1)]
        got = [_begins(batch) for batch in came]
    fault = difference_told(got, wanted, f"{case}: the batches, of each row its first letters,")
    return fault or (_fault_of_draws(case, came, drawn) if workers else "")


def _fault_of_draws(case: str, batches: list[list[str]], drawn: list[_Draws]) -> str:
    """Compare what the workers of the mini-epochs, each with one batch, have drawn: a loader seeds its own anew."""
    drawn.append(tuple(zip(*(batch[-1].split()[-3:] for batch in batches), strict=True)))
    for whose, *of_epochs, numbers in zip(("Python's", "numpy's", "torch's"), *drawn, strict=True):
        if {*numbers} & {*chain.from_iterable(of_epochs)}:
            return (
                f"{case}: its workers draw from {whose} global random generator what those of an epoch before have "
                "drawn: none is to be seeded."
            )
        if len({*numbers}) < len(numbers):
            return (
                f"{case}: workers of two mini-epochs draw the same from {whose} global random generator: none is to be "
                "seeded."
            )
    return ""


def _begins(batch: Any) -> Any:
    return [row[:9] for row in batch] if isinstance(batch, (list, tuple)) else batch


class _Noted(MyRankDataset):
    """A rank's dataset that notes which mini-epochs it loads, and says so where none was."""

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self.loads: list[int] = []

    def load(self, epoch: int, mini_epoch: int) -> None:
        self.loads.append(mini_epoch)
        super().load(epoch, mini_epoch)

    def __len__(self) -> int:
        if self.rows is None:
            raise TypeError("the dataset was asked for its length, and nothing was loaded yet")
        return len(self.rows)


class _Row(str):
    """A row that can be watched until it is gone."""


class _Loads(_Noted):
    """A rank's dataset that notes besides what is read of a load, what outlives it, and rows of a copy."""

    def __init__(self, *job: Any) -> None:
        super().__init__(*job)
        self.read = 0
        self.outlived = 0
        self.handed: list[weakref.ref[_Row]] = []
        self.kept = 0  # rows of earlier loads
        self.packed: weakref.ref[Any] | None = None  # all rows of the last load
        self.held = False  # whether they were there at the next one
        self.first = weakref.ref(self)  # a copy of this dataset has it, too
        self.beside = False  # whether a copy has other rows while the first has some

    def load(self, epoch: int, mini_epoch: int) -> None:
        self.loads.append(mini_epoch)  # at once: it may be in a thread
        self.rows = None
        gc.collect()
        self.held |= self.packed is not None and self.packed() is not None
        objects = gc.get_objects()
        loaders = sum(issubclass(type(one), DataLoader) for one in objects)
        iterators = sum(issubclass(type(one), _BaseDataLoaderIter) for one in objects)
        self.outlived = max(self.outlived, loaders, iterators)
        self.kept = max(self.kept, sum(row() is not None for row in self.handed))
        self.read = 0
        MyRankDataset.load(self, epoch, mini_epoch)
        self.packed = weakref.ref(self.rows)

    def __getitem__(self, i: int) -> Any:
        self.read += 1
        first = self.first()
        if first is not None and first.rows:
            first.beside |= first.rows is not self.rows
        row = _Row(super().__getitem__(i))
        self.handed.append(weakref.ref(row))
        return row


def _fault_of_loads(answer: Any, parts: int) -> str:
    """Say whether every mini-epoch is loaded once, and not before the batches of the one before are out."""
    dataset = _Loads(Source(MANY[:24]), 2, 0, parts)
    epoch = parts // 4  # not always the first one
    case = f"for 24 rows, 2 ranks, mini_epochs = {parts}, epoch {epoch}"
    batches_of = [-(-len(dataset.ids(epoch, part)) // 2) for part in range(parts)]
    dataset.load(epoch + 1, 0)  # it has been used before
    dataset.loads.clear()
    with in_case(case):
        dealt = iter(answer(dataset, epoch, batch_size=2))
        for part, batches in enumerate(batches_of):
            for number in range(batches):
                if next(dealt, None) is None:
                    return f"{case}: in mini-epoch {part} there is no batch {number}."
                if dataset.loads != [*range(part + 1)]:
                    there = f"when batch {number} of mini-epoch {part} comes"
                    return (
                        f"{case}: {there}, load was called for {dataset.loads}, not for {[*range(part + 1)]}."
                    )
                waiting = sum(row() is not None for row in dataset.handed[-dataset.read :])
                if dataset.read > 2 * (number + 2) and waiting > 4:  # one batch ahead is none of a copy
                    return (
                        f"{case}: when batch {number} of mini-epoch {part} comes, {dataset.read} rows have been read: "
                        "what waits is a second copy of its rows."
                    )
        beyond = next(dealt, None)
    if beyond is not None and dataset.loads == [*range(parts)]:
        return f"{case}: there is a batch too many, {beyond}."
    if dataset.loads != [*range(parts)]:
        return f"{case}: at the end load was called for {dataset.loads}, not for {[*range(parts)]}."
    if dataset.kept > 2:  # a batch may still have a name
        return (
            f"{case}: {dataset.kept} rows of earlier mini-epochs are still there when another one is loaded: there is "
            "memory for the rows of one."
        )
    if dataset.beside:
        return (
            f"{case}: a copy has rows of its own beside those of the dataset: there is memory for one load."
        )
    if dataset.held:  # by a copy of the dataset, or by a name
        return (
            f"{case}: the rows of an earlier mini-epoch are still held when another one is loaded: there is memory for "
            "the rows of one."
        )
    if dataset.outlived > 1:  # one may still have a name
        return (
            f"{case}: {dataset.outlived} loaders of earlier mini-epochs, or their iterators, are there when the last "
            "one is loaded; with persistent_workers their workers are, too, each with the rows of then."
        )
    return ""


class _Skipping:
    """Gives None in place of a batch with row 15, as who leaves out what is broken does."""

    def __repr__(self) -> str:
        return "None where row 15 is"

    def __call__(self, rows: list[str]) -> list[str] | None:
        return None if MANY[15] in rows else rows


def _fault_of_options(answer: Any) -> str:
    """Say whether options that no other trial has reach the loader."""
    rows = [*MANY[:26]]
    rows[18] = ""  # a row may be empty, and with batch_size=None it is handed out as it is
    for options in (
        {"batch_size": 3, "drop_last": True},  # of 2, 2 and 3 rows: two mini-epochs have no batch
        {"batch_size": 2, "sampler": [1, 0]},
        {"batch_sampler": [[1], [0, 1]]},
        {"batch_size": None},
        {"batch_size": 1, "collate_fn": _Skipping()},  # the first batch of two
    ):
        truth = MyRankDataset(Source(rows), 4, 1, 3)
        wanted = [_begins(batch) for batch in epoch_batches(truth, 0, **options)]
        with in_case(f"for the options {options}"):
            dealt = answer(MyRankDataset(Source(rows), 4, 1, 3), 0, **options)
            got = [_begins(batch) for batch in islice(dealt, len(wanted) + 1)]
        fault = difference_told(got, wanted, f"with the options {options} the batches")
        if fault:
            return fault
    dataset = MyRankDataset(Source(MANY[:64]), 1, 0, 2)
    in_order = [MANY[number] for part in (0, 1) for number in dataset.ids(0, part).tolist()]
    case = "for shuffle=True and a generator of the caller's"

    def shuffled(deal: Any) -> list[str]:
        generator = torch.Generator().manual_seed(7)
        return [
            row
            for batch in deal(dataset, 0, batch_size=4, shuffle=True, generator=generator)
            for row in batch
        ]

    with in_case(case):
        got = shuffled(answer)
    if got[:32] == in_order[:32] or got[32:] == in_order[32:]:
        return "with shuffle=True a mini-epoch's rows come in the order of ids: the option has not reached its loader."
    fault = difference_told(sorted(got), sorted(in_order), "with shuffle=True the rows, sorted,")
    if not fault and got != shuffled(epoch_batches):
        return f"{case} the rows come in another order than the generator gives them: it has not reached the loader."
    return fault


class _Broken(MyRankDataset):
    """A rank's dataset one row of which cannot be read, or whose second load fails, once."""

    kind: type[Exception]
    fails = False

    def load(self, epoch: int, mini_epoch: int) -> None:
        fails = self.fails and mini_epoch == 1
        self.fails = self.fails and not fails
        if fails:
            raise self.kind("rows that cannot be read")
        super().load(epoch, mini_epoch)

    def __getitem__(self, i: int) -> Any:
        if i == 2:
            raise self.kind("a row that cannot be read")
        return super().__getitem__(i)


def _fault_of_errors(answer: Any) -> str:
    """Say whether an error of a row, or DataLoader's own about its options, is lost on its way."""
    for kind in (ValueError, RuntimeError, IndexError, OSError):
        broken = _Broken(Source(MANY[:24]), 2, 0, 2)
        broken.kind = kind
        try:
            _ = [*answer(broken, 0, batch_size=2)]
        except Exception:  # the row's, or what the answer makes of it
            continue
        return f"an error of a row, {kind.__name__}, is lost: its batch is missing, and nobody hears of it."
    for kind in (ValueError, RuntimeError, IndexError, OSError):
        broken = _Broken(Source(MANY[:8]), 4, 0, 2)  # one row in each mini-epoch
        broken.kind = kind
        broken.fails = True
        try:
            _ = [*answer(broken, 0, batch_size=2)]
        except Exception:
            continue
        return f"an error of load, {kind.__name__}, is lost: who trains on does not hear of it."
    try:
        _ = [*answer(MyRankDataset(Source(MANY[:24]), 2, 0, 2), 0, batch_size=0)]
    except Exception:
        return ""
    return "DataLoader refuses batch_size=0 with a ValueError, and your loop loses it."


def _fault_of_seeding(answer: Any) -> str:
    """Say whose global random generator is set. A loader draws from torch's, so where that stands may differ."""
    states = []
    called: list[str] = []
    other = False
    for seed in (20_261, 20_262):
        with generators_at(seed), _seeders_noted(called), in_case("for 24 rows, 2 ranks, 3 mini-epochs"):
            dealt = answer(MyRankDataset(Source(MANY[:24]), 2, 0, 3), 1, batch_size=2, shuffle=True)
            states.append([*(global_states() for _ in dealt), global_states()])
            other |= torch.initial_seed() != seed
    pairs = [*zip(*states, strict=True)]  # at each batch, and after the last
    whose = [name for name in pairs[0][0] if any(one[name] == other[name] for one, other in pairs)]
    if whose:
        return (
            f"{' and '.join(whose)} global random generator is set to a seed: all ranks would augment alike."
        )
    if called:
        return f"{called[0]} is called: no global random generator is to be seeded."
    return "torch's global random generator has got another seed: none is to be seeded." if other else ""


@contextmanager
def _seeders_noted(called: list[str]) -> Iterator[None]:
    """Note which functions that seed a global generator are called."""
    with ExitStack() as stack:
        for owner, name in product((random, np.random, torch, torch.random), ("seed", "manual_seed")):
            seed = getattr(owner, name, None)
            if seed:
                noted = _noting(seed, f"{owner.__name__}.{name}", called)
                stack.enter_context(mock.patch.object(owner, name, noted))
        yield


def _noting(seed: Any, name: str, called: list[str]) -> Any:
    def noted(*given: Any, **named: Any) -> Any:
        called.append(name)
        return seed(*given, **named)

    return noted
