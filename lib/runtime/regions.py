"""Bytes of a block of memory, with holes where a view has holes; whether two such sets meet is decided exactly."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor


class Region(NamedTuple):
    """Name bytes of a block of memory, from `start` to before `stop`.

    steps: where there are holes, (count, step in bytes) of each dimension, the largest step first: a column of a matrix
    of 3 rows of 16 bytes has ((3, 16),), the first of its 4 bytes at `start`. Empty: all bytes from start to stop.
    """

    block: str
    start: int
    stop: int
    steps: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """The bytes of each piece."""
        return self.stop - self.start - sum((count - 1) * step for count, step in self.steps)

    def meets(self, other: Region) -> bool:
        """Say whether the two have bytes in common."""
        first = max(self.start, other.start)
        if self.block != other.block or not first < min(self.stop, other.stop):
            return False  # also where one of them is empty
        if not self.steps and not other.steps:
            return True
        # A piece of ours begins at self.start + sum of k·step with k < count, one of theirs likewise. They meet if
        # theirs begins less than our width behind ours, or ours less than their width behind theirs.
        ways: dict[int, tuple[int, int]] = {}  # by step: from how many to how many of it the two may lie apart
        for count, step in self.steps:
            low, high = ways.get(step, (0, 0))
            ways[step] = (low - count + 1, high)
        for count, step in other.steps:
            low, high = ways.get(step, (0, 0))
            ways[step] = (low, high + count - 1)
        terms = [(step, *ways[step]) for step in sorted(ways, reverse=True)]
        apart = other.start - self.start
        return _reaches(terms, 1 - other.width - apart, self.width - 1 - apart)


def _reaches(terms: list[tuple[int, int, int]], low: int, high: int) -> bool:
    """Say whether some sum of k·step, with a whole number first <= k <= last for each term, lies in low..high."""
    if not terms:
        return low <= 0 <= high
    if not _has_multiple(math.gcd(*(step for step, _, _ in terms)), low, high):
        return False
    (step, first, last), *others = terms
    least = sum(other * begin for other, begin, _ in others)
    most = sum(other * end for other, _, end in others)
    # For any other k the sum stays out of reach, whatever the smaller steps do. In the views of one tensor a step is
    # larger than all that the smaller ones span, so that one or two k are left.
    begin = max(first, -((most - low) // step))
    end = min(last, (high - least) // step)
    return any(_reaches(others, low - k * step, high - k * step) for k in range(begin, end + 1))


def _has_multiple(step: int, low: int, high: int) -> bool:
    return low <= high // step * step


def region_of(x: Tensor, block: str) -> Region:
    """Return the bytes that a tensor (of the CPU, with strides) has of its block."""
    width = x.element_size()
    start = int(x.storage_offset()) * width
    if x.numel() == 0:
        return Region(block, start, start)
    dimensions = [
        (step * width, count) for count, step in zip(x.shape, x.stride(), strict=True) if count > 1 and step > 0
    ]
    steps: list[tuple[int, int]] = []
    for step, count in sorted(dimensions):
        if not steps and step <= width:  # the pieces touch, or overlap: together they are one
            width += (count - 1) * step
        elif steps and step == steps[-1][0] * steps[-1][1]:  # it goes on at the same distance: one longer dimension
            steps[-1] = (steps[-1][0] * count, steps[-1][1])
        else:
            steps.append((count, step))
    stop = start + width + sum((count - 1) * step for count, step in steps)
    return Region(block, start, stop, tuple(reversed(steps)))
