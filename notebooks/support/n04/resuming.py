"""Exercise 2 of notebook 04: the histories that a resume rule is asked about, and wrong ways to deal what is left."""

from __future__ import annotations

from typing import Any, TypeAlias

from support.kit.exercise import cases

RunOfAJob: TypeAlias = tuple[int, int, int]
"""Ranks, batch size, steps."""

_HISTORIES: list[tuple[int, list[RunOfAJob]]] = [
    (36, [(4, 2, 3)]),
    (36, []),
    (25, [(4, 2, 2)]),
    (36, [(4, 2, 3), (3, 1, 2)]),  # the second restart
    (24, [(4, 2, 3)]),  # at an epoch's end
    (24, [(4, 2, 4)]),
    (25, [(4, 2, 5)]),  # the last step of the epoch is shorter
    (25, [(4, 2, 3), (3, 2, 1), (2, 1, 2)]),
    (10, [(2, 1, 3), (3, 1, 7)]),
]


def resume_cases() -> list[dict[str, Any]]:
    """Return every history with 3, 4 and 2 ranks that go on, and each of them."""
    asked = [
        (size, runs, world_size, rank)
        for size, runs in _HISTORIES
        for world_size in (3, 4, 2)
        for rank in range(world_size)
    ]
    return cases("size runs world_size rank", asked)


def one_piece(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal what is left by contiguous pieces."""
    length = -(-len(rest) // world_size)
    return rest[rank * length :][:length]


def padded_deal(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal by stride, and repeat the first ones until all have the same number."""
    missing = -len(rest) % world_size
    return (rest + rest[:missing])[rank::world_size]


def by_remainder(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal each position to the rank that it had from the start of the epoch on."""
    return [position for position in rest if position % world_size == rank]


def even_deal(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal by stride, and drop the last ones until all have the same number."""
    kept = len(rest) // world_size * world_size
    return rest[:kept][rank::world_size]
