"""Right answers and famous wrong ones to the exercises of notebook 08."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import TypeAlias

from lib.pipeline import clock_cycles
from lib.pipeline.schedule import Action, Schedule, one_f_one_b

Pair: TypeAlias = tuple[int, int]
Clocks: TypeAlias = Callable[[int, int], Iterable[Iterable[Pair]]]

# ---- exercise 1: clock_cycles


def true_clock_cycles(m: int, n: int) -> Iterator[list[Pair]]:
    """Yield the pairs of each clock: those with i + j = k."""
    return clock_cycles(m, n)


def one_pair_a_clock(m: int, n: int) -> Iterator[list[Pair]]:
    """Let a micro-batch pass all partitions before the next starts: model parallelism (wrong)."""
    return ([(i, j)] for i in range(m) for j in range(n))


def partition_by_partition(m: int, n: int) -> Iterator[list[Pair]]:
    """Let all micro-batches pass a partition before the next one starts (wrong)."""
    return ([(i, j)] for j in range(n) for i in range(m))


def all_at_once(m: int, n: int) -> Iterator[list[Pair]]:
    """Let all partitions work on the same micro-batch at the same time (wrong)."""
    return ([(k, j) for j in range(n)] for k in range(m))


def one_clock_short(m: int, n: int) -> Iterator[list[Pair]]:
    """Forget the last clock (wrong)."""
    return (clock for k, clock in enumerate(clock_cycles(m, n)) if k < m + n - 2)


def one_clock_long(m: int, n: int) -> Iterator[list[Pair]]:
    """Add a clock in which nothing runs (wrong)."""
    yield from clock_cycles(m, n)
    yield []


def only_m_clocks(m: int, n: int) -> Iterator[list[Pair]]:
    """Stop when the first partition is done (wrong)."""
    return (clock for k, clock in enumerate(clock_cycles(m, n)) if k < m)


def no_lower_bound(m: int, n: int) -> Iterator[list[Pair]]:
    """Let j begin at 0 in every clock, so that micro-batches beyond the last appear (wrong)."""
    return ([(k - j, j) for j in range(min(k + 1, n))] for k in range(m + n - 1))


def no_upper_bound(m: int, n: int) -> Iterator[list[Pair]]:
    """Let j run on to k, so that partitions beyond the last appear (wrong)."""
    return ([(k - j, j) for j in range(max(0, k - m + 1), k + 1)] for k in range(m + n - 1))


def no_bounds(m: int, n: int) -> Iterator[list[Pair]]:
    """Take every j in every clock, so that negative micro-batches appear (wrong)."""
    return ([(k - j, j) for j in range(n)] for k in range(m + n - 1))


def swapped(m: int, n: int) -> Iterator[list[Pair]]:
    """Give (j, i) (wrong)."""
    return ([(j, i) for i, j in clock] for clock in clock_cycles(m, n))


def backwards(m: int, n: int) -> Iterator[list[Pair]]:
    """Begin with the last clock (wrong: that is how backward goes)."""
    return reversed(list(clock_cycles(m, n)))


def last_partition_first(m: int, n: int) -> Iterator[list[Pair]]:
    """Let micro-batches enter at the last partition (wrong)."""
    return ([(i, n - 1 - j) for i, j in clock] for clock in clock_cycles(m, n))


CLOCK_MISTAKES: dict[str, Clocks] = {
    "That is model parallelism: one pair a clock, one device busy at a time. Pairs with the same i + j can share a "
    "clock.": one_pair_a_clock,
    "One partition after the other: pairs with the same i + j can share a clock.": partition_by_partition,
    "All partitions take the same micro-batch at once: but partition 1 needs what 0 computes.": all_at_once,
    "The last clock is missing: range(k) ends at k - 1, and there are m + n - 1 clocks.": one_clock_short,
    "One clock too many: there are m + n - 1.": one_clock_long,
    "You stop when partition 0 is done; the last micro-batch is still on its way: m + n - 1 clocks.": only_m_clocks,
    "i = k - j must stay below m: j starts at max(0, k - m + 1).": no_lower_bound,
    "j must stay below n: it ends before min(k + 1, n).": no_upper_bound,
    "i = k - j must be at least 0 and below m: not every j has a micro-batch in every clock.": no_bounds,
    "A pair is (micro-batch, partition), in this order.": swapped,
    "That is the order of backward: forward begins with pair (0, 0).": backwards,
    "Micro-batches enter at partition 0, not at the last one.": last_partition_first,
}


# ---- exercise 2: the fewest micro-batches


def fewest(partitions: int, share: Fraction) -> int:
    """Return the smallest m whose bubble is below `share`."""
    m = 1
    while Fraction(partitions - 1, m + partitions - 1) >= share:
        m += 1
    return m


# ---- exercise 3: which table can't run


def _rows(*lines: str) -> list[list[Action]]:
    return [[Action.parse(cell) for cell in line.split()] for line in lines]


TABLES = {
    "A": Schedule("A", _rows("0F0 0F1 0F2 0B2 0B1 0B0", "1F0 1F1 1F2 1B2 1B1 1B0")),
    "B": Schedule("B", one_f_one_b(3, 2).compact().ranks),
    "C": Schedule("C", _rows("0F0 0F1 0F2 0B1 0B0 0B2", "1F1 1B1 1F0 1B0 1F2 1B2")),
    "D": Schedule("D", _rows("0F0 0B0 0F1 0F2 0B1 0B2", "1F0 1F1 1B0 1B1 1F2 1B2")),
}
"""Four tables of 3 micro-batches on 2 ranks; one of them can't run."""

LEGAL = {
    "A": "A goes back in the opposite order, the last micro-batch first. torchgpipe does that; it is legal.",
    "B": "B is 1F1B; it is legal.",
    "C": "C takes micro-batches in an odd order, but each action finds what it needs: 1F1 waits for 0F1, no more.",
}
