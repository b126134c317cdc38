"""Exercise 4 of notebook 04: the way back through Permutation's network, and what ends a walk without an end."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from operator import index
from random import Random, SystemRandom
from types import FrameType
from typing import Any, TypeAlias

import numpy as np

from lib.data.permutation import Permutation
from support.kit.apart import CAN_FORK, in_a_process_of_its_own
from support.kit.exercise import cases
from support.kit.raised import Finding
from support.kit.values import short

RoundKey: TypeAlias = tuple[int, int]
"""Factor and key of a round."""
Inverse: TypeAlias = Callable[[int, int, Sequence[RoundKey]], int]

# Of the hash F for one id: the longest walk of the cases has some twenty passes of 8 rounds.
MOST_HASHES = 1500
#: Of more numbers no search comes to an end, also one with factors of its own that don't count: a process does.
MOST_NUMBERS = 2**31
#: Of lines of Python for one id: a walk back in plain Python runs some thousands.
MOST_LINES = 100_000
SEARCH = "does it go position by position, or go round without coming home?"
IDS = (
    100  # of the first ones, and as many from anywhere: of the first 64 of 4,096 all have the same high half
)
#: Up to here an id that stands at its own position is looked for.
MOST_SEARCHED = 5000
_chance = SystemRandom()  # no seed of a script makes its numbers come again


class Hashes:
    """How often the hash F has been computed for the id that is asked for."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int) -> None:
        """Note so many more. Raises Finding beyond what any walk back needs: for a search, or a walk without an end."""
        self.count += number
        if self.count > MOST_HASHES:
            raise Finding(
                f"for one number F has been computed more than {MOST_HASHES:,} times, and no walk back needs as many: "
                f"{SEARCH}"
            )


class Factor(int):
    """The factor of a round, which counts the halves that it multiplies, wherever the keys are kept."""

    hashes: Hashes
    __array_ufunc__ = None  # so that arrays, too, ask __rmul__

    def __mul__(self, other: Any) -> Any:
        self.hashes.add(1 if isinstance(other, int) else np.asarray(other).size)
        return int(self) * other

    __rmul__ = __mul__


def no_end(case: str, lines: int, question: str) -> str:
    """Return what is said of code that has run so many lines."""
    return f"{case} your code has run {lines:,} lines and has not come to an end: {question}"


@contextmanager
def few_lines(most: int, said: str) -> Iterator[None]:
    """End what runs too many lines. Raises Finding there, with these words."""
    left = iter(range(most))
    before = sys.gettrace()

    def line(_: FrameType, event: str, __: Any) -> Any:
        # At a line only: what is raised while a generator is closed is lost, and nothing counts any more.
        if event == "line" and next(left, None) is None:
            raise Finding(said)
        return line

    def call(frame: FrameType, *_: Any) -> Any:
        return line if frame.f_code.co_filename != __file__ else None

    sys.settrace(call)
    try:
        yield
    finally:
        sys.settrace(before)


def counting(keys: Sequence[RoundKey], hashes: Hashes) -> list[RoundKey]:
    """Return the keys with factors that count."""
    counted: list[RoundKey] = []
    for factor, key in keys:
        counter = Factor(factor)
        counter.hashes = hashes
        counted.append((counter, key))
    return counted


def round_keys(n: int, seed: int, rounds: int) -> list[RoundKey]:
    """Return (factor, key) of each round of Permutation(n, seed, rounds=rounds)."""
    text = f"Permutation n={n:x} seed={seed:x} epoch=0"
    words = np.frombuffer(hashlib.shake_128(text.encode()).digest(8 * rounds), "<u4").tolist()
    return [(words[2 * k] | 1, words[2 * k + 1]) for k in range(rounds)]


def network_cases() -> list[dict[str, Any]]:
    """Return the cases: halves of equal and of different length, walks, and numbers of rounds that are not 8.

    The last ones are drawn anew each time: whoever has kept the keys or the positions of a case can't know theirs.
    """
    as_in_lib = [
        (4096, 0),
        (2048, 0),
        (3000, 0),
        (1500, 3),
        (1025, 589),  # the way back of one of its first numbers has 22 passes
        (3000, 2),
        (70_000, 5),
        (2**40 + 3, 4),
    ]
    few_numbers = [(1, 0), (2, 2), (1000, 2)]
    other_rounds = [(3000, 2, 5), (2048, 0, 3), (5000, 1, 9)]
    drawn = [
        (_chance.randrange(least + 1, 2 * least), _chance.randrange(2**32), _chance.randrange(1, 13))
        for least in (2**10, 2**11, 2**15, 2**20, 2**31, 2**40, 2**47)
    ]
    return cases("n seed", as_in_lib + few_numbers) + cases("n seed rounds", other_rounds + drawn)


def ids_of(n: int, seed: int, rounds: int = 8) -> list[int]:
    """Return the ids of a case: the first ones, that at position 0, any others, and one at its own position."""
    order = Permutation(n, seed, rounds=rounds)
    anywhere = Random(seed)
    ids = [*range(min(n, IDS)), int(order[0]), *(anywhere.randrange(n) for _ in range(IDS))]
    if n <= MOST_SEARCHED:
        ids += np.flatnonzero(order[:] == np.arange(n))[:1].tolist()
    return ids


def positions_of(inverse: Inverse) -> Callable[..., list[int] | None]:
    """Make the function of a case: the positions of its ids; None if one is."""

    def asked(n: int, seed: int, rounds: int) -> list[int] | None:
        hashes = Hashes()
        keys = counting(round_keys(n, seed, rounds), hashes)
        given = list(keys)
        places = []
        for number in ids_of(n, seed, rounds):
            hashes.count = 0
            with few_lines(MOST_LINES, no_end("for one number", MOST_LINES, SEARCH)):
                places.append(inverse(number, n, given))
            if not _is_whole(places[-1]):
                raise Finding(
                    f"number {number} gets {short(repr(places[-1]))}. A position is a whole number."
                )
            if given != keys:
                raise Finding("the keys that it was given are others afterwards. Leave them as they are.")
        return None if None in places else places

    def of_ids(n: int, seed: int, rounds: int = 8) -> list[int] | None:
        if n > MOST_NUMBERS and CAN_FORK:
            with suppress(ChildProcessError):  # the system's fault, and not the answer's
                places: list[int] | None = in_a_process_of_its_own(partial(asked, n, seed, rounds))
                return places
        return asked(n, seed, rounds)

    return of_ids


def _is_whole(place: Any) -> bool:
    """Say whether something is a whole number of Python, numpy or torch, or None, which is told otherwise."""
    try:
        index(place)
    except TypeError:
        return place is None
    return True


def fault_of_positions(got: Any, expected: Any, case: Mapping[str, Any]) -> str:
    """Say of the first id that stands elsewhere where it stands; "" if none does."""
    for number, mine, right in zip(ids_of(**case), got, expected, strict=True):
        if mine != right:
            return f"number {number} stands at position {right}, not {short(mine)}"
    return ""
