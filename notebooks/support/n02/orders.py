"""How the sampler of exercise 1 is tried: does its order depend on seed and epoch, and on nothing else?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from operator import index as whole
from typing import Any

from support.kit.values import short
from support.n02.generators import another_process, seed_all, states

INDICES = "An epoch names each index from 0 to size − 1 once, as a whole number."
USED_UP = "The second `for` gives nothing: an iterator that was made once is used up after one epoch."
GLOBAL = (
    "Your pass draws from a random generator that everybody uses, or seeds it: then others change your "
    "order, or you change their numbers."
)
TIMES = (
    "Two passes, and no set_epoch between them, give two orders: yours depends on how often somebody "
    "has iterated, and a restarted job has not."
)
OTHERS = "Somebody seeds the generators that everybody uses, and your order is another one."
RESTART = (
    "After a restart in epoch 5 the order is not the one that epoch 5 had, with the same seed and epoch."
)
PROCESS = (
    "In another process the order is another one: its number, and the hash of a text, are its own, and a "
    "restarted job is another process."
)
EPOCH = "Two epochs have the same order."
UNSHUFFLED = "Nothing is shuffled: most indices are followed by their neighbour."
TURNED = "Epoch 1 is epoch 0 moved on: most indices are followed by the same one in both."
SEED = "Another seed gives the same order."
SIZE = 20


def fault_of_order(answer: Any) -> str:
    """Try passes, epochs, seeds and a restart."""
    return next(_faults(answer), "")


def first_items(iterable: Iterable[Any], limit: int = 50) -> list[Any]:
    """Return what comes in a pass, at most `limit` of it: a wrong answer may have no end."""
    return list(islice(iter(iterable), limit))


def _epoch(sampler: Any, epoch: int) -> list[Any]:
    sampler.set_epoch(epoch)
    return first_items(sampler)


def _faults(answer: Any) -> Iterator[str]:
    sampler = answer(SIZE, 0)
    before = states()
    first = first_items(sampler)
    touched = states() != before
    again = first_items(sampler)
    yield from _wrong_indices(first, SIZE)
    if not again:
        yield USED_UP
    if touched:
        yield GLOBAL
    if again != first:
        yield f"{TIMES} First {short(first)}, then {short(again)}."
    for number in (1, 2):  # two: the generators of this process may stand at one of them already
        seed_all(number)
        if first_items(sampler) != first:
            yield OTHERS
    for size in (1, 0):
        yield from _wrong_indices(first_items(answer(size, 3)), size)
    epochs = [_epoch(sampler, epoch) for epoch in range(6)]
    yield from _repeated(epochs, 0)
    others = [_epoch(answer(SIZE, 7), epoch) for epoch in range(6)]
    yield from _repeated(others, 7)
    if _common(epochs[0], list(range(SIZE))) > SIZE // 2:
        yield f"{UNSHUFFLED} Epoch 0: {epochs[0]}."
    if _common(epochs[0], epochs[1]) > SIZE // 2:
        yield f"{TURNED} Epoch 0: {epochs[0]}. Epoch 1: {epochs[1]}."
    if any(_epoch(answer(SIZE, 1), epoch) == epochs[epoch] for epoch in range(6)):
        yield SEED
    if _epoch(answer(SIZE, 0), 5) != epochs[5]:
        yield RESTART
    with another_process(answer.__iter__):
        if _epoch(answer(SIZE, 0), 5) != epochs[5]:
            yield PROCESS


def _repeated(epochs: list[list[Any]], seed: int) -> Iterator[str]:
    for number, order in enumerate(epochs[1:], start=1):
        if order in epochs[:number]:
            yield f"{EPOCH} Epochs {epochs.index(order)} and {number} of seed {seed} both begin {order[:5]}."


def _wrong_indices(order: list[Any], size: int) -> Iterator[str]:
    try:
        named = sorted(map(whole, order))
    except TypeError:
        named = []
    if named != list(range(size)):
        yield f"{INDICES} With size = {size} yours gives {short(order)}."


def _common(order: list[Any], other: list[Any]) -> int:
    """Count which neighbours of one order are neighbours in the other."""
    pairs = [{(int(a), int(b)) for a, b in pairwise(each)} for each in (order, other)]
    return len(pairs[0] & pairs[1])
