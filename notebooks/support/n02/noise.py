"""How the two functions of exercise 5 are tried: do the numbers depend on seed, epoch and index alone?"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations, islice, permutations, product
from math import gcd
from operator import eq
from operator import index as whole
from typing import Any

from torch.utils.data import DataLoader, Dataset

from support.kit.raised import in_case, named
from support.kit.values import NO_RETURN, short
from support.n02.chance import unfair
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
REPEATS = "With seed 0, epoch 1 repeats epoch 0: the epoch does not reach the numbers."
SHIFT = (
    "Epoch 1 is epoch 0 moved on by one item: 0 + 1 and 1 + 0 are one sum. Give the generator all, unadded."
)
SEED = "Another seed changes nothing: runs with other seeds have the same noise."
MIXED = (
    "Items that differ in seed, epoch or index have the same numbers: the three are added, cut or run together, so "
    "that different ones come out alike. Keep them apart."
)
TWINS = (
    "The crop tells the flip, or the flip never changes: draw both from one generator, one after the "
    "other. Two with the same seed begin with the same bits."
)
KEPT = (
    "A key must carry all that its item needs. What keys_of notes beside it is another epoch's by the time the item is "
    "loaded, or never reaches the worker."
)
EXCHANGED = (
    "The crop of one item tells the flip of another: they are drawn from the same numbers in another order, or from "
    "those of a neighbour."
)
UNEVEN = "Not all crops, or not both flips, are equally likely."
SHARED = "One number serves for two: each item of each epoch draws its own."

SIZE = 20
EPOCHS = 60
BLOCK = 10
#: Where a mix of seed, epoch and index into one number meets itself again: round numbers, and powers of two.
_FAR = (100, 1000, 1024, 4096, 10_000, 65_536, 100_000, 1_000_000, 2**20, 10**7, 2**24, 2**25, 2**26)
_MOST = (2**32, 1_000_000, 100_000_000)  # seeds, epochs and indices are below these
#: So many epochs, seeds and indices in a row are looked at, too: a mix need not have a round number in it.
_IN_A_ROW = (300, 300, 8200)
_NEAR = 32  # and so many beside a round number: a prime is often the next one
#: What one number of two may be multiplied by before the other one is added.
_FACTORS = (*(10**power for power in range(3, 13)), *(2**power for power in range(10, 41)))
_WORD = 2**32  # NumPy and torch cut what they are seeded with into words of 32 bits, or cut it off there
_FEW = 6  # triples of a row
_ENOUGH = 18  # flips with one crop, of about 24: all equal for some crop in one right answer of 10,000
_SIDE = 12  # seeds, epochs and indices in a cube of items
Drawn = list[tuple[int, int]]  # (crop, flip) of each item
_TenDrawn = tuple[tuple[int, int], ...]  # ten of them, sorted
_Where = tuple[int, int, int]  # seed, epoch, index: of an item, or of the first of some


@dataclass(frozen=True)
class _Draws:
    """What items have drawn, asked for in several ways."""

    touched: bool  # whether a global generator is another one than before
    first: Drawn  # epoch 0
    late: Drawn  # epoch 0, its keys made before those of epochs 0 and 1, and asked for after them
    second: Drawn  # epoch 1
    turned: Drawn  # epoch 0, its indices named from the last to the first, then turned round
    again: Drawn  # the keys of epoch 0, asked for once more from the last to the first, then turned round
    workers: list[Drawn]  # epoch 0 in each of two workers
    process: Drawn  # epoch 0 in another process
    other_seed: Drawn
    far: list[Drawn]  # 60 epochs
    far_other: list[Drawn]  # 60 epochs of another seed


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
    said = (
        next(_faults(draws), "")
        or _forgotten(keys_of, item_of, draws)
        or next(_faults_of_sharing(draws), "")
        or _meeting(keys_of, item_of, draws)
        or next(_meetings_of_words(keys_of, item_of), "")
        or next(_faults_of_pairs(draws), "")
        or next(_faults_of_others(keys_of, item_of), "")
    )
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
    return next(_wrong_at_the_ends(keys_of, item_of), "")


def _wrong_at_the_ends(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield whether the smallest or the largest seed, epoch or index gives no item."""
    for seed, epoch, index in product(*((0, most - 1) for most in _MOST)):
        with in_case(f"With seed {seed}, epoch {epoch} and index {index}"):
            item = item_of(_keys(keys_of, [index], epoch)[0], seed)
        if not _has_the_shape(item, index):
            yield f"{SHAPE} For seed {seed}, epoch {epoch} and index {index} yours is {short(item)}."


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
    before_others = _keys(keys_of, indices, 0)
    _keys(keys_of, indices, 1)
    return _Draws(
        touched=touched,
        first=first,
        late=_numbers(item_of, before_others),
        second=_numbers(item_of, _keys(keys_of, indices, 1)),
        turned=_numbers(item_of, _keys(keys_of, indices[::-1], 0))[::-1],
        again=_numbers(item_of, reversed(keys))[::-1],
        workers=workers,
        process=process,
        other_seed=_numbers(item_of, keys, seed=1),
        far=[_numbers(item_of, _keys(keys_of, indices, epoch)) for epoch in range(EPOCHS)],
        far_other=[_numbers(item_of, _keys(keys_of, indices, epoch), 1) for epoch in range(EPOCHS)],
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
    if first != draws.late:
        yield KEPT
    if first == draws.second:
        yield REPEATS
    if first[1:] == draws.second[:-1]:
        yield SHIFT
    if first == draws.other_seed:
        yield SEED
    if len({flip for epoch in draws.far for _, flip in epoch}) == 1:
        yield TWINS
    flips = [flip for epoch in (*draws.far, *draws.far_other) for _, flip in epoch]
    if not 0.2 < sum(flips) / len(flips) < 0.8:  # then two rows of them may agree by chance
        yield f"{UNEVEN} {sum(flips)} of {len(flips)} flips are 1."
    yield from _faults_of_one(draws)


class _Items(Dataset[Any]):
    """What item_of gives for a key, or the name of what it raises."""

    def __init__(self, item_of: Any) -> None:
        self.item_of = item_of

    def __getitem__(self, key: Any) -> Any:
        try:
            return list(self.item_of(key, 0))
        except Exception as error:
            return named(error)


def _forgotten(keys_of: Any, item_of: Any, draws: _Draws) -> str:
    """Say whether a worker that was there before any key was made gives other numbers for the keys that are sent."""
    epochs = {0: draws.first, 1: draws.second, 2: draws.far[2]}

    def keys() -> Iterator[Any]:  # the loader asks for the first when the worker has been started
        for epoch in reversed(epochs):
            yield from _keys(keys_of, range(SIZE), epoch)

    loader = DataLoader(
        _Items(item_of), batch_size=None, sampler=keys(), num_workers=1, multiprocessing_context="fork"
    )
    got = list(loader)
    expected = [(epoch, pair) for epoch in reversed(epochs) for pair in epochs[epoch]]
    for item, (epoch, pair) in zip(got, expected, strict=True):
        if isinstance(item, str):
            return f"{KEPT} In a worker that was started before your code raised {item}."
        if tuple(item[1:]) != pair:
            return (
                f"{KEPT} In epoch {epoch} index {item[0]} has {pair} here and {tuple(item[1:])} in a worker."
            )
    return ""


def _faults_of_one(draws: _Draws) -> Iterator[str]:
    """Yield which of the two numbers leaves out seed, epoch or index, where the other one does not."""
    for name, which in (("crop", 0), ("flip", 1)):
        epochs, others = (
            [[pair[which] for pair in epoch] for epoch in far] for far in (draws.far, draws.far_other)
        )
        if epochs == others:
            yield f"{PART} The {name} is the same with seeds 0 and 1."
        if all(epoch == epochs[0] for epoch in epochs):
            yield f"{PART} The {name} of an item is the same in all epochs."
        if all(len({*epoch}) == 1 for epoch in epochs):
            yield f"{PART} All items of an epoch have the same {name}."


def _faults_of_sharing(draws: _Draws) -> Iterator[str]:
    """Yield which two items, or which two epochs, have a number in common again and again.

    Two crops agree once in a hundred times, two flips every second time: never all of 40 or 120, and never none.
    """
    for name, which in (("crop", 0), ("flip", 1)):
        rows = [[pair[which] for pair in epoch] for epoch in (*draws.far, *draws.far_other)]
        items = [*zip(*rows, strict=True)]  # of each item its number in all epochs of both seeds
        epochs = [mine + other for mine, other in zip(rows[:EPOCHS], rows[EPOCHS:], strict=True)]
        for what, columns in (("Items", items), ("Epochs", epochs)):
            for one, other in combinations(range(len(columns)), 2):
                agreed = sum(map(eq, columns[one], columns[other]))
                of_all = len(columns[one])
                if agreed == of_all or (which == 0 and agreed > of_all / 3) or (which == 1 and not agreed):
                    yield f"{SHARED} {what} {one} and {other} have the same {name} {agreed} times of {of_all}."


def _faults_of_pairs(draws: _Draws) -> Iterator[str]:
    """Yield whether some flips or crops are more likely, whether crops tell the flip, or whether some never come."""
    flips: dict[int, list[int]] = {crop: [] for crop in range(100)}
    for epoch in (*draws.far, *draws.far_other):
        for crop, flip in epoch:
            flips[crop].append(flip)
    counts: Counter[tuple[int, ...]] = Counter((flip,) for mine in flips.values() for flip in mine)
    for cell in unfair(counts, [(0,), (1,)]):
        yield f"{UNEVEN} {counts[cell]} of {counts.total()} flips are {cell[0]}."
    tenths: Counter[tuple[int, ...]] = Counter((crop // 10,) for crop, mine in flips.items() for _ in mine)
    for (tenth,) in unfair(tenths, [(tenth,) for tenth in range(10)]):
        often = f"{tenths[(tenth,)]} of {tenths.total()} crops are {10 * tenth} to {10 * tenth + 9}"
        yield f"{UNEVEN} {often}, and {tenths.total() // 10} are fair."
    told = [crop for crop, mine in flips.items() if len(mine) >= _ENOUGH and len({*mine}) == 1]
    if told:
        number = told[0]
        same = f"With crop {number} all {len(flips[number])} flips are {flips[number][0]}"
        others = f", and {len(told) - 1} other crops tell theirs" if len(told) > 1 else ""
        yield f"{TWINS} {same}{others}."
    if not flips[0] or not flips[99]:
        yield RANGE


def _meeting(keys_of: Any, item_of: Any, draws: _Draws) -> str:
    """Say where ten neighbours have the numbers of ten others, in whatever order."""

    def block(seed: int, epoch: int, start: int) -> _TenDrawn:
        return _block(_numbers(item_of, _keys(keys_of, range(start, start + BLOCK), epoch), seed))

    near: dict[_TenDrawn, _Where] = {}
    for seed, far in enumerate((draws.far, draws.far_other)):
        for epoch, items in enumerate(far):
            for start in range(SIZE - BLOCK + 1):
                before = near.setdefault(_block(items[start : start + BLOCK]), (seed, epoch, start))
                if before[:2] != (seed, epoch):  # blocks of one epoch overlap
                    return f"{MIXED} Here {_told((seed, epoch, start))} meet {_told(before)}."
    seeds, epochs, indices = _IN_A_ROW
    far_away: list[_Where] = [(seed, 0, 0) for seed in (*range(2, seeds), *_FAR)]
    far_away += [(0, epoch, 0) for epoch in (*range(EPOCHS, epochs), *_FAR) if epoch < _MOST[1]]
    far_away += [(0, 0, start) for start in _FAR]
    for where in far_away:
        met = near.get(block(*where))
        if met:
            return f"{MIXED} Here {_told(where)} meet {_told(met)}."
    for row in (range(SIZE, indices), *(range(far - _NEAR, far + _NEAR) for far in _FAR)):
        numbers = _numbers(item_of, _keys(keys_of, row, 0))
        for place in range(len(row) - BLOCK + 1):
            start = row[place]
            met = near.get(_block(numbers[place : place + BLOCK]))
            if met and not (met[:2] == (0, 0) and abs(met[2] - start) < BLOCK):
                return f"{MIXED} Here {_told((0, 0, start))} meet {_told(met)}."
    return ""


def _meetings_of_words(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield which items meet because two of the three numbers were made one that fills more than one word.

    With `big * factor + small` at or above 2³² the words behind it move on by one, or it is cut off there.
    """

    @cache
    def pair(*three: int) -> tuple[int, int]:
        seed, epoch, index = three
        return _numbers(item_of, _keys(keys_of, [index], epoch), seed)[0]

    for one, other in _like_words():
        if [pair(*three) for three in one] == [pair(*three) for three in other]:
            told = (f"seed {seed}, epoch {epoch}, index {index}" for seed, epoch, index in (one[0], other[0]))
            yield f"{MIXED} Here {' meets '.join(told)}, and so do the next ones."


def _others() -> Iterator[tuple[str, Callable[[_Where], _Where]]]:
    """Yield ways from an item to another one: its numbers change places, or one of them moves on by one."""
    names = ("seed", "epoch", "index")
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            told = ", ".join(names[which] for which in order)
            yield f"{told} of one are seed, epoch, index of another", partial(_exchanged, order)
    for which in range(3):
        yield f"another has the next {names[which]}", partial(_moved, which, 1)
        yield f"another has the last {names[which]}", partial(_moved, which, -1)


def _exchanged(order: Sequence[int], item: _Where) -> _Where:
    return item[order[0]], item[order[1]], item[order[2]]


def _moved(which: int, step: int, item: _Where) -> _Where:
    numbers = [*item]
    numbers[which] += step
    return numbers[0], numbers[1], numbers[2]


def _faults_of_others(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield whether, in a cube of items, the crop of each tells the flip of another, or is the other's crop."""
    drawn: dict[_Where, tuple[int, int]] = {}
    for seed, epoch in product(range(_SIDE), repeat=2):
        numbers = _numbers(item_of, _keys(keys_of, range(_SIDE), epoch), seed)
        drawn |= {(seed, epoch, index): pair for index, pair in enumerate(numbers)}
    for how, other in _others():
        pairs = [
            (drawn[item], drawn[other(item)])
            for item in drawn
            if other(item) in drawn and other(item) != item
        ]
        same = sum(mine[0] == theirs[0] for mine, theirs in pairs)
        if same > len(pairs) / 5:  # by chance one in a hundred
            yield f"{MIXED} Here {how}: {same} of {len(pairs)} have the same crop."
        flips: dict[int, list[int]] = {crop: [] for crop in range(100)}
        for mine, theirs in pairs:
            flips[mine[0]].append(theirs[1])
        told = [crop for crop, seen in flips.items() if len(seen) > 7 and len({*seen}) == 1]
        if len(told) > 10:  # by chance none or one
            yield f"{EXCHANGED} Here {how}: {len(told)} of 100 crops tell the flip."


def _like_words() -> Iterator[tuple[list[_Where], list[_Where]]]:
    """Yield rows of triples that come to the same words if two of the three are made one number."""
    for big, small, third in permutations(range(3)):
        for factor in _FACTORS:
            one_word = (_WORD // factor, _WORD % factor, 1)
            whole_words = (_WORD // gcd(factor, _WORD), 0, factor // gcd(factor, _WORD))
            for first, start, words in (one_word, whole_words):
                for moved in (words, 0):
                    one = [_triple({big: first, small: start + far, third: 0}) for far in range(_FEW)]
                    other = [_triple({big: 0, small: far, third: moved}) for far in range(_FEW)]
                    if all(map(_is_asked_for, one + other)):
                        yield one, other


def _triple(numbers: dict[int, int]) -> _Where:
    return numbers[0], numbers[1], numbers[2]


def _is_asked_for(where: _Where) -> bool:
    return all(number < most for number, most in zip(where, _MOST, strict=True))


def _block(numbers: Drawn) -> _TenDrawn:
    return tuple(sorted(numbers))


def _told(where: _Where) -> str:
    seed, epoch, start = where
    return f"items {start} to {start + BLOCK - 1} of seed {seed}, epoch {epoch}"
