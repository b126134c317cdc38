"""What notebook 00 runs in processes of their own: rounds of tasks, and a step of torch's DDP."""

from __future__ import annotations

import copy
import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from time import process_time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from lib.arguments import integer
from lib.timeline import Recorder, Trace

PATIENCE = 60.0  # seconds for all processes to come up

_gate: Any = None  # of a process: where all of them meet before a round


@dataclass(frozen=True)
class Round:
    """Hold one round: what ran when, and the seconds that processors worked for it."""

    trace: Trace
    cpu_seconds: float

    @property
    def cores(self) -> float:
        """Return the cores that were at work: seconds of all processors for each second of the clock."""
        return self.cpu_seconds / self.trace.makespan


def lane(work: Callable[[], Any], k: int, lanes: int, tasks: int) -> Round:
    """Be process k of so many lanes: do tasks k, k + lanes, …"""
    _gate.wait(PATIENCE)  # all processes begin together
    recorder = Recorder()
    before = process_time()
    for task in range(k, tasks, lanes):
        with recorder.span(f"process {k}", str(task)):
            work()
    return Round(recorder.trace(from_zero=False), process_time() - before)


class Team:
    """New processes that wait for work; `run` gives them a round of tasks.

        with Team(2) as team:
            rounds = [team.run(count) for _ in range(5)]

    Their start is in no round: `with` waits until all are up. Raises ValueError for counts below 1,
    BrokenProcessPool if a process died.
    """

    def __init__(self, processes: int) -> None:
        self.processes = integer("processes", processes, at_least=1)
        context = multiprocessing.get_context("spawn")
        gate = context.Barrier(self.processes)  # a task waits there until each process has one
        self._pool = ProcessPoolExecutor(self.processes, context, _set_gate, (gate,))

    def __enter__(self) -> Team:
        self.run(int, tasks=self.processes)
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown()

    def run(self, work: Callable[[], Any], tasks: int = 8) -> Round:
        """Do `work()` so many times, shared out in turns. work: a function that can be imported; what it raises."""
        tasks = integer("tasks", tasks, at_least=1)
        lanes = [self._pool.submit(lane, work, k, self.processes, tasks) for k in range(self.processes)]
        told = [one.result() for one in lanes]
        trace = Trace().merge(*(one.trace for one in told)).from_zero()
        return Round(trace, sum(one.cpu_seconds for one in told))


def free(witness: Sequence[Round]) -> int:
    """Count the rounds, of two threads that need no lock, in which a second core was free: they found 1.6 or more."""
    return sum(one.cores >= 1.6 for one in witness)


def gain(in_threads: Sequence[Round], in_processes: Sequence[Round], witness: Sequence[Round]) -> bool | None:
    """Say whether processes use more cores than threads and less time, each in its best round; None: not testable.

    witness: rounds in turns with those, of threads that need no lock. Where a second core was free in fewer than a
    third of them, processes had nothing to gain.
    """
    if free(witness) < len(witness) / 3:
        return None
    cores = [max(one.cores for one in rounds) for rounds in (in_threads, in_processes)]
    seconds = [min(one.trace.makespan for one in rounds) for rounds in (in_threads, in_processes)]
    return cores[1] > 1.3 * cores[0] and seconds[1] < 0.8 * seconds[0]


def _set_gate(gate: Any) -> None:
    global _gate
    _gate = gate


# ---- The step of data-parallel training as torch does it, in real ranks.

Batch = tuple[torch.Tensor, torch.Tensor]


def ddp_step(model: nn.Module, batches: Sequence[Batch], learning_rate: float) -> list[list[torch.Tensor]]:
    """Take one step in as many processes as there are batches; return the weights that each rank has afterwards."""
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(len(batches), context) as pool,
    ):
        meeting = (Path(folder) / "meeting").as_uri()
        ranks = [
            pool.submit(rank_step, rank, len(batches), meeting, model, batch, learning_rate)
            for rank, batch in enumerate(batches)
        ]
        return [[torch.tensor(weight, dtype=torch.float64) for weight in rank.result()] for rank in ranks]


def rank_step(
    rank: int, world_size: int, meeting: str, model: nn.Module, batch: Batch, learning_rate: float
) -> list[Any]:
    """Be one rank: meet the others, take a step on this rank's rows, return the weights as lists."""
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=timedelta(seconds=PATIENCE)
    )
    try:
        # torch sends a tensor as memory that all processes share: without a copy every rank would step on the
        # weights of all the others
        own = copy.deepcopy(model)
        replica = DistributedDataParallel(own)
        optimizer = torch.optim.SGD(replica.parameters(), learning_rate)
        rows, labels = batch
        loss: Any = F.cross_entropy(replica(rows), labels)
        loss.backward()  # the exchange of gradients is in here
        optimizer.step()
        return [weight.tolist() for weight in own.parameters()]
    finally:
        dist.destroy_process_group()
