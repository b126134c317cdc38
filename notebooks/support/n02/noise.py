"""How the two functions of exercise 5 are tried: do the numbers depend on seed, epoch and index alone?"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import index as whole
from typing import Any

from support.kit.values import NO_RETURN, short
from support.n02.generators import another_process, states
from support.n02.runs import as_worker

NAMED = "A key for each index that is given, in that order, and for no other."
SENT = "A key travels to another process, so pickle must know it."
SHAPE = (
    "An item is (index, crop, flip): the index that its key stands for, a whole number from 0 to 99, "
    "and 0 or 1."
)
RANGE = "Of the crops of 60 epochs none is 0, or none is 99: a crop goes from 0 to 99, both included."
GLOBAL = (
    "A global generator has been seeded or drawn from, and all others who use it notice: make one for the "
    "item."
)
ALIKE = "All items of an epoch have the same numbers: the index is missing."
PROCESS = (
    "In another process a key has other numbers: its number, and the hash of a text, are its own, and a "
    "restarted job is another process."
)
PART = "One of the two numbers depends on less than seed, epoch and index."
PLACE = "Asked for in another order, an index has other numbers: its place in the order counts, or who came before."
ASKED = "Asked again after other items, a key had other numbers: no generator may live longer than an item."
WORKER = "In another worker a key had other numbers: with another num_workers the run is another one."
REPEATS = "Epoch 1 repeats epoch 0: the key must tell the epoch."
SHIFT = (
    "Epoch 1 is epoch 0 moved on by one item: 0 + 1 and 1 + 0 are one sum. Give the generator all, unadded."
)
SEED = "Another seed changes nothing: runs with other seeds have the same noise."
MIXED = (
    "Items that differ in seed, epoch or index have the same numbers: the three are added, cut or mixed into "
    "fewer numbers. Hand over all three."
)
TWINS = (
    "The crop tells the flip, or the flip never changes: draw both from one generator, one after the "
    "other. Two with the same seed begin with the same bits."
)

SIZE = 20
#: Rules of the crop are tried that may tell the flip: everywhere, in the upper half, for odd crops.
_RULES: tuple[Callable[[int], bool], ...] = (
    lambda crop: True,
    lambda crop: crop >= 50,
    lambda crop: crop % 2 == 1,
)
#: Where a mix of seed, epoch and index into one number meets itself again: round numbers, and powers of two.
_FAR = (100, 1000, 1024, 4096, 10_000, 65_536, 100_000, 1_000_000, 2**20, 10**7, 2**24)
_MOST_EPOCHS = 1_000_000
Drawn = list[tuple[int, int]]  # (crop, flip) of each item


@dataclass(frozen=True)
class _Draws:
    """What items have drawn, asked for in several ways."""

    touched: bool  # whether a global generator is another one than before
    first: Drawn  # epoch 0
    second: Drawn  # epoch 1
    turned: Drawn  # epoch 0, its indices named from the last to the first, then turned round
    again: Drawn  # the keys of epoch 0, asked for once more from the last to the first, then turned round
    workers: list[Drawn]  # epoch 0 in each of two workers
    process: Drawn  # epoch 0 in another process
    other_seed: Drawn
    far: Drawn  # 60 epochs
    far_other: Drawn  # 60 epochs of another seed


def fault_of_noise(answers: Any) -> str:
    """Try all that may make numbers repeat, or depend on more than seed, epoch and index."""
    keys_of, item_of = answers
    before = states()
    keys = keys_of(range(SIZE), 0)
    if keys is None:
        return f"{NAMED} keys_of {NO_RETURN}."
    item = item_of(next(iter(keys), None), 0)
    if item is None:
        return f"{SHAPE} item_of {NO_RETURN}."
    said = _wrong_shape(keys_of, item_of)
    if said:
        return said
    touched = states() != before
    draws = _drawn(keys_of, item_of, touched)
    said = next(_faults(draws), "") or _meeting(keys_of, item_of, draws)
    if not said:
        return ""
    return f"{said} Items 0 to 3 have {draws.first[:4]} in epoch 0 and {draws.second[:4]} in epoch 1."


def _keys(keys_of: Any, indices: Sequence[int], epoch: int) -> list[Any]:
    return list(islice(keys_of(iter(indices), epoch), len(indices) + 1))


def _wrong_shape(keys_of: Any, item_of: Any) -> str:
    """Say what is wrong with the keys of some indices, or with the shape of their items."""
    for indices in (range(SIZE), [7, 3, 11], [5_000_000, 8], []):
        for epoch in (0, 3, 200_000):
            keys = _keys(keys_of, indices, epoch)
            if len(keys) != len(indices):
                return f"{NAMED} For the indices {short(indices)} there are {len(keys)} keys or more."
            for key, index in zip(keys, indices, strict=True):
                try:
                    sent = pickle.loads(pickle.dumps(key))
                except Exception as error:
                    return f"{SENT} {short(key)} can't be sent: {error}"
                item = item_of(sent, 0)
                if not _has_the_shape(item, index):
                    return f"{SHAPE} For index {index} in epoch {epoch} yours is {short(item)}."
    return ""


def _has_the_shape(item: Any, index: int) -> bool:
    if not isinstance(item, (tuple, list)) or len(item) != 3:
        return False
    try:
        named, crop, flip = map(whole, item)
    except TypeError:
        return False
    return named == index and 0 <= crop < 100 and flip in (0, 1)


def _drawn(keys_of: Any, item_of: Any, touched: bool) -> _Draws:
    """Ask for items in several ways."""
    indices = range(SIZE)
    keys = _keys(keys_of, indices, 0)
    first = _numbers(item_of, keys)
    workers = []
    for worker in range(2):
        with as_worker(worker, 2):
            workers.append(_numbers(item_of, keys))
    with another_process(keys_of, item_of):
        process = _numbers(item_of, _keys(keys_of, indices, 0))
    return _Draws(
        touched=touched,
        first=first,
        second=_numbers(item_of, _keys(keys_of, indices, 1)),
        turned=_numbers(item_of, _keys(keys_of, indices[::-1], 0))[::-1],
        again=_numbers(item_of, reversed(keys))[::-1],
        workers=workers,
        process=process,
        other_seed=_numbers(item_of, keys, seed=1),
        far=[pair for epoch in range(60) for pair in _numbers(item_of, _keys(keys_of, indices, epoch))],
        far_other=[
            pair for epoch in range(60) for pair in _numbers(item_of, _keys(keys_of, indices, epoch), 1)
        ],
    )


def _numbers(item_of: Any, keys: Iterable[Any], seed: int = 0) -> Drawn:
    items = (item_of(key, seed) for key in keys)
    return [(int(crop), int(flip)) for _, crop, flip in items]


def _faults(draws: _Draws) -> Iterator[str]:
    """Yield what the draws show, the plainest first."""
    first = draws.first
    if draws.touched:
        yield GLOBAL
    if len({*first}) == 1:
        yield ALIKE
    if first != draws.again:
        yield ASKED
    if draws.workers != [first, first]:
        yield WORKER
    if first != draws.process:
        yield PROCESS
    if first != draws.turned:
        yield PLACE
    if first == draws.second:
        yield REPEATS
    if first[1:] == draws.second[:-1]:
        yield SHIFT
    if first == draws.other_seed:
        yield SEED
    if any(len({rule(crop) == flip for crop, flip in draws.far}) == 1 for rule in _RULES):
        yield TWINS
    yield from _faults_of_one(draws)
    if not {0, 99} <= {crop for crop, _ in draws.far}:
        yield RANGE


def _faults_of_one(draws: _Draws) -> Iterator[str]:
    """Yield which of the two numbers leaves out seed, epoch or index, where the other one does not."""
    for name, which in (("crop", 0), ("flip", 1)):
        mine, others = ([pair[which] for pair in far] for far in (draws.far, draws.far_other))
        epochs = [mine[at : at + SIZE] for at in range(0, len(mine), SIZE)]
        if mine == others:
            yield f"{PART} The {name} is the same with seeds 0 and 1."
        if all(epoch == epochs[0] for epoch in epochs):
            yield f"{PART} The {name} of an item is the same in all epochs."
        if all(len({*epoch}) == 1 for epoch in epochs):
            yield f"{PART} All items of an epoch have the same {name}."


def _meeting(keys_of: Any, item_of: Any, draws: _Draws) -> str:
    """Say where ten neighbours have the numbers of ten others, in whatever order."""

    def block(seed: int, epoch: int, start: int) -> Drawn:
        return sorted(_numbers(item_of, _keys(keys_of, range(start, start + 10), epoch), seed))

    near = {tuple(sorted(draws.far[at : at + 10])) for at in range(len(draws.far) - 10)}
    other = block(1, 0, 0)
    if tuple(other) in near:
        return f"{MIXED} Items 0 to 9 of seed 1 meet items of seed 0."
    second = block(0, 1, 0)
    for far in _FAR:
        items = block(0, 0, far)
        if items == second:
            return f"{MIXED} Items {far} to {far + 9} of epoch 0 meet items 0 to 9 of epoch 1."
        if tuple(items) in near:
            return f"{MIXED} Items {far} to {far + 9} of epoch 0 meet items below 20 of an epoch below 60."
        if items == other:
            return f"{MIXED} Items 0 to 9 of seed 1, epoch 0 meet items of seed 0 that lie {far} on."
        if tuple(block(far, 0, 0)) in near:
            return f"{MIXED} Items 0 to 9 of seed {far} meet items of seed 0."
        if far > _MOST_EPOCHS:
            continue
        epoch = block(0, far, 0)
        if epoch == other:
            return f"{MIXED} Items 0 to 9 of seed 1, epoch 0 meet the same items of seed 0, epoch {far}."
        if tuple(epoch) in near:
            return f"{MIXED} Items 0 to 9 of epoch {far} meet items of an epoch below 60."
    return ""
