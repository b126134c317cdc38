"""Operations, and the data races among them: two launches that touch the same memory, and nothing orders them.

An operation is what the host puts into a stream; the list of them is the whole truth about order.

kind          what it is
launch        a kernel or a copy in a stream (or work of the host itself, lane "host"): it reads and writes memory
record        an event is put into a stream
wait          the stream waits for an event
synchronize   the host waits for an event
allocate      a stream's pool gives memory away
free          the host drops a tensor: its memory goes back to the pool it came from
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from lib.runtime.regions import Region

HOST = "host"
Kind = Literal["launch", "record", "wait", "synchronize", "allocate", "free"]


@dataclass(frozen=True)
class Operation:
    """Hold one operation: its lane (a stream, or the host), its label, and the memory or the event that it is about."""

    kind: Kind
    lane: str
    label: str = ""
    event: int | None = None
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()

    def __str__(self) -> str:
        if self.kind == "launch":
            memory = " -> ".join(names for names in (_blocks(self.reads), _blocks(self.writes)) if names)
            label = "copy" if self.label.startswith("copy of") else self.label  # of what: that follows
            return f"{self.lane:<9} {label:<5} {memory}".rstrip()
        return f"{self.lane:<9} {_DOES[self.kind]} {self.label or f'event {self.event}'}"


_DOES = {
    "record": "records",
    "wait": "waits for",
    "synchronize": "stands still until",
    "allocate": "takes",
    "free": "drops",
}


def _blocks(regions: Sequence[Region]) -> str:
    return ", ".join(dict.fromkeys(region.block for region in regions))


def without(operations: Sequence[Operation], number: int) -> list[Operation]:
    """Return the list without one operation. Raises IndexError for a number that there is not."""
    if not 0 <= number < len(operations):
        raise IndexError(f"there is no operation {number}: they are 0..{len(operations) - 1}")
    return [op for k, op in enumerate(operations) if k != number]


def waits(operations: Sequence[Operation]) -> list[int]:
    """Return the numbers of the waits between streams."""
    return [number for number, op in enumerate(operations) if op.kind == "wait"]


# ---- happens-before, by vector clocks
#
# Two launches race if both touch the same memory, one of them writes, and nothing orders them. Order comes from: the
# stream that both are in; an event recorded after the first and waited for before the second; the host, which launches
# nothing before it has stopped waiting. A clock of a lane says how many launches of each lane are known to be done.

VectorClock = dict[str, int]


def learn(clock: VectorClock, other: Mapping[str, int]) -> None:
    """Let `clock` know all that `other` knows."""
    for lane, time in other.items():
        clock[lane] = max(clock.get(lane, 0), time)


class Clocks:
    """Keep the vector clocks of the host and the streams while operations are issued one by one."""

    def __init__(self) -> None:
        self.lanes: dict[str, VectorClock] = {HOST: {}}
        self.events: dict[int, VectorClock] = {}

    def issue(self, op: Operation) -> VectorClock:
        """Take one operation into account, and return what is known to be done when it starts (it itself included)."""
        clock = self.lanes.setdefault(op.lane, {})
        learn(clock, self.lanes[HOST])  # nothing starts before the host has launched it
        if op.kind == "launch":
            clock[op.lane] = clock.get(op.lane, 0) + 1
        elif op.event is not None and op.kind == "record":
            self.events[op.event] = dict(clock)
        elif op.event is not None:  # a wait, or a synchronize, for which the lane is the host
            learn(clock, self.events.get(op.event, {}))  # an event that was never recorded is no obstacle
        return dict(clock)


@dataclass(frozen=True)
class Race:
    """Name two launches that nothing orders, by their numbers in the list and as they are, and the block of memory."""

    first: int
    second: int
    earlier: Operation
    later: Operation
    block: str

    def __str__(self) -> str:
        a = self.earlier
        b = self.later
        return (
            f"{b.label} ({b.lane}) {_verb(b, self.block)} {self.block} while {a.label} ({a.lane}) may still "
            f"{_verb(a, self.block, still=True)} it: nothing lets {b.label} wait for {a.label}"
        )


def _verb(op: Operation, block: str, still: bool = False) -> str:
    verb = "write" if any(region.block == block for region in op.writes) else "read"
    return verb if still else f"{verb}s"


def happens_before(operations: Sequence[Operation]) -> dict[int, VectorClock]:
    """Return the clock of each launch, by its number: launch a is done before b starts if b's clock knows of a."""
    clocks = Clocks()
    known = [clocks.issue(op) for op in operations]
    return {number: known[number] for number, op in enumerate(operations) if op.kind == "launch"}


def _conflict(a: Operation, b: Operation) -> Region | None:
    pairs = [(x, y) for x in a.writes for y in (*b.writes, *b.reads)]
    pairs += [(x, y) for x in a.reads for y in b.writes]
    return next((x for x, y in pairs if x.meets(y)), None)


def _check_operations(operations: object) -> None:
    what = f"an object of type {type(operations).__name__}"
    if isinstance(operations, Sequence):
        strangers = [op for op in operations if not isinstance(op, Operation)]
        if not strangers and not isinstance(operations, str):
            return
        what = f"{type(operations).__name__} with {strangers[0]!r}" if strangers else "a str"
    raise TypeError(f"operations must be a list of Operations, not {what}: pass gpu.operations")


def find_races(operations: Sequence[Operation]) -> list[Race]:
    """Return all pairs of launches that race, in the order of the list.

    Raises TypeError for what is no list of Operations: an iterator that is used up would pass for a program without
    a race.

    Example:
        gpu = PretendGPU(forgets=["wait_event"])
        for batch in DevicePrefetcher([gpu.host(torch.ones(4))], gpu):
            batch.sum()
        print(*find_races(gpu.operations))  # a sentence for each
    """
    _check_operations(operations)
    known = happens_before(operations)
    races = []
    for a, b in combinations(known, 2):
        first = operations[a]
        second = operations[b]
        ordered = known[b].get(first.lane, 0) >= known[a][first.lane]
        if not ordered and (region := _conflict(first, second)):
            races.append(Race(a, b, first, second, region.block))
    return races
