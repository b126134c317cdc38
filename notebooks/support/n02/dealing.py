"""How the stream of exercise 3 is tried: do all processes together read everything once, and the ranks equally much?"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from random import Random
from typing import Any

import torch

from support.kit.judged import Fault
from support.kit.raised import Finding, in_case
from support.kit.values import short
from support.n02.orders import MOST_OF_A_PASS, first_items
from support.n02.runs import as_worker

ALL = "Every process hands on the whole stream."
WORKERS = "The workers of a rank all hand on the same."
RANKS = "All ranks hand on the same."
ONCE = "All processes together must hand on each place of the stream once."
UNEVEN = "The ranks' shares may differ by one item and no more."
CHANGES = "A rank's share must not depend on how many workers it has."
LAZY = "The workers' shares of one rank may differ by one item and no more."
AHEAD = "An item is handed on when it is read, and before the next one."
END = "This stream has no end: hand on each item when it is read, and keep none."
AGAIN = "The second `for` reads something else: begin anew each time."
BROKEN_OFF = "After a pass that was broken off, the next `for` reads something else: begin anew each time."
VALUES = "Places count, and not what stands there, be it equal, empty, zero or None."
THING = "An item is handed on as the very thing that came."
TOGETHER = (
    "Two passes at once disturb each other: what a pass needs belongs to the pass, and not to the object."
)
NOTED = (
    "The object was read in the main process before it was copied to the workers, and what it noted there goes with "
    "each copy: keep nothing from one pass to the next."
)
LIST = "`read()` gives a list here."
MOST = 10_000
SIZES = (14, 13, 12, 2, 0)
#: Workers of a rank, those first that tell the famous mistakes apart.
WORKERS_OF_A_RANK = (2, 0, 1, 3)
_Kind = Callable[[Iterable[int]], Iterable[int]]
Shares = dict[tuple[int, int], list[list[int]]]  # by (rank, workers): the places that each worker reads


def value(place: int) -> int:
    """Return the item at a place of the stream: it is not the place."""
    return 10 * place + 3


def fault_of_dealing(answer: Any) -> str:
    """Deal streams over ranks and workers, and tell the first thing that is wrong."""
    shares = {
        (size, world): _shares(answer, size, world, WORKERS_OF_A_RANK)
        for world in (2, 3, 1)
        for size in SIZES
    }
    for (size, world), dealt in shares.items():
        said = next(_faults(dealt, size, world, WORKERS_OF_A_RANK), "")
        if said:
            return Fault(said, known_by=(said, shares))
    return (
        _fault_of_noting(answer)
        or _fault_of_lists(answer)
        or _fault_of_values(answer)
        or _fault_of_passing(answer)
        or _fault_of_larger_jobs(answer)
    )


def _fault_of_lists(answer: Any) -> str:
    """Deal lists, where the last round is not full and where there are fewer items than processes."""
    for size in (14, 2):
        shares = _shares(answer, size, 2, WORKERS_OF_A_RANK, list)
        said = next(_faults(shares, size, 2, WORKERS_OF_A_RANK), "")
        if said:
            return f"{LIST} {said}"
    return ""


def _fault_of_larger_jobs(answer: Any) -> str:
    """Deal to many ranks with many workers each, drawn by chance."""
    random = Random(0)
    for _ in range(20):
        world = random.randrange(1, 10)
        numbers = (random.randrange(4, 12), 0)
        size = random.randrange(MOST_OF_A_PASS)
        said = next(_faults(_shares(answer, size, world, numbers), size, world, numbers), "")
        if said:
            return said
    return ""


def _shares(answer: Any, size: int, world: int, numbers: Sequence[int], kind: _Kind = iter) -> Shares:
    return {
        (rank, workers): [
            _read(answer, size, world, rank, worker, workers, kind) for worker in range(max(1, workers))
        ]
        for rank in range(world)
        for workers in numbers
    }


def _read(answer: Any, size: int, world: int, rank: int, worker: int, workers: int, kind: _Kind) -> list[int]:
    """Return the places that one process of all reads; kind: list, or iter for a stream that is read once."""
    stream = answer(lambda: kind(map(value, range(size))), rank, world)
    place = f"worker {worker} of {workers}" if workers else "without workers"
    meanings = {} if workers else {"'NoneType' object has no": "get_worker_info() is None without workers."}
    if kind is list:
        meanings["not an iterator"] = LIST
    with (
        as_worker(worker, workers, dataset=stream),
        in_case(f"W = {world}, rank {rank}, {place}, a stream of {size}", meanings),
    ):
        got = first_items(stream)
        if len(got) == MOST_OF_A_PASS:  # who begins again for ever never comes back from an empty stream
            who = f"worker {worker} of rank {rank}" if workers else f"rank {rank} alone"
            raise Finding(f"{ONCE} {who.capitalize()} hands on {MOST_OF_A_PASS} items or more of {size}.")
        again = first_items(stream)
        next(iter(stream), None)
        after_a_break = first_items(stream)
        outer = (item for item in stream)  # begun once, as by `for`
        begun = [*islice(outer, 1)]
        inner = first_items(stream)
        around = [*begun, *islice(outer, MOST_OF_A_PASS - len(begun))]
    if got != again:
        raise Finding(f"{AGAIN} First {short(got)}, then {short(again)}.")
    if got != after_a_break:
        raise Finding(f"{BROKEN_OFF} First {short(got)}; after a pass of one item {short(after_a_break)}.")
    if got != inner or got != around:
        raise Finding(
            f"{TOGETHER} Alone one gives {short(got)}; two give {short(around)} and {short(inner)}."
        )
    known = {value(place): place for place in range(size)}
    if not all(item in known for item in got):
        raise Finding(f"What is handed on must come from the stream: it is {short(got)}.")
    return [known[item] for item in got]


def _faults(dealt: Shares, size: int, world: int, numbers: Sequence[int]) -> Iterator[str]:
    """Yield what is wrong with the shares of one stream, the plainest first; numbers: of workers in each rank."""
    everything = list(range(size))
    for workers in numbers:
        ranks = [dealt[rank, workers] for rank in range(world)]
        parts_of_all = [part for parts in ranks for part in parts]
        where = f"W = {world}, {workers} workers in each rank, a stream of {size}:"
        if size and len(parts_of_all) > 1 and all(part == everything for part in parts_of_all):
            yield f"{where} {ALL}"
        if workers > 1 and ranks[0][0] and all(part == parts[0] for parts in ranks for part in parts):
            yield f"{where} {WORKERS} All workers of rank 0 hand on the places {ranks[0][0]}."
        if world > 1 and size and all(parts == ranks[0] for parts in ranks):
            yield f"{where} {RANKS} Each of them hands on {ranks[0]}."
        times = Counter(place for part in parts_of_all for place in part)
        wrong = [place for place in everything if times[place] != 1]
        if wrong:
            yield f"{where} {ONCE} {_often(wrong[0], times[wrong[0]])} {_told(ranks)}"
        sums = [sum(map(len, parts)) for parts in ranks]
        if max(sums) - min(sums) > 1:
            yield f"{where} {UNEVEN} They get {', '.join(map(str, sums))} items."
    yield from _faults_of_workers(dealt, size, world, [workers for workers in numbers if workers])


def _faults_of_workers(dealt: Shares, size: int, world: int, numbers: Sequence[int]) -> Iterator[str]:
    for rank in range(world):
        alone = sorted(dealt[rank, 0][0])
        for workers in numbers:
            parts = dealt[rank, workers]
            where = f"W = {world}, rank {rank}, a stream of {size}:"
            if sorted(place for part in parts for place in part) != alone:
                yield f"{where} {CHANGES} Alone it hands on {alone}; its {workers} workers {parts}."
            counts = [len(part) for part in parts]
            if max(counts) - min(counts) > 1:
                yield f"{where} {LAZY} Its {workers} workers hand on {counts} items."


def _often(place: int, times: int) -> str:
    return f"Place {place} comes {'more than once' if times else '0 times'}."


def _told(ranks: list[list[list[int]]]) -> str:
    return "; ".join(f"rank {rank}: {' and '.join(map(str, parts))}" for rank, parts in enumerate(ranks))


def _fault_of_noting(answer: Any) -> str:
    """Read an object without workers, then copies of it in workers, as a DataLoader makes them."""
    for rank in range(2):
        stream = answer(lambda: map(value, range(14)), rank, 2)
        first_items(stream)
        for worker, workers in ((0, 2), (1, 2), (2, 3)):
            with as_worker(worker, workers, dataset=stream):
                got = first_items(copy.copy(stream))
                fresh = first_items(answer(lambda: map(value, range(14)), rank, 2))
            if got != fresh:
                where = f"Rank {rank}, worker {worker} of {workers}"
                return f"{NOTED} {where}: a new object hands on {short(fresh)}, and this one {short(got)}."
    return ""


def _streams() -> Iterator[tuple[str, list[Any]]]:
    """Yield streams of twelve items whose values say nothing about their places."""
    yield "zeros", [0] * 12
    yield "times None", [None] * 12
    yield "empty lists", [[] for _ in range(12)]
    yield "tensors of two numbers", [torch.zeros(2) for _ in range(12)]
    yield (
        "items of many kinds",
        [1, None, "", ..., (), "end", False, {}, [7], b"", float("nan"), StopIteration],
    )


def _fault_of_values(answer: Any) -> str:
    """Deal lists of twelve items to two ranks with two workers each: three for everybody, each item to somebody."""
    meanings = {"not an iterator": LIST}
    for what, items in _streams():
        dealt: list[Any] = []
        again: list[Any] = []
        for rank in range(2):
            for worker in range(2):
                stream = answer(lambda same=[*items]: same, rank, 2)
                with as_worker(worker, 2, dataset=stream), in_case(f"A stream of twelve {what}", meanings):
                    got = first_items(stream)
                    again += first_items(stream)
                if len(got) != 3:
                    return f"{VALUES} Of twelve {what} worker {worker} of rank {rank} hands on {len(got)}, and not 3."
                dealt += got
        if sorted(map(id, dealt)) != sorted(map(id, items)):
            return f"{THING} Of twelve {what} all together hand on {short(dealt)}."
        if [*map(id, dealt)] != [*map(id, again)]:
            return f"{AGAIN} `read()` gives the same list each time."
    return ""


def _fault_of_passing(answer: Any) -> str:
    """Read the beginning of a stream without end, and look how far it had to be read for each item."""
    alone = [(rank, 0, 0) for rank in range(2)]
    processes = alone + [(rank, worker, 2) for rank in range(2) for worker in range(2)]
    for rank, worker, workers in processes:
        read: list[int] = []

        def endless(read: list[int] = read) -> Iterator[int]:
            for place in count():
                if place == MOST:
                    raise Finding(END)
                read.append(place)
                yield value(place)

        stream = answer(endless, rank, 2)
        with as_worker(worker, workers, dataset=stream):
            items = iter(stream)
            for _ in range(3):
                item = next(items)
                if value(read[-1]) != item:
                    place = (item - 3) // 10
                    return f"{AHEAD} Place {place} left when place {read[-1]} had been read."
    return ""
