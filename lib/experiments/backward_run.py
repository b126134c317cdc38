"""A small pipeline that tells what its backward does: in which order, in which thread, holding how much.

An operation is written as its letter, the micro-batch, the partition: R21 recomputes micro-batch 2 in partition 1, B21
takes its gradient back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lib._arguments import integer
from lib.experiments.autograd_graph import Node, walk, watch
from lib.pipeline.checkpoint import is_recomputing
from lib.pipeline.gpipe import GPipe
from lib.pipeline.pipeline import Pipeline
from lib.recorder import Recorder
from lib.saved import SavedTensors


class Untied(Pipeline):
    """A pipeline without dependencies between its micro-batches."""

    dependencies = False


class Log:
    """What the layers report: the operations of backward, the tensors held during each, the threads at work."""

    def __init__(self) -> None:
        self.ops: list[str] = []
        self.held: list[int] = []
        self.threads: dict[str, set[int]] = {"forward": set(), "backward": set()}
        self.saved: SavedTensors | None = None

    def add(self, op: str) -> None:
        """Note an operation, and what is held while it runs."""
        self.ops.append(op)
        self.held.append(self.saved.count if self.saved else 0)


class Mark(torch.autograd.Function):
    """Pass a tensor on; its backward reports that the partition now goes backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, report: Callable[[], None], label: str, place: tuple[int, int]
    ) -> Tensor:
        """Keep what to report."""
        ctx.report, ctx.label, ctx.place = report, label, place
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Report."""
        ctx.report()
        return gradient, None, None, None


class Probe(nn.Module):
    """A layer of partition j that reports to a log. Its input must hold the micro-batch's number in column 0."""

    def __init__(self, j: int, log: Log, recomputing: Callable[[], bool] = is_recomputing) -> None:
        super().__init__()
        self.j, self.log, self.recomputing = j, log, recomputing
        self.weight = nn.Parameter(torch.ones(4))
        self.inside = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor that still holds the number."""
        i = round(x[0, 0].item())
        thread = "backward" if self.recomputing() else "forward"
        self.log.threads[thread].add(threading.get_ident())
        y = x * self.weight + 0 * self.inside(x)
        if self.recomputing():
            self.log.add(f"R{i}{self.j}")

        def report() -> None:
            self.log.threads["backward"].add(threading.get_ident())
            self.log.add(f"B{i}{self.j}")

        return Mark.apply(y, report, "layers", (i, self.j))  # type: ignore[no-untyped-call,no-any-return]


def in_backward() -> bool:
    """Return whether autograd is running this code: what recomputes without saying so recomputes there."""
    return bool(torch._C._current_graph_task_id() != -1)


@dataclass(frozen=True)
class Run:
    """One forward and backward pass: operations in their order, tensors held, and the nodes as they ran."""

    ops: tuple[str, ...]
    held: tuple[int, ...]  # tensors that autograd keeps of recomputed insides, during each operation
    nodes: list[Node] = field(repr=False)
    ran: tuple[int, ...]  # indices of nodes, in the order in which autograd ran them
    threads: dict[str, int]  # how many threads computed, in forward and in backward
    gradient: Tensor | None = field(default=None, repr=False, compare=False)  # of all parameters, end to end

    def __str__(self) -> str:
        return " ".join(self.ops)


def backward_run(
    micro_batches: int, partitions: int, mode: str = "always", pipeline: type[Pipeline] = Pipeline
) -> Run:
    """Run a small model forward and backward, and return what happened.

    pipeline: the class that GPipe runs. Copy and Wait, which CPU partitions do not need, are in the graph all the same.
    Raises ValueError for counts below 1 or an unknown mode.
    """
    with forward(micro_batches, partitions, mode, pipeline) as (output, log, model):
        nodes = walk(output)
        ran = watch(nodes)
        with SavedTensors(model.parameters()) as log.saved:
            torch.autograd.backward(output, torch.ones_like(output))
    threads = {phase: len(names) for phase, names in log.threads.items()}
    gradient = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
    return Run(tuple(log.ops), tuple(log.held), nodes, tuple(ran), threads, gradient)


@contextmanager
def forward(
    micro_batches: int, partitions: int, mode: str, pipeline: type[Pipeline]
) -> Iterator[tuple[Tensor, Log, nn.Module]]:
    """Run a model of one Probe a partition forward; yield its output, what it reports, and itself."""
    m = integer("micro_batches", micro_batches, at_least=1)
    n = integer("partitions", partitions, at_least=1)
    log = Log()
    with torch.random.fork_rng(devices=[]):  # the weights matter to nobody, the caller's random numbers do
        layers = nn.Sequential(*(Probe(j, log) for j in range(n)))
    recorded = type("GPipe", (GPipe,), {"_pipeline": pipeline})
    model = recorded(layers, [1] * n, devices=["cpu"] * n, chunks=m, checkpoint=mode)
    _count_on()
    with Recorder():
        yield model(numbers(m)), log, model


def numbers(m: int) -> Tensor:
    """Return m rows of 4 numbers, row i all i."""
    return torch.arange(m, dtype=torch.float32).view(m, 1).expand(m, 4).contiguous()


def _count_on(nodes: int = 1000) -> None:
    """Make so many nodes: this thread's numbers are then above those of any new worker, as in a longer program."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(nodes):
        x = x.detach().requires_grad_() * 1
