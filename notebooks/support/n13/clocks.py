"""Exercise 1 of notebook 13: a step of the vector clocks, and the programs whose races it must name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from random import Random
from typing import Any, TypeAlias

import torch

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_stream import PretendEvent
from lib.streams.races import HOST, Clocks, Operation, VectorClock, find_races, learn
from support.kit.raised import in_case
from support.n13.runs import damaged, launch_way, run_prefetcher

ClockStep: TypeAlias = Callable[[dict[str, VectorClock], dict[int, VectorClock], Operation], VectorClock]


def reference_step(
    lanes: dict[str, VectorClock],
    events: dict[int, VectorClock],
    op: Operation,
    *,
    host: bool = True,
    keep: Callable[[VectorClock, str], VectorClock] = lambda clock, lane: dict(clock),
    take: Callable[[VectorClock, VectorClock], object] = learn,
    obeyed: Sequence[str] = ("wait", "synchronize"),
    answer: Callable[[VectorClock], VectorClock] = dict,
    taught: Sequence[str] = (),
    counts: str = "",
) -> VectorClock:
    """Write the answer; each argument by name is one way to go wrong."""
    clock = lanes.setdefault(op.lane, {})
    if host:
        learn(clock, lanes.setdefault(HOST, {}))
    if op.kind == "launch":
        clock[counts or op.lane] = clock.get(op.lane, 0) + 1
    elif op.kind == "record" and op.event is not None:
        events[op.event] = keep(clock, op.lane)
    elif op.kind in obeyed and op.event is not None:
        for pupil in (clock, *(lanes[lane] for lane in taught)):
            take(pupil, events.get(op.event, {}))
    return answer(clock)


# A program in short. a+ copies a batch in stream a. a! records a new event there: 0, 1, …; a!0 records event 0 again.
# c?0 lets c, compute, wait for event 0. c*0 is a kernel on the block of copy 0. h is the host: h?0 waits for event 0,
# h*0 writes into batch 0.
RULES = {
    "waits for two streams": "a+ b+ a! b! c?0 c?1 c*0 c*1",
    "an event between two copies": "a+ a! a+ c?0 c*0 c*1",
    "the older of two events is waited for last": "a+ a! a+ a! c?1 c?0 c*0 c*1",
    "a chain of three streams": "a+ a! b?0 b! c?1 c*0",
    "a wait for an event that was never recorded": "a+ a! c?9 c*0",
    "another stream waits, compute does not": "a+ a! b?0 c*0",
    "two streams wait for one event": "a+ a! b+ b?0 c?0 c*0 c*1",
    "the host writes twice": "h*0 a+ a! h?0 h*0 a*0",
    "the host waits for the older of two events last": "a+ a! a+ a! h?1 h?0 c*0 c*1",
    "an event that is recorded again": "a+ a! a+ a!0 c?0 c*0 c*1",
    "of an event that is recorded again the older past is gone": "a+ a! b+ b!0 c?0 c*0 c*1",
    "a wait is launched before its event is recorded at all": "c?9 a+ a!9 c*0",
    "the host waits for an event that was never recorded": "a+ h?9 c*0",
    "two wait for an event that was never recorded": "a+ a?9 c?9 c*0",
    "two events behind one copy": "a+ b+ a! b! a?1 a! c?0 c*1",
    "the older past is gone, even if it knew more": "a+ a+ a! b+ b!0 c?0 c*0",
    "recorded again in an empty stream": "a+ a! b!0 c?0 c*0",
    "a wait is launched before its event is recorded again": "a+ a! c?0 a+ a!0 c*0 c*1",
    "a stream waits again for an event that is recorded again": "a+ a! c?0 a+ a!0 c?0 c*0 c*1",
    "a stream that knows more of another than the host": "a+ a! a+ a! b?1 h?0 b*0 b*1",
    "the host learns and writes when the lane is there already": "b+ a+ a! h?0 b*1 h*2 b+",
    "the host learns more of a lane that is known already": "a+ a! h?0 c*0 a+ a! h?1 c*1",
}


def small_program(steps: str) -> list[Operation]:
    """Return the list of a program in short."""
    return _Program().list_of(steps)


OTHER_KINDS = dict.fromkeys(("'allocate'", "'free'"), "Other kinds order nothing.")  # by what a KeyError says
NEW_LANE = "A new lane has an empty clock, and a missing entry counts as 0."


class _Program:
    """A program in short, step by step."""

    def __init__(self) -> None:
        self.gpu = PretendGPU()
        names = {"a": self.gpu.new_stream("a"), "b": self.gpu.new_stream("b")}
        self.streams = {"c": self.gpu.current_stream(), **names}
        self.sources = list[Any]()
        self.copies = list[Any]()
        self.events = {9: PretendEvent(self.gpu, 10, "")}

    def list_of(self, steps: str) -> list[Operation]:
        """Launch the steps, and return the list without allocations."""
        for step in steps.split():
            which = int(step[2:]) if step[2:] else None
            if step[0] == "h":
                self._of_the_host(step[1], which or 0)
            else:
                with self.gpu.use_stream(self.streams[step[0]]):
                    self._of_a_stream(step[1], which)
        return [_from_zero(op) for op in self.gpu.operations if op.kind not in ("allocate", "free")]

    def _source(self, which: int) -> Any:
        while len(self.sources) <= which:
            self.sources.append(self.gpu.host(torch.ones(4), f"batch {len(self.sources)}"))
        return self.sources[which]

    def _of_the_host(self, verb: str, which: int) -> None:
        if verb == "?":
            self.events[which].synchronize()
        else:
            self._source(which).fill_(2.0)

    def _of_a_stream(self, verb: str, which: int | None) -> None:
        stream = self.gpu.current_stream()
        if verb == "+":
            self.copies.append(self._source(len(self.copies)).to(self.gpu.device, non_blocking=True))
        elif verb == "!" and which is None:
            self.events[len(self.events) - 1] = stream.record_event()
        elif verb == "!":
            stream.record_event(self.events[which or 0])
        elif verb == "?":
            stream.wait_event(self.events[which or 0])
        else:
            self.copies[which or 0].neg_()


def _from_zero(op: Operation) -> Operation:
    """Number its event as the program in short does; a PretendGPU begins at 1."""
    return op if op.event is None else replace(op, event=op.event - 1)


SHORTEST = 6
LONGEST = 13
EACH = 12  # programs of a length


def random_programs() -> list[str]:
    """Return programs at random, the same each time and the shortest first; two blocks for many, so most pairs meet."""
    chance = Random(13)
    return [_at_random(chance, steps) for steps in range(SHORTEST, LONGEST + 1) for _ in range(EACH)]


def _at_random(chance: Random, length: int) -> str:
    steps = ["a+", "b+"]
    events = 0
    while len(steps) < length:
        lane = chance.choice("aabbcch")
        verb = chance.choice("!!??**" if lane != "h" else "??*")
        if verb == "!":
            again = events > 0 and chance.random() < 0.25
            steps.append(f"{lane}!{chance.randrange(events)}" if again else f"{lane}!")
            events += not again
        elif verb == "*":
            steps.append(f"{lane}*{chance.randrange(2)}")
        elif events:
            steps.append(f"{lane}?{chance.randrange(events)}")
    return " ".join(steps)


@cache
def programs() -> dict[str, list[Operation]]:
    """Return the lists that exercise 1 is judged by, by name."""
    ways = {f"three copies, {way}": launch_way(way) for way in ("no wait", "wait_event", "synchronize")}
    missing = {f"a pipeline without wait {number}": damaged(number) for number in (None, 0, 3, 5, 9)}
    small = {f"{name}: {steps}": small_program(steps) for name, steps in RULES.items()}
    return (
        ways
        | small
        | {steps: small_program(steps) for steps in random_programs()}
        | missing
        | {"a prefetcher without record_stream": run_prefetcher(["record_stream"], 5)}
    )


def miscounted(operations: Sequence[Operation], known: Sequence[VectorClock]) -> str:
    """Say which launch does not count itself as the next of its lane, else which other answer lacks the launches."""
    count = Counter[str]()
    others = ""
    for op, clock in zip(operations, known, strict=True):
        count[op.lane] += op.kind == "launch"
        own = clock.get(op.lane, 0)
        if own == count[op.lane]:
            continue
        if op.kind == "launch":
            return f"{op.label} is launch {count[op.lane]} of {op.lane}, and its own clock has {own} there"
        launched = f"{count[op.lane]} launched in {op.lane} before the {op.kind}"
        others = (
            others or f"{launched} of {op.label}, and the clock that step returns for that has {own} there"
        )
    return others


def unlearned(operations: Sequence[Operation], known: Sequence[VectorClock]) -> str:
    """Say which clock that was returned for a wait lacks what its event knows, and the host did not; "" if none."""
    clocks = Clocks()
    for op, clock in zip(operations, known, strict=True):
        host = dict(clocks.lanes[HOST])
        clocks.issue(op)
        if op.kind not in ("wait", "synchronize") or op.event is None:
            continue
        for lane, time in clocks.events.get(op.event, {}).items():
            own = clock.get(lane, 0)
            if max(own, host.get(lane, 0)) < time:
                event = f"the event behind {op.label} knows of {time} launched in {lane}"
                return f"{event}, and the clock that step returns for the {op.kind} has {own} there"
    return ""


def fault_of_vector_clocks(got: object, expected: object, _case: Mapping[str, Any]) -> str:
    """Say which races are missing, and which are none."""
    if got == expected:
        return ""
    if isinstance(got, str):
        return got
    return f"find_races names {_told(expected)}; by your clocks it is {_told(got)}"


def _told(races: Any) -> str:
    return ", ".join(races) or "no race"


def ask_clocks(step: ClockStep) -> Callable[[str], list[str] | str | None]:
    """Return the function that names the races of a program by these clocks; None if a clock is.

    A launch that does not count itself is told in words.
    """

    def racing(program: str) -> list[str] | str | None:
        operations = programs()[program]
        lanes = dict[str, VectorClock]({HOST: {}})
        events = dict[int, VectorClock]()
        never = {op.event for op in operations} - {op.event for op in operations if op.kind == "record"}
        meanings = OTHER_KINDS | {repr(op.lane): NEW_LANE for op in operations}
        meanings |= {
            str(event): "An event that was never recorded knows nothing." for event in never - {None}
        }
        known = []
        for number, op in enumerate(operations):
            with in_case(f"at operation {number}", meanings):
                known.append(step(lanes, events, op))
        if any(clock is None for clock in known):
            return None
        named = []
        for (p, a), (q, b) in combinations(enumerate(operations), 2):
            touched = [(u, v) for u in a.writes for v in (*b.reads, *b.writes)]
            touched += [(u, v) for u in a.reads for v in b.writes]
            if any(u.meets(v) for u, v in touched) and known[q].get(a.lane, 0) < known[p].get(a.lane, 0):
                named.append(f"{a.label} and {b.label}")
        if wrong := miscounted(operations, known):
            return wrong
        races = [f"{race.earlier.label} and {race.later.label}" for race in find_races(operations)]
        return (unlearned(operations, known) if named == races else "") or named

    return racing
