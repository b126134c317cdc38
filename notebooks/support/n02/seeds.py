"""Exercise 5: which items seed a generator alike? What generators are seeded with tells, and drawing confirms it.

Of some items, around (0, 0, 0) and far away, the whole numbers are noted that reach a generator or a hash. Many are
start + a·seed + b·epoch + c·index, perhaps modulo m: what is left over beside the sum are multiples of m, so their
greatest common divisor is m, or 0 where nothing is left. Of a hash it is 1: what that depends on must not differ.
Items seed alike where a·Δseed + b·Δepoch + c·Δindex is 0, modulo m, for each number. Such differences are a lattice.
Euclid's algorithm finds a basis of it, one number after the other, and that of Lenstra, Lenstra and Lovász a short one.
"""

from __future__ import annotations

import builtins
import hashlib
import inspect
import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from functools import wraps
from itertools import permutations, product
from math import gcd
from operator import index as whole
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from support.n02.meetings import MIXED, MOST, drawn_by_items, keys_of_some, told_to_meet

_SEEDED: tuple[tuple[Any, str], ...] = (
    *((np.random, name) for name in ("default_rng", "SeedSequence", "RandomState", "seed")),
    *((np.random, name) for name in ("PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64")),
    *((random.Random, "seed"), (random, "seed"), (torch, "manual_seed"), (builtins, "hash"), (zlib, "crc32")),
    *((hashlib, name) for name in ("md5", "sha1", "sha256", "sha512")),
)
_WORD = 2**32  # torch's generator on a CPU takes no more of a seed
_FAR = (3_123_456_789, 654_321, 76_543_210)
#: The first item, one step along each of the three, a long way along each, and anywhere.
_ITEMS = (
    *((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)),
    *((_FAR[0], 0, 0), (0, _FAR[1], 0), (0, 0, _FAR[2])),
    *((1, 1, 1), (2, 3, 5), (1000, 1001, 1002), _FAR, (MOST[0] - 1, MOST[1] - 2, MOST[2] - 3)),
    *((2_718_281_828, 31_415, 92_653_589), (299_792_458, 987_654, 1_618_033)),
)
_NOTES = 8  # of an item's notes so many are looked at
_NEAREST = 3  # and so many differences of each
_IN_A_ROW = {"crop": 8, "flip": 32}  # so many are alike by chance once in 10¹⁶ or 4 · 10⁹ times
_LONGEST = max(_IN_A_ROW.values())
#: A seed's step is this much shorter than one of an epoch, or of an index.
_WEIGHTS = np.array([MOST[0] // most for most in MOST], dtype=object)
_Condition = tuple[Sequence[int], int]  # a, b, c, and what they count modulo; 0: over all whole numbers
_Rows = list[Any]  # vectors of whole numbers of any size


def meetings_of_seeds(keys_of: Any, item_of: Any) -> Iterator[str]:
    """Yield which items have the numbers of others, or their flips, since they seed alike."""

    def drawn(which: int, where: Any) -> int:
        seed, epoch, index = map(int, where)
        return drawn_by_items(item_of, keys_of_some(keys_of, [index], epoch), seed)[0][which]

    def alike(which: int, one: Sequence[Any], other: Sequence[Any]) -> bool:
        far = [*_IN_A_ROW.values()][which]
        pairs = zip(one[:far], other[:far], strict=True)
        return all(drawn(which, mine) == drawn(which, theirs) for mine, theirs in pairs)

    for apart in _differences(_notes(keys_of, item_of)):
        start = np.maximum(-apart, 0)
        one = [np.add(start, (0, 0, far)) for far in range(_LONGEST)]
        other = [where + apart for where in one]
        for which, name in enumerate(_IN_A_ROW):
            if alike(which, one, other):
                yield told_to_meet(one[0], other[0]) if name == "crop" else _flips_of(one[0], other[0])
    for row, met in _met_along(keys_of, item_of):
        for which, name in enumerate(_IN_A_ROW):
            if alike(which, row, met):
                pairs = [*zip(row, met, strict=True)][:2]
                told = " and ".join(f"{mine} has that of {theirs}" for mine, theirs in pairs)
                yield f"{MIXED} Of the {name}s, by (seed, epoch, index), {told}."


def _met_along(keys_of: Any, item_of: Any) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield rows of items, one step beside an axis, and the items of the axis that seed alike, if any do.

    Along the axis a number grows by equal steps; beside it may be mixed in by an exclusive or, which is no sum.
    """
    for which, beside in permutations(range(3), 2):
        axis, step = (np.array(_ITEMS[1 + each], dtype=object) for each in (which, beside))
        row = [tuple(far * axis + step) for far in range(_LONGEST)]
        for start, second, *others in _notes(keys_of, item_of, [_ITEMS[0], tuple(axis), *row]):
            for place, grows in enumerate(map(int.__sub__, second, start)):
                far = [each[place] - start[place] for each in others]
                times = [each // grows for each in far] if grows else []
                if grows % 2 and any(each % grows for each in far):  # it may be cut off at 32 bits
                    times = [each * pow(grows, -1, _WORD) % _WORD for each in far]
                if times and all(0 <= each < MOST[which] for each in times):
                    yield row, [tuple(each * axis) for each in times]


def _flips_of(one: Any, other: Any) -> str:
    told = (f"from seed {seed}, epoch {epoch}, index {index} on" for seed, epoch, index in (one, other))
    return f"{MIXED} Here the items {' have the flips of those '.join(told)}."


def _notes(keys_of: Any, item_of: Any, items: Sequence[Sequence[int]] = _ITEMS) -> Iterator[Any]:
    """Yield of each generator or hash what all items gave it: a row of numbers for each of them."""
    noted = []
    with _noting(keys_of, item_of) as notes:
        for seed, epoch, index in items:
            notes.clear()
            try:
                item_of(keys_of_some(keys_of, [index], epoch)[0], seed)
            except Exception:
                return  # nothing is told of an answer that can't be looked at
            noted.append([note for note in notes if note][:_NOTES])
    for each in zip(*noted, strict=False):
        if len({*map(len, each)}) == 1:
            yield each


@contextmanager
def _noting(*functions: Callable[..., Any]) -> Iterator[list[list[int]]]:
    """Note what generators are seeded with, and hashes given, under whatever name the functions' module knows them."""
    notes: list[list[int]] = []

    def noting(original: Any) -> Any:
        if isinstance(original, type):  # it stays a class, since NumPy asks what is one of it
            return type(original.__name__, (original,), {"__init__": noting(vars(original)["__init__"])})

        @wraps(original, updated=())
        def seeded(*given: Any, **named: Any) -> Any:
            notes.append([*_numbers_in([given, *named.values()])])
            return original(*given, **named)

        return seeded

    class Generator(torch.Generator):
        def manual_seed(self, seed: int) -> torch.Generator:
            notes.append([whole(seed) % _WORD])
            return super().manual_seed(seed)

    spaces: list[dict[str, Any]] = [getattr(inspect.unwrap(each), "__globals__", {}) for each in functions]
    replaced = [(place, name, noting(getattr(place, name))) for place, name in _SEEDED]
    with ExitStack() as stack:
        for place, name, new in [*replaced, (torch, "Generator", Generator)]:
            original = getattr(place, name)
            stack.enter_context(patch.object(place, name, new))
            for space in spaces:
                for known in [known for known, value in space.items() if value is original]:
                    stack.callback(space.__setitem__, known, original)
                    space[known] = new
        yield notes


def _numbers_in(thing: Any) -> Iterator[int]:
    """Yield the whole numbers in what a generator is given, those in a text, too."""
    if isinstance(thing, bytes):
        thing = thing.decode("latin-1")
    if isinstance(thing, str):
        yield from map(int, re.findall("[0-9]{1,99}", thing))
    elif isinstance(thing, (tuple, list)):
        for each in thing:
            yield from _numbers_in(each)
    elif isinstance(thing, np.ndarray):
        yield from _numbers_in(thing.ravel().tolist())
    elif hasattr(thing, "__index__"):
        yield whole(thing)


def _differences(notes: Iterator[Any]) -> Iterator[Any]:
    """Yield differences in seed, epoch and index that leave all numbers of a generator as they are, the least first."""
    seen = set()
    for note in notes:
        numbers = [*zip(*note, strict=True)]
        linear = [_condition(each) for each in numbers]
        for exactly in (False, True):
            conditions: list[_Condition] = []
            for each, (factors, modulus) in zip(numbers, linear, strict=True):
                if modulus == 1 or (exactly and modulus):
                    conditions += [([*unit], 0) for unit in _depends_on(each)]
                else:
                    conditions.append((factors, modulus))
            for apart in _short_ones(conditions):
                if tuple(apart) not in seen:
                    seen.add(tuple(apart))
                    yield apart


def _condition(values: Sequence[int]) -> _Condition:
    """Return the three factors of a linear function, and modulo what it is one."""
    start, *steps = values[:4]
    factors = [step - start for step in steps]
    left_over = (
        value - start - sum(map(int.__mul__, factors, item))
        for item, value in zip(_ITEMS, values, strict=True)
    )
    return factors, gcd(*left_over)


def _depends_on(values: Sequence[int]) -> Iterator[Any]:
    """Yield (1, 0, 0) where a number is another one for another seed, and so on."""
    for unit, step, far in zip(_ITEMS[1:4], values[1:4], values[4:7], strict=True):
        if not step == far == values[0]:
            yield unit


def _short_ones(conditions: Sequence[_Condition]) -> list[Any]:
    """Return the shortest differences with which the conditions hold, of those that two items can have."""
    basis: _Rows = [*np.identity(3, dtype=int).astype(object)]
    for factors, modulus in conditions:
        basis = _reduced(_held(basis, factors, modulus))
    room = np.array(MOST, dtype=object) - _LONGEST
    apart = [
        sum(map(np.multiply, times, basis))
        for times in product(range(-2, 3), repeat=len(basis))
        if times > (0,) * len(basis)
    ]
    return sorted((each for each in apart if all(abs(each) < room)), key=_length)[:_NEAREST]


def _held(basis: _Rows, factors: Sequence[int], modulus: int) -> _Rows:
    """Return a basis of that part of a lattice on which a sum is 0, by Euclid's algorithm on the sums of its rows."""
    sums = [int(row @ np.array(factors, dtype=object)) for row in basis]
    pairs = [(each % modulus if modulus else each, row) for each, row in zip(sums, basis, strict=True)]
    held = [row for each, row in pairs if not each]
    pairs = [pair for pair in pairs if pair[0]]
    while len(pairs) > 1:
        pairs.sort(key=lambda pair: abs(pair[0]))
        most, row = pairs.pop()
        least, step = pairs[0]
        row = row - most // least * step
        if most % least:
            pairs.append((most % least, row))
        else:
            held.append(row)
    if modulus:
        held += [modulus // gcd(each, modulus) * row for each, row in pairs]
    return held


def _reduced(basis: _Rows) -> _Rows:
    """Return a basis of short vectors of the same lattice, by the algorithm of Lenstra, Lenstra and Lovász."""
    place = 1
    while place < len(basis):
        upright: _Rows = []
        for row in basis:
            upright.append(row - sum(_share(row, before) * before for before in upright))
        for before in reversed(range(place)):
            basis[place] = basis[place] - round(_share(basis[place], upright[before])) * basis[before]
        share = _share(basis[place], upright[place - 1])
        if _length(upright[place]) >= (Fraction(3, 4) - share**2) * _length(upright[place - 1]):
            place += 1
        else:
            basis[place - 1], basis[place] = basis[place], basis[place - 1]
            place = max(1, place - 1)
    return basis


def _share(one: Any, other: Any) -> Fraction:
    """Return what share of another vector lies in one."""
    share: Fraction = Fraction(_times(one, other)) / _length(other)
    return share


def _length(row: Any) -> Any:
    """Return the square of a vector's length: a step in each of the three counts as much of its range."""
    return _times(row, row)


def _times(one: Any, other: Any) -> Any:
    return (one * _WEIGHTS) @ (other * _WEIGHTS)
