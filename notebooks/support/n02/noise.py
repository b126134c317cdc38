"""How the repaired dataset of notebook 02 is tried: do its random numbers depend on seed, epoch and index alone?"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from support.n02.runs import as_worker

SHAPE = (
    "An item is (index, crop, flip): the index that its key stands for, a number from 0 to 99, and 0 or 1."
)
RANGE = "Of the crops of 60 epochs none is 0, or none is 99: a crop goes from 0 to 99, both included."
GLOBAL = (
    "A global generator has been seeded or drawn from, and all others who use it notice: make one for the "
    "item."
)
ALIKE = "All items of an epoch have the same numbers: the index is missing."
ASKED = "Asked again after other items, a key had other numbers: no generator may live longer than an item."
WORKER = "In another worker a key had other numbers: with another num_workers the run is another one."
REPEATS = (
    "Epoch 1 repeats epoch 0: the epoch must come out of the key; an attribute stays as it was in the worker."
)
SHIFT = (
    "Epoch 1 is epoch 0 moved on by one item: 0 + 1 and 1 + 0 are one sum. Give the generator all, unadded."
)
SEED = "Another seed changes nothing: runs with other seeds have the same noise."
SEEDS = (
    "Items of seed 1 have the numbers that seed 0 gives to other items, or in another epoch: seed, epoch "
    "and index are added or mixed into fewer numbers. Hand over all three."
)
TWINS = (
    "The crop tells the flip, or the flip never changes: draw both from one generator, one after the "
    "other. Two with the same seed begin with the same bits."
)

SIZE = 20
KEYS = range(2 * SIZE)  # of two epochs
#: Where rules of the crop are tried that may tell the flip: everywhere, in the upper half, for odd crops.
_RULES: tuple[Callable[[int], bool], ...] = (
    lambda crop: True,
    lambda crop: crop >= 50,
    lambda crop: crop % 2 == 1,
)
Drawn = list[tuple[int, int]]  # (crop, flip) of each item


@dataclass(frozen=True)
class _Draws:
    """What items have drawn, asked for in several ways."""

    touched: bool  # whether a global generator is another one than before
    straight: Drawn  # two epochs
    backwards: Drawn  # the same keys, from the last to the first, then turned round
    workers: list[Drawn]  # of each of two workers
    other_seed: Drawn
    far: Drawn  # 60 epochs


def fault_of_noise(answer: Any) -> str:
    """Try all that may make numbers repeat, or depend on more than seed, epoch and index."""
    before = _states()
    dataset = answer(SIZE, 0)
    items = [dataset[key] for key in KEYS]
    if not all(_has_the_shape(item, key) for item, key in zip(items, KEYS, strict=True)):
        return SHAPE
    touched = _states() != before
    draws = _drawn(answer, touched)
    said = next(_faults(draws), "")
    if not said:
        return ""
    first = draws.straight[:4]
    second = draws.straight[SIZE : SIZE + 4]
    return f"{said} Items 0 to 3 have {first} in epoch 0 and {second} in epoch 1."


def _has_the_shape(item: Any, key: int) -> bool:
    if not isinstance(item, (tuple, list)) or len(item) != 3:
        return False
    index, crop, flip = item
    return bool(index == key % SIZE and 0 <= crop < 100 and flip in (0, 1))


def _drawn(answer: Any, touched: bool) -> _Draws:
    """Ask new datasets for their items, in several ways."""
    workers = []
    for worker in range(2):  # a worker holds a copy
        with as_worker(worker, 2, dataset=copy.deepcopy(answer(SIZE, 0))) as info:
            workers.append(_numbers(info.dataset, KEYS))
    return _Draws(
        touched=touched,
        straight=_numbers(answer(SIZE, 0), KEYS),
        backwards=_numbers(answer(SIZE, 0), reversed(KEYS))[::-1],
        workers=workers,
        other_seed=_numbers(answer(SIZE, 1), KEYS),
        far=_numbers(answer(SIZE, 0), range(60 * SIZE)),
    )


def _numbers(dataset: Any, keys: Iterable[int]) -> Drawn:
    items = (dataset[key] for key in keys)
    return [(int(crop), int(flip)) for _, crop, flip in items]


def _faults(draws: _Draws) -> Iterator[str]:
    """Yield what the draws show, the plainest first."""
    first = draws.straight[:SIZE]
    second = draws.straight[SIZE:]
    if draws.touched:
        yield GLOBAL
    if len({*first}) == 1:
        yield ALIKE
    if draws.straight != draws.backwards:
        yield ASKED
    if draws.workers != [draws.straight, draws.straight]:
        yield WORKER
    if first == second:
        yield REPEATS
    if first[1:] == second[:-1]:
        yield SHIFT
    if draws.straight == draws.other_seed:
        yield SEED
    blocks = [
        sorted(draws.far[k : k + 10]) for k in range(len(draws.far) - 10)
    ]  # sorted: a mix may change the order
    if sorted(draws.other_seed[:10]) in blocks:
        yield SEEDS
    if any(len({rule(crop) == flip for crop, flip in draws.straight}) == 1 for rule in _RULES):
        yield TWINS
    if not {0, 99} <= {crop for crop, _ in draws.far}:
        yield RANGE


def _states() -> list[Any]:
    numpy_state: Any = np.random.get_state()  # noqa: NPY002 it is looked at, not used
    return [random.getstate(), numpy_state[1].tolist(), torch.get_rng_state().tolist()]
