"""What a training step of a large model takes on many ranks, by formulas (all derived in notebook 15)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from support.n15.planned import PlannedOrder, planned_orders
from support.n15.solved import exposed, memory_of_rank


class Model(NamedTuple):
    """A transformer: parameters, layers, hidden size; tokens of a micro-batch, and how many of these are a batch."""

    parameters: float = 7e9
    layers: int = 32
    hidden: int = 4096
    tokens: int = 4096
    sequences: int = 1024


class Machine(NamedTuple):
    """What GPUs do: operations a second in bf16 (as reached, not as sold), bytes a second on links, bytes of memory.

    between: bytes a second of one network card. cards: how many a machine has. cards_of_a_ring: how many of them one
    ring can use at most; what several rings on a machine use they share. border: bytes a second that every border of a
    pipeline whose line lies on several machines is charged with; None: as one card, though most of them cross none.
    """

    speed: float = 400e12
    inside: float = 400e9
    between: float = 50e9
    memory: float = 80e9
    gpus: int = 8
    cards: int = 8
    cards_of_a_ring: int = 1
    border: float | None = None


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
    found = {each: _links_in_order(ranks, n, each, machine) for each in ORDERS}
    chain, ring = found[order]
    return LinkSpeeds(chain, ring, "–" if found["pipeline"] == found["replicas"] else order)


def _links_in_order(ranks: int, n: int, order: str, machine: Machine) -> tuple[float, float]:
    """Return the bytes a second of messages and of rings: both are as slow as their slowest link."""
    replicas = ranks // n
    several = ranks > machine.gpus
    border = machine.between if machine.border is None else machine.border
    if order == "pipeline":
        message_crosses = n > machine.gpus
        ring_crosses = several and replicas > 1
        rings = min(n, machine.gpus)  # so many columns of the mesh pass a machine
    else:  # a machine has one stage: all its GPUs send over every border, through its cards
        message_crosses = several and n > 1
        ring_crosses = replicas > machine.gpus
        rings = 1
        border = machine.between * min(1, machine.cards / machine.gpus)
    cards = min(machine.cards_of_a_ring, machine.cards / rings)
    chain = border if message_crosses else machine.inside
    return chain, min(machine.inside, machine.between * cards) if ring_crosses else machine.inside


@dataclass(frozen=True)
class Plan:
    """A way to use `ranks` ranks, and what a step of it would take. Seconds, bytes; of the fullest rank.

    order: of ORDERS; "–" where both come to the same links. schedule: its name, "" where nothing fits.
    size: sequences of a micro-batch. held: micro-batches whose activations the schedule holds at once. reduce: what of
    the gradients' reduction is not hidden; gather: what of the gathering of new weights is not.
    """

    ranks: int
    partitions: int
    micro_batches: int
    size: int
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


NOTHING_FITS = PlannedOrder()
ALMOST = 1 + 1e-9  # what a rank holds is a sum of fractions


def _fitting(
    n: int, layers: int, rounds: float, message: float, most: float, m: int, only_1f1b: bool
) -> list[PlannedOrder]:
    """Return the orders that hold no more than `most` micro-batches; without a pipeline there is one only.

    Recomputing goes with whole backwards only: what is recomputed for one half would have to stay until the other.
    """
    if n == 1:
        alone = PlannedOrder("gradient accumulation", m * (1 + rounds), 1.0)
        return [alone] if most * ALMOST >= 1 else []
    recomputes = rounds > 2
    found = planned_orders(n, layers, rounds, message, m)
    return [
        order
        for order in found
        if order.held <= most * ALMOST
        and (order.name == "1F1B" or not only_1f1b)
        and not (recomputes and order.halves)
    ]


class Traffic(NamedTuple):
    """Seconds of what the replicas of a stage send in a step, and of a rank's forward and backward beside it."""

    reduce: float
    gather: float
    gather_waits: bool
    forward: float
    backward: float
    layers: int
    exposed_rule: ExposedRule

    def not_hidden(self, order: PlannedOrder) -> tuple[float, float]:
        """Return what an order leaves of the reduction and of the gathering."""
        if order.stages > 1 or order.halves:
            left = self.forward * order.left_of(self.reduce / self.forward)
            late = self.forward * order.late_by(self.gather / self.forward)
        else:
            left = float(self.exposed_rule(self.reduce, self.backward, self.layers))
            late = float(self.exposed_rule(self.gather, self.forward, self.layers))
        return left, self.gather if self.gather_waits else late

    def merit(self, order: PlannedOrder) -> tuple[float, float]:
        """Return the seconds of a step; of equally fast orders the one that holds less comes first."""
        seconds = order.seconds * self.forward + sum(self.not_hidden(order))
        return round(seconds, 9), order.held


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
    size: int = 1,
    stages_per_rank: int = 32,
    model: Model = LARGE,
    machine: Machine = GPUS,
) -> Plan:
    """Return the schedule with the fastest step for so many ranks in pipelines of `partitions`, and what it takes.

    memory_rule(model, n, held, recompute, zero, replicas): bytes of a rank; ZeRO-1 is used. exposed_rule(reduce,
    backward, buckets): seconds; it is asked where a rank has one stage and whole backwards, else the timeline is read.
    gather_waits: the first forward waits until all new weights are gathered; otherwise a layer waits for its own.
    size: sequences of a micro-batch; those of `model` have one. stages_per_rank: so many at most.
    Raises ValueError where ranks, layers or the batch can't be divided.
    """
    n = partitions
    if ranks % n or model.layers % n or model.sequences % (ranks // n * size):
        raise ValueError(
            f"{ranks} ranks do not make equal pipelines of {n} for {model.layers} layers "
            f"and micro-batches of {size}"
        )
    replicas = ranks // n
    larger = model._replace(tokens=model.tokens * size, sequences=model.sequences // size)
    m = larger.sequences // replicas
    one, two = (memory_rule(larger, n, held, recompute, 1, replicas) for held in (1, 2))
    most = 1 + (machine.memory - one) / (two - one)
    links = links_of(ranks, n, order, machine)
    forward = 2 * model.parameters / n * larger.tokens / machine.speed
    rounds = 3 if recompute else 2
    message = 2 * larger.tokens * model.hidden / links.chain
    sent = (replicas - 1) / replicas * model.parameters / n / links.ring  # seconds, if each were one byte
    buckets = model.layers // n
    traffic = Traffic(4 * sent, 2 * sent, gather_waits, forward, rounds * forward, buckets, exposed_rule)
    fitting = _fitting(n, model.layers, rounds, round(message / forward, 3), most, m, only_1f1b)
    allowed = (order for order in fitting if order.stages <= stages_per_rank)
    found = min(allowed, key=traffic.merit, default=NOTHING_FITS)
    left, late = traffic.not_hidden(found)
    return Plan(
        ranks=ranks,
        partitions=n,
        micro_batches=m,
        size=size,
        recompute=recompute,
        order=links.order,
        schedule=found.name,
        held=found.held,
        compute=m * (1 + rounds) * forward,
        pipeline=found.seconds * forward,
        reduce=left,
        gather=late,
        memory=memory_rule(larger, n, max(1.0, found.held), recompute, 1, replicas),
    )


def make_sharded_plan(
    ranks: int,
    memory_rule: MemoryRule = memory_of_rank,
    exposed_rule: ExposedRule = exposed,
    *,
    recompute: bool = False,
    size: int = 1,
    model: Model = LARGE,
    machine: Machine = GPUS,
) -> Plan:
    """Return the plan of one stage under ZeRO-3: every pass of a micro-batch gathers weights, layer by layer.

    A rank's network gathers for a forward and for a backward, and reduces behind each backward. What of a reduction is
    late hides behind the next micro-batch's forward, until the network has more to do than the GPU; behind the last
    backward none comes. Beside what memory_rule says two layers' weights are there, and one layer's gradients.
    """
    larger = model._replace(tokens=model.tokens * size, sequences=model.sequences // size)
    m = larger.sequences // ranks
    rounds = 3 if recompute else 2
    forward = 2 * model.parameters * larger.tokens / machine.speed
    links = links_of(ranks, 1, ORDERS[0], machine)
    sent = (ranks - 1) / ranks * model.parameters / links.ring  # seconds, if each parameter were one byte
    computing = m * (1 + rounds) * forward
    network = m * (2 + 2 + 4) * sent
    behind = exposed_rule((2 + 4) * sent, rounds * forward, model.layers)
    memory = memory_rule(larger, 1, 1, recompute, 3, ranks) + (2 * 2 + 4) * model.parameters / model.layers
    fits = memory <= machine.memory
    return Plan(
        ranks=ranks,
        partitions=1,
        micro_batches=m,
        size=size,
        recompute=recompute,
        order=links.order,
        schedule="ZeRO-3" if fits else "",
        held=1.0,
        compute=computing,
        pipeline=computing if fits else NOTHING_FITS.seconds,
        reduce=max(behind, network - computing),
        gather=2 * sent / model.layers,
        memory=memory,
    )


def _too_many_replicas(ranks: int, n: int) -> Plan:
    """Return the plan where the batch has no sequence for each replica: it has no schedule, and never ends."""
    never = NOTHING_FITS.seconds
    return Plan(ranks, n, 0, 1, False, "–", NOTHING_FITS.name, 0.0, never, never, 0.0, 0.0, 0.0)


def every_plan(
    ranks: int,
    memory_rule: MemoryRule = memory_of_rank,
    exposed_rule: ExposedRule = exposed,
    *,
    largest: int = 1,
    zero_3: bool = False,
    **how: Any,
) -> list[Plan]:
    """Return the fastest plan for 1, 2, 4, 8, 16 partitions, with recomputing or without, in either order of ranks.

    largest: micro-batches of 1, 2, 4, … sequences are tried, up to this, as far as a replica's share of the batch can
    be cut so. zero_3: one stage may have ZeRO-3, too; cut further, it would send as many bytes with fewer cards, or
    idle. A plan's schedule is "" where none fits, or the batch has no sequence for each replica.
    """
    ways: list[dict[str, Any]] = [
        {"recompute": recompute, "order": order} for recompute in (False, True) for order in ORDERS
    ]
    model = how.get("model", LARGE)
    found = []
    for n in (1, 2, 4, 8, 16):
        if n > ranks:
            break
        own = model.sequences // (ranks // n)
        if own == 0:
            found.append(_too_many_replicas(ranks, n))
            continue
        sizes = [1 << k for k in range(largest.bit_length()) if own % (1 << k) == 0]
        plans = [
            make_plan(ranks, n, memory_rule, exposed_rule, size=size, **way, **how)
            for size in sizes
            for way in ways
        ]
        if zero_3 and n == 1:
            asked = {name: value for name, value in how.items() if name in ("model", "machine")}
            plans += [
                make_sharded_plan(ranks, memory_rule, exposed_rule, recompute=recompute, size=size, **asked)
                for recompute in (False, True)
                for size in sizes
            ]
        found.append(min(plans, key=lambda plan: (plan.seconds, plan.memory)))
    return found


def fastest_plan(plans: list[Plan]) -> Plan:
    """Return the plan with the shortest step; of equals the one with fewer stages."""
    return min(plans, key=lambda plan: plan.seconds)
