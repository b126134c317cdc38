"""Rows for ranks of unequal speed: what is wrong with shares, and well-known ways to deal that are not the best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from numbers import Integral, Real
from random import Random
from typing import Any

from lib.text import plural
from support.kit.ending import ending
from support.kit.values import kind_of
from support.n00.solved import my_deal


def deals_by_chance(seed: int, count: int) -> list[tuple[int, list[int]]]:
    """Make deals of a few rows to two to six ranks: where a row more or less is a good part of a share."""
    chance = Random(seed)
    return [
        (chance.randint(1, 30), [chance.randint(1, 20) for _ in range(chance.randint(2, 6))])
        for _ in range(count)
    ]


#: Rows, the speed of each rank.
DEAL_CASES: list[tuple[int, list[int]]] = [
    (12, [2, 2, 2, 2]),
    (11, [4, 7, 2]),
    (12, [2, 2, 2, 1]),
    (5, [1, 1, 2]),
    (10, [3, 3, 3, 1]),
    (8, [3, 3, 3]),
    (2, [6, 14]),
    (23, [1, 4, 9, 16]),
    (3, [1, 10]),
    (1, [3, 4]),
    (0, [1, 2]),
    (2, [6, 8]),
    (2, [4, 5]),
    (8, [1, 1, 1, 5, 1, 5]),  # both fast ranks have room for more than their share rounded up
    (3, [2]),
    (199, [1, 200]),  # the slow rank's first row would end last by a two-hundredth
    (201, [1, 200]),  # and now it would not
    (1, [1000, 1001]),  # two ends that nearly coincide
    (1, [1001, 1000]),
    (9, [4, 8, 4, 4, 8, 4, 4, 4]),  # rounded down, all nine rows but one are left over
    (11, [1, 1, 1, 12, 1, 1]),  # rounded down, the fast rank has room for four rows more
    (2, [9_999, 10_000]),  # and to end later by a thousandth is much too late
    (4096, [3, 1]),  # as many rows as the notebook deals
    *deals_by_chance(seed=8, count=50),
]

LINES = 5_000_000  # of an answer, which may try all shares of a few rows; beyond, its loop does not end

_dealt: Callable[[int, Sequence[float]], list[int]] = my_deal


def _last_end(shares: Sequence[int], speeds: Sequence[int]) -> Fraction:
    return max(Fraction(int(share), speed) for share, speed in zip(shares, speeds, strict=True))


def _ticks(time: Fraction) -> str:
    return f"{float(time):.4g} tick{'s' * (time != 1)}"


class NoList(str):
    """What kind of thing an answer has given in place of a list."""


def dealt_as_a_list(answer: Callable[..., Any]) -> Callable[..., Any]:
    """Turn an answer into the function of a case: of what only looks like a list once it is gone through, the kind."""

    def dealt(rows: int, speeds: list[int]) -> Any:  # positional: whatever the reader calls them
        shares = ending(answer, rows, speeds, lines=LINES + len(speeds) * rows**2)
        if shares is None or isinstance(shares, Sequence) or hasattr(shares, "tolist"):
            return shares
        return NoList(kind_of(shares))

    return dealt


def badly_dealt(got: Any, expected: Sequence[int], case: Mapping[str, Any]) -> str:
    """Say what is wrong with the shares; "" if no other shares would end sooner."""
    rows = case["rows"]
    speeds = case["speeds"]
    if not isinstance(got, list):
        kind = got if isinstance(got, NoList) else kind_of(got)
        return f"a list of {plural(len(speeds), 'share')} expected, not {kind}"
    if len(got) != len(speeds):
        return f"the list has {plural(len(got), 'share')} for {plural(len(speeds), 'rank')}"
    for rank, share in enumerate(got):
        if isinstance(share, bool) or not isinstance(share, Real) or share % 1 or share < 0:
            return f"rank {rank} gets {share!r} rows: a share is a whole number, 0 or more"
        if not isinstance(share, Integral):
            return f"rank {rank} gets {share!r} rows: that is a {type(share).__name__}, and rows are counted by an int"
    if sum(got) != rows:
        return f"the shares {got} are {sum(got)} rows together, not {rows}"
    mine = _last_end(got, speeds)
    best = _last_end(expected, speeds)
    if mine > best:
        return f"with the shares {got} the last rank ends after {_ticks(mine)}; it could end after {_ticks(best)}"
    return ""


def rounded_down(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded down: rows are left over."""
    return [rows * speed // sum(speeds) for speed in speeds]


def dealt_equally(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal without a look at the speeds."""
    return [rows // len(speeds) + (rank < rows % len(speeds)) for rank in range(len(speeds))]


def rounded(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded: the sum may be another."""
    return [round(rows * speed / sum(speeds)) for speed in speeds]


def uncut(rows: int, speeds: Sequence[int]) -> list[float]:
    """Deal by speed, parts of rows, too."""
    return [rows * speed / sum(speeds) for speed in speeds]


def rest_to(choose: Callable[[int, Sequence[int]], int]) -> Callable[[int, Sequence[int]], list[int]]:
    """Deal by speed, rounded down, and give all rows that are left over to one rank."""

    def dealt(rows: int, speeds: Sequence[int]) -> list[int]:
        shares = rounded_down(rows, speeds)
        shares[choose(rows, speeds)] += rows - sum(shares)
        return shares

    return dealt


def rest_to_the_first(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded down, and give what is left to the first ranks, a row each."""
    shares = rounded_down(rows, speeds)
    left = rows - sum(shares)
    return [share + (rank < left) for rank, share in enumerate(shares)]


def largest_remainders(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded down, and give what is left to those who have lost most."""
    shares = rounded_down(rows, speeds)
    remainders = [rows * speed % sum(speeds) for speed in speeds]
    first = sorted(range(len(speeds)), key=lambda rank: -remainders[rank])
    for rank in first[: rows - sum(shares)]:
        shares[rank] += 1
    return shares


def rest_to_the_fastest(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded down, and give what is left to the fastest ranks, a row each."""
    return _one_more(rows, speeds, lambda share, speed: -speed)


def rest_by_next_end(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded down, and give what is left to those who would do one row more first, a row each."""
    return _one_more(rows, speeds, lambda share, speed: (share + 1) / speed)


def _one_more(rows: int, speeds: Sequence[int], key: Callable[[int, int], float]) -> list[int]:
    shares = rounded_down(rows, speeds)
    first = sorted(range(len(speeds)), key=lambda rank: key(shares[rank], speeds[rank]))
    for rank in first[: rows - sum(shares)]:
        shares[rank] += 1
    return shares


def rounded_up(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded up, and take what is too much from the last ranks."""
    shares = [-(-rows * speed // sum(speeds)) for speed in speeds]
    for rank in reversed(range(len(speeds))):
        shares[rank] -= min(shares[rank], sum(shares) - rows)
    return shares


def nearest_and_the_last_the_rest(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by speed, rounded, and give the last rank what the others leave."""
    shares = rounded(rows, speeds)[:-1]
    return [*shares, rows - sum(shares)]


def all_to_the_fastest(rows: int, speeds: Sequence[int]) -> list[int]:
    """Let the fastest rank do everything."""
    fastest = speeds.index(max(speeds))
    return [rows if rank == fastest else 0 for rank in range(len(speeds))]


def free_first(rows: int, speeds: Sequence[int]) -> list[int]:
    """Give each row to the rank that has the least to do."""
    shares = [0 for _ in speeds]
    for _ in range(rows):
        busy = [share / speed for share, speed in zip(shares, speeds, strict=True)]
        shares[busy.index(min(busy))] += 1
    return shares


def half_done(rows: int, speeds: Sequence[int]) -> list[int]:
    """Give each row to the rank that would be half done with it first."""
    shares = [0 for _ in speeds]
    for _ in range(rows):
        halves = [(share + 0.5) / speed for share, speed in zip(shares, speeds, strict=True)]
        shares[halves.index(min(halves))] += 1
    return shares


def found_by_speed(rows: int, speeds: Sequence[int]) -> list[int]:
    """Choose a speed for each row, and give it to the first rank of that speed."""
    shares = [0 for _ in speeds]
    for _ in range(rows):
        chosen = min(speeds, key=lambda speed: (shares[speeds.index(speed)] + 1) / speed)
        shares[speeds.index(chosen)] += 1
    return shares


def more_to_the_slow(rows: int, speeds: Sequence[int]) -> list[int]:
    """Deal by slowness."""
    return _dealt(rows, [1 / speed for speed in speeds])
