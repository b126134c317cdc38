"""Exercise 1 of notebook 04: what is asked of libtorch's cursor, and the calls that it is asked with."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

from support.kit.exercise import cases

_TO_THE_END = "position next(3) next(3) position next(3)"
_NEW_EPOCH = "next(2) epoch=1 next(1) reset() next(9)"
_LARGER = "next(2) reset(20) next(9) position"
_LARGER_FOR_GOOD = "reset(20) next(2) reset() position next(9)"
_EMPTIED = "reset(0) next(3) position"


def ask_cursor(cursor: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Make the function of a case: what each call of `calls` gives, e.g. "next(3) epoch=1 reset() position"."""

    def answers(
        size: int, num_replicas: int, rank: int, shuffle: bool, allow_duplicates: bool, calls: str
    ) -> list[Any]:
        mine = cursor(size, num_replicas, rank, shuffle, allow_duplicates)
        got: list[Any] = []
        for call in calls.split():
            verb, *numbers = re.findall(r"[a-z]+|\d+", call)
            if verb == "position":
                got.append(mine.position)
            elif verb == "epoch":
                mine.epoch = int(numbers[0])
            elif verb == "reset":
                mine.reset(*map(int, numbers))
            else:
                got.append(mine.next(int(numbers[0])))
        return got

    return answers


def cursor_cases() -> list[dict[str, Any]]:
    """Return the cases: first one rule decides in each, then all small sizes, then libtorch's own fault."""
    one_rule = [
        *((12, 3, rank, False, True, _TO_THE_END) for rank in range(3)),
        *((10, 3, rank, False, True, _TO_THE_END) for rank in range(3)),
        *((10, 3, rank, False, False, _TO_THE_END) for rank in (1, 2)),
        *((10, 3, rank, True, True, _TO_THE_END) for rank in range(3)),
        *((10, 3, rank, True, False, _TO_THE_END) for rank in range(3)),
        (10, 3, 0, True, True, _NEW_EPOCH),
        *((10, 3, 2, shuffle, True, _LARGER) for shuffle in (False, True)),
        (10, 3, 1, False, True, _LARGER_FOR_GOOD),
        (10, 3, 1, False, True, _EMPTIED),
        # more padding than samples: Sequential takes the remainder
        *((2, 5, rank, False, True, "next(4)") for rank in range(5)),
    ]
    sizes = [(size, ranks) for size in (1, 7, 8) for ranks in (1, 2, 4) if ranks <= size]
    switches = product((False, True), (True, False), (_TO_THE_END, _NEW_EPOCH))
    small = [
        (size, ranks, rank, *others)
        for (size, ranks), others in product(sizes, switches)
        for rank in range(ranks)
    ]
    # more padding than samples once more: Random hands out indices that do not exist
    faulty = [(2, 5, rank, True, True, "next(4)") for rank in range(5)]
    return cases("size num_replicas rank shuffle allow_duplicates calls", [*one_rule, *small, *faulty])
