"""A case of the fuzz as data: a model, how it is cut and run, what happens between forward and backward."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields

from lib.schedules import Schedule
from lib.schedules.makers import MAKERS
from tests.fuzz.layers import Layer, arguments, every
from tests.lib.schedules.random_tables import legal_table

MODES = ("always", "except_last", "never")
ANY_TABLE = "any table"
RUNNERS = (*MAKERS, ANY_TABLE)
IN_PLACE = frozenset(("relu_", "mul_", "add_", "write"))


@dataclass(frozen=True)
class Case:
    """Equal cases do the same.

    layers: a ("cut",) among them begins another partition. runner: "GPipe", or what table an Executor runs.
    mode: GPipe's `checkpoint`. check: its `check`. input: "wanted" needs a gradient, "pair" comes with a mask.
    seen: the lanes of the output that the loss uses, all if there are none. change: what happens in a GPipe between
    forward and backward of the second of three steps; place: where.
    """

    layers: tuple[Layer, ...] = ()
    runner: str = "GPipe"
    mode: str = "always"
    check: bool = False
    rows: int = 4
    chunks: int = 2
    input: tuple[str, ...] = ()
    seen: tuple[int, ...] = ()
    autocast: bool = False
    change: str | None = None
    place: int = 0
    stages_per_rank: int = 1
    seed: int = 0

    def __str__(self) -> str:
        told = [(each.name, getattr(self, each.name)) for each in fields(self) if each.name != "layers"]
        defaults = {each.name: each.default for each in fields(self)}
        options = "".join(f"    {name}={value!r},\n" for name, value in told if value != defaults[name])
        layers = "".join(f"        {layer!r},\n" for layer in self.layers)
        return f"Case(\n    (\n{layers}    ),\n{options})"

    @property
    def all_layers(self) -> list[Layer]:
        return every(self.layers)

    @property
    def kinds(self) -> set[str]:
        return {layer[0] for layer in self.all_layers}

    def has(self, kind: str, *given: object) -> bool:
        """Say whether there is a layer of this kind, with these arguments if some are given."""
        return any(layer[0] == kind and set(given) <= set(arguments(layer)) for layer in self.all_layers)

    @property
    def writes(self) -> bool:
        return bool(self.kinds & IN_PLACE) or self.has("pop", "write") or self.has("pop", "write input")

    @property
    def recomputes(self) -> bool:
        return (self.runner == "GPipe" and self.mode != "never") or self.has("pipeline")

    @property
    def counts_again(self) -> bool:
        """Whether a layer that writes its buffers does so again, or in another order, and can't know of it."""
        again = every(tuple(layer for layer in self.all_layers if layer[0] == "checkpoint"))
        if any(layer[0] in ("scale", "batch_norm") for layer in again):
            return True
        return (self.recomputes or self.runner == ANY_TABLE) and self.has("batch_norm")

    @property
    def happens(self) -> str | None:
        """What happens between forward and backward: nothing where torch's checkpoint would compute something else."""
        if self.runner != "GPipe" or (self.has("checkpoint") and self.mode != "always"):
            return None
        return None if self.change == "eval" and self.counts_again else self.change


def partitions_of(case: Case) -> list[tuple[Layer, ...]]:
    """Return the layers of each partition; a stash without a pop, or a pop without a stash, is left out."""
    alone = _alone(case.layers)
    partitions: list[tuple[Layer, ...]] = [()]
    for place, layer in enumerate(case.layers):
        if layer[0] == "cut":
            partitions.append(())
        elif place not in alone:
            partitions[-1] += (layer,)
    return [layers for layers in partitions if layers] or [(("same",),)]


def _without_skips_across(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    alone = _alone(layers)
    return tuple(layer for place, layer in enumerate(layers) if place not in alone) or (("same",),)


def _alone(layers: tuple[Layer, ...]) -> set[int]:
    found: set[int] = set()
    stashed: dict[str, int] = {}
    popped: set[str] = set()
    for place, layer in enumerate(layers):
        if layer[0] not in ("stash", "pop"):
            continue
        name = layer[1]
        if layer[0] == "stash" and name not in stashed:
            stashed[name] = place
        elif layer[0] == "pop" and name in stashed and name not in popped:
            popped.add(name)
        else:
            found.add(place)
    return found | {place for name, place in stashed.items() if name not in popped}


@dataclass
class Plan:
    """How a case is run: the layers of each partition, micro-batches, rows, and an Executor's table."""

    partitions: list[tuple[Layer, ...]]
    micro_batches: int
    rows: int
    schedule: Schedule | None


def plan(case: Case) -> Plan:
    """Fit partitions, micro-batches and table to each other: stages that only the table needs do nothing."""
    partitions = partitions_of(case)
    if case.runner != "GPipe":
        partitions = [_without_skips_across(layers) for layers in partitions]
    if case.runner == "GPipe":
        return Plan(partitions, min(case.chunks, case.rows), case.rows, None)
    if case.runner == ANY_TABLE:
        schedule = _any_table(case.seed, len(partitions))
    else:
        maker = MAKERS[case.runner]
        each = case.stages_per_rank if maker.looped else maker.fixed_stages
        ranks = -(-len(partitions) // each)
        m = max(case.chunks, maker.fewest(ranks))
        schedule = maker.make(m, ranks, ahead=1) if maker.ahead else maker.table(m, ranks, each)
    partitions += [(("same",),)] * (schedule.stages - len(partitions))
    m = schedule.micro_batches
    return Plan(partitions, m, max(case.rows, m), schedule)


def _any_table(seed: int, stages: int) -> Schedule:
    chance = random.Random(seed)
    while True:
        schedule = legal_table(chance, chance.randint(1, 3), max(4, stages))
        if schedule.stages >= stages:
            return schedule
