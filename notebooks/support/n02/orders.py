"""How the sampler of exercise 1 is tried: is it a shuffle that depends on seed and epoch, and on nothing else?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise
from operator import index as whole
from typing import Any

from support.kit.raised import Finding
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
MIDWAY = "set_epoch in the middle of a pass changes the rest of it: a pass that has begun keeps its epoch."
UNEVEN = "This is no shuffle: each index should come at each place about equally often."
NEXT = "An epoch tells about the next one: the two should have nothing to do with each other."
SIZE = 20
#: Epochs that are told apart: many in a row, and round numbers at which a remainder begins anew.
EPOCHS = (*range(64), 100, 128, 256, 1000, 1024)
OTHER_SEEDS = (1, 2, 7, 10, 100, 1000, 1024)
#: Each index at each place: ten items, 400 epochs, so about 40 times, give or take 6. The seeds lie so far apart that
#: no seed + epoch comes twice.
FEW = 10
RUNS = [(seed, epoch) for seed in range(0, 10_000, 1000) for epoch in range(40)]
FAIR = len(RUNS) // FEW


def fault_of_order(answer: Any) -> str:
    """Try passes, epochs, seeds and a restart."""
    return next(_faults(answer), "")


def first_items(iterable: Iterable[Any], limit: int = 50) -> list[Any]:
    """Return what comes in a pass, at most `limit` of it: a wrong answer may have no end."""
    return list(islice(iter(iterable), limit))


def _epoch(sampler: Any, epoch: int, size: int = SIZE) -> list[int]:
    sampler.set_epoch(epoch)
    order = first_items(sampler)
    for said in _wrong_indices(order, size):
        raise Finding(said)
    return [whole(index) for index in order]


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
    yield from _faults_of_epochs(answer)
    fifth = _epoch(sampler, 5)
    if _epoch(answer(SIZE, 0), 5) != fifth:
        yield RESTART
    with another_process(answer.__iter__):
        if _epoch(answer(SIZE, 0), 5) != fifth:
            yield PROCESS
    if _midway(answer(SIZE, 0)) != _epoch(answer(SIZE, 0), 3):
        yield MIDWAY
    yield from _faults_of_chance(answer)


def _faults_of_epochs(answer: Any) -> Iterator[str]:
    """Compare the orders of epochs and of seeds with each other, neighbours first."""
    sampler = answer(SIZE, 0)
    epochs = {epoch: _epoch(sampler, epoch) for epoch in EPOCHS}
    yield from _repeated({epoch: epochs[epoch] for epoch in range(6)}, 0)
    if _common(epochs[0], list(range(SIZE))) > SIZE // 2:
        yield f"{UNSHUFFLED} Epoch 0: {epochs[0]}."
    if _common(epochs[0], epochs[1]) > SIZE // 2:
        yield f"{TURNED} Epoch 0: {epochs[0]}. Epoch 1: {epochs[1]}."
    yield from _repeated(epochs, 0)
    other = answer(SIZE, 7)
    yield from _repeated({epoch: _epoch(other, epoch) for epoch in EPOCHS}, 7)
    for seed in OTHER_SEEDS:
        other = answer(SIZE, seed)
        for epoch in range(6):
            if _epoch(other, epoch) == epochs[epoch]:
                yield f"{SEED} Seeds 0 and {seed}, epoch {epoch}: both begin {epochs[epoch][:5]}."


def _midway(sampler: Any) -> list[int]:
    """Return epoch 3, in the midst of which somebody says that it is epoch 4."""
    sampler.set_epoch(3)
    indices = iter(sampler)
    begun = list(islice(indices, SIZE // 2))
    sampler.set_epoch(4)
    return [whole(index) for index in begun + first_items(indices)]


def _faults_of_chance(answer: Any) -> Iterator[str]:
    """Count, over many epochs: each index at each place; and what one epoch tells about the next."""
    orders = {(seed, epoch): _epoch(answer(FEW, seed), epoch, FEW) for seed, epoch in RUNS}
    places: Counter[tuple[int, int]] = Counter()
    moves: Counter[tuple[int, int]] = Counter()  # from which place to which
    successors: Counter[tuple[int, int]] = Counter()  # which index is followed, at its place, by which
    for (seed, epoch), order in orders.items():
        following = orders.get((seed, epoch + 1)) or _epoch(answer(FEW, seed), epoch + 1, FEW)
        places.update(enumerate(order))
        moves.update((place, following.index(index)) for place, index in enumerate(order))
        successors.update(zip(order, following, strict=True))
    for place, index, often in _unfair(places):
        yield f"{UNEVEN} In {len(RUNS)} epochs of ten items index {index} comes {often} times at place {place}."
    for place, to, often in _unfair(moves):
        yield f"{NEXT} In {len(RUNS)} epochs what was at place {place} comes {often} times at place {to} in the next."
    for index, to, often in _unfair(successors):
        yield f"{NEXT} In {len(RUNS)} epochs, where {index} was, {to} comes {often} times in the next."


def _unfair(counts: Counter[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield which pair comes far too seldom or too often: five deviations off and more."""
    for one in range(FEW):
        for other in range(FEW):
            often = counts[one, other]
            if not FAIR / 4 <= often <= 2 * FAIR:
                yield one, other, often


def _repeated(epochs: dict[int, list[int]], seed: int) -> Iterator[str]:
    first: dict[tuple[int, ...], int] = {}
    for epoch, order in epochs.items():
        before = first.setdefault(tuple(order), epoch)
        if before != epoch:
            yield f"{EPOCH} Epochs {before} and {epoch} of seed {seed} both begin {order[:5]}."


def _wrong_indices(order: list[Any], size: int) -> Iterator[str]:
    try:
        named = sorted(map(whole, order))
    except TypeError:
        named = []
    if named != list(range(size)):
        yield f"{INDICES} With size = {size} yours gives {short(order)}."


def _common(order: list[int], other: list[int]) -> int:
    """Count which neighbours of one order are neighbours in the other."""
    pairs = [{*pairwise(each)} for each in (order, other)]
    return len(pairs[0] & pairs[1])
