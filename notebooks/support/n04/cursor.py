"""Exercise 2 of notebook 04: lives of a cursor, and where an answer's differs from libtorch's."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from support.kit.judged import Fault
from support.kit.raised import Finding, in_case
from support.kit.values import NO_RETURN, short
from support.n04.solved import Cursor

CursorClass: TypeAlias = Callable[[int, int, int], Any]

_TO_THE_END = "position next(3) next(3) position next(3) next(3) position"
_NEW_EPOCH = "next(2) epoch=1 next(1) reset() next(9) position"
_BACK = "next(2) reset() position next(9)"
_SAVED = "next(3) save load position next(1) next(5)"

#: Size, ranks, rank, calls: one rule decides in each of the first, later ones try what is left.
LIVES: list[tuple[int, int, int, str]] = [
    *((12, 3, rank, _TO_THE_END) for rank in range(3)),
    *((10, 3, rank, _TO_THE_END) for rank in (2, 1, 0)),
    (12, 3, 1, _BACK),
    (12, 3, 1, _NEW_EPOCH),
    (12, 3, 2, "epoch=5 reset() next(4) epoch=1 reset() next(4) epoch=5 reset() next(4)"),
    (12, 3, 1, _SAVED),
    (12, 3, 1, "epoch=3 reset() next(2) save load next(9) reset() next(9)"),
    (12, 3, 1, "next(3) save next(1) load position next(9)"),
    (12, 3, 2, "next(4) save load next(1) position"),
    # the epoch is set and no reset has come yet: the order is still the old one, the next reset makes the new one
    (12, 3, 1, "next(2) epoch=2 save load next(9) reset() next(9)"),
    (12, 3, 1, "epoch=2 save load next(2) reset() next(9)"),
    (12, 3, 1, "next(1) save load next(1) save load next(9)"),
    *((size, ranks, 0, _TO_THE_END) for size, ranks in ((1, 1), (7, 2), (8, 4))),
    (100, 4, 3, "epoch=6 reset() next(7) save load next(30) next(1) save reset() load next(1)"),
]

STATE = "A checkpoint shall stay small: what is in it must not grow with the data."
SIZES = (12, 6000)
MOST_GROWTH = 1000  # bytes


def fault_of_cursor(cursor: CursorClass) -> str:
    """Say where a cursor's answers part from ours, in the first life in which they do; "" if nowhere."""
    seen: list[Any] = []
    for size, ranks, rank, calls in LIVES:
        expected = lived(Cursor, size, ranks, rank, calls)
        got = lived(cursor, size, ranks, rank, calls)
        seen.append(got)
        for number, (mine, right) in enumerate(zip(got, expected, strict=True)):
            if not _same(mine, right):
                verbs = calls.split()[: number + 1]
                said = f"Cursor({size}, {ranks}, {rank}), {', '.join(verbs)}: the last one {_told(mine)}"
                return Fault(f"{said}, not {short(right)}.", seen)
    return _fault_of_state(cursor)


def lived(cursor: CursorClass, size: int, ranks: int, rank: int, calls: str) -> list[Any]:
    """Return what each call gives: next and position their value, the others None.

    load goes into a cursor of its own, made alike, from what pickle has written of the state; from then on it is asked.
    """
    mine = cursor(size, ranks, rank)
    state = b""
    answers: list[Any] = []
    for number, call in enumerate(calls.split()):
        done = ", ".join(calls.split()[: number + 1])
        verb, *numbers = re.findall(r"[a-z]+|\d+", call)
        answer = None
        with in_case(f"Cursor({size}, {ranks}, {rank}), {done}"):
            if verb == "position":
                answer = mine.position
            elif verb == "epoch":
                mine.epoch = int(numbers[0])
            elif verb == "reset":
                mine.reset()
            elif verb == "save":
                state = _written(mine.save())
            elif verb == "load":
                mine = cursor(size, ranks, rank)
                mine.load(pickle.loads(state))
            else:
                # copied: who hands out a list that it keeps and empties later has given it
                answer = copy.copy(mine.next(int(numbers[0])))
        answers.append(answer)
    return answers


def _written(state: Any) -> bytes:
    if state is None:
        raise Finding(f"save {NO_RETURN}.")
    return pickle.dumps(state)


def _same(got: Any, expected: Any) -> bool:
    """Say whether an answer is ours: a list of the same indices, the same position, None."""
    if expected is None:
        return got is None
    if isinstance(expected, list):
        return isinstance(got, list) and got == expected
    return not isinstance(got, (bool, Sequence)) and bool(got == expected)


def _told(answer: Any) -> str:
    return "returned None" if answer is None else f"gives {short(answer)}"


def _fault_of_state(cursor: CursorClass) -> str:
    lengths = []
    for size in SIZES:
        mine = cursor(size, 1, 0)
        mine.next(2)
        lengths.append(len(_written(mine.save())))
    if lengths[1] - lengths[0] > MOST_GROWTH:
        grown = f"{lengths[0]} bytes for {SIZES[0]} samples, {lengths[1]:,} for {SIZES[1]:,}"
        return f"what save returns takes {grown}. {STATE}"
    return ""
