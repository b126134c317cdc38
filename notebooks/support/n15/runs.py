"""What notebook 15, scale out, runs, predicts and reads: a tower, a step on many ranks, the ranks' files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from lib import schedules as tables
from lib._values import integer
from lib.schedules import Action, Schedule
from lib.timeline import Recorder, Trace
from support.training import global_losses, read_steps

# ---- An image tower that can be cut into stages: equal blocks between a first and a last layer.
#
#     image (B, 1, 8, 8) ── 64 pixels ── width ── block ── block ── … ── block ── 10 points
#
# The ten are the captions of support.training, "a handwritten zero" to "… nine": the image goes to the nearest.


def tower(blocks: int = 6, width: int = 384, seed: int = 0) -> nn.Sequential:
    """Return `blocks` + 2 layers in one nn.Sequential, float32 (B, 1, 8, 8) to (B, 10).

    A block is Linear(width, width) and ReLU. seed: of the first weights, drawn without touching the global generator,
    so that every rank begins with the same. Raises ValueError for blocks < 0 or width < 1.
    """
    blocks, width = integer("blocks", blocks, at_least=0), integer("width", width, at_least=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # only in here: fork_rng puts the state back
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        inside = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)]
        model = nn.Sequential(first, *inside, nn.Linear(width, 10))
        for layer in model.modules():
            if isinstance(
                layer, nn.Linear
            ):  # keeps the size of what passes a ReLU (He et al. 2015, arXiv:1502.01852)
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
    return model


def even_balance(layers: int, stages: int) -> list[int]:
    """Return how many layers each stage gets, as even as can be, the longer ones first.

    Raises ValueError for more stages than layers.
    """
    stages = integer("stages", stages, at_least=1)
    if stages > layers:
        raise ValueError(f"{layers} layers can't be cut into {stages} stages: give at most {layers}")
    return [layers // stages + (j < layers % stages) for j in range(stages)]


# ---- What a training step would take on many ranks: measured costs of one block, put into the simulator.
#
#     ranks = replicas x partitions          each replica gets rows / replicas, in m micro-batches
#     a stage = blocks / partitions          equal blocks, as those of the tower above
#
# time      simulate(table), then the all-reduce, nothing of which is hidden
# memory    weights, gradients and momentum of a rank's blocks, and what its live micro-batches keep for backward
# traffic   per step and rank: activations and their gradients to neighbours, gradients of weights around a ring
#
# LEFT_OUT says what all this does not know.

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
    """Return a block of support.n15.runs that takes these seconds a row; the bytes follow from its shape.

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


# ---- Read what the ranks of notebooks/15_scale_out.py have left behind: places, losses, timelines, weights.

Folder = str | os.PathLike[str]


def read_places(folder: Folder) -> list[dict[str, Any]]:
    """Return what each rank was told by torchrun and where it stood in the mesh, in order of ranks."""
    files = Path(folder).glob("place*.json")
    return sorted((json.loads(file.read_text()) for file in files), key=lambda place: int(place["RANK"]))


def read_losses(folder: Folder) -> list[float]:
    """Return the loss of each global batch: the mean over replicas, as their last stages know it."""
    last = {int(place["RANK"]) for place in read_places(folder) if place["last"]}
    return global_losses(step for step in read_steps(folder) if step.rank in last)


def read_rows(folder: Folder) -> list[list[int]]:
    """Return the rows of each global batch, by the number in the meta file: those of the first rank of each replica."""
    first = {int(place["RANK"]) for place in read_places(folder) if place["pipeline"] == 0}
    rows: dict[int, list[int]] = {}
    for step in read_steps(folder):
        if step.rank in first:
            rows.setdefault(step.step, []).extend(step.rows)
    return [rows[step] for step in sorted(rows)]


def read_traces(folder: Folder) -> list[Trace]:
    """Return the timeline of each recorded step, all ranks together; one clock, which starts at 0 in each."""
    folders = sorted(Path(folder).glob("spans*"), key=lambda path: int(re.sub(r"\D", "", path.name)))
    lanes = [f"rank {place['RANK']}" for place in read_places(folder)]
    return [Recorder(path).trace(lanes) for path in folders]


def read_weights(folder: Folder) -> dict[str, torch.Tensor]:
    """Return the state dict of the whole model: what the ranks of replica 0 hold, put together."""
    weights: dict[str, torch.Tensor] = {}
    for place in read_places(folder):
        if place["data"] == 0:
            with np.load(Path(folder) / f"weights{place['RANK']}.npz", allow_pickle=False) as file:
                weights |= {name: torch.from_numpy(file[name]) for name in file.files}
    return weights


@dataclass(frozen=True)
class Costs:
    """What actions took, in seconds: forward and backward by stage, and the quickest message between two ranks."""

    forward: list[float]
    backward: list[float]
    communicate: float


def measured_costs(traces: Sequence[Trace], schedule: Schedule, *, least: bool = False) -> Costs:
    """Return what `simulate` needs to know: medians over all steps and micro-batches, or with `least` the minima.

    traces: of one pipeline whose backward is whole, as read_traces returns them. A message is what lies between the end
    of an action and the start of the one that needs it on the next rank; the quickest counts, since in the others a
    rank was busy.
    """
    choose = min if least else median
    taken: dict[tuple[str, int], list[float]] = {}
    gaps = []
    for trace in traces:
        spans = {Action.parse(span.label): span for span in trace}
        for (op, stage, i), span in spans.items():
            taken.setdefault((op, stage), []).append(span.duration)
            needed = (
                spans.get(Action("F", stage - 1, i) if op == "F" else Action("B", stage + 1, i))
                if stage or op == "B"
                else None
            )
            if needed is not None and needed.lane != span.lane:
                gaps.append(span.start - needed.end)
    forward, backward = ([choose(taken[op, s]) for s in range(schedule.stages)] for op in "FB")
    return Costs(forward, backward, max(0.0, min(gaps)))


def in_order(trace: Trace, schedule: Schedule) -> bool:
    """Say whether every rank did its row of the table, in its order, and nothing before what it needs had ended."""
    spans = {Action.parse(span.label): span for span in trace}
    for rank in range(len(schedule.ranks)):
        if [span.label for span in trace.only(lane=f"rank {rank}")] != [
            str(a) for a in schedule.actions(rank)
        ]:
            return False
    pairs = [
        *(
            (spans[Action("F", s, i)], spans[Action("F", s + 1, i)])
            for op, s, i in spans
            if op == "F" and s + 1 < schedule.stages
        ),
        *((spans[Action("B", s, i)], spans[Action("B", s - 1, i)]) for op, s, i in spans if op == "B" and s),
    ]
    return all(before.end <= after.start for before, after in pairs)
