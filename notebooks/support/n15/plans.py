"""What a training step of a large model takes on many ranks, by formulas (all derived in notebook 15)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from lib.schedules import Costs, choose, live_activations, one_f_one_b, simulate
from support.n15.solved import exposed, memory_of_rank


class Model(NamedTuple):
    """A transformer: parameters, layers, hidden size; tokens of a sequence, which is a micro-batch, and of a batch."""

    parameters: float = 7e9
    layers: int = 32
    hidden: int = 4096
    tokens: int = 4096
    sequences: int = 1024


class Machine(NamedTuple):
    """What GPUs do: operations a second in bf16 (as reached, not as sold), bytes a second on links, bytes of memory.

    between: bytes a second of one network card. cards: how many a machine has. cards_of_a_ring: how many of them one
    ring can use at most; what several rings on a machine use they share.
    """

    speed: float = 400e12
    inside: float = 400e9
    between: float = 50e9
    memory: float = 80e9
    gpus: int = 8
    cards: int = 8
    cards_of_a_ring: int = 1


LARGE = Model()
GPUS = Machine()
ORDERS = ("pipeline", "replicas")  # whose ranks share a machine
MemoryRule = Callable[..., float]
ExposedRule = Callable[[float, float, int], float]


class LinkSpeeds(NamedTuple):
    """Bytes a second between neighbours of a pipeline, and in a ring of replicas; whose ranks share a machine."""

    chain: float
    ring: float
    order: str


def links_of(ranks: int, n: int, order: str, machine: Machine = GPUS) -> LinkSpeeds:
    """Return the links of pipelines of n, and "–" for the order where both orders come to the same links."""
    replicas = ranks // n
    several = ranks > machine.gpus
    # whether messages, and rings, cross machines in each order: they are as slow as their slowest link
    crossing = {
        "pipeline": (n > machine.gpus, several and replicas > 1),
        "replicas": (several and n > 1, replicas > machine.gpus),
    }
    message_crosses, ring_crosses = crossing[order]
    rings = min(n, machine.gpus) if order == "pipeline" else 1  # so many columns of the mesh pass a machine
    cards = min(machine.cards_of_a_ring, machine.cards / rings)
    return LinkSpeeds(
        chain=machine.between if message_crosses else machine.inside,
        ring=min(machine.inside, machine.between * cards) if ring_crosses else machine.inside,
        order="–" if crossing["pipeline"] == crossing["replicas"] else order,
    )


@dataclass(frozen=True)
class Plan:
    """A way to use `ranks` ranks, and what a step of it would take. Seconds, bytes; of the fullest rank.

    order: of ORDERS; "–" where both come to the same links. schedule: its name, "" where nothing fits.
    held: micro-batches whose activations the schedule holds at once. reduce: what of the gradients' reduction is not
    hidden; gather: what of the gathering of new weights is not.
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
    gather: float
    memory: float

    @property
    def replicas(self) -> int:
        """How often the model is there."""
        return self.ranks // self.partitions

    @property
    def seconds(self) -> float:
        """A step: the pipeline, and what of the messages between replicas is not hidden behind it."""
        return self.pipeline + self.reduce + self.gather


class OrderCost(NamedTuple):
    """What a schedule comes to: its name, the time of 2n micro-batches and of each further one in forwards, held."""

    name: str = ""
    seconds: float = math.inf
    held: float = 0.0
    each: float = 0.0


@lru_cache(maxsize=512)
def _chosen(n: int, units: int, rounds: float, message: float, most: float) -> OrderCost:
    """Return what `choose` takes for 2n micro-batches; forward of a rank's whole share takes 1, backward `rounds`."""
    row = [n / units] * units
    try:
        costs = {2 * n: Costs(row, [rounds * cost for cost in row], row)}
        found = choose(costs, n, memory=most, communicate=message)
    except ValueError:
        return OrderCost()
    longer = found.maker.make(4 * n, n, **found.parameters)
    forward = n / longer.stages
    end = simulate(longer, forward, rounds * forward, forward, communicate=message).makespan
    return OrderCost(found.maker.name, found.seconds, found.held, (end - found.seconds) / (2 * n))


@lru_cache(maxsize=512)
def _in_turn(n: int, rounds: float, message: float, most: float) -> OrderCost:
    """Return 1F1B, if it fits."""
    table = one_f_one_b(2 * n, n)
    held = float(max(live_activations(table)))
    if held > most:
        return OrderCost()
    seconds, longer = (
        simulate(one_f_one_b(m, n), 1.0, rounds, communicate=message).makespan for m in (2 * n, 4 * n)
    )
    return OrderCost("1F1B", seconds, held, (longer - seconds) / (2 * n))


def _order_of(n: int, layers: int, rounds: float, message: float, most: float, only_1f1b: bool) -> OrderCost:
    """Return the fastest order that holds no more than `most` micro-batches; without a pipeline there is one only."""
    if most <= 0 or (n == 1 and most < 1):
        return OrderCost()
    if n == 1:
        return OrderCost("gradient accumulation", 2 * (1 + rounds), 1.0, 1.0 + rounds)
    if only_1f1b:
        return _in_turn(n, rounds, message, most)
    units = min(layers, 4 * n) if n < 8 else 16
    return _chosen(n, units, rounds, message, min(most, 4 * n))


def make_plan(
    ranks: int,
    partitions: int,
    memory_rule: MemoryRule = memory_of_rank,
    exposed_rule: ExposedRule = exposed,
    *,
    recompute: bool = False,
    order: str = ORDERS[0],
    only_1f1b: bool = False,
    gather_waits: bool = True,
    model: Model = LARGE,
    machine: Machine = GPUS,
) -> Plan:
    """Return the fastest schedule for so many ranks in pipelines of `partitions`, and what a step of it takes.

    memory_rule(model, n, held, recompute, zero, replicas): bytes of a rank; ZeRO-1 is used. exposed_rule(reduce,
    backward, buckets): seconds. gather_waits: the gathering of new weights hides behind nothing, otherwise all of it
    hides. A step of more than 2n micro-batches is that of 2n, and for each further one what the simulator says
    between 2n and 4n: F + B, if nobody waits.
    Raises ValueError where ranks, layers or the batch can't be divided.
    """
    n = partitions
    if ranks % n or model.layers % n or model.sequences % (ranks // n):
        raise ValueError(f"{ranks} ranks do not make equal pipelines of {n} for {model.layers} layers")
    replicas = ranks // n
    m = model.sequences // replicas
    empty, one = (memory_rule(model, n, held, recompute, 1, replicas) for held in (0, 1))
    most = (machine.memory - empty) // ((one - empty) / 8) / 8  # in eighths: fewer tables to choose from
    links = links_of(ranks, n, order, machine)
    forward = 2 * model.parameters / n * model.tokens / machine.speed
    rounds = 3 if recompute else 2
    message = 2 * model.tokens * model.hidden / links.chain
    found = _order_of(n, model.layers, rounds, round(message / forward, 3), most, only_1f1b)
    share = (replicas - 1) / replicas * model.parameters / n
    return Plan(
        ranks=ranks,
        partitions=n,
        micro_batches=m,
        recompute=recompute,
        order=links.order,
        schedule=found.name,
        held=found.held,
        compute=m * (1 + rounds) * forward,
        pipeline=(found.seconds + (m - 2 * n) * found.each) * forward,
        reduce=exposed_rule(4 * share / links.ring, rounds * forward, model.layers // n),
        gather=2 * share / links.ring if gather_waits else 0.0,
        memory=memory_rule(model, n, max(1.0, found.held), recompute, 1, replicas),
    )


def every_plan(
    ranks: int,
    memory_rule: MemoryRule = memory_of_rank,
    exposed_rule: ExposedRule = exposed,
    **how: Any,
) -> list[Plan]:
    """Return the fastest plan for 1, 2, 4, 8, 16 partitions, with recomputing or without, in either order of ranks.

    Its schedule is "" where none fits.
    """
    ways: list[Any] = [
        {"recompute": recompute, "order": order} for recompute in (False, True) for order in ORDERS
    ]
    sizes = [n for n in (1, 2, 4, 8, 16) if n <= ranks]
    found = []
    for n in sizes:
        plans = [make_plan(ranks, n, memory_rule, exposed_rule, **way, **how) for way in ways]
        found.append(min(plans, key=lambda plan: (plan.seconds, plan.memory)))
    return found


def fastest_plan(plans: list[Plan]) -> Plan:
    """Return the plan with the shortest step; of equals the one with fewer stages."""
    return min(plans, key=lambda plan: plan.seconds)
