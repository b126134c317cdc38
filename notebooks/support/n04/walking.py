"""Exercise 5 of notebook 04: how many calls of a network an answer needs for its walks; what walking costs by t(s)."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from lib.data.permutation import Ids
from lib.text import plural
from support.kit.raised import Finding, in_case
from support.kit.values import NO_RETURN, short
from support.n04.network import few_lines, no_end

Network: TypeAlias = Callable[[Ids], Ids]
Walk: TypeAlias = Callable[[Ids, int, Network, int], Any]

#: Numbers, bits of the network, block: one pass enough, a few, many; one id; a block larger than all.
CASES = [(64, 6, 16), (40, 6, 16), (600, 10, 64), (1100, 11, 8), (129, 8, 5), (1, 1, 4), (520, 10, 1000)]
#: A case once more, with a network in which one walk passes all places outside.
AGAIN = (129, 8, 5)
#: A share of 1,025 numbers: its ids are fewer than n, and no beginning.
SHARE = (1025, 11, 16)
RANKS = 8
#: One pass enough, and the last call not full: numbers, bits, block, ids.
NOT_FULL = (64, 6, 16, 47)
#: Few ids of many numbers, and the bytes that a walk may take for them: a table of all numbers takes 48 MiB.
FEW_OF_MANY = (3 * 2**21, 23, 8)
MOST_BYTES = 2**24
#: Ids and images that need more than 32 bits.
LARGE_NUMBERS = (3 * 2**31, 33, 8)

#: Lines of Python for the walks of a case; lists that are searched for each id take a half of it at most.
MOST_LINES_OF_A_CASE = 600_000

LARGE = "No call may hold more than block ids."
INSIDE = "Each id is to be walked until it is inside range(n)."
ORDER = "At a place of the result stands the image of the id at this place."
OWN = "The ids belong to whoever calls: leave them as they are."
MEMORY = "The numbers may be billions: memory is to be that of the ids."
EMPTY = "Such a call counts, too."
CALLS = "A call can take all ids that wait, up to block."
KEPT = "A result belongs to whoever has asked: later calls leave it as it is."
NO_IDS = "does each turn of its loop send ids through the network?"
WASTED = "Only ids that were asked for need go through, each until it is inside."


#: Processor time of this thread, which other processes disturb less; where it is too coarse, the time that passes.
IN_A_PAGE = sys.platform == "emscripten"  # there a thread has no clock of its own
FINE = not IN_A_PAGE and time.get_clock_info("thread_time").resolution < 1e-6
CLOCK = time.thread_time if FINE else time.perf_counter


class Counted:
    """A network that notes of each call how many ids it had, and how many seconds of CLOCK it took."""

    def __init__(self, network: Network, most: int | None = None, calls: int | None = None) -> None:
        self.network = network
        self.most = most
        self.calls = calls
        self.sizes: list[int] = []
        self.seconds: list[float] = []

    def __call__(self, ids: Any) -> Ids:
        """Send ids through. Raises Finding for more ids than allowed, or more calls than any walk needs."""
        if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or ids.ndim != 1:
            raise Finding(
                f"the network was given {short(ids)}; it takes a one-dimensional array of whole numbers."
            )
        if self.most is not None and len(ids) > self.most:
            raise Finding(
                f"the network was given {len(ids)} ids in one call, with block = {self.most}. {LARGE}"
            )
        if self.calls is not None and len(self.sizes) >= self.calls:
            raise Finding(
                f"the network was called {self.calls:,} times and it goes on: does a walk never come home?"
            )
        begin = CLOCK()
        images = self.network(ids.astype(np.int64))
        self.seconds.append(CLOCK() - begin)
        self.sizes.append(len(ids))
        return images


def scrambled(bits: int) -> Network:
    """Return a bijection of 2^bits places that mixes a little."""
    table = np.random.default_rng(bits).permutation(2**bits)
    return lambda ids: table[ids]


def moved(bits: int) -> Network:
    """Return a bijection of 2^bits places that needs no table: times an odd number, plus another."""
    return lambda ids: (ids * 0x12345677 + 0x9ABCDEF) % 2**bits


def turned(bits: int) -> Network:
    """Return the bijection of 2^bits places that leads from each place to the next."""
    return lambda ids: (ids + 1) % 2**bits


def walked_one_by_one(ids: Ids, n: int, network: Network) -> tuple[list[int], list[int]]:
    """Return the images, and how many passes each id needs."""
    images = []
    passes = []
    for start in ids.tolist():
        place = int(network(np.array([start]))[0])
        count = 1
        while place >= n:
            place = int(network(np.array([place]))[0])
            count += 1
        images.append(place)
        passes.append(count)
    return images, passes


def fault_of_walk(walk: Walk) -> str:
    """Say what is wrong with a walk, in the first case in which something is; "" if nothing."""
    kept: list[tuple[str, int, Any, list[int]]] = []
    for n, bits, block, network, ids in _asked():
        expected, passes = walked_one_by_one(ids, n, network)
        counted = Counted(network, most=block, calls=20 * sum(passes) + 100)
        case = f"for {len(ids)} ids, n = {n}, a network of {2**bits} places, block = {block}"
        given = ids.copy()
        too_many = no_end(f"{case},", MOST_LINES_OF_A_CASE, NO_IDS)
        with in_case(case), few_lines(MOST_LINES_OF_A_CASE, too_many):
            result, most = _with_memory(
                partial(walk, given, n, counted, block), len(ids) < n >= FEW_OF_MANY[0]
            )
        with in_case(case):
            fault = _fault_of_images(result, expected, n)
        if most > MOST_BYTES:
            return f"{case}, it takes {most / 2**20:,.0f} MiB. {MEMORY}"
        if fault:
            return f"{case}, {fault}"
        if not np.array_equal(given, ids):
            return f"{case}, the ids that it was given are others afterwards. {OWN}"
        fault = _fault_of_calls(counted.sizes, passes, block)
        if fault:
            return f"{case}, {fault}"
        kept.append((case, n, result, expected))
        for earlier, size, images, right in kept:
            if _fault_of_images(images, right, size):
                return f"{earlier}, the images were right, and are others after the next call. {KEPT}"
    return ""


def _fault_of_calls(sizes: list[int], passes: list[int], block: int) -> str:
    """Say why there were too many calls; "" if there were not."""
    # full calls for all passes, and at the ends of one or two parts as many as the longest walk still needs
    enough = -(-sum(passes) // block) + 2 * max(passes, default=0)
    empty = sizes.count(0)
    if len(sizes) <= enough:
        return ""
    told = f"the network was called {plural(len(sizes), 'time')}; {plural(enough, 'call')} would do."
    if len(sizes) - empty <= enough:
        return f"{told} Without ids: {empty}. {EMPTY}"
    if sum(sizes) > sum(passes):
        return f"{told} {sum(sizes)} ids went through it, for {sum(passes)} passes. {WASTED}"
    return f"{told} {CALLS}"


def _with_memory(asked: Callable[[], Any], wanted: bool) -> tuple[Any, int]:
    """Return the result, and the most bytes that were held at once; 0 where nobody wants to know."""
    if not wanted or tracemalloc.is_tracing():
        return asked(), 0
    tracemalloc.start()
    try:
        return asked(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _asked() -> Iterator[tuple[int, int, int, Network, Ids]]:
    """Give the cases with network and ids: all of range(n) in some order, a share of it, a few of many, none."""
    for n, bits, block in CASES:
        yield n, bits, block, scrambled(bits), np.random.default_rng(n).permutation(n)
    n, bits, block = SHARE
    yield n, bits, block, scrambled(bits), np.arange(0, n, RANKS)
    n, bits, block, count = NOT_FULL
    yield n, bits, block, scrambled(bits), np.random.default_rng(n).permutation(n)[:count]
    n, bits, block = AGAIN
    yield n, bits, block, turned(bits), np.random.default_rng(n).permutation(n)
    for n, bits, block in (FEW_OF_MANY, LARGE_NUMBERS):
        yield n, bits, block, moved(bits), np.random.default_rng(n).integers(n, size=40)
    yield n, bits, block, moved(bits), np.arange(0)


def _fault_of_images(result: Any, expected: list[int], n: int) -> str:
    if result is None:
        return f"your function {NO_RETURN}."
    if (
        not isinstance(result, np.ndarray)
        or result.ndim != 1
        or (result.size and result.dtype.kind not in "iu")
    ):
        return f"it gives {short(result)}, not an array of {len(expected)} whole numbers."
    if len(result) != len(expected):
        return f"it gives {len(result)} numbers, not {len(expected)}."
    outside = result[result >= n]
    if len(outside):
        return f"{outside[0]} is among the images. {INSIDE}"
    for place, (mine, right) in enumerate(zip(result.tolist(), expected, strict=True)):
        if mine != right:
            return f"at place {place} stands {mine}, not {right}. {ORDER}"
    return ""


TRIED = 140_000  # ids, just beyond 2^17 and so with two passes each
PATIENCE = 1.0  # seconds for them; a walk in arrays takes some hundredths


def fit_for_a_million(walk: Walk, ours: Walk) -> Walk:
    """Return the reader's walk if it can be measured on a million ids, otherwise ours, and say so.

    A walk that takes its ids one by one from a list is right, and may take minutes for a million.
    """
    for halved in reversed(range(7)):  # who searches a list takes minutes for all
        tried = TRIED >> halved
        begin = CLOCK()
        walk(np.arange(tried), tried, Counted(scrambled(tried.bit_length())), 4096)
        seconds = CLOCK() - begin
        if seconds > PATIENCE:
            print(
                f"yours is right and takes {seconds:.1f} s for {tried:,} ids: what follows is measured with ours"
            )
            return ours
    return walk


def line_of(counted: Counted, few: int = 100) -> tuple[float, float]:
    """Return a and b of t(s) = a + b·s, as the calls of a network had it: by its calls of a few ids and its largest.

    Raises ValueError where all calls were small, or none.
    """
    largest = max(counted.sizes, default=0)
    if largest <= few or min(counted.sizes) > few:
        raise ValueError(f"a line needs calls of up to {few} ids, and of more")
    noted = list(zip(counted.sizes, counted.seconds, strict=True))
    small = [(size, seconds) for size, seconds in noted if size <= few]
    size = float(np.mean([size for size, _ in small]))
    low = float(np.median([seconds for _, seconds in small]))
    high = float(np.median([seconds for size, seconds in noted if size == largest]))
    b = (high - low) / (largest - size)
    return low - b * size, b
