"""What a table will do: when each action runs, how long each rank waits and for what, how many activations live."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, SupportsFloat, TypeAlias

from lib.schedules.legal import in_order
from lib.schedules.table import KINDS as KINDS
from lib.schedules.table import Action, Op, Schedule, expect_schedule
from lib.timeline import Trace, Work, play

Cost: TypeAlias = float | Iterable[float]
HELD = {"F": 1, "B": -1, "I": 0, "W": -1}  # by how many activations an action changes what its rank holds


class Costs(NamedTuple):
    """Seconds by stage, as `simulate(schedule, *costs)` takes them: backward is the whole, weight the W part of it.

    Example:
        simulate(one_f_one_b(4, 2), *Costs([1, 1], [2, 3])).bubble  # the last stage has the loss as well
    """

    forward: list[float]
    backward: list[float]
    weight: list[float] | None = None


class Idle(NamedTuple):
    """One idle time of a rank: `action` can't start before `needed` arrives; both are None after its last action."""

    rank: int
    start: float
    end: float
    action: Action | None
    needed: Action | None

    def __str__(self) -> str:
        if self.action is None:
            return f"rank {self.rank} has no more work"
        return f"rank {self.rank} waits for {self.needed}, to do {self.action}"


def simulate(
    schedule: Schedule, forward: Cost = 1.0, backward: Cost = 2.0, weight: Cost | None = None, communicate: float = 0.0
) -> Trace:
    """Predict the timeline: each rank does its actions in order, each as soon as its inputs are there.

    forward, backward, weight: what an action costs, one number or one a stage. backward is the whole of it (B);
    weight is the part of it for the weights (W; half by default), and what is left is I. communicate: the time that
    an activation or a gradient takes from rank to rank; neither rank is busy with it. The table's idle slots don't
    count. Lanes "rank 0", …; labels "0F0"; kinds "forward", "backward", "input", "weight".

    Raises ScheduleError for a table that can't run (it need not be complete), ValueError for a cost that is negative,
    not finite, or not one a stage, TypeError for what is no Schedule or no number.

    Example:
        trace = simulate(one_f_one_b(micro_batches=8, partitions=4), forward=1, backward=2, communicate=0.1)
        print(f"{trace.makespan:g} s, {trace.bubble:.0%} idle")
    """
    expect_schedule(schedule)
    seconds = _seconds(schedule, forward, backward, weight)
    message = _number("communicate", communicate)

    def tasks() -> Iterator[Work]:
        for rank, _, action, needed in in_order(schedule):
            takes = seconds[action.op][action.stage]
            after = [str(need) for need in needed]
            yield Work(f"rank {rank}", str(action), takes, after, KINDS[action.op], message)

    return play(tasks(), [f"rank {rank}" for rank in range(len(schedule.ranks))])


def waits_for(
    schedule: Schedule, forward: Cost = 1.0, backward: Cost = 2.0, weight: Cost | None = None, communicate: float = 0.0
) -> list[Idle]:
    """Return all idle times of the timeline that `simulate` predicts, and what each waits for; its arguments."""
    trace = simulate(schedule, forward, backward, weight, communicate)
    spans = {span.label: span for span in trace}
    free = [0.0] * len(schedule.ranks)
    waits = []
    for rank, _, action, needed in in_order(schedule):
        span = spans[str(action)]
        if span.start > free[rank]:
            # a backward needs its own F, too, but that stands before it: what is late is the last that it needs
            waits.append(Idle(rank, free[rank], span.start, action, needed[-1]))
        free[rank] = span.end
    for rank, end in enumerate(free):
        if end < trace.end:
            waits.append(Idle(rank, end, trace.end, None, None))
    return sorted(waits, key=lambda wait: (wait.rank, wait.start))


def live_activations(schedule: Schedule) -> list[int]:
    """Return the most activations that each rank holds at once, counted in micro-batches x stages.

    F adds one; B takes it away, and if the backward is split W does: the gradient of the weights still needs the
    activation that I has left. It depends on each rank's order only, so no costs are needed.
    """
    expect_schedule(schedule)
    peaks = []
    for rank in range(len(schedule.ranks)):
        live = peak = 0
        for action in schedule.actions(rank):
            live += HELD[action.op]
            peak = max(peak, live)
        peaks.append(peak)
    return peaks


def _seconds(schedule: Schedule, forward: Cost, backward: Cost, weight: Cost | None) -> dict[Op, list[float]]:
    """Return what each op costs, stage by stage."""
    f = _per_stage(schedule, "forward", forward)
    b = _per_stage(schedule, "backward", backward)
    w = [whole / 2 for whole in b] if weight is None else _per_stage(schedule, "weight", weight)
    for stage, (part, whole) in enumerate(zip(w, b, strict=True)):
        if part > whole:
            raise ValueError(f"weight is a part of backward, but at stage {stage} it is {part} of {whole}")
    rest = [whole - part for part, whole in zip(w, b, strict=True)]
    return {"F": f, "B": b, "I": rest, "W": w}


def _per_stage(schedule: Schedule, name: str, cost: Cost) -> list[float]:
    if isinstance(cost, str) or not isinstance(cost, Iterable):
        return [_number(name, cost)] * schedule.stages
    costs = list(cost)
    if len(costs) != schedule.stages:
        raise ValueError(f"{name} has {len(costs)} costs for {schedule.stages} stages; give one number or one a stage")
    return [_number(name, value) for value in costs]


def _number(name: str, value: object) -> float:
    if isinstance(value, str) or not isinstance(value, SupportsFloat):
        raise TypeError(f"{name} must be a number, such as 0.5, not {value!r}")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a finite number, 0 or more, not {value!r}")
    return number
