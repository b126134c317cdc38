"""How the shuffle buffer of exercise 4 is tried: what it holds, what it hands on, and by what chance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from operator import index as whole
from typing import Any

import numpy as np

from support.kit.raised import Finding, in_case
from support.kit.values import NO_RETURN, short
from support.n02.generators import states

END = "A stream may have no end, and you collect it before anything leaves."
HOLDS = "More items wait than the buffer may hold."
NOT_FULL = "As long as the stream lasts, each item is drawn from a full buffer."
LOST = "Each item leaves once."
GLOBAL = "The numbers are drawn from the generator that you are given, and from no other."
SAME = "Two generators with different seeds give the same order: nothing is drawn from them."
CHANCE = "Whichever item waits has the same chance to be next."
EARLY = (
    "An item left more than size − 1 places early: the one that has just been read was drawn from, too, and "
    "does not wait yet."
)
QUEUE = "An item waits for its turn and not for its chance."
TAIL = "What waits when the stream ends leaves in an order of chance, too."
MOST = 10_000
RUNS = 400


def fault_of_buffer(answer: Callable[..., Any]) -> str:
    """Try streams with and without an end."""
    given = answer(iter([]), 2, np.random.default_rng(0))
    if given is None:
        return f"Your function {NO_RETURN}."
    return next(_faults(answer), "")


def _order(answer: Callable[..., Any], count_of_items: int, size: int, seed: int = 0) -> list[Any]:
    items = (10 * place + 3 for place in range(count_of_items))
    with in_case(f"With {count_of_items} items and size = {size}"):
        got = islice(answer(items, size, np.random.default_rng(seed)), 2 * count_of_items + 2)
        return [_place(item) for item in got]


def _place(item: Any) -> int:
    """Return the place that an item had in the stream; NumPy's own whole numbers will do."""
    try:
        number = whole(item)
    except TypeError:
        number = -1
    if number % 10 != 3:
        raise Finding(f"What leaves must have come from the stream; {short(item)} has not.")
    return number // 10


def _faults(answer: Callable[..., Any]) -> Iterator[str]:
    before = states()
    yield from _faults_of_holding(answer)
    for length, size in ((10, 4), (3, 5), (8, 8), (7, 1), (0, 2)):
        order = _order(answer, length, size)
        if sorted(order) != list(range(length)):
            yield f"{LOST} Of the places 0 to {length - 1}, with size = {size}, yours hands on {short(order)}."
    if states() != before or _order(answer, 30, 8) != _order(answer, 30, 8):
        yield GLOBAL
    if _order(answer, 30, 8) == _order(answer, 30, 8, seed=1) == _order(answer, 30, 8, seed=2):
        yield f"{SAME} With size = 8 it begins {_order(answer, 30, 8)[:10]}."
    yield from _faults_of_chance(answer)


def _faults_of_holding(answer: Callable[..., Any]) -> Iterator[str]:
    """Count what has been read when an item leaves: it was drawn from all that had not left before."""
    size = 4
    read: list[int] = []

    def endless() -> Iterator[int]:
        for place in count():
            if place == MOST:
                raise Finding(END)
            read.append(place)
            yield 10 * place + 3

    items = iter(answer(endless(), size, np.random.default_rng(0)))
    for left in range(9):
        next(items)
        waiting = len(read) - left
        told = f"With size = {size}, item number {left} to leave was one of {waiting}."
        if waiting > size + 1:  # one more is read first by whoever puts it where the drawn one lay
            yield f"{HOLDS} {told}"
        if waiting < size:
            yield f"{NOT_FULL} {told}"


def _faults_of_chance(answer: Callable[..., Any]) -> Iterator[str]:
    """Look at many runs: how early items leave, how long they wait, which of those that wait leaves at each turn."""
    size = 4
    orders = [_order(answer, 24, size, seed) for seed in range(RUNS)]
    for order in orders:
        for turn, place in enumerate(order):
            if place - turn >= size:
                yield f"{EARLY} With size = {size}, place {place} was number {turn} to leave."
    waits: Counter[int] = Counter()
    for order in orders:
        waits.update(turn - place for turn, place in enumerate(order) if 6 <= place < 14)
    wait, often = waits.most_common(1)[0]
    said = next(_unequal(orders, size, turns=1), "")
    if said:
        yield f"{CHANCE} With size = {size}, {said}"
    if often > waits.total() / 2:
        later = wait + 3
        yield f"{QUEUE} With size = 4, {often} of {waits.total()} items left just when {later} later ones were read."
    said = next(_unequal(orders, size, turns=20), "")
    if said:
        yield f"{CHANCE} With size = {size}, {said}"
    said = next(_unequal([_order(answer, 6, 8, seed) for seed in range(RUNS)], 8, turns=5), "")
    if said:
        yield f"{TAIL} Six items in a buffer for eight: {said}"


def _unequal(orders: list[list[int]], size: int, turns: int) -> Iterator[str]:
    """Yield at which turn which of the waiting, by age, leaves far more often or more seldom than the others."""
    for turn in range(turns):
        ages: Counter[int] = Counter()
        for order in orders:
            waiting = sorted(set(range(min(turn + size, len(order)))) - {*order[:turn]})
            ages[waiting.index(order[turn])] += 1
        expected = len(orders) / min(size, len(orders[0]) - turn)
        for age in range(round(len(orders) / expected)):
            if not expected / 3 < ages[age] < 2 * expected:  # about six deviations
                yield f"at turn {turn} number {age} of the waiting, by age, left in {ages[age]} of {RUNS} runs."
