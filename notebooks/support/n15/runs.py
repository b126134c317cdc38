"""What notebook 15, scale out, runs, plans and reads: a tower, two launchers, a 7-billion-parameter model, files."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import nn

from lib.arguments import integer
from lib.schedules import Costs, Schedule, choose, simulate, table
from lib.schedules.table import Action
from lib.timeline import Recorder, Trace
from lib.training.launch import LOOPBACK, REPOSITORY
from support.training import global_losses, read_steps

# ---- An image tower that can be cut into stages: equal blocks between a first and a last layer.
#
#     image (B, 1, 8, 8) ── 64 pixels ── width ── block ── block ── … ── block ── 10 points
#
# The ten are the digits. It is made on the meta device, without memory; each rank fills the layers that it holds.


def tower_on_meta(blocks: int = 6, width: int = 192) -> nn.Sequential:
    """Return `blocks` + 2 layers in one nn.Sequential, float64 (B, 1, 8, 8) to (B, 10), that take no memory yet.

    A block is Linear(width, width) and ReLU.
    """
    with torch.device("meta"):
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        inside = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)]
        return nn.Sequential(first, *inside, nn.Linear(width, 10)).double()


def fill(layers: nn.Sequential, first: int, seed: int = 0) -> nn.Sequential:
    """Give these layers of the tower, of which the first has the number `first`, memory and their first weights.

    Every layer's weights come from (seed, its number) alone, so they are the same whoever fills it, and with whatever
    else. No other generator is touched. Returns the layers.
    """
    for number, layer in enumerate(layers.children(), start=first):
        layer.to_empty(device="cpu")
        draw = torch.Generator().manual_seed(1000 * seed + number)
        for part in layer.modules():
            if isinstance(part, nn.Linear):  # keeps the size of what passes a ReLU (He et al. 2015)
                nn.init.kaiming_uniform_(part.weight, nonlinearity="relu", generator=draw)
                nn.init.zeros_(part.bias)
    return layers


def tower(blocks: int = 6, width: int = 192, seed: int = 0) -> nn.Sequential:
    """Return the whole tower with its first weights; arguments as of tower_on_meta and fill."""
    return fill(tower_on_meta(blocks, width), 0, seed)


def even_balance(layers: int, stages: int) -> list[int]:
    """Return how many layers each stage gets, as even as can be, the longer ones first.

    Raises ValueError for more stages than layers.
    """
    stages = integer("stages", stages, at_least=1)
    if stages > layers:
        raise ValueError(f"{layers} layers can't be cut into {stages} stages: give at most {layers}")
    return [layers // stages + (j < layers % stages) for j in range(stages)]


def batches_of(rows: int, batch: int, steps: int) -> list[list[int]]:
    """Return the rows of each step: a new order of all rows in every epoch, whole batches only."""
    found: list[list[int]] = []
    epoch = 0
    while len(found) < steps:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(epoch)).tolist()
        found += [order[k : k + batch] for k in range(0, rows - batch + 1, batch)]
        epoch += 1
    return found[:steps]


# ---- Two launchers on this machine, as on two machines: they meet at a port, and their ranks are one job.


def two_machines(script: str, *arguments: object, ranks: int = 2, timeout: float = 180.0) -> None:
    """Run a script with two torchruns of `ranks` ranks each, started as on machines of their own, until both are done.

    Raises RuntimeError with what was said if one of them fails, TimeoutError; no process stays.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # lib.training.loopback is torchrun that ends with this process, should the notebook's kernel go
    command = [sys.executable, "-m", "lib.training.loopback", "--nnodes", "2", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", str(port)]
    command += ["--local-addr", "127.0.0.1", "--monitor-interval", "0.1", script, *map(str, arguments)]
    folders = [str(REPOSITORY), str(REPOSITORY / "notebooks"), os.environ.get("PYTHONPATH")]
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "OMP_NUM_THREADS": "1"}
    ours |= {"GLOO_SOCKET_IFNAME": LOOPBACK, "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryFile("w+") as said:
        how: Any = {"env": os.environ | ours, "stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
        launchers = [subprocess.Popen(command, start_new_session=True, **how) for _ in range(2)]
        end = time.monotonic() + timeout
        try:
            while None in (codes := [one.poll() for one in launchers]) and not any(codes):
                if time.monotonic() > end:
                    raise TimeoutError(f"two launchers were not done after {timeout:g} s, so they were ended")
                time.sleep(0.05)
        finally:
            for one in launchers:
                one.terminate()  # a launcher that is asked to end ends its ranks first
                one.wait()
        said.seek(0)
        if any(codes):
            raise RuntimeError(f"a launcher failed, exit codes {codes}:\n{said.read()[:6000]}")


# ---- What a training step of a large model takes on many ranks, by formulas (all derived in the notebook).


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


def measured_costs(traces: Sequence[Trace], schedule: Schedule) -> tuple[Costs, float]:
    """Return what `simulate` needs to know: medians over these steps and all micro-batches, and a message's seconds.

    traces: of one pipeline whose backward is whole, as read_traces returns them. A message takes what lies between the
    end of an action and the start of the one on the next rank that waited for it: a median, too, where somebody waited.
    """
    taken: dict[tuple[str, int], list[float]] = {}
    waits = [0.0]
    for trace in traces:
        spans = {Action.parse(span.label): span for span in trace}
        free = dict[str, float]()
        for (op, stage, i), span in sorted(spans.items(), key=lambda item: item[1].start):
            taken.setdefault((op, stage), []).append(span.duration)
            last = op == "B" and stage + 1 == schedule.stages
            peer = stage - 1 if op == "F" else stage + 1
            needed = None if last or peer < 0 else spans.get(Action(op, peer, i))
            if needed is not None and needed.lane != span.lane and needed.end > free.get(span.lane, 0.0):
                waits.append(span.start - needed.end)
            free[span.lane] = span.end
    forward, backward = ([median(taken[op, s]) for s in range(schedule.stages)] for op in "FB")
    return Costs(forward, backward), max(0.0, median(waits[1:] or waits))


def ran_in_order(trace: Trace, schedule: Schedule) -> bool:
    """Say whether every rank did its row of the table, in its order, and nothing before what it needs had ended."""
    spans = {span.label: span for span in trace}
    for rank in range(len(schedule.ranks)):
        done = [span.label for span in trace.only(lane=f"rank {rank}")]
        if done != [str(action) for action in schedule.actions(rank)]:
            return False
    pairs = ((need, action) for _, _, action, needed in table.in_order(schedule) for need in needed)
    return all(spans[str(need)].end <= spans[str(action)].start for need, action in pairs)
