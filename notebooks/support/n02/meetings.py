"""Exercise 5: do items that differ in seed, epoch or index have the same numbers, or tell each other's?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, islice, permutations, product, starmap, tee
from math import gcd
from operator import eq
from typing import Any

import numpy as np

from support.kit.raised import Finding
from support.kit.values import short
from support.n02.orders import run_together

MIXED = (
    "Items that differ in seed, epoch or index have a number in common: the three are mixed so that different ones "
    "come out alike. Keep them apart."
)
SHAPE = (
    "An item is (index, crop, flip): the index that its key stands for, a whole number from 0 to 99, "
    "and 0 or 1."
)
EXCHANGED = (
    "The crop of one item tells the flip of another: they are drawn from the same numbers in another order, or from "
    "those of another item."
)

MOST = (2**32, 1_000_000, 100_000_000)  # seeds, epochs and indices are below these
BLOCK = 10
#: Where a mix of seed, epoch and index into one number meets itself again: round numbers, and powers of two.
_FAR = (
    *(100, 1000, 1024, 4096, 10_000, 65_536, 100_000, 1_000_000, 2**20, 10**7, 10**8, 10**9),
    *(2**power for power in range(22, 32)),
)
_IN_A_ROW = 300  # so many seeds and epochs are looked at, too: digits that run together need not be round
_NAMES = ("seed", "epoch", "index")
#: By how many seeds, epochs, indices a step is found: up to the square of these.
_STRIDES = (1000, 1000, 2000)
_FIRST = 3  # items in a row that are looked up,
_SURE = 8  # and so many that are compared where these are alike
#: What one number of two may be multiplied by before the other one is added.
_FACTORS = (*(10**power for power in range(3, 13)), *(2**power for power in range(10, 41)))
_WORD = 2**32  # NumPy and torch cut what they are seeded with into words of 32 bits, or cut it off there
_FEW = 6  # triples of a row
_COMPARED = 40  # crops in a row, each with the flip of an item far away
_SIDE = 12  # seeds, epochs and indices in a cube of items
_NEAR = 6  # so many seeds, epochs and indices two of them are apart
_ALIKE = {"crop": 0.2, "flip": 0.75}  # the share of equal ones that chance never reaches, of 216 and more
Drawn = list[tuple[int, int]]  # (crop, flip) of each item
_Numbers = tuple[int, ...]
_Where = tuple[int, int, int]  # seed, epoch, index: of an item, or of the first of some


def keys_of_some(keys_of: Any, indices: Sequence[int], epoch: int) -> list[Any]:
    """Return the keys of some indices, and one too many where there are more."""
    return list(islice(keys_of(iter(indices), epoch), len(indices) + 1))


def drawn_by_items(item_of: Any, keys: Iterable[Any], seed: int = 0) -> Drawn:
    """Return what the items of some keys have drawn."""
    drawn: Drawn = []
    for key in keys:
        _, crop, flip = item_of(key, seed)
        if not 0 <= crop < 100 or flip not in (0, 1):
            raise Finding(f"{SHAPE} Here crop and flip are {short((crop, flip))}.")
        drawn.append((int(crop), int(flip)))
    return drawn


def meetings(keys_of: Any, item_of: Any, seeds: Sequence[Sequence[Drawn]]) -> Iterator[str]:
    """Yield where items have the numbers of others; seeds: what the first items of many epochs drew, with two seeds."""
    yield from _meetings_of_blocks(keys_of, item_of, seeds)
    yield from _meetings_of_rows(keys_of, item_of)
    yield from _meetings_of_words(keys_of, item_of)


def _meetings_of_blocks(keys_of: Any, item_of: Any, seeds: Sequence[Sequence[Drawn]]) -> Iterator[str]:
    """Yield where ten neighbours have the crops of ten others, in whatever order, or fifty their flips, in order."""

    def block(where: _Where) -> Drawn:
        seed, epoch, start = where
        return drawn_by_items(item_of, keys_of_some(keys_of, range(start, start + BLOCK), epoch), seed)

    def flips_behind(where: _Where) -> Iterator[_Numbers]:
        return (_flips(block(_moved(2, far, where))) for far in range(BLOCK, 5 * BLOCK, BLOCK))

    near: dict[_Numbers, _Where] = {}
    begun: dict[_Numbers, list[_Where]] = {}
    for seed, epochs in enumerate(seeds):
        for epoch, items in enumerate(epochs):
            begun.setdefault(_flips(items[:BLOCK]), []).append((seed, epoch, 0))
            for start in range(len(items) - BLOCK + 1):
                ten = _crops(items[start : start + BLOCK])
                before = near.setdefault(ten, (seed, epoch, start))
                if before[:2] != (seed, epoch):  # blocks of one epoch overlap
                    yield f"{MIXED} Here {_told((seed, epoch, start))} meet {_told(before)}."
    far_away = [*product((0, 1), range(2, _IN_A_ROW)), *product(range(3), _FAR)]
    for where in filter(_is_asked_for, starmap(_along, far_away)):
        items = block(where)
        met = near.get(_crops(items))
        if met and met != where:
            yield f"{MIXED} Here {_told(where)} meet {_told(met)}."
        for other in begun.get(_flips(items), ()):
            if other != where and all(map(eq, flips_behind(where), flips_behind(other))):
                yield f"{MIXED} Here {_told(where)} have the flips of {_told(other)}."
    for seed, epoch in ((0, 0), (MOST[0] - 1, MOST[1] - 1)):
        last = (seed, epoch, MOST[2] - BLOCK)
        different = len({*block(last)})
        if different < BLOCK / 2:  # of 200 possible ones
            yield f"{MIXED} Here {_told(last)} have {different} different pairs of numbers."


def _crops(items: Drawn) -> _Numbers:
    return tuple(sorted(crop for crop, _ in items))


def _flips(items: Drawn) -> _Numbers:
    return tuple(flip for _, flip in items)


def _meetings_of_rows(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield where one more of seed, epoch or index does what many more of another do, and where that begins anew.

    A row of n neighbours is held against every n-th place of the row that has none more: whatever the step is, up to
    n², one of those places meets the row.
    """

    @cache
    def pair(where: _Where) -> tuple[int, int]:
        seed, epoch, index = where
        return drawn_by_items(item_of, keys_of_some(keys_of, [index], epoch), seed)[0]

    for which, stride in enumerate(_STRIDES):

        def run(place: int, more: int, count: int, along: int = which) -> _Numbers:
            first = 0 if more == along else 1
            return tuple(pair(_along(along, place + far, more, first))[0] for far in range(count))

        far_away: dict[_Numbers, list[int]] = {}
        last = min(stride * stride, MOST[which] - _SURE)
        for place in range(stride, last + 1, stride):
            far_away.setdefault(run(place, which, _FIRST), []).append(place)
        for more in range(3):
            beside = 0 if more == which else 1
            row = (pair(_along(which, place, more, beside))[0] for place in range(stride + _FIRST - 1))
            begun_later = (islice(each, far, None) for far, each in enumerate(tee(row, _FIRST)))
            for place, first in enumerate(zip(*begun_later, strict=False)):
                for met in far_away.get(first, ()):
                    if run(place, more, _SURE) == run(met, which, _SURE):
                        yield told_to_meet(_along(which, place, more, beside), _along(which, met))
    for which, stride in enumerate(_STRIDES):
        for apart in _told_along([pair(_along(which, place)) for place in range(stride)]):
            how = "larger" if apart > 0 else "smaller"
            yield f"{EXCHANGED} Here the {_NAMES[which]} of the other one is {how} by {abs(apart)}."
    for which, far in product(range(3), _FAR):
        if _is_asked_for(_along(which, far)) and _tells(pair, which, far):
            yield f"{EXCHANGED} Here one has {_NAMES[which]} 0 and the other one {far}."


def _told_along(row: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Yield how far behind a crop there is a flip that its half or its parity tells; below 0: before it."""
    crops, flips = np.array(row).T
    most = len(row) // 2  # so far, and at least as many are compared
    far = np.arange(1 - len(row), len(row))
    for told in (crops >= 50, crops % 2):
        agreed = np.correlate(2.0 * flips - 1, 2.0 * told - 1, "full") / (len(row) - np.abs(far))
        yield from far[(np.abs(agreed) > 0.4) & (np.abs(far) <= most) & (far != 0)].tolist()


def _tells(pair: Callable[[_Where], tuple[int, int]], which: int, far: int) -> bool:
    """Look whether the half or the parity of each crop is, or never is, the flip of the item that is so far away."""
    for (one, other), rule in product(((0, far), (far, 0)), (lambda crop: crop >= 50, lambda crop: crop % 2)):
        agreed = set()
        for more in range(_COMPARED):
            crop, _ = pair(_moved(2, more, _along(which, one)))
            _, flip = pair(_moved(2, more, _along(which, other)))
            agreed.add(rule(crop) == flip)
            if len(agreed) > 1:
                break
        else:
            return True
    return False


def _along(which: int, place: int, other: int = 0, more: int = 0) -> _Where:
    """Return the item whose seed, epoch or index is `place`, and another one of these `more`."""
    where = [0, 0, 0]
    where[other] = more
    where[which] = place
    return where[0], where[1], where[2]


def _meetings_of_words(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield which items meet because two of the three numbers were made one: more than a word, or a row of digits.

    With `big * factor + small` at or above 2³² the words behind it move on by one, or it is cut off there.
    """

    @cache
    def pair(*three: int) -> tuple[int, int]:
        seed, epoch, index = three
        return drawn_by_items(item_of, keys_of_some(keys_of, [index], epoch), seed)[0]

    for one, other in chain(_like_words(), _like_digits()):
        if all(pair(*mine) == pair(*theirs) for mine, theirs in zip(one, other, strict=True)):
            yield told_to_meet(one[0], other[0])


def _others() -> Iterator[tuple[str, Callable[[_Where], _Where]]]:
    """Yield ways from an item to another one: its numbers change places, or one of them moves on by one."""
    for order in permutations(range(3)):
        if order != (0, 1, 2):
            told = ", ".join(_NAMES[which] for which in order)
            yield f"{told} of one are seed, epoch, index of another", partial(_exchanged, order)
    for which in range(3):
        yield f"another has the next {_NAMES[which]}", partial(_moved, which, 1)
        yield f"another has the {_NAMES[which]} before", partial(_moved, which, -1)


def _exchanged(order: Sequence[int], item: _Where) -> _Where:
    return item[order[0]], item[order[1]], item[order[2]]


def _moved(which: int, step: int, item: _Where) -> _Where:
    numbers = [*item]
    numbers[which] += step
    return numbers[0], numbers[1], numbers[2]


def faults_of_others(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield whether, in a cube of items, the crop of each tells the flip of another, or is the other's crop."""
    drawn: dict[_Where, tuple[int, int]] = {}
    for seed, epoch in product(range(_SIDE), repeat=2):
        numbers = drawn_by_items(item_of, keys_of_some(keys_of, range(_SIDE), epoch), seed)
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
    yield from _faults_of_tags(drawn)
    yield from _faults_of_neighbours(np.array([*drawn.values()]).reshape(_SIDE, _SIDE, _SIDE, 2))


def _faults_of_tags(drawn: dict[_Where, tuple[int, int]]) -> Iterator[str]:
    """Yield whether a crop tells the flip of an item whose words are the same: a tag in front, or a 0 behind."""
    for order, tag in product(permutations(range(3)), range(3)):
        words = [((tag, one, two), (one, two, 0)) for one, two in product(range(4, _SIDE), repeat=2)]
        tagged = [
            tuple(drawn[_triple(dict(zip(order, three, strict=True)))] for three in both) for both in words
        ]
        for pairs in (tagged, [pair[::-1] for pair in tagged]):
            halves = {(crop >= 50) == flip for (crop, _), (_, flip) in pairs}
            parities = {crop % 2 == flip for (crop, _), (_, flip) in pairs}
            if len(halves) == 1 or len(parities) == 1:
                first, second, third = (_NAMES[which] for which in order)
                how = f"one has {first} {tag}, and its {second} and {third} are {first} and {second} of the other one"
                yield f"{EXCHANGED} Here {how}, which has {third} 0."


def _faults_of_neighbours(drawn: np.ndarray[Any, Any]) -> Iterator[str]:
    """Yield whether, in a cube of items, each crop or flip is that of the item some steps away."""
    for step in product(range(-_NEAR, _NEAR + 1), repeat=3):
        if step <= (0, 0, 0):  # the same two, seen from the other
            continue
        here = drawn[tuple(slice(max(0, -far), _SIDE - max(0, far)) for far in step)]
        there = drawn[tuple(slice(max(0, far), _SIDE - max(0, -far)) for far in step)]
        for (name, most), same in zip(_ALIKE.items(), (here == there).reshape(-1, 2).mean(0), strict=True):
            if same > most:
                how = f"another has {step[0]} added to the seed, {step[1]} to the epoch and {step[2]} to the index"
                yield f"{MIXED} Here {how}: {same:.0%} have the same {name}."


def _like_words() -> Iterator[tuple[list[_Where], list[_Where]]]:
    """Yield rows of triples that come to the same words if two of the three, or all, are made one number."""
    for word in (2**63, 2**64):
        seed, rest = divmod(word, MOST[1] * MOST[2])
        epoch, index = divmod(rest, MOST[2])
        yield [(seed, epoch, index + far) for far in range(_FEW)], [(0, 0, far) for far in range(_FEW)]
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


def _like_digits() -> Iterator[tuple[list[_Where], list[_Where]]]:
    """Yield rows of triples that come to the same digits if those of two numbers are written one behind the other."""
    for front, behind, third in permutations(range(3)):
        for pair in run_together(MOST[front], MOST[behind] - _FEW):
            one, other = (
                [_triple({front: first, behind: start + far, third: 0}) for far in range(_FEW)]
                for first, start in pair
            )
            yield one, other


def _triple(numbers: dict[int, int]) -> _Where:
    return numbers[0], numbers[1], numbers[2]


def _is_asked_for(where: _Where) -> bool:
    return all(number < most for number, most in zip(where, MOST, strict=True))


def told_to_meet(one: Iterable[int], other: Iterable[int]) -> str:
    """Say that two items have the same numbers."""
    told = (f"seed {seed}, epoch {epoch}, index {index}" for seed, epoch, index in (one, other))
    return f"{MIXED} Here {' meets '.join(told)}, and so do the next ones."


def _told(where: _Where) -> str:
    seed, epoch, start = where
    return f"items {start} to {start + BLOCK - 1} of seed {seed}, epoch {epoch}"
