"""Exercise 3 of notebook 04: the histories that a resume rule is asked about, and what its answers must hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any, TypeAlias

from support.kit.judged import Fault
from support.kit.raised import in_case
from support.kit.values import NO_RETURN, short
from support.n04 import solved
from support.n04.cutting import ALONE, MOST_LINES, NEARER, runs_of
from support.n04.network import few_lines, no_end

RunOfAJob: TypeAlias = tuple[int, int, int]
"""Ranks, batch size, steps."""
Resume: TypeAlias = Callable[[int, list[RunOfAJob], int, int], Any]

right_resume: Resume = solved.resume

#: Size and history: one rule decides in each of the first.
HISTORIES: list[tuple[int, list[RunOfAJob]]] = [
    (38, [(4, 2, 3)]),  # ranks, steps, what is used, what is left: no two are alike
    (36, [(4, 2, 3)]),
    (36, []),
    (25, [(4, 2, 2)]),
    (36, [(4, 2, 3), (3, 1, 2)]),  # the second restart
    (25, [(4, 2, 4)]),  # beyond an epoch's end: the last step was shorter
    (24, [(4, 2, 3)]),  # at an epoch's end
    (25, [(4, 2, 5)]),
    (24, [(4, 2, 4)]),
    (10, [(3, 4, 5)]),  # one step is more than an epoch
    (300, [(8, 4, 38), (6, 4, 1)]),
    (26, [(4, 2, 3)]),  # fewer are left than there are ranks
    (27, [(4, 2, 3)]),
    (36, [(4, 2, 3), (3, 1, 0), (2, 1, 2), (3, 1, 1)]),  # one run ended before its first step
    (10, [(3, 1, 2), (4, 1, 1), (3, 1, 2)]),  # a run comes again, and another between
    (10, [(5, 1, 1), (3, 1, 2), (2, 1, 1)]),  # as many runs as before, others: nothing is kept between calls
]
WORLDS = (5, 3, 4, 2, 1, 12)


def _drawn_histories(count: int = 40) -> Iterator[tuple[int, list[RunOfAJob]]]:
    """Draw small jobs, in which a run may begin and end anywhere in an epoch."""
    random = Random(0)
    for _ in range(count):
        runs = [(random.randint(1, 4), random.randint(1, 3), random.randint(0, 6)) for _ in range(3)]
        yield random.randint(1, 15), runs


HISTORIES += _drawn_histories()

PAIR = "Return two things, the epoch and the list of positions, all of them whole numbers."
AGAIN = "What the runs have used of this epoch must not come again."
MISSING = "What is left of the epoch must all be given to somebody."
ONCE = "No position may be given twice, not even to make the shares equal."
EVEN = "Share what is left: no two ranks may differ by more than one position."
OTHERS = "Leave it as it is: the other ranks ask it, too."
TURNS = "Whenever this run is stopped, what is used must again be a prefix of the order, without holes."


def fault_of_resume(resume: Resume) -> str:
    """Say what is wrong with a rule, in the first case in which something is; "" if nothing."""
    seen: list[Any] = []
    for size, runs in HISTORIES:
        for world_size in WORLDS:
            case = f"resume({size}, {short(runs)}, {world_size}, rank)"
            dealt = []
            for rank in reversed(range(world_size)):  # nobody can wait for rank 0 to ask first
                history = list(runs)
                too_many = no_end(f"for {case}, rank = {rank},", MOST_LINES, NEARER)
                with in_case(f"for {case}, rank = {rank}"), few_lines(MOST_LINES, too_many):
                    given = resume(size, history, world_size, rank)
                    dealt.append(_as_pair(given))
                    again = _as_pair(resume(size, list(runs), world_size, rank))
                seen.append(dealt[-1] or short(given))
                if given is None:
                    return f"for {case}, rank = {rank}, your function {NO_RETURN}."
                if dealt[-1] is None:
                    return f"for {case}, rank = {rank}, it gives {short(given)}. {PAIR}"
                if history != runs:
                    return (
                        f"for {case}, the history that it was given is {short(history)} afterwards. {OTHERS}"
                    )
                if again != dealt[-1]:
                    return f"for {case}, rank = {rank}, it gives {dealt[-1]}, then {again}. {ALONE}"
            fault = _fault_of_deal([pair for pair in dealt[::-1] if pair], size, runs, world_size)
            if fault:
                return Fault(f"for {case}, {fault}", seen)
    return ""


def _as_pair(given: Any) -> tuple[int, list[int]] | None:
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        return None
    epoch, positions = given
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__"):
        return None
    try:
        positions[:0]  # section 3 cuts each list into batches
        return int(epoch.__index__()), [int(place.__index__()) for place in positions]
    except (TypeError, AttributeError, KeyError):
        return None


def _fault_of_deal(
    dealt: list[tuple[int, list[int]]], size: int, runs: list[RunOfAJob], world_size: int
) -> str:
    """Hold epochs and positions of all ranks against what is left."""
    right_epoch, rest = right_resume(size, runs, 1, 0)
    for rank, (epoch, _) in enumerate(dealt):
        if epoch != right_epoch:
            return f"rank {rank} is in epoch {epoch}; the runs have come to epoch {right_epoch}."
    shares = [positions for _, positions in dealt]
    for rank, positions in enumerate(shares):
        strange = sorted(set(positions) - set(rest))
        if strange and strange[0] < 0:
            return f"rank {rank} gets {short(positions)}. There is no position {strange[0]}."
        if strange:
            told = f"rank {rank} gets {short(positions)}; what is left is {rest[0]} to {size - 1}"
            return f"{told}. {AGAIN}" if strange[0] < rest[0] else f"{told}."
    places = [place for positions in shares for place in positions]
    if len(places) > len(set(places)):
        twice = min(place for place in places if places.count(place) > 1)
        return f"position {twice} comes {places.count(twice)} times. {ONCE}"
    if set(rest) - set(places):
        return f"nobody gets {runs_of(set(rest) - set(places))}. {MISSING}"
    for turn in range(max(map(len, shares))):
        taken = [place for positions in shares for place in positions[: turn + 1]]
        if sorted(taken) != rest[: min(len(rest), (turn + 1) * world_size)]:
            if sorted(taken) == rest[: len(taken)]:
                return f"the ranks get {short(list(map(len, shares)))} positions. {EVEN}"
            told = f"its first {turn + 1}" if turn else "its first position"
            return f"once each rank has used {told}, or all that it has, {runs_of(taken)} are used. {TURNS}"
    return ""


def one_piece(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal what is left by contiguous pieces."""
    length = -(-len(rest) // world_size)
    return rest[rank * length :][:length]


def padded_deal(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal by stride, and repeat the first ones until all have the same number."""
    missing = -len(rest) % world_size
    return (rest + rest[:missing])[rank::world_size]


def even_deal(rest: list[int], world_size: int, rank: int) -> list[int]:
    """Deal by stride, and drop the last ones until all have the same number."""
    kept = len(rest) // world_size * world_size
    return rest[:kept][rank::world_size]
