"""Exercise 1 of notebook 13: a step of the vector clocks, and the programs whose races it must name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import combinations
from typing import Any, TypeAlias

import torch

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_stream import PretendEvent
from lib.streams.races import HOST, Operation, VectorClock, learn
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


RULES = {  # a+ copies into a; a! records event 0, 1, …; c?0 lets c, compute, wait for event 0; c*0 reads copy 0
    "waits for two streams": "a+ b+ a! b! c?0 c?1 c*0 c*1",
    "an event between two copies": "a+ a! a+ c?0 c*0 c*1",
    "the older of two events is waited for last": "a+ a! a+ a! c?1 c?0 c*0 c*1",
    "a chain of three streams": "a+ a! b?0 b+ b! c?1 c*0 c*1",
    "a wait for an event that was never recorded": "a+ c?9 c*0",
    "another stream waits, compute does not": "a+ a! b?0 c*0",
}


def small_program(steps: str) -> list[Operation]:
    """Return a list in which one rule decides."""
    gpu = PretendGPU()
    streams = {"a": gpu.new_stream("a"), "b": gpu.new_stream("b"), "c": gpu.current_stream()}
    copies = list[Any]()
    events = {9: PretendEvent(gpu, 999, "")}
    for step in steps.split():
        stream = streams[step[0]]
        verb = step[1]
        which = int(step[2:] or 0)
        with gpu.use_stream(stream):
            if verb == "+":
                source = gpu.host(torch.ones(4), f"batch {len(copies)}")
                copies.append(source.to(gpu.device, non_blocking=True))
            elif verb == "!":
                events[len(events) - 1] = stream.record_event()
            elif verb == "?":
                stream.wait_event(events[which])
            else:
                copies[which].neg_()
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


@cache
def programs() -> dict[str, list[Operation]]:
    """Return the lists that exercise 1 is judged by, by name."""
    ways = {f"three copies, {way}": launch_way(way) for way in ("no wait", "wait_event", "synchronize")}
    missing = {f"a pipeline without wait {number}": damaged(number) for number in (None, 0, 3, 5, 9)}
    small = {name: small_program(steps) for name, steps in RULES.items()}
    return (
        ways | small | missing | {"a prefetcher without record_stream": run_prefetcher(["record_stream"], 5)}
    )


def ask_clocks(step: ClockStep) -> Callable[[str], list[str] | None]:
    """Return the function that names the races of a program by these clocks; None if a clock is."""

    def racing(program: str) -> list[str] | None:
        operations = programs()[program]
        lanes = dict[str, VectorClock]({HOST: {}})
        events = dict[int, VectorClock]()
        try:
            known = [step(lanes, events, op) for op in operations]
        except KeyError as error:
            advice = "a new lane has an empty clock, an event that was never recorded knows nothing"
            raise LookupError(f"KeyError {error}: {advice}, and a missing entry counts as 0") from error
        if any(clock is None for clock in known):
            return None
        named = []
        for (p, a), (q, b) in combinations(enumerate(operations), 2):
            touched = [(u, v) for u in a.writes for v in (*b.reads, *b.writes)]
            touched += [(u, v) for u in a.reads for v in b.writes]
            if any(u.meets(v) for u, v in touched) and known[q].get(a.lane, 0) < known[p].get(a.lane, 0):
                named.append(f"{a.label} and {b.label}")
        return named

    return racing
