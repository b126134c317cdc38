"""Exercise 1 of notebook 04: whether an answer cuts an order so that a job can stop anywhere, and reads few pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from support.kit.raised import in_case
from support.kit.values import NO_RETURN, short
from support.n04.network import few_lines, no_end

MyBatches: TypeAlias = Callable[[int, int, int, int], Any]
BatchesOfARank: TypeAlias = list[list[int]]
"""The batches of one rank: for each step its positions."""

# The file of section 1: digits of 64 bytes in pages of 4 KiB, read by 8 ranks in batches of 32.
DIGITS = 1797
ROWS_OF_A_PAGE = 64
RANKS = 8
BATCH = 32
MOST_PAGES = 64

#: Size, ranks, batch size: whole steps first, then a short last step, one that not every rank has a part in, one rank.
_CASES = [
    (24, 3, 2),
    (12, 2, 3),
    (25, 3, 2),
    (28, 4, 3),
    (10, 3, 3),
    (38, 4, 6),
    (3, 8, 2),
    (7, 1, 3),
    (1, 1, 1),
    (10, 4, 1),
    (40, 12, 3),
    # shares by floats are rounded wrong here
    (29, 7, 6),
    (61, 7, 16),
    (55, 11, 6),
    (77, 11, 8),
]

#: Lines of Python for one call; who tries all positions at each step runs some hundred thousand.
MOST_LINES = 2_000_000

FORM = "What is asked for is a list of batches, one for each step, and each batch is a list of positions."
STEPS = "All ranks wait for each other in every step, so all must take equally many."
LARGER = "No batch may hold more than batch_size."
ONCE = "Every position belongs to one batch of one rank."
NOBODYS = "Every position belongs to somebody: nothing is dropped."
STRANGERS = "There are only the positions 0 to size - 1."
SHORT = "Only the last step may be short: batch_size is what a rank takes in the others."
IDLE = "A step is only made while there is something to read."
HOLE = "Whenever the job stops, what is used must be a prefix of the order, so that one number tells it."
EVEN = "In the last step, too, the ranks share the work: no two may differ by more than one."
ALONE = "A rank asks in a process of its own: the same question must have the same answer."
NEARER = "does each turn of its loop come nearer to the end?"
PAGES = f"At most {MOST_PAGES} pages are to be read. Which rows of a batch lie in one page?"


def fault_of_batches(my_batches: MyBatches) -> str:
    """Say what is wrong with a cut, in the first case in which something is; "" if nothing."""
    for size, world_size, batch_size in [*_CASES, (DIGITS, RANKS, BATCH)]:
        case = f"size = {size}, world_size = {world_size}, batch_size = {batch_size}"
        ranks = []
        for rank in reversed(range(world_size)):  # nobody can wait for rank 0 to ask first
            too_many = no_end(f"for {case}, rank = {rank},", MOST_LINES, NEARER)
            with in_case(f"for {case}, rank = {rank}"), few_lines(MOST_LINES, too_many):
                given = my_batches(size, world_size, rank, batch_size)
                batches = _as_batches(given)
                again = _as_batches(my_batches(size, world_size, rank, batch_size))
            if given is None:
                return f"for {case}, rank = {rank}, your function {NO_RETURN}."
            if batches is None:
                return f"for {case}, rank = {rank}, it gives {short(given)}. {FORM}"
            if again != batches:
                return f"for {case}, rank = {rank}, it gives {short(batches)}, then {short(again)}. {ALONE}"
            ranks.append(batches)
        fault = _fault_of_ranks(ranks[::-1], size, batch_size)
        if fault:
            return f"for {case}, {fault}"
    return _fault_of_pages(my_batches)


def pages_of(places: Iterable[int], rows_of_a_page: int = ROWS_OF_A_PAGE) -> set[int]:
    """Return the pages in which rows lie."""
    return {place // rows_of_a_page for place in places}


def _as_batches(given: Any) -> BatchesOfARank | None:
    """Return what was given as lists of ints; None if it is something else."""
    if given is None or isinstance(given, (str, bytes, int, float, dict, set)):
        return None
    try:
        batches = [list(map(_as_position, batch)) for batch in given]
    except (TypeError, AttributeError):
        return None
    return batches


def _as_position(value: Any) -> int:
    """Return a Python int, also of a number of numpy or torch. Raises TypeError or AttributeError for others."""
    if isinstance(value, (bool, str)):
        raise TypeError(value)
    return int(value.__index__())


def _fault_of_ranks(ranks: Sequence[BatchesOfARank], size: int, batch_size: int) -> str:
    """Say what is wrong with the batches of all ranks; the fault that explains most comes first."""
    for rank, batches in enumerate(ranks):
        for step, batch in enumerate(batches):
            if len(batch) > batch_size:
                return f"rank {rank} takes {short(batch)} in step {step}. {LARGER}"
    fault = _fault_of_coverage(ranks, size)
    if fault:
        return fault
    counts = [len(batches) for batches in ranks]
    if len(set(counts)) > 1:
        return f"the ranks take {short(counts)} steps. {STEPS}"
    used: set[int] = set()
    last = counts[0] - 1
    for step in range(last + 1):
        batches = [batches[step] for batches in ranks]
        lengths = [len(batch) for batch in batches]
        if step < last and min(lengths) < batch_size:
            return f"in step {step} of {last + 1} the ranks take {short(lengths)} positions. {SHORT}"
        if max(lengths) == 0:
            return f"in the last step nobody takes anything. {IDLE}"
        used.update(place for batch in batches for place in batch)
        if used != set(range(len(used))):
            return f"after step {step} the ranks have used {runs_of(used)}. {HOLE}"
        if max(lengths) - min(lengths) > 1:
            return f"in the last step the ranks take {short(lengths)} positions. {EVEN}"
    return ""


def _fault_of_coverage(ranks: Sequence[BatchesOfARank], size: int) -> str:
    times = Counter(place for batches in ranks for batch in batches for place in batch)
    strange = sorted(place for place in times if not 0 <= place < size)
    if strange:
        return f"somebody gets position {strange[0]}. {STRANGERS}"
    twice = sorted(place for place, count in times.items() if count > 1)
    if twice:
        return f"position {twice[0]} is used {times[twice[0]]} times. {ONCE}"
    missing = sorted(set(range(size)) - set(times))
    if missing:
        return f"nobody gets position {missing[0]}. {NOBODYS}"
    return ""


def _fault_of_pages(my_batches: MyBatches) -> str:
    total = 0
    for rank in range(RANKS):
        batches = _as_batches(my_batches(DIGITS, RANKS, rank, BATCH)) or []
        total += len(pages_of(place for batch in batches for place in batch))
    if total > MOST_PAGES:
        return f"of the file with {DIGITS} rows, {RANKS} ranks with batches of {BATCH} read {total} pages. {PAGES}"
    return ""


def runs_of(places: Iterable[int]) -> str:
    """Tell positions by their runs: "0 to 3, 8 to 11"."""
    told = []
    for first, last in pieces(places):
        told.append(str(first) if first == last else f"{first} to {last}")
    return ", ".join(told[:4]) + (" and more" if len(told) > 4 else "")


def pieces(places: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of neighbours among positions, each by its first and its last."""
    found: list[tuple[int, int]] = []
    for place in sorted(places):
        if found and place == found[-1][1] + 1:
            found[-1] = (found[-1][0], place)
        else:
            found.append((place, place))
    return found
