"""Orders as the reader of notebook 08 writes them, run: by a simulate of theirs, or greedily, without ever waiting.

run = run_of(orders, simulate)      run.schedule, run.trace, run.waits: what the pictures of lib.show draw
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from lib.schedules import Action, Idle, Schedule
from lib.schedules.legal import needs
from lib.schedules.simulate import KINDS
from lib.timeline import Span, Trace
from support.n08.solved import Costs, Ends, Orders, Task

ClockCycles: TypeAlias = Callable[[int, int], Iterable[Iterable[tuple[int, int]]]]
Simulate: TypeAlias = Callable[[Orders, Costs, float], Ends]


class TimedRun(NamedTuple):
    """Hold orders as a Schedule, their run as a Trace, and each idle time of it with what it waited for."""

    schedule: Schedule
    trace: Trace
    waits: list[Idle]


def as_schedule(orders: Orders, name: str = "orders") -> Schedule:
    """Return orders as lib's Schedule: rank j is stage j."""
    return Schedule(name, [[Action(kind, j, i) for kind, i in order] for j, order in enumerate(orders)])


def run_of(
    orders: Orders,
    simulate: Simulate,
    forward: float | Sequence[float] = 1,
    backward: float | Sequence[float] = 2,
    message: float = 0,
) -> TimedRun:
    """Run orders with one cost for all ranks or one for each. Raises what `simulate` raises."""
    n = len(orders)
    given = {"F": forward, "B": backward}
    costs = {kind: list(c) if isinstance(c, Sequence) else [c] * n for kind, c in given.items()}
    ends = simulate(orders, costs, message)
    spans = [
        Span(f"rank {j}", f"{j}{kind}{i}", end - costs[kind][j], end, KINDS[kind])
        for (kind, i, j), end in ends.items()
    ]
    trace = Trace(spans, [f"rank {j}" for j in range(n)])
    schedule = as_schedule(orders)
    every = {action for _, action in schedule}
    waits = []
    for rank, lane in enumerate(trace.lanes):
        row = sorted(trace.only(lane=lane), key=lambda span: span.start)
        begins = [0.0, *(span.end for span in row)]
        for before, span in zip(begins, row, strict=False):
            if span.start > before + 1e-9:
                action = Action.parse(span.label)
                waits.append(Idle(rank, before, span.start, action, needs(action, n, every)[-1]))
        if begins[-1] < trace.end - 1e-9:
            waits.append(Idle(rank, begins[-1], trace.end, None, None))
    return TimedRun(schedule, trace, waits)


def never_waiting(m: int, n: int, forward: float = 1, backward: float = 2) -> list[list[Task]]:
    """Return the orders of ranks that never wait while they have something to do; backward first, if it can begin."""
    orders: list[list[Task]] = [[] for _ in range(n)]
    ends = Ends()
    free = [0.0] * n
    left = {(kind, i, j) for kind in "FB" for i in range(m) for j in range(n)}
    while left:
        able = []
        for kind, i, j in left:
            need = (kind, i, j - 1 if kind == "F" else j + 1)
            if kind == "B" and j == n - 1:  # on the last rank, right after its own forward
                need = ("F", i, j)
            if need in ends or need[2] < 0:
                able.append((max(free[j], ends.get(need, 0.0)), kind, i, j))
        _, kind, i, j = task = min(able)  # the earliest; of equals "B" stands before "F"
        left.remove(task[1:])
        orders[j].append((kind, i))
        free[j] = ends[kind, i, j] = task[0] + (forward if kind == "F" else backward)
    return orders
