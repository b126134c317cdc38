"""Exercises of notebook 02, samplers; its predictions stand in guesses.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count, islice, product
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, default_collate, get_worker_info

from lib.data.samplers import RandomSampler
from support.checks import Exercise, Verdict, cases
from support.checks import use as use
from support.kit.judged import judged
from support.kit.mistakes import with_methods
from support.n02 import noise
from support.n02.guesses import guess_asker as guess_asker
from support.n02.guesses import guess_handed_out as guess_handed_out
from support.n02.guesses import guess_loads as guess_loads
from support.n02.guesses import guess_streamed as guess_streamed
from support.n02.guesses import guess_table as guess_table
from support.n02.runs import IndexDataset, as_worker, pooled_batches, sentence_lengths


# ---- how the classes of the exercises are tried, and wrong ones made
def _view(tried: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
    """View an answer as a function of the case: tried(answer, **case)."""
    return lambda answer: partial(tried, answer)


def _in_turn(**views: Callable[..., Any]) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares an answer in its first view, then in these, and names the one where it is wrong."""

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        first = verdict = exercise.compare(answer)
        for name, tried in views.items():
            if verdict:
                what = f"{exercise.what}, {name.replace('_', ' ')}"
                verdict = replace(exercise, what=what, view=_view(tried)).compare(answer)
        return first if verdict else verdict

    return judge


def _kept(base: Any) -> Any:
    """Return a wrong answer that makes its iterator once."""
    return with_methods(base, __iter__=lambda self: self.__dict__.setdefault("kept", base.__iter__(self)))


def _pass(iterable: Any, number: int, limit: int = 50) -> list[Any]:
    """Return what comes in pass `number`, at most `limit` of it: a wrong answer may have no end."""
    return [list(islice(iter(iterable), limit)) for _ in range(number + 1)][-1]


# ---- exercise 1: a DataLoader for one process
class Tens(IndexDataset):
    """Item i is 10 · i, so that an index is not mistaken for an item."""

    def __getitem__(self, index: int) -> int:
        return 10 * int(super().__getitem__(index))


class Loader:
    """What exercise 1 asks for."""

    def __init__(self, dataset: Any, batch_sampler: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.collate_fn = collate_fn

    def __iter__(self) -> Iterator[Any]:
        for indices in self.batch_sampler:
            yield self.collate_fn([self.dataset[index] for index in indices])

    def __len__(self) -> int:
        return len(self.batch_sampler)


def _batches(loader: Any, size: int, batches: list[list[int]], epoch: int = 0) -> list[Any]:
    got = _pass(loader(Tens(size), batches, sum), epoch)
    return [str(batch) if isinstance(batch, torch.Tensor) else batch for batch in got]  # a tensor is no list


def _first(loader: Any, size: int, batches: list[list[int]]) -> list[int]:
    dataset = Tens(size)
    left = iter(batches)
    next(iter(loader(dataset, left, sum)), None)
    return [dataset.loads, len(batches) - length_hint(left)]


_loader = partial(with_methods, Loader)

check_loader = Exercise(
    "batches (here dataset[i] is 10 * i, and collate_fn is sum)",
    name="Loader",
    methods=("__iter__", "__len__"),
    reference=Loader,
    view=_view(_batches),
    judge=_in_turn(
        second_epoch=partial(_batches, epoch=1),
        items_and_lists_taken_when_the_first_batch_comes=_first,
        len=lambda loader, size, batches: len(loader(Tens(size), batches, sum)),
    ),
    cases=cases("size batches", [(5, [[0, 1], [4, 2], [3]]), (9, [[8, 0, 0], [7]]), (1, [[0]]), (4, [])]),
    praise="right in all {count} cases: two epochs, each batch loaded when it is asked for, and len()",
    mistakes={
        "These are lists of items; collate_fn makes a batch of such a list.": _loader(
            __iter__=lambda self: ([self.dataset[i] for i in batch] for batch in self.batch_sampler)
        ),
        "These batches are not made by the collate_fn that the Loader was given.": _loader(
            __iter__=lambda self: Loader.__iter__(Loader(self.dataset, self.batch_sampler, default_collate))
        ),
        "These are the indices; dataset[index] is the item.": _loader(
            __iter__=lambda self: map(self.collate_fn, self.batch_sampler)
        ),
        "An iterator that is kept is used up: __iter__ begins anew.": _kept(Loader),
        "All batches are loaded before the first one leaves: yield each as soon as it is there.": _loader(
            __iter__=lambda self: iter(list(Loader.__iter__(self)))
        ),
        "You take all lists from the batch sampler at once: take each when its batch is asked for.": _loader(
            __iter__=lambda s: Loader.__iter__(Loader(s.dataset, [*s.batch_sampler], s.collate_fn))
        ),
        "len() counts batches, not items.": _loader(__len__=lambda self: len(self.dataset)),
    },
)


# ---- exercise 2: a batch sampler
class PooledBatches:
    """What exercise 2 asks for; `cut` is where wrong answers differ."""

    cut = staticmethod(pooled_batches)

    def __init__(self, sampler: Any, lengths: Any, batch_size: int, pool: int) -> None:
        self.sampler = sampler
        self.lengths = lengths
        self.batch_size = batch_size
        self.pool = pool

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.cut(self.lengths, list(self.sampler), self.batch_size, self.pool)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)


_pooled = partial(with_methods, PooledBatches)
_cut = pooled_batches
_CUTS: dict[str, Callable[..., Iterable[list[int]]]] = {  # of lengths n, order o, batch size b, pool p
    "Sort inside each pool only: this is the whole epoch.": lambda n, o, b, p: _cut(n, o, b, len(o) + 1),
    "Sort by lengths[index], not by the index itself.": lambda n, o, b, p: _cut(range(len(n)), o, b, p),
    "Sort from short to long.": lambda n, o, b, p: _cut([-length for length in n], o, b, p),
    "Equal lengths keep their order.": lambda n, *obp: _cut([99 * n[i] + i for i in range(len(n))], *obp),
    "These are places, no indices.": lambda n, o, *bp: _cut([n[i] for i in o], range(len(o)), *bp),
    "A pool holds pool × batch_size indices; yours holds batch_size.": lambda n, o, b, p: _cut(n, o, b, 1),
    "A pool holds pool × batch_size indices; yours holds pool.": lambda n, o, b, p: chain.from_iterable(
        _cut(n, o[k : k + p], b, p) for k in range(0, len(o), p)
    ),
    "Nothing is sorted here.": lambda n, o, b, p: [o[k : k + b] for k in range(0, len(o), b)],
    "The short batch is lost.": lambda n, o, b, p: [part for part in _cut(n, o, b, p) if len(part) == b],
}


class Odd(RandomSampler):
    """Name the items 1, 3, 5, …, and so half of them, in another order at each reading; count the readings."""

    readings = 0

    def __iter__(self) -> Iterator[int]:
        self.readings += 1
        return (2 * index + 1 for index in super().__iter__())


def _asked(answer: Any, size: int, batch_size: int, pool: int, ask: str = "", epoch: int = 0) -> Any:
    lengths = [length // 6 for length in sentence_lengths(size)]  # many are equal
    sampler = Odd(range(size // 2), seed=size)
    batches = answer(list(sampler) if ask == "fixed" else sampler, lengths, batch_size, pool)
    if ask == "len":
        return len(batches)
    if ask == "readings":
        len(batches)
        return sampler.readings
    return _pass(batches, epoch)


check_pooled = Exercise(
    "batches of indices (here the sampler names 1, 3, 5, …, half of the items)",
    name="PooledBatches",
    methods=("__iter__", "__len__"),
    reference=PooledBatches,
    view=_view(partial(_asked, ask="fixed")),
    judge=_in_turn(
        shuffled_at_each_reading=_asked,
        second_epoch=partial(_asked, epoch=1),
        len=partial(_asked, ask="len"),
        readings_of_the_sampler_by_len=partial(_asked, ask="readings"),
    ),
    cases=cases("size batch_size pool", [(24, 2, 4), (22, 3, 2), (10, 4, 1), (6, 2, 4), (0, 2, 2)]),
    mistakes={why: _pooled(cut=staticmethod(cut)) for why, cut in _CUTS.items()}
    | {
        "Each reading may be another shuffle: read the sampler once.": _pooled(
            cut=lambda s, n, o, b, p: chain.from_iterable(
                _cut(n, [*s.sampler][k : k + b * p], b, p) for k in range(0, len(o), b * p)
            )
        ),
        "Every epoch has the order of the first: read it anew.": _pooled(
            cut=lambda self, n, o, b, p: pooled_batches(n, self.__dict__.setdefault("kept", o), b, p)
        ),
        "len() rounds up: the short batch counts.": _pooled(__len__=lambda s: len(s.sampler) // s.batch_size),
        "Count what the sampler names.": _pooled(__len__=lambda s: -(-len(s.lengths) // s.batch_size)),
        "len() reads the sampler, and so uses up an order.": _pooled(__len__=lambda self: len([*iter(self)])),
    },
)


# ---- exercise 3: a stream, dealt over ranks and workers
class Dealt(IterableDataset[Any]):
    """What exercise 3 asks for; `places` is where wrong answers differ."""

    def __init__(self, read: Callable[[], Iterable[Any]], rank: int, world_size: int) -> None:
        self.read = read
        self.rank = rank
        self.world_size = world_size

    def places(self, worker: int, workers: int) -> tuple[int, int]:
        """Return the first place in the stream that is this process's, and the step to its next one."""
        return self.rank + self.world_size * worker, self.world_size * workers

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        first, step = self.places(worker, workers)
        return (item for place, item in enumerate(self.read()) if self.mine(place, item, first, step))

    def mine(self, place: int, item: Any, first: int, step: int) -> bool:
        """Say whether an item is this process's."""
        return place % step == first


def _places(places: Callable[[int, int, int, int], tuple[int, int]]) -> Any:
    """Make a wrong answer from a function of (rank, world_size, worker, workers) to the first place and the step."""
    return with_methods(Dealt, places=lambda self, *worker: places(self.rank, self.world_size, *worker))


def _numbers(size: int | None) -> Iterator[int]:
    for number in count() if size is None else range(size):
        if number == 10_000:
            raise RuntimeError("this stream has no end: hand on each item when it is read, and keep none")
        yield 10 * number + 3  # an item is not its place


def _read(dealt: Any, epoch: int = 0, end: bool = True, **case: int) -> list[Any]:
    """Return what one process of all reads of a stream."""
    dataset = dealt(lambda: _numbers(case["size"] if end else None), case["rank"], case["world_size"])
    try:
        with as_worker(case["worker"], case["workers"], dataset=dataset):
            return _pass(dataset, epoch, 50 if end else 3)
    except AttributeError as error:
        if case["workers"] or "NoneType" not in str(error):
            raise
        raise AttributeError(f"{error}: get_worker_info() is None without workers") from error


SHARES = [  # rank, world_size, worker, workers; in the first all famous mistakes differ
    (1, 3, 1, 2),
    *((r, w, k, n) for w, n in product((1, 2, 3), (0, 1, 2, 3)) for r in range(w) for k in range(max(1, n))),
]

check_dealt = Exercise(
    "Dealt (here item p of the stream is 10 * p + 3)",
    name="Dealt",
    methods=("__iter__",),
    reference=Dealt,
    view=_view(_read),
    judge=_in_turn(second_epoch=partial(_read, epoch=1), a_stream_without_end=partial(_read, end=False)),
    cases=cases(
        "size rank world_size worker workers", [(n, *share) for n, share in product((13, 12, 2), SHARES)]
    ),
    mistakes={
        "The worker is missing: this rank's workers all read the same.": _places(lambda r, w, k, n: (r, w)),
        "The rank is missing: all ranks read the same.": _places(lambda r, w, k, n: (k, n)),
        "Every item comes once, but some ranks get more than others, by up to the number of workers: deal to the "
        "ranks first, then each rank's share to its workers.": _places(lambda r, w, k, n: (r * n + k, w * n)),
        "rank + worker: some items come twice, others never.": _places(lambda r, w, k, n: (r + k, w * n)),
        "This is the whole stream, in every process of every rank.": _places(lambda r, w, k, n: (0, 1)),
        "A kept iterator is used up: call self.read() in __iter__, anew for each epoch.": _kept(Dealt),
        "You ask the item's value; only its place in the stream counts.": with_methods(
            Dealt, mine=lambda self, place, item, first, step: item % step == first
        ),
    },
)


# ---- exercise 4: random numbers that depend on seed, epoch and index alone
class EpochKeys(Sampler[Any]):
    """What exercise 4 asks of the sampler; `key` is where wrong answers differ."""

    def __init__(self, sampler: Any, size: int) -> None:
        self.sampler = sampler
        self.size = size
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        self.epoch = epoch

    def key(self, index: int) -> Any:
        """Return what stands for an index."""
        return self.epoch * self.size + index

    def __iter__(self) -> Iterator[Any]:
        return (self.key(index) for index in self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)


def _keys(answer: Any, size: int, epochs: list[int], number: int = 0) -> list[Any]:
    sampler = answer(range(0, size, 2), size)
    passes = []
    for epoch in epochs:
        sampler.set_epoch(epoch)
        passes.append(_pass(sampler, number))
    return passes


_made = partial(with_methods, EpochKeys)

check_epoch_keys = Exercise(
    "keys of two epochs (here the sampler names only 0, 2, 4, …)",
    name="EpochKeys.__iter__",
    methods=("__iter__",),
    reference=EpochKeys,
    view=_view(_keys),
    judge=_in_turn(iterated_a_second_time=partial(_keys, number=1)),
    cases=cases("size epochs", [(3, [1, 2]), (4, [0, 5]), (1, [7, 7])]),
    mistakes={
        "An epoch has `size` keys, whatever share of the items this sampler names.": _made(
            key=lambda self, index: self.epoch * len(self.sampler) + index
        ),
        "The epoch is missing.": _made(key=lambda self, i: i),
        "The sum cannot be taken apart again.": _made(key=lambda self, i: self.epoch + i),
        "A later epoch has the larger keys.": _made(key=lambda self, i: i * self.size + self.epoch),
        "A key stands for the index, not for its place in the sampler.": _made(
            __iter__=lambda self: (self.epoch * self.size + place for place, _ in enumerate(self.sampler))
        ),
        "Only what the sampler inside names gets a key.": _made(__iter__=lambda s: map(s.key, range(s.size))),
        "Only set_epoch sets the epoch: __iter__ must not change it.": _made(
            __iter__=lambda s: iter([*map(s.key, s.sampler), *(s.set_epoch(s.epoch + 1) or ())])
        ),
        "A key is one whole number, no pair.": _made(key=lambda self, i: (self.epoch, i)),
    },
)


class Repaired(Dataset[Any]):
    """What exercise 4 asks of the dataset; `source`, what an item's generator is made of, is where answers differ."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return self.size

    def source(self, epoch: int, index: int) -> Any:
        """Return what decides an item's numbers."""
        return self.seed, epoch, index

    def __getitem__(self, key: int) -> Any:
        epoch, index = divmod(key, self.size)
        generator = np.random.default_rng(self.source(epoch, index))
        return index, int(generator.integers(100)), int(generator.integers(2))


def _reseeds(self: Repaired, key: int) -> Any:
    np.random.seed(self.seed + 1000 * key)  # noqa: NPY002 the mistake
    return key % self.size, int(np.random.randint(100)), int(np.random.randint(2))  # noqa: NPY002


def _twins(self: Repaired, key: int) -> Any:
    return key % self.size, *(int(np.random.default_rng((self.seed, key)).integers(n)) for n in (100, 2))


_repaired = partial(with_methods, Repaired)

check_repaired = Exercise(
    "Repaired",
    name="Repaired.__getitem__",
    methods=("__getitem__",),
    reference=Repaired,
    judge=judged(noise.fault_of_noise, "every number depends on seed, epoch and index, and on nothing else"),
    mistakes={
        noise.SHAPE: _repaired(__getitem__=lambda self, key: (key, *Repaired.__getitem__(self, key)[1:])),
        noise.RANGE: _repaired(
            __getitem__=lambda self, key: [min(98, n) for n in Repaired.__getitem__(self, key)]
        ),
        noise.GLOBAL: _repaired(__getitem__=_reseeds),
        noise.ALIKE: _repaired(source=lambda self, epoch, index: (self.seed, epoch)),
        noise.ASKED: _repaired(
            source=lambda self, *_: self.__dict__.setdefault("kept", np.random.default_rng(self.seed))
        ),
        noise.WORKER: _repaired(source=lambda self, *rest: (getattr(get_worker_info(), "seed", 0), *rest)),
        noise.REPEATS: _repaired(source=lambda self, epoch, index: (self.seed, index)),
        noise.SHIFT: _repaired(source=lambda self, epoch, index: self.seed + epoch + index),
        noise.SEED: _repaired(source=lambda self, *rest: rest),
        noise.SEEDS: _repaired(source=lambda self, epoch, index: (self.seed + epoch, index)),
        noise.TWINS: _repaired(__getitem__=_twins),
    },
)
