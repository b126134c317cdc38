"""What notebook 11, the order of backward, looks at: graphs as lists of nodes, and the orders of whole pipelines."""

from __future__ import annotations

import heapq
import importlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from lib._values import integer
from lib.pipeline.checkpoint import is_recomputing
from lib.pipeline.gpipe import GPipe
from lib.pipeline.pipeline import Pipeline
from lib.pipeline.recording import Place
from lib.saved import SavedTensors
from lib.timeline import Recorder
from support.recordings import load, provenance

# ---- The autograd graph as a list of nodes: read, run on paper by the engine's rule, watched for real.
#
#     nodes = walk(output)
#     predicted = rule_order(nodes)
#     ran = watch(nodes)
#     output.sum().backward()
#     assert ran == predicted
#
# The rule of torch's engine, on a CPU: a node is ready when all nodes that use its outputs have run; of those
# that are ready, the one with the highest sequence number runs next. Each thread numbers its own nodes 0, 1,
# 2, … in forward, so two nodes of different threads may have the same number: which of them runs first is
# left open.


@dataclass(frozen=True)
class Node:
    """One node: its name, where it belongs, its sequence number, the indices of the nodes that it leads to.

    next[0] is the node of the first argument in forward, None if that needed no gradient; leaves are None as well.
    """

    name: str
    place: Place | None
    number: int
    next: tuple[int | None, ...]
    function: Any = field(repr=False, compare=False)


def walk(output: Tensor) -> list[Node]:
    """Return all nodes that backward from `output` will run, `output`'s own first; parameters and inputs are left out.

    A node says where it belongs by a `place` (micro-batch, partition), of its own or in what it shares with others, and
    its name by a `label`, if its context has them; one that doesn't belongs where its first argument belongs, or else where it is used. Raises ValueError for a
    tensor without a graph.
    """
    if output.grad_fn is None:
        raise ValueError("this tensor has no autograd graph: no tensor that it came from requires grad")
    functions: list[Any] = [output.grad_fn]
    index = {output.grad_fn: 0}
    edges: list[tuple[int | None, ...]] = []
    for function in functions:  # grows while it is read
        targets = [target for target, _ in function.next_functions]
        for target in targets:
            if target is not None and target not in index and not _is_leaf(target):
                index[target] = len(functions)
                functions.append(target)
        edges.append(tuple(index.get(target) for target in targets))
    places = _places(functions, edges)
    return [
        Node(_name(function), place, function._sequence_nr(), next_, function)
        for function, place, next_ in zip(functions, places, edges, strict=True)
    ]


def _is_leaf(function: Any) -> bool:
    return str(function.name()).endswith("AccumulateGrad")


def _name(function: Any) -> str:
    return getattr(function, "label", None) or re.sub(r"^My(?=[A-Z])|Backward\d*$", "", function.name())


def _places(functions: list[Any], edges: list[tuple[int | None, ...]]) -> list[Place | None]:
    places: list[Place | None] = [_own_place(function) for function in functions]
    changed = True
    while changed:  # from the inputs on; a graph of a few hundred nodes needs no better way
        changed = False
        for k in reversed(range(len(functions))):
            first = edges[k][0] if edges[k] else None
            if places[k] is None and first is not None and places[first] is not None:
                places[k], changed = places[first], True
    for k, targets in enumerate(edges):
        for target in targets:
            if target is not None and places[target] is None:
                places[target] = places[k]
    return places


def _own_place(function: Any) -> Place | None:
    checkpointing = getattr(
        function, "checkpointing", None
    )  # of lib's two functions; the notebook's have `shared`
    holder = function if checkpointing is None else checkpointing.function
    place = getattr(function, "shared", {}).get("place") or getattr(holder, "place", None)
    return None if place is None else Place(*place)


def rule_order(nodes: list[Node]) -> list[int]:
    """Return the indices of the nodes in the order in which a CPU's one autograd thread will run them."""
    waits_for = [0] * len(nodes)
    for node in nodes:
        for target in node.next:
            if target is not None:
                waits_for[target] += 1
    ready, order = [(-nodes[0].number, 0)], []
    while ready:
        _, k = heapq.heappop(ready)
        order.append(k)
        for target in nodes[k].next:
            if target is not None:
                waits_for[target] -= 1
                if not waits_for[target]:
                    heapq.heappush(ready, (-nodes[target].number, target))
    return order


def watch(nodes: list[Node]) -> list[int]:
    """Return an empty list, to which each node adds its index when it runs."""
    ran: list[int] = []
    for k, node in enumerate(nodes):
        node.function.register_prehook(lambda *_, k=k: ran.append(k))
    return ran


# ---- A small pipeline that tells what its backward does: the order, the thread, the tensors held.
#
# An operation is written as its letter, the micro-batch, the partition: R21 recomputes micro-batch 2 in
# partition 1, B21 takes its gradient back.


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


def backward_run(micro_batches: int, partitions: int, pipeline: type[Pipeline] = Pipeline) -> Run:
    """Run a small model forward and backward, all of it checkpointed, and return what happened.

    pipeline: the class that GPipe runs. Copy and Wait, which CPU partitions do not need, are in the graph all the same.
    Raises ValueError for counts below 1.
    """
    with forward(micro_batches, partitions, pipeline) as (output, log, model):
        nodes = walk(output)
        ran = watch(nodes)
        with SavedTensors(model.parameters()) as log.saved:
            torch.autograd.backward(output, torch.ones_like(output))
    threads = {phase: len(names) for phase, names in log.threads.items()}
    gradient = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
    return Run(tuple(log.ops), tuple(log.held), nodes, tuple(ran), threads, gradient)


@contextmanager
def forward(
    micro_batches: int, partitions: int, pipeline: type[Pipeline]
) -> Iterator[tuple[Tensor, Log, nn.Module]]:
    """Run a model of one Probe a partition forward; yield its output, what it reports, and itself."""
    m = integer("micro_batches", micro_batches, at_least=1)
    n = integer("partitions", partitions, at_least=1)
    log = Log()
    with torch.random.fork_rng(devices=[]):  # the weights matter to nobody, the caller's random numbers do
        layers = nn.Sequential(*(Probe(j, log) for j in range(n)))
    recorded = type("GPipe", (GPipe,), {"_pipeline": pipeline})
    model = recorded(layers, [1] * n, devices=["cpu"] * n, chunks=m, checkpoint="always")
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


# ---- The order of backward and what it holds, predicted: only forward runs, and the rule is applied to its graph.


@lru_cache(maxsize=64)
def predict(micro_batches: int, partitions: int, dependencies: bool = True) -> Run:
    """Run only forward, and say by the engine's rule what backward would do; `held` counts insides, not tensors."""
    pipeline = Pipeline if dependencies else Untied
    with forward(micro_batches, partitions, pipeline) as (output, _, _):
        nodes = walk(output)
    order = rule_order(nodes)
    ops = tuple(op_of(nodes[k]) for k in order if op_of(nodes[k]))
    held = tuple(map(len, alive(ops)))
    return Run(ops, held, nodes, tuple(order), {})


def op_of(node: Node) -> str:
    """Return the operation that a node stands for, "" for all nodes that only lead from one to the next."""
    letter = {"Recompute": "R", "Checkpoint": "B"}.get(node.name)
    return f"{letter}{node.place.i}{node.place.j}" if letter and node.place else ""


def alive(ops: Sequence[str]) -> list[set[str]]:
    """Return, for each operation, the insides that exist while it runs, as "21" for micro-batch 2 in partition 1.

    An inside exists from its recomputation to the end of its backward.
    """
    now, found = set[str](), []
    for op in ops:
        now = now | {op[1:]}
        found.append(now)
        if op[0] == "B":
            now = now - {op[1:]}
    return found


def peaks(ops: Sequence[str]) -> list[int]:
    """Return, for each partition, the most insides that exist at once."""
    found = alive(ops)
    partitions = sorted({op[2] for op in ops})
    return [max(sum(pair[1] == j for pair in now) for now in found) for j in partitions]


# ---- In which order torchgpipe goes backward: run here where it can be imported, recorded elsewhere.
#
# `python -m support.recordings torchgpipe_order` records it; torchgpipe is no requirement of this project.


def torchgpipe_run(micro_batches: int, partitions: int, *, dependencies: bool = True) -> str:
    """Return the order in which torchgpipe goes backward, checkpoint="always". Raises ImportError where it is not."""
    theirs, log = importlib.import_module("torchgpipe"), Log()
    layers = nn.Sequential(*(Probe(j, log, theirs.is_recomputing) for j in range(partitions)))
    devices = ["cpu"] * partitions
    model = theirs.GPipe(layers, [1] * partitions, devices=devices, chunks=micro_batches, checkpoint="always")
    pipeline = importlib.import_module("torchgpipe.pipeline")
    with nullcontext() if dependencies else _replaced(pipeline, "depend", lambda *_: None):
        output = model(numbers(micro_batches))
    output.sum().backward()
    return " ".join(log.ops)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def torchgpipe_orders() -> tuple[dict[str, str], str]:
    """Return its orders for 3 micro-batches × 2 partitions, and where they come from: run here, or recorded.

    Raises FileNotFoundError where torchgpipe is not and nothing is recorded.
    """
    try:
        return run_both()["orders"], "run here"
    except ImportError:
        record = load("torchgpipe_order")
        return record["orders"], provenance(record)


def run_both() -> dict[str, Any]:
    """Return {"orders": …}, with and without dependencies. Raises ImportError where torchgpipe is not."""
    return {
        "orders": {name: torchgpipe_run(3, 2, dependencies=name == "with") for name in ("with", "without")}
    }
