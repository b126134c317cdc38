"""The autograd graph as a list of nodes: read from a tensor, run on paper by the engine's rule, watched in a real run.

    nodes = walk(output)
    predicted = rule_order(nodes)
    ran = watch(nodes)
    output.sum().backward()
    assert ran == predicted

The rule of torch's engine, on a CPU: a node is ready when all nodes that use its outputs have run; of those that are
ready, the one with the highest sequence number runs next. Each thread numbers its own nodes 0, 1, 2, … in forward, so
two nodes of different threads may have the same number: which of them runs first is left open.
"""

from __future__ import annotations

import heapq
import re
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from lib.pipeline.tracing import Place


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

    A node says where it belongs by a `place` (micro-batch, partition), and its name by a `label`, if its context has
    them; one that doesn't belongs where its first argument belongs, or else where it is used. Raises ValueError for a
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
    return getattr(function, "label", None) or re.sub(r"Backward\d*$", "", function.name())


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
    checkpointing = getattr(function, "checkpointing", None)
    holder = function if checkpointing is None else checkpointing.function
    place = getattr(holder, "place", None)
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
