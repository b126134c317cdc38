"""Exercises of notebook 02, samplers; its predictions stand in guesses.py, the solutions in solved.py."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from support.kit.exercise import Exercise
from support.kit.exercise import use as use
from support.kit.judged import judged
from support.kit.mistakes import famous, with_methods
from support.n02 import buffering, dealing, meetings, noise, orders, pools
from support.n02.generators import put_back
from support.n02.guesses import guess_asker as guess_asker
from support.n02.guesses import guess_classes as guess_classes
from support.n02.guesses import guess_handed_out as guess_handed_out
from support.n02.guesses import guess_loads as guess_loads
from support.n02.guesses import guess_rate as guess_rate
from support.n02.guesses import guess_streamed as guess_streamed
from support.n02.guesses import guess_table as guess_table
from support.n02.solved import Dealt, PooledBatches, Shuffled, buffered, item_of, keys_of

# ---- exercise 1: a shuffle that a restart does not change


def _rotated(self: Any) -> Any:
    order = list(Shuffled(self.size, self.seed))
    cut = self.epoch % max(1, self.size)
    return iter(order[cut:] + order[:cut])


def _begins_anew(self: Any) -> Any:
    self.left = list(Shuffled.__iter__(self))
    return self


def _next_of_its_own(self: Any) -> int:
    if not self.left:
        raise StopIteration
    index: int = self.left.pop(0)
    return index


_GENERATOR = "generator = torch.Generator().manual_seed(1000 * self.seed + self.epoch)"
_SEED = "1000 * self.seed + self.epoch"
_ITER = "return iter(torch.randperm(self.size, generator=generator).tolist())"

check_shuffled = Exercise(
    "Shuffled",
    reference=Shuffled,
    methods=("__iter__",),
    judge=judged(
        orders.fault_of_order,
        "each order is a shuffle, and depends on seed and epoch and on nothing else; a restart has the same",
        around=put_back,
    ),
    mistakes=famous(
        Shuffled,
        {
            orders.USED_UP: (
                _ITER,
                f"made = {_ITER[7:]}\n        return self.__dict__.setdefault('made', made)",
            ),
            orders.GLOBAL: (_GENERATOR, "", ", generator=generator", ""),
            orders.OTHERS: (_SEED, "torch.initial_seed() + 1000 * self.seed + self.epoch"),
            orders.RESTART: (_SEED, "hash((id(self), self.seed, self.epoch))"),
            orders.PROCESS: (_SEED, "hash((os.getpid(), self.seed, self.epoch))"),
            orders.EPOCH: (_SEED, "self.seed"),
            orders.SEED: (_SEED, "self.epoch"),
            orders.MEET: (_SEED, "self.seed + self.epoch"),
            orders.INDICES: ("torch.randperm(self.size", "torch.randint(self.size, (self.size,)"),
        },
        names={"os": os},
    )
    | {
        orders.TIMES: with_methods(
            Shuffled,
            __iter__=lambda self: iter(
                torch.randperm(
                    self.size,
                    generator=self.__dict__.setdefault("kept", torch.Generator().manual_seed(self.seed)),
                ).tolist()
            ),
        ),
        orders.UNSHUFFLED: with_methods(
            Shuffled,
            __iter__=lambda self: ((1000 * self.seed + self.epoch + k) % self.size for k in range(self.size)),
        ),
        orders.TURNED: with_methods(Shuffled, __iter__=_rotated),
        orders.TOGETHER: with_methods(Shuffled, __iter__=_begins_anew, __next__=_next_of_its_own),
    },
)


# ---- exercise 2: a batch sampler


def _read_for_each_pool(self: Any) -> Any:
    size = self.pool * self.batch_size
    starts = range(0, len(self.sampler), size)
    parts = ([*self.sampler][start : start + size] for start in starts)
    return chain.from_iterable(
        PooledBatches(part, self.lengths, self.batch_size, self.pool) for part in parts
    )


def _kept_order(self: Any) -> Any:
    if "order" not in vars(self):
        self.order = list(self.sampler)
    return iter(PooledBatches(self.order, self.lengths, self.batch_size, self.pool))


def _order_of_the_last_pass(self: Any) -> Any:
    self.batches = list(PooledBatches.__iter__(self))
    return (self.batches[place] for place in range(len(self)))


def _takes_from_the_front(self: Any) -> Any:
    order = self.sampler if isinstance(self.sampler, list) else list(self.sampler)
    size = self.pool * self.batch_size
    while order:
        part = [order.pop(0) for _ in range(min(size, len(order)))]
        yield from PooledBatches(part, self.lengths, self.batch_size, self.pool)


_CUT = "part[first : first + self.batch_size]"
_KEY = "key=lambda i: self.lengths[i]"
_SIZE = "size = self.pool * self.batch_size"
_ROUNDED_UP = "-(-len(self.sampler) // self.batch_size)"

check_pooled = Exercise(
    "PooledBatches",
    reference=PooledBatches,
    methods=("__iter__", "__len__"),
    judge=judged(
        pools.fault_of_pools,
        "two epochs in each of eight cases: all that is named, one pool a batch, cut to waste least, and len()",
    ),
    mistakes=famous(
        PooledBatches,
        {
            pools.BATCHES: (f"yield {_CUT}", f"yield from {_CUT}"),
            pools.SIZE: ("self.batch_size):\n", "len(part)):\n", _CUT, "part"),
            pools.POOL: (_SIZE, "size = len(order) + 1"),
            "The sampler decides what an epoch holds; you take all items.": (
                "list(self.sampler)",
                "list(range(len(self.lengths)))",
            ),
            "These are places in a list; a batch holds the indices that the sampler named.": (
                "part = sorted(order[start : start + size], key=lambda i: self.lengths[i])",
                "part = sorted(range(len(order))[start : start + size], key=lambda i: self.lengths[order[i]])",
            ),
            "The short batch belongs to the epoch, too.": (
                f"yield {_CUT}",
                f"if len({_CUT}) == self.batch_size:\n                    yield {_CUT}",
            ),
            "This sorts by the index; what counts is lengths[index].": (f", {_KEY}", ""),
            "The batches are cut as the order comes, whatever the lengths.": (
                f", {_KEY}",
                ", key=lambda i: 0",
            ),
            "Only batch_size neighbours are sorted together; a pool holds pool × batch_size.": (
                _SIZE,
                "size = self.batch_size",
            ),
            "Your pools hold `pool` indices; a pool holds pool × batch_size.": (_SIZE, "size = self.pool"),
            "len() rounds up: the short batch counts.": (_ROUNDED_UP, "len(self.sampler) // self.batch_size"),
            "Where batch_size divides the order there is no batch more.": (
                _ROUNDED_UP,
                "len(self.sampler) // self.batch_size + 1",
            ),
            "The sampler may name a part of all items: count what it names.": (
                _ROUNDED_UP,
                "-(-len(self.lengths) // self.batch_size)",
            ),
        },
    )
    | {
        pools.TWICE: with_methods(PooledBatches, __iter__=_read_for_each_pool),
        pools.AGAIN: with_methods(PooledBatches, __iter__=_kept_order),
        pools.TOGETHER: with_methods(PooledBatches, __iter__=_order_of_the_last_pass),
        pools.EMPTIED: with_methods(PooledBatches, __iter__=_takes_from_the_front),
        pools.READING: with_methods(PooledBatches, __len__=lambda self: len([*iter(self)])),
    },
)


# ---- exercise 3: a stream, dealt over ranks and workers
_FIRST = "first = self.rank + self.world_size * worker"
_STEP = "step = self.world_size * workers"
_RETURN = "return islice(self.read(), first, None, step)"

check_dealt = Exercise(
    "Dealt",
    reference=Dealt,
    methods=("__iter__",),
    judge=judged(
        dealing.fault_of_dealing,
        "every place once, in equal shares, for 1 to 9 ranks with 0 to 11 workers each, and in a stream without end",
    ),
    mistakes=famous(
        Dealt,
        {
            dealing.ALL: (_RETURN, "return iter(self.read())"),
            dealing.WORKERS: (_FIRST, "first = self.rank", _STEP, "step = self.world_size"),
            dealing.RANKS: (_FIRST, "first = worker", _STEP, "step = workers"),
            dealing.AGAIN: (
                _RETURN,
                f"self.kept = getattr(self, 'kept', None) or {_RETURN[7:]}\n        return self.kept",
            ),
            dealing.AHEAD: (
                _RETURN,
                "items = iter(self.read())\n"
                "        while block := list(islice(items, step)):\n"
                "            yield from block[first : first + 1]",
            ),
            dealing.NOTED: (
                "info = get_worker_info()",
                "info = self.__dict__.setdefault('info', get_worker_info())",
            ),
            dealing.TOGETHER: (
                _RETURN,
                f"self.kept = {_RETURN[7:]}\n        while (item := next(self.kept, self)) is not self:\n"
                "            yield item",
            ),
            dealing.VALUES: (_RETURN, "return filter(None, islice(self.read(), first, None, step))"),
            dealing.END: (_RETURN, "return iter([*self.read()][first::step])"),
            "You number the processes rank by rank, rank · K + worker.": (
                _FIRST,
                "first = self.rank * workers + worker",
            ),
            "rank + worker is the same number for several processes.": (_FIRST, "first = self.rank + worker"),
            "From one worker of a rank to its next it is W places, not K.": (
                _FIRST,
                "first = self.rank + workers * worker",
            ),
            "From one place of a process to its next it is W · K, not W + K.": (
                _STEP,
                "step = self.world_size + workers",
            ),
            "You ask for the item's value; only its place in the stream counts.": (
                _RETURN,
                "return (item for item in self.read() if item % step == first)",
            ),
            "You deal blocks of two neighbours.": (
                _RETURN,
                "return (item for place, item in enumerate(self.read()) if place // 2 % step == first)",
            ),
        },
    ),
)


# ---- exercise 4: a shuffle buffer
_DRAW = "place = generator.integers(size)"
_LOOP = (
    "        if len(waiting) < size:\n            waiting.append(item)\n        else:\n"
    f"            {_DRAW}\n            yield waiting[place]\n            waiting[place] = item\n"
)
_BLOCK_BY_BLOCK = (
    "        waiting.append(item)\n        if len(waiting) == size:\n            generator.shuffle(waiting)\n"
    "            yield from waiting\n            waiting = []\n"
)
_IN_TURN = (
    "        waiting.append(item)\n        if len(waiting) == size and not began:\n            began = True\n"
    "            generator.shuffle(waiting)\n        if began:\n            yield waiting.pop(0)\n"
)


def _takes_from_the_list(items: Any, size: int, generator: np.random.Generator) -> Iterator[Any]:
    def taken() -> Iterator[Any]:
        while items:
            yield items.pop(0)

    return buffered(taken() if isinstance(items, list) else items, size, generator)


check_buffered = Exercise(
    "buffered",
    reference=buffered,
    judge=judged(
        buffering.fault_of_buffer,
        "each item once, whatever it is, drawn from a full buffer, each with the same chance",
        around=put_back,
    ),
    mistakes=famous(
        buffered,
        {
            buffering.END: ("waiting: list[Any] = []", "waiting: list[Any] = []\n    items = list(items)"),
            buffering.HOLDS: (
                "len(waiting) < size",
                "len(waiting) < 2 * size",
                "integers(size)",
                "integers(2 * size)",
            ),
            buffering.EARLY: (
                _LOOP,
                "        waiting.append(item)\n        if len(waiting) > size:\n"
                "            yield waiting.pop(generator.integers(size + 1))\n",
            ),
            buffering.NOT_FULL: (_LOOP, _BLOCK_BY_BLOCK),
            buffering.LOST: ("\n    generator.shuffle(waiting)\n    yield from waiting", ""),
            buffering.GLOBAL: ("generator.", "np.random."),
            buffering.SAME: ("generator.integers(size)", "0", "generator.shuffle(waiting)", ""),
            buffering.CHANCE: ("generator.integers(size)", "generator.integers(size - 1) if size > 1 else 0"),
            buffering.QUEUE: (
                "waiting: list[Any] = []",
                "waiting: list[Any] = []\n    began = False",
                _LOOP,
                _IN_TURN,
            ),
            buffering.TAIL: ("    generator.shuffle(waiting)\n", ""),
            buffering.EQUAL: (
                "            yield waiting[place]\n            waiting[place] = item\n",
                "            leaves = waiting[place]\n            waiting.remove(leaves)\n"
                "            waiting.append(item)\n            yield leaves\n",
            ),
            buffering.FRONT: (
                "waiting: list[Any] = []\n    for item in items:",
                "waiting = [*islice(items, size)]\n    for item in items:",
            ),
            buffering.LEFT: (
                "generator: np.random.Generator)",
                "generator: np.random.Generator, waiting=[])",
                "    waiting: list[Any] = []\n",
                "",
            ),
        },
        names={"np": np},
    )
    | {buffering.TAKEN: _takes_from_the_list},
)


# ---- exercise 5: random numbers that depend on seed, epoch and index alone
def _reseeds(key: Any, seed: int) -> Any:
    epoch, index = key
    np.random.seed((seed + 1000 * epoch + index) % 2**32)  # noqa: NPY002 the mistake
    return index, int(np.random.randint(100)), int(np.random.randint(2))  # noqa: NPY002


_SOURCE = "(seed, epoch, index)"
_KEYS = "yield epoch, index"
_kept: dict[Any, Any] = {}
check_noise = Exercise(
    "keys_of and item_of",
    reference=(keys_of, item_of),
    answers=2,
    judge=judged(
        noise.fault_of_noise,
        "every number depends on seed, epoch and index, and on nothing else",
        around=put_back,
    ),
    mistakes={
        noise.GLOBAL: (keys_of, _reseeds),
        **famous(
            (keys_of, item_of),
            {
                noise.NAMED: ("for index in indices", "for index in range(20)"),
                noise.SENT: (_KEYS, "yield lambda: (epoch, index)", "= key", "= key()"),
                meetings.SHAPE: ("return index, int", "return key, int"),
                noise.RANGE: ("integers(100)", "integers(99)"),
                noise.ALIKE: (_SOURCE, "(seed, epoch)"),
                noise.ASKED: (
                    f"np.random.default_rng({_SOURCE})",
                    "kept.setdefault(seed, np.random.default_rng(seed))",
                ),
                noise.WORKER: (_SOURCE, "(getattr(get_worker_info(), 'seed', 0), *(seed, epoch, index))"),
                noise.PROCESS: (_SOURCE, "(os.getpid(), *(seed, epoch, index))"),
                noise.PART: (
                    "int(generator.integers(2))",
                    "int(np.random.default_rng((7, seed, index)).integers(2))",
                ),
                noise.PLACE: (
                    "for index in indices:\n        yield epoch, index",
                    "for place, index in enumerate(indices):\n        yield epoch, (index, place)",
                    "return index",
                    "return index[0]",
                    _SOURCE,
                    "(seed, epoch, index[1])",
                ),
                noise.KEPT: (
                    _KEYS,
                    "kept['epoch'] = epoch\n        yield index",
                    "epoch, index = key",
                    "epoch, index = kept.get('epoch', 0), key",
                ),
                noise.REPEATS: (_SOURCE, "(seed, index)"),
                noise.SHIFT: (_SOURCE, "(seed, epoch + index)"),
                noise.SEED: (_SOURCE, "(epoch, index)"),
                meetings.MIXED: (_SOURCE, "seed * 10**6 + 1000 * epoch + index"),
                meetings.EXCHANGED: (
                    "int(generator.integers(2))",
                    "int(np.random.default_rng((seed, index, epoch)).integers(2))",
                ),
                noise.TWINS: (
                    "int(generator.integers(2))",
                    f"int(np.random.default_rng({_SOURCE}).integers(2))",
                ),
            },
            names={"kept": _kept, "get_worker_info": get_worker_info, "os": os},
        ),
    },
)
