"""choose: of all makers, with all their parameters, the fastest table that fits; and why each other was passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from inspect import signature

from lib.arguments import integer
from lib.schedules.makers import MAKERS
from lib.schedules.simulate import Costs, live_activations, simulate
from lib.schedules.table import Schedule

ALMOST = 1 + 1e-9
"""Sums of the same costs in another order are equal up to this factor."""


@dataclass(frozen=True)
class Choice:
    """Hold the table that was chosen, its predicted seconds, and the most activations that a rank holds (see `choose`).

    name: the maker and its parameters, as "eager 1F1B, m = 8, ahead = 2". passed_over: by the names of all others, why
    not: too slow, too large, not to be made. Printed, it is a line each.
    """

    name: str
    schedule: Schedule
    seconds: float
    held: float
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        chosen = f"{self.name}: {self.seconds:g} s, holds {self.held:g}"
        return "\n".join([chosen, *(f"  {name}: {why}" for name, why in self.passed_over.items())])


def choose(
    costs: Mapping[int, Costs], ranks: int, *, memory: float = math.inf, communicate: float | Mapping[int, float] = 0.0
) -> Choice:
    """Choose, for one batch on so many ranks, the fastest table that fits into the memory; of equals the smallest.

    costs: {m: Costs} for every number m of micro-batches that the batch may be cut into: the seconds of one micro-batch
    by *unit*, a layer or a block that is not cut. Stages are equally many units in a row. communicate: seconds of a
    message, one number or one for each m. Tried are all MAKERS, with every v of 2 or more whose stages divide the units
    and every `ahead` that makes a difference; not PipeDream, whose gradients are those of older weights. The seconds
    are `simulate`'s: it knows no sharded weights, and no message that keeps a rank busy.

    memory: how many activations a rank may hold. One is what the smallest micro-batch (the largest m) leaves on a rank
    that has its share of the units once: of v stages a rank each counts 1/v, and a micro-batch twice as large as 2.

    Raises ValueError for costs that don't fit each other, a memory that is not above 0, units that no table's stages
    divide, and if nothing fits: with what the smallest table needs.
    """
    n = integer("ranks", ranks, at_least=1)
    units = {len(row) for each in costs.values() for row in each if row is not None}
    if len(units) != 1 or not all(units):
        raise ValueError(f"costs must be of equally many units, and of some, for each m; they are of {sorted(units)}")
    if not memory > 0:
        raise ValueError(f"memory must be a number of activations above 0, not {memory!r}")
    found: dict[str, Choice | str] = {}
    for m, each in costs.items():
        message = communicate.get(m) if isinstance(communicate, Mapping) else communicate
        if message is None:
            raise ValueError(f"communicate has no number for {m} micro-batches")
        for name, table in _tables(integer("micro_batches", m, at_least=1), n, *units):
            if isinstance(table, str):
                found[name] = table
                continue
            held, seconds = max(live_activations(table)) * n / table.stages * max(costs) / m, math.inf
            if held <= memory * ALMOST:  # else its seconds don't matter
                seconds = simulate(table, *_by_stage(each, table.stages), communicate=message).makespan
            found[name] = Choice(name, table, seconds, held)
    made = [one for one in found.values() if isinstance(one, Choice)]
    if not made:
        raise ValueError(f"{n} ranks can't have equally many of {max(units)} units: give a multiple, or fewer ranks")
    fits = [one for one in made if one.held <= memory * ALMOST]
    if not fits:
        least = min(made, key=lambda one: one.held)
        told = f"the smallest, {least.name}, needs {least.held:g}"
        raise ValueError(f"no table fits into {memory:g} live activations a rank: {told}")
    limit = ALMOST * min(one.seconds for one in fits)
    best = min((one for one in fits if one.seconds <= limit), key=lambda one: one.held)

    def why(one: Choice | str) -> str:
        if isinstance(one, str):
            return one
        if one.held > memory * ALMOST:
            return f"needs {one.held:g} live activations, and {memory:g} fit"
        slower = one.seconds - best.seconds
        return f"slower by {slower:g} s" if one.seconds > limit else f"as fast, and holds {one.held:g}"

    return replace(best, passed_over={name: why(one) for name, one in found.items() if one is not best})


def _tables(m: int, n: int, units: int) -> Iterator[tuple[str, Schedule | str]]:
    """Yield every maker with each of its parameters: its table, or the reason why there is none."""
    values = {
        "stages_per_rank": ("v", range(2, max(2, units // n) + 1)),
        "ahead": ("ahead", range(2, max(2, math.ceil((m - 1) / max(1, n - 1))) + 1)),  # then all m are ahead
    }
    for maker, make in MAKERS.items():
        own = [values[name] for name in signature(make).parameters if name in values]
        for value in own[0][1] if own else (None,):
            name = f"{maker}, m = {m}" + (f", {own[0][0]} = {value}" if own else "")
            if maker == "PipeDream":
                yield name, "never flushes: its gradients are those of older weights"
                continue
            try:
                table = make(m, n) if value is None else make(m, n, value)
            except ValueError as error:
                yield name, str(error).split(";")[0]  # without the remedy
                continue
            fits = units % table.stages == 0
            yield name, table if fits else f"its {table.stages} stages do not divide {units} units"


def _by_stage(costs: Costs, stages: int) -> Costs:
    def summed(row: list[float]) -> list[float]:
        each = len(row) // stages
        return [sum(row[k : k + each]) for k in range(0, len(row), each)]

    forward, backward, weight = costs
    return Costs(summed(forward), summed(backward), None if weight is None else summed(weight))
