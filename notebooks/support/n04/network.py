"""Exercise 4 of notebook 04: the way back through Permutation's network, and what ends a walk without an end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np

from support.kit.exercise import cases

RoundKey: TypeAlias = tuple[int, int]
"""Factor and key of a round."""
Inverse: TypeAlias = Callable[[int, int, Sequence[RoundKey]], int]

# Of the keys, on one walk back: a pass may read them some twenty times, and the longest walk has 8 passes.
MOST_READS = 3000
IDS = 200  # that are asked for at most in a case: among the first 64 of 4,096 all have the same high half


class Keys(list[RoundKey]):
    """The keys of a network's rounds, which end a walk that would never end: they count how often they are read."""

    reads = 0

    def _read(self) -> None:
        self.reads += 1
        if self.reads > MOST_READS:
            raise RecursionError(
                f"for one id the keys have been read more than {MOST_READS:,} times, and no walk back needs more "
                "than 8 passes: does it try positions one by one, or go round without coming home?"
            )

    def __iter__(self) -> Iterator[RoundKey]:
        self._read()
        return super().__iter__()

    def __reversed__(self) -> Iterator[RoundKey]:
        self._read()
        return super().__reversed__()

    def __getitem__(self, place: Any) -> Any:
        self._read()
        return super().__getitem__(place)

    def __len__(self) -> int:
        self._read()
        return super().__len__()


def round_keys(n: int, seed: int, rounds: int) -> list[RoundKey]:
    """Return (factor, key) of each round of Permutation(n, seed, rounds=rounds)."""
    text = f"Permutation n={n:x} seed={seed:x} epoch=0"
    words = np.frombuffer(hashlib.shake_128(text.encode()).digest(8 * rounds), "<u4").tolist()
    return [(words[2 * k] | 1, words[2 * k + 1]) for k in range(rounds)]


def network_cases() -> list[dict[str, Any]]:
    """Return the cases: halves of equal and of different length, walks, and numbers of rounds that are not 8."""
    as_in_lib = [(4096, 0), (2048, 0), (5000, 0), (1500, 3), (1025, 1), (3000, 2), (70_000, 5)]
    fewer_rounds = [(3000, 2, 5), (2048, 0, 3), (5000, 1, 7)]
    return cases("n seed", as_in_lib) + cases("n seed rounds", fewer_rounds)


def positions_of(inverse: Inverse) -> Callable[..., list[int] | None]:
    """Make the function of a case: the positions of the first ids; None if one is."""

    def of_ids(n: int, seed: int, rounds: int = 8) -> list[int] | None:
        keys = round_keys(n, seed, rounds)
        places = [inverse(number, n, Keys(keys)) for number in range(min(n, IDS))]
        return None if None in places else places

    return of_ids
