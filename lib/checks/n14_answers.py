"""Right answers and famous wrong ones to the exercises of notebook 14."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

Order: TypeAlias = Callable[[int, int, int, int], list[str]]
Points: TypeAlias = Mapping[str, tuple[float, float]]
Choose: TypeAlias = Callable[[Points, float], str | None]

# ---- exercise 1: tables placed by hand, m = 4, n = 3

RIGHT = """
rank 0  0F0 0F1 0F2 .   .   0B0 0F3 0B1 0B2 0B3
rank 1  .   1F0 1F1 .   1B0 1F2 1B1 1F3 1B2 1B3
rank 2  .   .   2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
GPIPE = """
rank 0  0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3
rank 1  1F0 1F1 1F2 1F3 1B0 1B1 1B2 1B3
rank 2  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3
"""
ONE_SHORT = """
rank 0  0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3
rank 1  1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3
rank 2  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
DEADLOCK = """
rank 0  0F0 0B0 0F1 0F2 0F3 0B1 0B2 0B3
rank 1  1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
rank 2  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3
"""
LACKS = RIGHT.replace("0B3", "").replace("1B3", "").replace("2B3", "")

# ---- exercise 2: the order of a rank that may hold `limit`


def true_order(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Go min(n - rank, limit, m) forwards ahead, then one backward, one forward in turn."""
    return _order(rank, micro_batches, min(partitions - rank, limit))


def _order(rank: int, m: int, ahead: int) -> list[str]:
    ahead = min(ahead, m)
    order = [f"{rank}F{i}" for i in range(ahead)]
    for i in range(m):
        order.append(f"{rank}B{i}")
        if i + ahead < m:
            order.append(f"{rank}F{i + ahead}")
    return order


def without_limit(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Ignore the limit (wrong)."""
    return _order(rank, micro_batches, partitions - rank)


def same_for_all(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Let every rank go as far ahead as rank 0 (wrong)."""
    return _order(rank, micro_batches, min(partitions, limit))


def one_short(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Go one forward too few ahead (wrong)."""
    return _order(rank, micro_batches, max(1, min(partitions - 1 - rank, limit)))


def all_first(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Do all forwards first, as GPipe (wrong)."""
    return _order(rank, micro_batches, micro_batches)


def forward_first(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """After the warm-up do a forward before each backward: one too many is held (wrong)."""
    return _order(rank, micro_batches, min(partitions - rank, limit) + 1)


def beyond(rank: int, micro_batches: int, partitions: int, limit: int) -> list[str]:
    """Do not stop at the last micro-batch (wrong)."""
    ahead = min(partitions - rank, limit)
    order = [f"{rank}F{i}" for i in range(ahead)]
    for i in range(micro_batches):
        order += [f"{rank}B{i}"] + [f"{rank}F{i + ahead}"] * (i + ahead < max(micro_batches, ahead))
    return order


ORDER_MISTAKES: dict[str, Order] = {
    "The limit is not in it: rank 0 still holds n.": without_limit,
    "Every rank goes as far ahead as rank 0; rank j needs n - j only, its gradient comes back sooner.": same_for_all,
    "One forward too few ahead: the rank then waits for its first gradient.": one_short,
    "All forwards first: that is GPipe, and holds m.": all_first,
    "A forward before each backward: one more is held than allowed. Let go first.": forward_first,
    "There are only m micro-batches, also to go ahead with.": beyond,
}

# ---- exercise 3: the fastest within a limit


def true_choose(points: Points, limit: float) -> str | None:
    """Return the fastest that holds at most `limit`, of equally fast ones the smallest; None if there is none."""
    allowed = {name: point for name, point in points.items() if point[1] <= limit}
    return min(allowed, key=lambda name: allowed[name], default=None)


def ignores_limit(points: Points, limit: float) -> str | None:
    """Take the fastest of all (wrong)."""
    return min(points, key=lambda name: points[name], default=None)


def smallest(points: Points, limit: float) -> str | None:
    """Take the smallest (wrong)."""
    allowed = {name: point for name, point in points.items() if point[1] <= limit}
    return min(allowed, key=lambda name: allowed[name][::-1], default=None)


def strictly_below(points: Points, limit: float) -> str | None:
    """Leave out the one that just fits (wrong)."""
    allowed = {name: point for name, point in points.items() if point[1] < limit}
    return min(allowed, key=lambda name: allowed[name], default=None)


def fullest(points: Points, limit: float) -> str | None:
    """Take the one that uses most of the memory (wrong)."""
    allowed = {name: point for name, point in points.items() if point[1] <= limit}
    return max(allowed, key=lambda name: (allowed[name][1], -allowed[name][0]), default=None)


CHOICE_MISTAKES: dict[str, Choose] = {
    "The fastest of all: does it fit?": ignores_limit,
    "The smallest that fits is not always the fastest that fits.": smallest,
    "One that holds exactly the limit still fits.": strictly_below,
    "More memory used is not more speed.": fullest,
}
