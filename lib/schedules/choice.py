"""choose: of all makers, with all their parameters, the fastest table that fits; and why each other was passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import SupportsFloat

from lib.arguments import integer
from lib.schedules.makers import MAKERS, Maker
from lib.schedules.simulate import Costs, live_activations, simulate
from lib.schedules.table import Schedule

ALMOST = 1 + 1e-9
"""Sums of the same costs in another order are equal up to this factor."""
SHOWN = 5
"""How many of those that were passed over a printed choice names."""


@dataclass(frozen=True)
class Choice:
    """Hold the table that was chosen, its predicted seconds, and the most activations that a rank holds (see `choose`).

    name: the maker and its parameters, as "eager 1F1B, m = 8, ahead = 2". passed_over: by the names of all others, why
    not: those that fit, the fastest first, then what is too large, then what can't be made. Printed, it is itself and
    the few that came closest. `maker.make(m, n, **parameters)` makes the same kind of table in another size.
    """

    name: str
    schedule: Schedule
    seconds: float
    held: float
    maker: Maker
    parameters: Mapping[str, int]
    passed_over: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.seconds:g} s, holds {self.held:g}"]
        lines += [f"  {name}: {why}" for name, why in islice(self.passed_over.items(), SHOWN)]
        if len(self.passed_over) > SHOWN:
            lines.append(f"  and {len(self.passed_over) - SHOWN} more, in passed_over")
        return "\n".join(lines)


def choose(
    costs: Mapping[int, Costs], ranks: int, *, memory: float = math.inf, communicate: float | Mapping[int, float] = 0.0
) -> Choice:
    """Choose, for one batch on so many ranks, the fastest table that fits into the memory; of equals the smallest.

    costs: {m: Costs} for every number m of micro-batches that the batch may be cut into: the seconds of one micro-batch
    by *unit*, a layer or a block that is not cut. Stages are equally many units in a row. communicate: seconds of a
    message, one number or one for each m. Tried are all MAKERS, with every v of 2 or more whose stages divide the units
    and every `ahead` that could be the fastest; but none that never flushes, for its gradients are those of older
    weights. The seconds are `simulate`'s: it knows no sharded weights, and no message that keeps a rank busy.

    memory: how many activations a rank may hold. One is what the smallest micro-batch (the largest m) leaves on a rank
    that has its share of the units once: of v stages a rank each counts 1/v, and a micro-batch twice as large as 2.

    Raises ValueError for costs that don't fit each other, a memory that is not above 0, units that no table's stages
    divide, and if nothing fits: with what the smallest table needs; TypeError for what is no {m: Costs} of lists.

    Example:
        costs = {m: Costs([1 / m] * 8, [2 / m] * 8) for m in (4, 8, 16)}  # eight equal layers
        print(choose(costs, ranks=4, memory=6))
    """
    n = integer("ranks", ranks, at_least=1)
    units = _units(costs)
    if not isinstance(memory, SupportsFloat):
        raise TypeError(f"memory must be a number of activations, not {memory!r}")
    if not memory > 0:
        raise ValueError(f"memory must be a number of activations above 0, not {memory!r}")
    found = _tried(costs, n, units, memory, communicate)
    made = [one for one in found.values() if isinstance(one, Choice)]
    if not made:
        raise ValueError(f"{n} ranks can't have equally many of {units} units: give a multiple, or fewer ranks")
    fits = [one for one in made if one.held <= memory * ALMOST]
    if not fits:
        least = min(made, key=lambda one: one.held)
        told = f"the smallest, {least.name}, needs {least.held:g}"
        raise ValueError(f"no table fits into {memory:g} live activations a rank: {told}")
    limit = ALMOST * min(one.seconds for one in fits)
    fastest = [one for one in fits if one.seconds <= limit]
    best = min(fastest, key=lambda one: one.held)
    others = [(name, one) for name, one in found.items() if one is not best]
    others.sort(key=lambda named: _merit(named[1], memory))
    return replace(best, passed_over={name: _why_not(one, best, limit, memory) for name, one in others})


def _merit(one: Choice | str, memory: float) -> tuple[int, float, float]:
    """Return what puts those that were passed over in order: fast ones that fit, large ones, ones that can't be."""
    if isinstance(one, str):
        return 2, 0.0, 0.0
    if one.held > memory * ALMOST:
        return 1, one.held, 0.0
    return 0, one.seconds, one.held


def _tried(
    costs: Mapping[int, Costs], n: int, units: int, memory: float, communicate: float | Mapping[int, float]
) -> dict[str, Choice | str]:
    """Return by name every table with its numbers, or why there is none."""
    found: dict[str, Choice | str] = {}
    for count, by_unit in costs.items():
        message = communicate.get(count) if isinstance(communicate, Mapping) else communicate
        if message is None:
            raise ValueError(f"communicate has no number for {count} micro-batches")
        m = integer("micro_batches", count, at_least=1)
        for maker in MAKERS.values():
            for word, parameters in _parameters(maker, m, n, units):
                name = f"{maker.name}, m = {m}{word}"
                table = _table(maker, m, n, units, parameters)
                if isinstance(table, str):
                    found[name] = table
                    continue
                held = max(live_activations(table)) * n / table.stages * max(costs) / m
                by_stage = _by_stage(by_unit, table.stages)
                seconds = math.inf  # of a table that does not fit they don't matter
                if held <= memory * ALMOST:
                    seconds = simulate(table, *by_stage, communicate=message).makespan
                found[name] = Choice(name, table, seconds, held, maker, parameters)
                # Whoever goes further ahead holds as much or more. It won't fit either, or can't be any faster.
                if maker.ahead and (held > memory * ALMOST or seconds <= _soonest(by_stage, m, message) * ALMOST):
                    break
    return found


def _soonest(by_stage: Costs, m: int, message: float) -> float:
    """Return seconds that no table with one stage a rank goes below, whatever its order.

    A rank has all its own work to do, and before it the first micro-batch has to arrive through the stages in front;
    what it sends back last has to go through them again.
    """
    rounds = [forward + backward for forward, backward in zip(by_stage.forward, by_stage.backward, strict=True)]
    return max(m * rounds[j] + sum(rounds[:j]) + 2 * j * message for j in range(len(rounds)))


def _units(costs: Mapping[int, Costs]) -> int:
    """Return of how many units all costs are; raises ValueError if there is no such number, TypeError for no Costs."""
    if not isinstance(costs, Mapping):
        raise TypeError(f"costs must be {{m: Costs}} for each number m of micro-batches, not {costs!r}")
    if not costs:
        raise ValueError("costs are empty: give {m: Costs} for one number m of micro-batches at least")
    for m, each in costs.items():
        if not isinstance(each, Costs):
            raise TypeError(f"the costs of m = {m} must be Costs(forward, backward), not {each!r}")
        for name, row in zip(each._fields, each, strict=True):
            if isinstance(row, (int, float)):
                raise TypeError(f"{name} of m = {m} must be a list with the seconds of each unit, not {row!r} for all")
    lengths = {len(row) for each in costs.values() for row in each if row is not None}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"costs must be of equally many units, and of some, for each m; they are of {sorted(lengths)}")
    return lengths.pop()


def _parameters(maker: Maker, m: int, n: int, units: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield what `make` takes besides m and n, in words and as keywords: each value that makes a difference."""
    if maker.looped:
        for v in range(2, max(2, units // n) + 1):
            yield f", v = {v}", {"stages_per_rank": v}
    elif maker.ahead:
        # Rank j does min(m, ahead · (n - 1 - j) + 1) forwards before its first backward. The last rank but one is the
        # last to do all m of them: with ahead = m - 1. More would change nothing, and on one rank nothing does.
        enough = m - 1 if n > 1 else 2
        for ahead in range(2, max(2, enough) + 1):
            yield f", ahead = {ahead}", {"ahead": ahead}
    else:
        yield "", {}


def _table(maker: Maker, m: int, n: int, units: int, parameters: Mapping[str, int]) -> Schedule | str:
    """Return the table, or the reason why there is none."""
    if not maker.flushes:
        return "never flushes: its gradients are those of older weights"
    try:
        table = maker.make(m, n, **parameters)
    except ValueError as error:
        refusal, _, _remedy = str(error).partition(";")
        return refusal
    if units % table.stages:
        return f"its {table.stages} stages do not divide {units} units"
    return table


def _why_not(one: Choice | str, best: Choice, limit: float, memory: float) -> str:
    """Say why another was passed over: there is no table, it is too large, slower, or as fast and larger."""
    if isinstance(one, str):
        return one
    if one.held > memory * ALMOST:
        return f"needs {one.held:g} live activations, and {memory:g} fit"
    if one.seconds > limit:
        return f"slower by {one.seconds - best.seconds:g} s"
    return f"as fast, and holds {one.held:g}"


def _by_stage(costs: Costs, stages: int) -> Costs:
    """Return the costs of stages, which are equally many units in a row each."""
    weight = None if costs.weight is None else _summed(costs.weight, stages)
    return Costs(_summed(costs.forward, stages), _summed(costs.backward, stages), weight)


def _summed(row: Sequence[float], stages: int) -> list[float]:
    units = len(row) // stages
    return [sum(row[first : first + units]) for first in range(0, len(row), units)]
