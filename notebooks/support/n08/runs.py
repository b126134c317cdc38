"""Orders as the reader of notebook 08 writes them, run: by a simulate of theirs, or greedily, without ever waiting.

run = run_of(orders, simulate)      run.trace, run.waits: what the pictures of this room draw
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lib.saved import LiveTensors
from lib.schedules import Action, Schedule
from lib.timeline import Span, Trace
from support.n08.solved import Costs, Ends, Orders, Task

ClockCycles: TypeAlias = Callable[[int, int], Iterable[Iterable[tuple[int, int]]]]
Simulate: TypeAlias = Callable[[Orders, Costs, float], Ends]

KIND_OF = {"F": "forward", "B": "backward", "R": "recompute"}
"""What the kinds of task are called in a trace; their colours belong to these words."""


class TimedWait(NamedTuple):
    """An idle time of a rank. needed: the label of the span whose end it waits for; "" after its last task."""

    rank: int
    start: float
    end: float
    needed: str = ""


class TimedRun(NamedTuple):
    """Hold a run of orders as a Trace, and each idle time of it with what it waited for."""

    trace: Trace
    waits: list[TimedWait]


def as_schedule(orders: Orders, name: str = "orders") -> Schedule:
    """Return orders as lib's Schedule: rank j is stage j."""
    return Schedule(name, [[Action(kind, j, i) for kind, i in order] for j, order in enumerate(orders)])


def label_of(kind: str, i: int, j: int) -> str:
    """Return the label of a task's span, as lib and torch write it: 2F0 is F0 on rank 2."""
    return f"{j}{kind}{i}"


def needed_by(kind: str, i: int, j: int, n: int) -> tuple[str, int, int] | None:
    """Return the task whose end another one needs, as (kind, micro-batch, rank); None if it needs no other rank's."""
    if kind == "F":
        return ("F", i, j - 1) if j else None
    if kind == "B":
        return ("B", i, j + 1) if j < n - 1 else ("F", i, j)
    return None


def run_of(
    orders: Orders,
    simulate: Simulate,
    forward: float | Sequence[float] = 1,
    backward: float | Sequence[float] = 2,
    message: float = 0,
    recompute: float = 1,
) -> TimedRun:
    """Run orders with one cost for all ranks or one for each. Raises what `simulate` raises."""
    n = len(orders)
    given = {"F": forward, "B": backward, "R": recompute}
    costs = {kind: list(c) if isinstance(c, Sequence) else [c] * n for kind, c in given.items()}
    ends = simulate(orders, costs, message)
    trace = Trace(
        [
            Span(f"rank {j}", label_of(kind, i, j), end - costs[kind][j], end, KIND_OF[kind])
            for (kind, i, j), end in ends.items()
        ],
        [f"rank {j}" for j in range(n)],
    )
    waits = []
    for j, order in enumerate(orders):
        free = 0.0
        for kind, i in order:
            start = ends[kind, i, j] - costs[kind][j]
            needed = needed_by(kind, i, j, n)
            if start > free + 1e-9:
                waits.append(TimedWait(j, free, start, label_of(*needed) if needed else ""))
            free = ends[kind, i, j]
        if free < trace.end - 1e-9:
            waits.append(TimedWait(j, free, trace.end))
    return TimedRun(trace, waits)


def played(orders: Orders, trace: Trace) -> float:
    """Return how long orders take by data flow with each task's own measured duration, and nothing between tasks."""
    durations = {span.label: span.duration for span in trace}
    n = len(orders)
    ends = Ends()
    left = [list(order) for order in orders]
    free = [0.0] * n
    while any(left):
        for j, order in enumerate(left):
            while order:
                kind, i = order[0]
                needed = needed_by(kind, i, j, n)
                if needed and needed not in ends:
                    break
                start = max(free[j], ends[needed] if needed else 0.0)
                free[j] = ends[kind, i, j] = start + durations[label_of(kind, i, j)]
                order.pop(0)
    return max(free)


def pauses(trace: Trace) -> list[float]:
    """Return how long each pause was from the end of a span to the start of the next one, on another rank."""
    spans = sorted(trace, key=lambda span: span.start)
    return [other.start - one.end for one, other in pairwise(spans) if one.lane != other.lane]


def rank_peak(
    order: Sequence[Task], partition: nn.Module, arriving: Callable[[], Tensor], recompute: bool
) -> int:
    """Do a rank's order for real; return the most bytes of tensors that lived at once.

    arriving: makes the input of a micro-batch. recompute: keep the input only, by torch's checkpoint. The sum stands
    for the sending of the output: it keeps nothing, and its backward gives the gradient that comes back.
    """
    sent: dict[int, Tensor] = {}
    for parameter in partition.parameters():
        parameter.grad = parameter.new_zeros(parameter.shape)
    with LiveTensors() as live:
        for kind, i in order:
            if kind == "F" and recompute:
                sent[i] = checkpoint(partition, arriving(), use_reentrant=False).sum()
            elif kind == "F":
                sent[i] = partition(arriving()).sum()
            else:
                torch.autograd.backward(sent.pop(i))
    return int(live.peak)


def never_waiting(
    m: int, n: int, message: float = 0, forward: float = 1, backward: float = 2
) -> list[list[Task]]:
    """Return the orders of ranks that never wait while they have something to do; backward first, if it can begin.

    Which task is there first depends on how long a message takes, so each `message` has its own orders.
    """
    orders: list[list[Task]] = [[] for _ in range(n)]
    ends = Ends()
    free = [0.0] * n
    left = {(kind, i, j) for kind in "FB" for i in range(m) for j in range(n)}
    while left:
        able = []
        for kind, i, j in left:
            need = needed_by(kind, i, j, n)
            if need is None:
                able.append((free[j], kind, i, j))
            elif need in ends:
                there = ends[need] if need[2] == j else ends[need] + message
                able.append((max(free[j], there), kind, i, j))
        _, kind, i, j = task = min(able)  # the earliest; of equals "B" stands before "F"
        left.remove(task[1:])
        orders[j].append((kind, i))
        free[j] = ends[kind, i, j] = task[0] + (forward if kind == "F" else backward)
    return orders
