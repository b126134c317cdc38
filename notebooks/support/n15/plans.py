"""What a training step of a large model takes on many ranks, by formulas (all derived in notebook 15)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from lib.schedules import Costs, choose, simulate


class Model(NamedTuple):
    """A transformer: parameters, layers, hidden size; tokens of a sequence, which is a micro-batch, and of a batch."""

    parameters: float = 7e9
    layers: int = 32
    hidden: int = 4096
    tokens: int = 4096
    sequences: int = 1024


class Machine(NamedTuple):
    """What GPUs do: operations a second in bf16 (as reached, not as sold), bytes a second on links, bytes of memory."""

    speed: float = 400e12
    inside: float = 400e9
    between: float = 50e9
    memory: float = 80e9
    gpus: int = 8


LARGE = Model()
GPUS = Machine()
ORDERS = ("pipeline", "replicas")  # whose ranks share a machine
MemoryRule = Callable[..., float]


@dataclass(frozen=True)
class Plan:
    """A way to use `ranks` ranks, and what a step of it would take. Seconds, bytes; of the fullest rank.

    order: of ORDERS; "–" where both come to the same links. schedule: its name, "" where nothing fits.
    held: micro-batches whose activations the schedule holds at once.
    """

    ranks: int
    partitions: int
    micro_batches: int
    recompute: bool
    order: str
    schedule: str
    held: float
    compute: float
    pipeline: float
    reduce: float
    memory: float

    @property
    def replicas(self) -> int:
        """How often the model is there."""
        return self.ranks // self.partitions

    @property
    def seconds(self) -> float:
        """A step: the pipeline, and what of the all-reduce is not hidden behind it."""
        return self.pipeline + self.reduce


def exposed(reduce: float, backward: float, buckets: int) -> float:
    """Return the seconds of an all-reduce that a backward of so many seconds does not hide, sent in equal buckets."""
    return max(reduce - backward * (1 - 1 / buckets), reduce / buckets)


@lru_cache(maxsize=512)
def _chosen(
    n: int, units: int, rounds: float, message: float, most: float
) -> tuple[str, float, float, float]:
    """Return name, seconds, held of what `choose` takes for 2n micro-batches, and the seconds of each further one.

    Forward of a rank's whole share takes 1, backward `rounds`.
    """
    row = [n / units] * units
    try:
        costs = {2 * n: Costs(row, [rounds * cost for cost in row], row)}
        found = choose(costs, n, memory=most, communicate=message)
    except ValueError:
        return "", math.inf, 0.0, 0.0
    longer = found.maker.make(4 * n, n, **found.parameters)
    forward = n / longer.stages
    end = simulate(longer, forward, rounds * forward, forward, communicate=message).makespan
    return found.maker.name, found.seconds, found.held, (end - found.seconds) / (2 * n)


def make_plan(
    ranks: int,
    partitions: int,
    memory_rule: MemoryRule,
    *,
    recompute: bool = False,
    order: str = ORDERS[0],
    shards: bool = True,
    model: Model = LARGE,
    machine: Machine = GPUS,
) -> Plan:
    """Return the fastest schedule for so many ranks in pipelines of `partitions`, and what a step of it takes.

    memory_rule(model, n, held, shards, recompute): bytes of a rank. shards: whether moments and master weights are
    dealt to replicas (ZeRO-1). A step of more than 2n micro-batches is that of 2n, and for each further one what the
    simulator says between 2n and 4n: F + B, if nobody waits.
    Raises ValueError where ranks, layers or the batch can't be divided.
    """
    n = partitions
    if ranks % n or model.layers % n or model.sequences % (ranks // n):
        raise ValueError(f"{ranks} ranks do not make equal pipelines of {n} for {model.layers} layers")
    replicas = ranks // n
    few = 2 * n
    m = model.sequences // replicas
    dealt = replicas if shards else 1
    empty, one = (memory_rule(model, n, held, dealt, recompute) for held in (0, 1))
    most = (machine.memory - empty) // ((one - empty) / 8) / 8  # in eighths: fewer tables to choose from
    # whether messages, and rings, cross machines in each order: they are as slow as their slowest link
    several = ranks > machine.gpus
    crossing = ((n > machine.gpus, several), (several and n > 1, replicas > machine.gpus))
    chain, ring = (
        machine.between if crosses else machine.inside for crosses in crossing[ORDERS.index(order)]
    )
    order = order if crossing[0] != crossing[1] else "–"
    forward = 2 * model.parameters / n * model.tokens / machine.speed
    rounds = 3 if recompute else 2
    message = 2 * model.tokens * model.hidden / chain
    name = ""
    seconds = math.inf
    held = 0.0
    each = 0.0
    if most > 0 and n == 1 and most >= 1:
        name = "gradient accumulation"
        seconds = few * (1 + rounds)
        held = 1.0
        each = 1.0 + rounds
    elif most > 0 and n > 1:
        units = min(model.layers, 4 * n) if n < 8 else 16
        name, seconds, held, each = _chosen(n, units, rounds, round(message / forward, 3), min(most, 4 * n))
    compute = m * (1 + rounds) * forward
    reduce = 2 * (replicas - 1) / replicas * 2 * model.parameters / n / ring
    pipeline = (seconds + (m - few) * each) * forward
    memory = memory_rule(model, n, max(1.0, held), dealt, recompute)
    reduce = exposed(reduce, rounds * forward, model.layers // n)
    return Plan(ranks, n, m, recompute, order, name, held, compute, pipeline, reduce, memory)


def every_plan(ranks: int, memory_rule: MemoryRule, **how: Any) -> list[Plan]:
    """Return the fastest plan for 1, 2, 4, 8, 16 partitions, with recomputing or without, in either order of ranks.

    Its schedule is "" where none fits.
    """
    ways: list[Any] = [
        {"recompute": recompute, "order": order} for recompute in (False, True) for order in ORDERS
    ]
    sizes = [n for n in (1, 2, 4, 8, 16) if n <= ranks]
    plans = ([make_plan(ranks, n, memory_rule, **way, **how) for way in ways] for n in sizes)
    return [min(each, key=lambda plan: (plan.seconds, plan.memory)) for each in plans]
