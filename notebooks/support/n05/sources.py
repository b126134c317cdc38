"""What a dataset of exercise 4 reads its rows from: it notes what is asked of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True)
class Request:
    """What was asked of a source at once. ids: of a short request; of a long one they would count as memory."""

    lowest: int
    highest: int
    count: int
    ids: tuple[int, ...]


class Many(Sequence[str]):
    """So many rows that a mark for each of them is more than a mini-epoch's rows; each is made when it is asked for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return self if isinstance(index, slice) else f"row {index}"


class Source:
    """Rows that note what was asked for, and how many bytes were in memory at that moment."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = rows[:]  # nobody's change of it shall reach the next trial
        self.asked: list[Request] = []
        self.memory: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> str:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[str]:
        len(indices)  # a list or an array has one; what can be gone through once only gives no rows elsewhere
        ids = [int(index) for index in indices]
        if ids:
            self.asked.append(Request(min(ids), max(ids), len(ids), tuple(ids if len(ids) < 100 else ())))
        self.memory.append(tracemalloc.get_traced_memory()[0])
        return [row[:1] + row[1:] for row in map(self.rows.__getitem__, ids)]  # strings of their own


#: Rows of a request that are worth one: fewer are asked for only where there are no more.
WORTH_A_REQUEST = 1000


def fault_of_requests(asked: Sequence[Request]) -> str:
    """Say whether rows came in more requests than they are worth, or not front to back."""
    count = sum(request.count for request in asked)
    if any(request.count < WORTH_A_REQUEST for request in asked[:-1]):
        return (
            f"for {count:,} rows the source was asked {len(asked):,} times: it can read rows together only if it is "
            f"asked for all of them, or for {WORTH_A_REQUEST:,} at a time"
        )
    back = sum(after.lowest < before.highest for before, after in pairwise(asked))
    if back:
        return f"{len(asked)} requests sweep the file {back + 1} times"
    return ""
