"""Predictions and exercises of notebook 02, samplers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, count, islice, product
from operator import length_hint
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper

from lib.data.samplers import RandomSampler
from support.checks import Exercise, Guess, Verdict, cases
from support.checks import use as use
from support.n02.runs import IndexDataset, as_worker, pooled_batches, record_epoch, sentence_lengths

View = Callable[[Any], Callable[..., Any]]


# ---- predictions


def _asker() -> str:
    messages = record_epoch(lambda dataset: RandomSampler(dataset, seed=0), size=5, batch_size=2)
    return next(message.receiver for message in messages if message.name == "length")


def _handed_out() -> str:
    indices = iter(range(12))
    loader = DataLoader(IndexDataset(12), 2, sampler=indices, num_workers=2)
    counts = [12 - length_hint(indices) for _ in loader]
    return str(counts[0])


def _signed(items: list[int]) -> tuple[int, int]:
    info: Any = get_worker_info()
    return info.id, info.dataset.loads


def _loads() -> list[int]:
    dataset = IndexDataset(10)
    copies = dict(DataLoader(dataset, 2, num_workers=2, collate_fn=_signed))  # a worker's last batch counts
    return [dataset.loads, copies[0], copies[1]]


def _listed(guess: Any) -> Any:
    return [*map(_listed, guess)] if isinstance(guess, (list, tuple)) else guess


def _exact(guess: Any) -> Any:
    return str(guess) if isinstance(guess, int) else guess  # 8 and 12, the wrong ideas, are not close to 10


guess_asker = Guess("who asks the Dataset for its length", _asker)
guess_loads = Guess("loads in [the main process, worker 0's copy, worker 1's copy]", _loads, read=_listed)
guess_handed_out = Guess("indices handed out when the first batch comes", _handed_out, read=_exact)
guess_streamed = Guess(
    "items in an epoch", lambda: sum(map(len, DataLoader(IterableWrapper(range(10)), 5, num_workers=2)))
)
guess_table = Guess("different rows of 4", lambda table: _listed([*table.values()]), read=_listed)


# ---- how the classes of the exercises are tried, and wrong ones made


def _in_turn(**views: View) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares an answer in its first view, then in these, and names the one where it is wrong."""

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        first = verdict = exercise.compare(answer)
        for name, view in views.items():
            if verdict:
                part = replace(exercise, what=f"{exercise.what}, {name.replace('_', ' ')}", view=view)
                verdict = part.compare(answer)
        return first if verdict else verdict

    return judge


def _with(base: type, **methods: Callable[..., Any]) -> Any:
    """Return a wrong answer: the right class with other methods."""
    return type(base.__name__, (base,), methods)


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


def _used_up(self: Any) -> Any:
    self.iterator = getattr(self, "iterator", None) or Loader.__iter__(self)
    return self.iterator


def _batches(epoch: int) -> View:
    return lambda loader: lambda size, batches: _pass(loader(Tens(size), batches, sum), epoch)


def _loads_first(loader: Any) -> Callable[..., Any]:
    def loads(size: int, batches: list[list[int]]) -> int:
        dataset = Tens(size)
        next(iter(loader(dataset, batches, sum)), None)
        return dataset.loads

    return loads


check_loader = Exercise(
    "batches (here dataset[i] is 10 * i, and collate_fn is sum)",
    name="Loader",
    methods=("__iter__", "__len__"),
    reference=Loader,
    view=_batches(0),
    judge=_in_turn(
        second_epoch=_batches(1),
        items_loaded_when_the_first_batch_comes=_loads_first,
        len=lambda loader: lambda size, batches: len(loader(Tens(size), batches, sum)),
    ),
    cases=cases("size batches", [(5, [[0, 1], [4, 2], [3]]), (9, [[8, 0, 0], [7]]), (1, [[0]]), (4, [])]),
    praise="right in all {count} cases: two epochs, each batch loaded when it is asked for, and len()",
    mistakes={
        "These are lists of items; collate_fn makes a batch of such a list.": _with(
            Loader, __iter__=lambda self: ([self.dataset[i] for i in batch] for batch in self.batch_sampler)
        ),
        "These are the indices; dataset[index] is the item.": _with(
            Loader, __iter__=lambda self: map(self.collate_fn, self.batch_sampler)
        ),
        "An iterator that is kept is used up: __iter__ begins anew.": _with(Loader, __iter__=_used_up),
        "All batches are loaded before the first one leaves: yield each as soon as it is there.": _with(
            Loader, __iter__=lambda self: iter(list(Loader.__iter__(self)))
        ),
        "len() counts batches, not items.": _with(Loader, __len__=lambda self: len(self.dataset)),
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


def _cut(cut: Callable[..., Iterable[list[int]]]) -> Any:
    """Make a wrong answer from a function of (lengths, order, batch_size, pool)."""
    return _with(PooledBatches, cut=staticmethod(cut))


def _one_order(self: Any) -> Iterator[list[int]]:
    self.kept = getattr(self, "kept", None) or list(self.sampler)
    return iter(pooled_batches(self.lengths, self.kept, self.batch_size, self.pool))


def _reads_again(self: Any) -> Iterator[list[int]]:
    size = self.pool * self.batch_size
    for k in range(0, len(self.sampler), size):
        yield from pooled_batches(self.lengths, list(self.sampler)[k : k + size], self.batch_size, self.pool)


def _made(answer: Any, size: int, batch_size: int, pool: int, fixed: bool = False) -> Any:
    lengths = sentence_lengths(size, seed=size)
    sampler = RandomSampler(lengths, seed=size)  # another shuffle each time it is read
    return answer(list(sampler) if fixed else sampler, lengths, batch_size, pool)


check_pooled = Exercise(
    "batches of indices",
    name="PooledBatches",
    methods=("__iter__", "__len__"),
    reference=PooledBatches,
    view=lambda answer: lambda **case: _pass(_made(answer, fixed=True, **case), 0),
    judge=_in_turn(
        shuffled_at_each_reading=lambda answer: lambda **case: _pass(_made(answer, **case), 0),
        second_epoch=lambda answer: lambda **case: _pass(_made(answer, **case), 1),
        len=lambda answer: lambda **case: len(_made(answer, **case)),
    ),
    cases=cases("size batch_size pool", [(12, 2, 3), (8, 2, 2), (11, 3, 2), (5, 4, 1), (3, 2, 4), (0, 2, 2)]),
    mistakes={
        "You sort the whole epoch: sort inside each pool only, or nothing is left of the shuffle.": _cut(
            lambda lengths, order, size, pool: pooled_batches(lengths, order, size, len(order) + 1)
        ),
        "Sort the indices by lengths[index], not by the index itself.": _cut(
            lambda lengths, *rest: pooled_batches(range(len(lengths)), *rest)
        ),
        "A pool holds pool × batch_size indices; yours holds batch_size.": _cut(
            lambda lengths, order, size, pool: pooled_batches(lengths, order, size, 1)
        ),
        "A pool holds pool × batch_size indices; yours holds pool.": _cut(
            lambda lengths, order, size, pool: chain.from_iterable(
                pooled_batches(lengths, order[k : k + pool], size, 1) for k in range(0, len(order), pool)
            )
        ),
        "Nothing is sorted here: the batches are those of the shuffle.": _cut(
            lambda lengths, order, size, pool: [order[k : k + size] for k in range(0, len(order), size)]
        ),
        "The short batch at the end is lost: nothing is dropped here.": _cut(
            lambda lengths, order, size, pool: [
                b for b in pooled_batches(lengths, order, size, pool) if size == len(b)
            ]
        ),
        "list(self.sampler) in the loop: read the sampler once.": _with(PooledBatches, __iter__=_reads_again),
        "Every epoch has the order of the first: read it anew.": _with(PooledBatches, __iter__=_one_order),
        "len() counts the short batch at the end, too: round up.": _with(
            PooledBatches, __len__=lambda self: len(self.sampler) // self.batch_size
        ),
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
        return islice(iter(self.read()), first, None, step)


def _places(places: Callable[[int, int, int, int], tuple[int, int]]) -> Any:
    """Make a wrong answer from a function of (rank, world_size, worker, workers) to the first place and the step."""
    return _with(Dealt, places=lambda self, *worker: places(self.rank, self.world_size, *worker))


def _numbers(size: int | None) -> Iterator[int]:
    for number in count() if size is None else range(size):
        if number == 10_000:
            raise RuntimeError("this stream has no end: hand on each item when it is read, and keep none")
        yield number


def _read_by(epoch: int, endless: bool = False) -> View:
    """View the dataset as a function to what one process of all reads of a stream."""

    def view(dataset_class: Any) -> Callable[..., Any]:
        def items(size: int, rank: int, world_size: int, worker: int, workers: int) -> list[Any]:
            dataset = dataset_class(lambda: _numbers(None if endless else size), rank, world_size)
            with as_worker(worker, workers, dataset=dataset):
                return _pass(dataset, epoch, 3 if endless else 50)

        return items

    return view


SHARES = [  # rank, world_size, worker, workers; in the first all famous mistakes differ
    (1, 3, 1, 2),
    *((r, w, k, n) for w, n in product((1, 2, 3), (0, 1, 2, 3)) for r in range(w) for k in range(max(1, n))),
]

check_dealt = Exercise(
    "Dealt",
    methods=("__iter__",),
    reference=Dealt,
    view=_read_by(0),
    judge=_in_turn(second_epoch=_read_by(1), a_stream_without_end=_read_by(0, endless=True)),
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


def _keys_of(answer: Any) -> Callable[..., Any]:
    def keys(size: int, epochs: list[int]) -> list[Any]:
        sampler, passes = answer(range(0, size, 2), size), []
        for epoch in epochs:
            sampler.set_epoch(epoch)
            passes.append(_pass(sampler, 0))
        return passes

    return keys


check_epoch_keys = Exercise(
    "keys of two epochs (here the sampler names only 0, 2, 4, …)",
    name="EpochKeys.__iter__",
    methods=("__iter__",),
    reference=EpochKeys,
    view=_keys_of,
    cases=cases("size epochs", [(3, [1, 2]), (4, [0, 5]), (1, [7, 7])]),
    mistakes={
        "An epoch has `size` keys, whatever share of the items this sampler names.": _with(
            EpochKeys, key=lambda self, index: self.epoch * len(self.sampler) + index
        ),
        "The epoch is missing.": _with(EpochKeys, key=lambda self, index: index),
        "The sum cannot be taken apart again.": _with(EpochKeys, key=lambda self, i: self.epoch + i),
        "A key is one whole number, no pair.": _with(EpochKeys, key=lambda self, i: (self.epoch, i)),
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


def _from(source: Callable[[Any, int, int], Any]) -> Any:
    """Make a wrong answer from a function of (dataset, epoch, index) to what the item's generator is made of."""
    return _with(Repaired, source=source)


def _reseeds(self: Repaired, key: int) -> Any:
    np.random.seed(self.seed + 1000 * key)  # noqa: NPY002 the mistake
    return key % self.size, int(np.random.randint(100)), int(np.random.randint(2))  # noqa: NPY002


def _twins(self: Repaired, key: int) -> Any:
    return key % self.size, *(int(np.random.default_rng((self.seed, key)).integers(n)) for n in (100, 2))


_SHAPE, _GLOBAL, _ALIKE, _ASKED, _WORKER, _REPEATS, _SHIFT, _SEED, _SEEDS, _TWINS = (
    "An item is (index, crop, flip): the index that its key stands for, a number from 0 to 99, and 0 or 1.",
    "A global generator has been seeded or drawn from, and all others who use it notice: make one for the item.",
    "All items of an epoch have the same numbers: the index is missing.",
    "Asked again after other items, a key had other numbers: no generator may live longer than an item.",
    "In another worker a key had other numbers: with another num_workers the run is another one.",
    "Epoch 1 repeats epoch 0: the epoch must come out of the key; an attribute stays as it was in the worker.",
    "Epoch 1 is epoch 0 moved on by one item: 0 + 1 and 1 + 0 are one sum. Give the generator all, unadded.",
    "Another seed changes nothing: runs with other seeds have the same noise.",
    "Seed 1 gives item i what seed 0 gave item i + 1: do not add the seed to the rest, hand both over.",
    "The crop tells the flip, or the flip never changes: draw both from one generator, one after the other. Two with "
    "the same seed begin with the same bits.",
)
_RULES: tuple[Callable[[int], bool], ...] = (
    lambda crop: True,
    lambda crop: crop >= 50,
    lambda crop: crop % 2 == 1,
)


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
        other_seed = numbers(answer(20, 1))
    except Exception as error:
        return exercise.wrong(f"your code raised {type(error).__name__}: {error}")
    first, second = straight[:20], straight[20:]
    faults = {
        _GLOBAL: touched,
        _ALIKE: len({*first}) == 1,
        _ASKED: straight != backwards,
        _WORKER: workers != [straight, straight],
        _REPEATS: first == second,
        _SHIFT: first[1:] == second[:-1],
        _SEED: straight == other_seed,
        _SEEDS: first[1:] == other_seed[:19],
        _TWINS: any(len({rule(crop) == flip for crop, flip in straight}) == 1 for rule in _RULES),
    }
    said = next((sentence for sentence, found in faults.items() if found), "")
    if said:
        return exercise.wrong(f"{said} Items 0 to 3 have {first[:4]} in epoch 0 and {second[:4]} in epoch 1.")
    return exercise.right("every number depends on seed, epoch and index, and on nothing else")


check_repaired = Exercise(
    "Repaired",
    name="Repaired.__getitem__",
    methods=("__getitem__",),
    reference=Repaired,
    judge=_judge_noise,
    mistakes={
        _SHAPE: _with(Repaired, __getitem__=lambda self, key: (key, *Repaired.__getitem__(self, key)[1:])),
        _GLOBAL: _with(Repaired, __getitem__=_reseeds),
        _ALIKE: _from(lambda self, epoch, index: (self.seed, epoch)),
        _ASKED: _from(lambda self, *_: self.__dict__.setdefault("kept", np.random.default_rng(self.seed))),
        _WORKER: _from(lambda self, *rest: (getattr(get_worker_info(), "seed", 0), *rest)),
        _REPEATS: _from(lambda self, epoch, index: (self.seed, index)),
        _SHIFT: _from(lambda self, epoch, index: self.seed + epoch + index),
        _SEED: _from(lambda self, *rest: rest),
        _SEEDS: _from(lambda self, epoch, index: self.seed + epoch * self.size + index),
        _TWINS: _with(Repaired, __getitem__=_twins),
    },
)
