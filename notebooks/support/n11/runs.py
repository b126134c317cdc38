"""What notebook 11, the order of backward, looks at: graphs as lists of nodes, and the orders of whole pipelines."""

# mypy: allow-untyped-calls
# ruff: noqa: D102

from __future__ import annotations

import importlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor, nn

from lib.pipeline.checkpoint import is_recomputing
from lib.pipeline.gpipe import GPipe
from lib.pipeline.pipeline import clock_cycles
from lib.runtime.recording import Place
from support.built import MyTwoNodeCheckpoint, fence, my_tie
from support.kit.raised import Finding
from support.recordings import load, provenance

AutogradFunction: TypeAlias = Any  # a class derived from torch.autograd.Function
Fence: TypeAlias = Callable[[list[tuple[int, int]], list[Tensor], Callable[[Tensor, int], Tensor]], None]

OLDER = 10_000
"""Nodes that an older worker has made before; far more than the thread that goes backward."""

# ---- The autograd graph as a list of nodes, and the engine's rule.


@dataclass(frozen=True)
class Node:
    """One node: its name, where it belongs, the indices of the nodes that it leads to.

    next[0] is the node of the first argument in forward, None if that needed no gradient; leaves are None as well.
    """

    name: str
    place: Place
    next: tuple[int | None, ...]
    function: Any = field(repr=False, compare=False)


def engine_order(root: Any) -> list[Any]:
    """Return all nodes behind `root`, itself first, in the order in which autograd will run them."""
    users = Counter[Any]()
    found = [root]
    for node in found:  # grows while it is read
        for x in following(node):
            users[x] += 1
            found += [x] * (users[x] == 1)
    order = []
    ready = [root]
    while ready:
        node = max(ready, key=lambda node: node._sequence_nr())
        ready.remove(node)
        order.append(node)
        for x in following(node):
            users[x] -= 1
            if users[x] == 0:
                ready.append(x)
    return order


def following(node: Any) -> list[Any]:
    """Return the nodes that made the inputs of this one."""
    return [x for x, _ in node.next_functions if x is not None]


def walk(output: Tensor) -> list[Node]:
    """Return all nodes behind `output`, in the order in which backward will run them; without AccumulateGrad.

    A node says where it belongs by a label such as "a0" or by the `place` (micro-batch, partition) that it shares with
    others; one that doesn't belongs where its first argument belongs (a Copy to the partition after it), or else where
    it is used.
    """
    functions = [
        function for function in engine_order(output.grad_fn) if "AccumulateGrad" not in function.name()
    ]
    index = {function: k for k, function in enumerate(functions)}
    edges = [tuple(index.get(target) for target, _ in function.next_functions) for function in functions]
    places = [_own_place(function) for function in functions]
    for k in reversed(range(len(functions))):  # inputs first: where an argument comes from is known by then
        first = edges[k][0] if edges[k] else None
        source = None if first is None else places[first]
        if places[k] is None and source is not None:
            places[k] = Place(source.i, source.j + (_name(functions[k]) == "Copy"))
    for k, targets in enumerate(edges):
        for target in targets:
            if target is not None and places[target] is None:
                places[target] = places[k]
    return [
        Node(_name(function), place or Place(0, 0), targets, function)
        for function, place, targets in zip(functions, places, edges, strict=True)
    ]


def _name(function: Any) -> str:
    return getattr(function, "label", None) or re.sub(
        r"^My(?=[A-Z])|TwoNode|(Node)?Backward\d*$", "", function.name()
    )


def _own_place(function: Any) -> Place | None:
    if found := re.fullmatch(r"([a-z])(\d)", getattr(function, "label", "")):
        return Place("abcdefgh".index(found[1]), int(found[2]))
    place = getattr(function, "shared", {}).get("place")
    return None if place is None else Place(*place)


# ---- A pipeline of checkpoints as the notebook builds it. An operation is written as its letter, the micro-batch, the
# partition: R21 recomputes micro-batch 2 in partition 1, B21 is its backward, C21 the way back of its copy.


class Noted(torch.autograd.Function):
    """Pass a tensor on; backward notes a label."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, label: str, ran: list[str]) -> Tensor:
        ctx.note = label, ran
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        ctx.note[1].append(ctx.note[0])
        return gradient, None, None


def step(x: Tensor, label: str, ran: list[str]) -> Tensor:
    """Apply a Step."""
    return Noted.apply(x, label, ran)  # type: ignore[no-any-return]


class CopyNode(torch.autograd.Function):
    """Stand for a copy where there is one device: pass the tensor on, and in backward the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient


class WaitNode(CopyNode):
    """Stand for a point at which one stream waits for another."""


def make_nodes(count: int) -> None:
    """Let this thread's sequence numbers run ahead by so many."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(count):
        x * 1


def far_ahead() -> None:
    """Let this thread's sequence numbers run ahead of those of a new one."""
    make_nodes(64)


def operation(node: Any) -> str:
    """Return what a node of `fenced` stands for: B21 for a Checkpoint, C21 for a copy, "" for others."""
    if hasattr(node, "shared"):  # Recompute has a function as well
        return "" if hasattr(node, "function") else "B{}{}".format(*node.shared["place"])
    return str(getattr(node, "note", [""])[0])


def note_sums(output: Tensor) -> Callable[[], str]:
    """Note which gradients arrive in backward; what is returned tells of one that autograd adds up of two, or "".

    AccumulateGrad adds up by its nature, and is left out. A None that arrives is nothing to add.
    """
    nodes = engine_order(output.grad_fn)
    index = {node: k for k, node in enumerate(nodes)}
    names = [_name(node) for node in nodes]
    givers: dict[tuple[int, int], list[str]] = {}

    def note(k: int, ends: list[tuple[int, int] | None], gradients: Sequence[Tensor | None], _: Any) -> None:
        for end, gradient in zip(ends, gradients, strict=False):
            if end is not None and gradient is not None:
                givers.setdefault(end, []).append(names[k])

    for k, node in enumerate(nodes):
        ends = [
            None if end is None or "Accumulate" in end.name() else (index[end], number)
            for end, number in node.next_functions
        ]
        node.register_hook(partial(note, k, ends))
    return lambda: next((" and ".join(sorted(two)) for two in givers.values() if len(two) > 1), "")


def must_send(given: Sequence[Tensor | None], _: Any) -> None:
    """Raise, as a hook of a MyWait's node, where it gives no gradient: the next node would get zeros of torch's."""
    if given[-1] is None:
        raise Finding("MyWait.backward gives None for x, so no gradient goes on.")


def fenced(
    m: int,
    n: int,
    prepare: Fence,
    older: int = 0,
    before: Callable[[Tensor], Any] = lambda output: None,
) -> tuple[list[str], Tensor | None, Tensor]:
    """Run a pipeline of checkpoints with this fence; return what backward ran, the parameter's gradient, the output.

    One worker computes all partitions, as in torchgpipe on a CPU. older: nodes that it has made before. before: is
    called with the output when backward is about to begin.
    """
    ran = list[str]()
    w = torch.full((2,), 0.5, requires_grad=True)
    batches = [torch.full((1, 2), 1.0 + i) for i in range(m)]
    far_ahead()

    def compute(label: str, x: Tensor) -> Tensor:
        ran.extend([f"R{label}"] * torch.is_grad_enabled())
        return step(x * w + 1, f"B{label}", ran)

    def copy(pairs: dict[int, str], x: Tensor, j: int) -> Tensor:
        if j not in pairs:
            raise ValueError(f"copy was told partition {j}, but no pair of its clock is in partition {j}")
        return step(x, f"C{pairs[j]}", ran)

    with ThreadPoolExecutor(1) as worker:
        worker.submit(make_nodes, older)
        for clock in clock_cycles(m, n):
            prepare(clock, batches, partial(copy, {j: f"{i}{j}" for i, j in clock}))
            tasks = [({"place": (i, j)}, partial(compute, f"{i}{j}"), batches[i]) for i, j in clock]
            leaves = [torch.empty(0, requires_grad=True) for _ in tasks]
            outputs = [
                worker.submit(MyTwoNodeCheckpoint.apply, x, *y) for x, y in zip(leaves, tasks, strict=True)
            ]
            for (i, _), task, output in zip(clock, tasks, outputs, strict=True):
                batches[i] = my_tie(output.result(), *task)
    result = torch.cat(batches)
    before(result)
    result.sum().backward()
    return ran, w.grad, result


def untied(clock: list[tuple[int, int]], batches: list[Tensor], copy: Callable[..., Tensor]) -> None:
    """Prepare a clock as `fence` does, without ties."""
    for i, j in clock:
        if j > 0:
            batches[i] = copy(batches[i], j)


def order_of(m: int, n: int, tied: bool = True, older: int = 0) -> list[str]:
    """Return the order of a pipeline's backward: R and B, without copies.

    It runs in a thread of its own: autograd numbers each thread's nodes from 0 on, and the caller, a kernel that has
    worked all day, may be past every number that a worker could have.
    """
    with ThreadPoolExecutor(1) as young:
        ran, _, _ = young.submit(fenced, m, n, fence if tied else untied, older).result()
    return [op for op in ran if op[0] != "C"]


def alive(ops: Sequence[str]) -> list[set[str]]:
    """Return, for each operation, the insides that exist while it runs, as "21" for micro-batch 2 in partition 1.

    An inside exists from its recomputation to the end of its backward.
    """
    now = set[str]()
    found = []
    for op in ops:
        now = now | {op[1:]}
        found.append(now)
        if op[0] == "B":
            now = now - {op[1:]}
    return found


def peaks(ops: Sequence[str]) -> list[int]:
    """Return, for each partition, the most insides that exist at once."""
    partitions = sorted({op[2] for op in ops})
    return [max(sum(pair[1] == j for pair in now) for now in alive(ops)) for j in partitions]


# ---- The order in which others go backward: lib's GPipe, torchgpipe (run here if it can be imported, else recorded by
# `python -m support.recordings torchgpipe_order`; it is no requirement of this project), torch.utils.checkpoint.


class Probe(nn.Module):
    """A layer of partition j that notes its operations. Its input must hold the micro-batch's number in column 0."""

    def __init__(self, j: int, ran: list[str], recomputing: Callable[[], bool]) -> None:
        super().__init__()
        self.j = j
        self.ran = ran
        self.recomputing = recomputing
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor that still holds the number."""
        label = f"{round(x[0, 0].item())}{self.j}"
        self.ran.extend([f"R{label}"] * self.recomputing())
        return step(x * self.weight, f"B{label}", self.ran)


def _order(gpipe: Any, recomputing: Callable[[], bool], m: int, n: int) -> list[str]:
    ran = list[str]()
    far_ahead()
    layers = nn.Sequential(*(Probe(j, ran, recomputing) for j in range(n)))
    model = gpipe(layers, [1] * n, devices=["cpu"] * n, chunks=m, checkpoint="always")
    model(torch.arange(float(m)).view(m, 1).expand(m, 4).contiguous()).sum().backward()  # row i is all i
    return ran


def gpipe_order(m: int, n: int) -> list[str]:
    """Return the order in which lib.GPipe goes backward."""
    return _order(GPipe, is_recomputing, m, n)


def torchgpipe_run(m: int, n: int, *, dependencies: bool = True) -> str:
    """Return the order in which torchgpipe goes backward, checkpoint="always". Raises ImportError where it is not."""
    theirs, module = (importlib.import_module(name) for name in ("torchgpipe", "torchgpipe.pipeline"))
    with patch.object(module, "depend", module.depend if dependencies else lambda *_: None):
        return " ".join(_order(theirs.GPipe, theirs.is_recomputing, m, n))


def torchgpipe_orders() -> tuple[dict[str, list[str]], str]:
    """Return its orders for 3 micro-batches × 2 partitions, and where they come from: run here, or recorded.

    Raises FileNotFoundError where torchgpipe is not and nothing is recorded.
    """
    try:
        orders = run_both()["orders"]
        origin = "run here"
    except ImportError:
        record = load("torchgpipe_order")
        orders = record["orders"]
        origin = provenance(record)
    return {name: order.split() for name, order in orders.items()}, origin


def run_both() -> dict[str, Any]:
    """Return {"orders": …}, with and without dependencies. Raises ImportError where torchgpipe is not."""
    ways = {"with": True, "without": False}
    return {"orders": {name: torchgpipe_run(3, 2, dependencies=tied) for name, tied in ways.items()}}
