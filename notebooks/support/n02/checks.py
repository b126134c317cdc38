"""Predictions and exercises of notebook 02, samplers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, count, islice, product
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, default_collate, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from lib.data.samplers import RandomSampler
from support.checks import Exercise, Guess, Tried, Verdict, cases
from support.checks import use as use
from support.n02.runs import IndexDataset, as_worker, pooled_batches, record_epoch, sentence_lengths


# ---- predictions
def _asker() -> str:
    messages = record_epoch(lambda dataset: RandomSampler(dataset, seed=0), size=5, batch_size=2)
    return next(message.receiver for message in messages if message.name == "length")


def _handed_out() -> str:  # a text: 8 and 12, the wrong ideas, are not close to 10
    indices = iter(range(12))
    loader = DataLoader(IndexDataset(12), 2, sampler=indices, num_workers=2)
    return str(min(12 - length_hint(indices) for _ in loader))  # it grows


def _signed(items: list[int]) -> tuple[int, int]:
    info: Any = get_worker_info()
    return info.id, info.dataset.loads


def _loads() -> list[int]:
    dataset = IndexDataset(10)
    copies = dict(DataLoader(dataset, 2, num_workers=2, collate_fn=_signed))  # a worker's last batch counts
    return [dataset.loads, copies[0], copies[1]]


def _streamed() -> int:
    return sum(map(len, DataLoader(IterableWrapper(range(10)), 5, num_workers=2)))


def _rows(table: dict[str, Any]) -> Any:
    return _listed([*table.values()])


def _listed(guess: Any) -> Any:
    return [*map(_listed, guess)] if isinstance(guess, (list, tuple)) else guess


def _alike(guess: Any, truth: Any) -> bool:
    if isinstance(truth, list):
        return isinstance(guess, list) and len(guess) == len(truth) and all(map(_alike, guess, truth))
    return str(guess).strip().isdigit()


@dataclass(frozen=True, eq=False, repr=False)
class _Shaped(Guess):
    """A guess of which, where it has another shape than the truth, only the shape that is asked for is said."""

    shape: str = "A whole number"

    def __call__(self, my_guess: object, *known: Any, **named: Any) -> Verdict:
        if my_guess is None or my_guess is ... or _alike(self.read(my_guess), self.truth(*known, **named)):
            return super().__call__(my_guess, *known, **named)
        return Verdict("note", f"{self.shape}, please, not {my_guess!r}. No guess? Read on for the reason.")


guess_asker = Guess(
    "who asks the Dataset for its length", _asker, tried=Tried(right="Sampler", wrong="DataLoader")
)
guess_loads = _Shaped(
    "loads in [the main process, worker 0's copy, worker 1's copy]",
    _loads,
    read=_listed,
    shape="Three whole numbers",
    tried=Tried(right=(0, 6, 4), wrong=[10, 6, 4]),
)
guess_handed_out = _Shaped(
    "indices handed out when the first batch comes",
    _handed_out,
    read=lambda said: str(said) if isinstance(said, int) else said,
    tried=Tried(right=10, wrong=12),
)
guess_streamed = _Shaped("items in an epoch", _streamed, tried=Tried(right=20, wrong=10))
guess_table = _Shaped(
    "different rows of 4",
    _rows,
    read=_listed,
    shape="Four pairs [[new, persistent], …]",
    tried=Tried(right=[(1, 2)], wrong=[(2, 1)], known=({"a": (1, 2)},)),
)


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


def _with(base: Any, **methods: Callable[..., Any]) -> Any:
    """Return a wrong answer: the right class with other methods."""
    return type(base.__name__, (base,), methods)


def _kept(base: Any) -> Any:
    """Return a wrong answer that makes its iterator once."""
    return _with(base, __iter__=lambda self: self.__dict__.setdefault("kept", base.__iter__(self)))


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
        self.dataset, self.batch_sampler, self.collate_fn = dataset, batch_sampler, collate_fn

    def __iter__(self) -> Iterator[Any]:
        for indices in self.batch_sampler:
            yield self.collate_fn([self.dataset[index] for index in indices])

    def __len__(self) -> int:
        return len(self.batch_sampler)


def _batches(loader: Any, size: int, batches: list[list[int]], epoch: int = 0) -> list[Any]:
    got = _pass(loader(Tens(size), batches, sum), epoch)
    return [str(batch) if isinstance(batch, torch.Tensor) else batch for batch in got]  # a tensor is no list


def _first(loader: Any, size: int, batches: list[list[int]]) -> list[int]:
    dataset, left = Tens(size), iter(batches)
    next(iter(loader(dataset, left, sum)), None)
    return [dataset.loads, len(batches) - length_hint(left)]


_loader = partial(_with, Loader)

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
        self.sampler, self.lengths, self.batch_size, self.pool = sampler, lengths, batch_size, pool

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.cut(self.lengths, list(self.sampler), self.batch_size, self.pool)

    def __len__(self) -> int:
        return -(-len(self.sampler) // self.batch_size)


_pooled, _cut = partial(_with, PooledBatches), pooled_batches
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
    passed = len(batches) if ask in ("len", "readings") else _pass(batches, epoch)
    return sampler.readings if ask == "readings" else passed


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
        self.read, self.rank, self.world_size = read, rank, world_size

    def places(self, worker: int, workers: int) -> tuple[int, int]:
        """Return the first place in the stream that is this process's, and the step to its next one."""
        return self.rank + self.world_size * worker, self.world_size * workers

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = self.places(*((info.id, info.num_workers) if info else (0, 1)))
        return (item for place, item in enumerate(self.read()) if self.mine(place, item, first, step))

    def mine(self, place: int, item: Any, first: int, step: int) -> bool:
        """Say whether an item is this process's."""
        return place % step == first


def _places(places: Callable[[int, int, int, int], tuple[int, int]]) -> Any:
    """Make a wrong answer from a function of (rank, world_size, worker, workers) to the first place and the step."""
    return _with(Dealt, places=lambda self, *worker: places(self.rank, self.world_size, *worker))


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
        "You ask the item's value; only its place in the stream counts.": _with(
            Dealt, mine=lambda self, place, item, first, step: item % step == first
        ),
    },
)


# ---- exercise 4: random numbers that depend on seed, epoch and index alone
class EpochKeys(Sampler[Any]):
    """What exercise 4 asks of the sampler; `key` is where wrong answers differ."""

    def __init__(self, sampler: Any, size: int) -> None:
        self.sampler, self.size, self.epoch = sampler, size, 0

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
    return [(sampler.set_epoch(epoch), _pass(sampler, number))[1] for epoch in epochs]


_made = partial(_with, EpochKeys)

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
        self.size, self.seed = size, seed

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


_SHAPE, _RANGE, _GLOBAL, _ALIKE, _ASKED, _WORKER, _REPEATS, _SHIFT, _SEED, _SEEDS, _TWINS = (
    "An item is (index, crop, flip): the index that its key stands for, a number from 0 to 99, and 0 or 1.",
    "Of the crops of 60 epochs none is 0, or none is 99: a crop goes from 0 to 99, both included.",
    "A global generator has been seeded or drawn from, and all others who use it notice: make one for the item.",
    "All items of an epoch have the same numbers: the index is missing.",
    "Asked again after other items, a key had other numbers: no generator may live longer than an item.",
    "In another worker a key had other numbers: with another num_workers the run is another one.",
    "Epoch 1 repeats epoch 0: the epoch must come out of the key; an attribute stays as it was in the worker.",
    "Epoch 1 is epoch 0 moved on by one item: 0 + 1 and 1 + 0 are one sum. Give the generator all, unadded.",
    "Another seed changes nothing: runs with other seeds have the same noise.",
    "Items of seed 1 have the numbers that seed 0 gives to other items, or in another epoch: seed, epoch and index are "
    "added or mixed into fewer numbers. Hand over all three.",
    "The crop tells the flip, or the flip never changes: draw both from one generator, one after the other. Two with "
    "the same seed begin with the same bits.",
)
_RULES: Any = (lambda crop: True, lambda crop: crop >= 50, lambda crop: crop % 2 == 1)


def _states() -> list[Any]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 it is looked at, not used
    return [random.getstate(), numpy_state[1].tolist(), torch.get_rng_state().tolist()]


def _judge_noise(exercise: Exercise, answer: Any) -> Verdict:
    """Try all that may make numbers repeat, or depend on more than seed, epoch and index."""
    keys = range(40)  # two epochs of 20 items

    def numbers(dataset: Any, keys: Iterable[int] = keys) -> list[tuple[int, int]]:
        return [(int(crop), int(flip)) for _, crop, flip in map(dataset.__getitem__, keys)]

    try:
        before, dataset = _states(), answer(20, 0)
        items = [dataset[key] for key in keys]
        shaped = all(len(item) == 3 and item[0] == key % 20 for item, key in zip(items, keys, strict=True))
        if not shaped or not all(0 <= crop < 100 and flip in (0, 1) for _, crop, flip in items):
            return exercise.wrong(_SHAPE)
        touched = _states() != before
        straight, backwards = numbers(answer(20, 0)), numbers(answer(20, 0), reversed(keys))[::-1]
        workers = []
        for worker in range(2):  # a worker holds a copy
            with as_worker(worker, 2, dataset=copy.deepcopy(answer(20, 0))) as info:
                workers.append(numbers(info.dataset))
        other_seed, far = numbers(answer(20, 1)), numbers(answer(20, 0), range(1200))
    except Exception as error:
        return exercise.wrong(f"your code raised {type(error).__name__}: {error}")
    first, second = straight[:20], straight[20:]
    blocks = [sorted(far[k : k + 10]) for k in range(1190)]  # sorted: a mix may change the order
    faults = {
        _GLOBAL: touched,
        _ALIKE: len({*first}) == 1,
        _ASKED: straight != backwards,
        _WORKER: workers != [straight, straight],
        _REPEATS: first == second,
        _SHIFT: first[1:] == second[:-1],
        _SEED: straight == other_seed,
        _SEEDS: sorted(other_seed[:10]) in blocks,
        _TWINS: any(len({rule(crop) == flip for crop, flip in straight}) == 1 for rule in _RULES),
        _RANGE: not {0, 99} <= {crop for crop, _ in far},
    }
    said = next((sentence for sentence, found in faults.items() if found), "")
    if said:
        return exercise.wrong(f"{said} Items 0 to 3 have {first[:4]} in epoch 0 and {second[:4]} in epoch 1.")
    return exercise.right("every number depends on seed, epoch and index, and on nothing else")


_repaired = partial(_with, Repaired)

check_repaired = Exercise(
    "Repaired",
    name="Repaired.__getitem__",
    methods=("__getitem__",),
    reference=Repaired,
    judge=_judge_noise,
    mistakes={
        _SHAPE: _repaired(__getitem__=lambda self, key: (key, *Repaired.__getitem__(self, key)[1:])),
        _RANGE: _repaired(
            __getitem__=lambda self, key: [min(98, n) for n in Repaired.__getitem__(self, key)]
        ),
        _GLOBAL: _repaired(__getitem__=_reseeds),
        _ALIKE: _repaired(source=lambda self, epoch, index: (self.seed, epoch)),
        _ASKED: _repaired(
            source=lambda self, *_: self.__dict__.setdefault("kept", np.random.default_rng(self.seed))
        ),
        _WORKER: _repaired(source=lambda self, *rest: (getattr(get_worker_info(), "seed", 0), *rest)),
        _REPEATS: _repaired(source=lambda self, epoch, index: (self.seed, index)),
        _SHIFT: _repaired(source=lambda self, epoch, index: self.seed + epoch + index),
        _SEED: _repaired(source=lambda self, *rest: rest),
        _SEEDS: _repaired(source=lambda self, epoch, index: (self.seed + epoch, index)),
        _TWINS: _repaired(__getitem__=_twins),
    },
)
