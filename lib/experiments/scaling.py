"""What a training step would take on many ranks: measured costs of one block, put into the simulator.

    ranks = replicas x partitions          each replica gets rows / replicas, in m micro-batches
    a stage = blocks / partitions          equal blocks, as those of lib.training.tower

time      simulate(table), then the all-reduce, nothing of which is hidden
memory    weights, gradients and momentum of a rank's blocks, and what its live micro-batches keep for backward
traffic   per step and rank: activations and their gradients to neighbours, gradients of weights around a ring

LEFT_OUT says what all this does not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from lib._arguments import integer
from lib.pipeline import schedule as tables
from lib.pipeline.schedule import Schedule

SCHEDULES = {"GPipe": "gpipe", "1F1B": "one_f_one_b", "interleaved 1F1B": "interleaved_one_f_one_b"}
STATES = 3  # weights, gradients, momentum
LEFT_OUT = (
    "small micro-batches cost more a row than large ones",
    "latency: a message costs time however short it is",
    "links differ: inside a machine they are much faster than between machines",
    "all-reduce can hide behind backward, and pipelines share the network with it",
    "first and last layer, loss, optimizer and loading take time too",
    "the slowest of many ranks decides, and some rank is always slow",
    "what the allocator, the kernels and NCCL need for themselves",
)


@dataclass(frozen=True)
class Block:
    """What one block costs: seconds of a row forward and backward, bytes of weights, and of a row that are kept.

    kept: what autograd holds of a row between forward and backward. boundary: what a row is when it passes on.
    """

    forward: float
    backward: float
    weights: int
    kept: int
    boundary: int


def block_of(forward: float, backward: float, width: int = 384, itemsize: int = 8) -> Block:
    """Return a block of lib.training.tower that takes these seconds a row; the bytes follow from its shape.

    Kept is the input of the Linear; it is also what the ReLU before it keeps. A test counts both.
    """
    return Block(forward, backward, (width + 1) * width * itemsize, width * itemsize, width * itemsize)


NOMINAL = block_of(10e-6, 20e-6)
"""Round times, near those of one CPU core: for pictures and checks, which should be the same everywhere."""


@dataclass(frozen=True)
class Plan:
    """A way to use `ranks` ranks, and what it would cost in a step. Seconds, bytes; memory of the fullest rank."""

    ranks: int
    partitions: int
    micro_batches: int
    rows: int
    compute: float
    pipeline: float
    reduce: float
    states: int
    activations: int
    neighbour_bytes: int
    ring_bytes: int

    @property
    def replicas(self) -> int:
        """How often the model is there."""
        return self.ranks // self.partitions

    @property
    def bubble(self) -> float:
        """Idle share of the pipeline, before the all-reduce."""
        return max(0.0, 1 - self.compute / self.pipeline)

    @property
    def seconds(self) -> float:
        """A step: pipeline, then all-reduce."""
        return self.pipeline + self.reduce

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in a step."""
        return self.neighbour_bytes + self.ring_bytes

    @property
    def memory(self) -> int:
        """Bytes that the fullest rank holds."""
        return self.states + self.activations


def make_plan(
    ranks: int,
    partitions: int,
    micro_batches: int,
    block: Block = NOMINAL,
    *,
    rows: int = 4096,
    blocks: int = 128,
    schedule: str = "1F1B",
    bandwidth: float = 1e9,
) -> Plan:
    """Return what a step of `rows` rows (the global batch) through `blocks` blocks would cost on so many ranks.

    rows: of a micro-batch, in the result. bandwidth: bytes a second from rank to rank, an assumption. Interleaved: two
    stages a rank. Raises ValueError where ranks, blocks or rows can't be divided, or the schedule does not exist.
    """
    ranks = integer("ranks", ranks, at_least=1)
    n, m = integer("partitions", partitions, at_least=1), integer("micro_batches", micro_batches, at_least=1)
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, not {schedule!r}")
    stages = n * (2 if schedule == "interleaved 1F1B" else 1)
    if ranks % n:
        raise ValueError(f"{ranks} ranks do not make pipelines of {n}")
    if blocks % stages:
        raise ValueError(f"{blocks} blocks do not make {stages} equal stages")
    replicas, part = ranks // n, blocks // stages
    if rows % (replicas * m):
        raise ValueError(f"{rows} rows do not make {replicas} x {m} equal micro-batches")
    cut = rows // (replicas * m)
    table = _table(schedule, m, n)
    message = cut * block.boundary
    trace = tables.simulate(
        table,
        forward=block.forward * part * cut,
        backward=block.backward * part * cut,
        communicate=message / bandwidth,
    )
    per_rank = part * stages // n
    ring = 2 * (replicas - 1) * per_rank * block.weights // replicas
    return Plan(
        ranks=ranks,
        partitions=n,
        micro_batches=m,
        rows=cut,
        compute=(block.forward + block.backward) * blocks * rows / ranks,
        pipeline=trace.makespan,
        reduce=ring / bandwidth,
        states=STATES * per_rank * block.weights,
        activations=max(tables.live_activations(table)) * part * cut * block.kept,
        neighbour_bytes=2 * m * message * (stages // n if n > 1 else 0),
        ring_bytes=ring,
    )


@lru_cache(maxsize=64)
def _table(schedule: str, m: int, n: int) -> Schedule:
    make = getattr(tables, SCHEDULES[schedule])
    table: Schedule = make(m, n, 2) if schedule == "interleaved 1F1B" else make(m, n)
    return table


def every_plan(
    ranks: int,
    micro_batches: int,
    block: Block = NOMINAL,
    *,
    schedule: str = "1F1B",
    bandwidth: float = 1e9,
    most: int = 64,
) -> list[Plan]:
    """Return the plans for 1, 2, 4, … up to `most` partitions that can be made; arguments as of make_plan."""
    plans, partitions = [], 1
    while partitions <= min(ranks, most):
        with suppress(ValueError):
            plans.append(
                make_plan(ranks, partitions, micro_batches, block, schedule=schedule, bandwidth=bandwidth)
            )
        partitions *= 2
    return plans


def fastest(plans: Iterable[Plan], memory: float) -> Plan | None:
    """Return the plan with the shortest step of those whose fullest rank holds at most `memory` bytes; None if none."""
    return min((plan for plan in plans if plan.memory <= memory), key=lambda plan: plan.seconds, default=None)
