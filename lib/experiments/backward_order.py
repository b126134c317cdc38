"""The order of backward, predicted: by the engine's rule from a graph, or by hand from four lines; and what it holds.

`predict` runs only forward and applies the rule of lib.experiments.autograd_graph to the graph that lies there.
`by_hand` asks no autograd at all: `needs` are the edges in short, `turn` the sequence numbers in short.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from lib.experiments.autograd_graph import Node, rule_order, walk
from lib.experiments.backward_run import Run, Untied, forward
from lib.pipeline.pipeline import Pipeline

MODES = ("always", "except_last", "never")


@lru_cache(maxsize=64)
def predict(micro_batches: int, partitions: int, mode: str = "always", dependencies: bool = True) -> Run:
    """Run only forward, and say by the engine's rule what backward would do; `held` counts insides, not tensors."""
    pipeline = Pipeline if dependencies else Untied
    with forward(micro_batches, partitions, mode, pipeline) as (output, _, _):
        nodes = walk(output)
    order = rule_order(nodes)
    ops = tuple(op_of(nodes[k]) for k in order if op_of(nodes[k]))
    held = tuple(map(len, alive(ops, micro_batches, partitions)))
    return Run(ops, held, nodes, tuple(order), {})


def op_of(node: Node) -> str:
    """Return the operation that a node stands for, "" for all nodes that only lead from one to the next."""
    letter = {"Recompute": "R", "Checkpoint": "B", "layers": "B"}.get(node.name)
    return f"{letter}{node.place.i}{node.place.j}" if letter and node.place else ""


def alive(ops: Sequence[str], micro_batches: int, partitions: int) -> list[set[str]]:
    """Return, for each operation, the insides that exist while it runs, as "21" for micro-batch 2 in partition 1.

    An inside exists from its recomputation to the end of its backward; without recomputation from forward on.
    """
    pairs = {f"{i}{j}" for i in range(micro_batches) for j in range(partitions)}
    now = pairs - {op[1:] for op in ops if op[0] == "R"}
    found = []
    for op in ops:
        now = now | {op[1:]}
        found.append(now)
        if op[0] == "B":
            now = now - {op[1:]}
    return found


def peaks(ops: Sequence[str], micro_batches: int, partitions: int) -> list[int]:
    """Return, for each partition, the most insides that exist at once."""
    found = alive(ops, micro_batches, partitions)
    return [max(sum(pair[1] == str(j) for pair in now) for now in found) for j in range(partitions)]


def needs(micro_batches: int, partitions: int, *, dependencies: bool = True) -> dict[str, set[str]]:
    """Return, for each operation of "always", what must have run before it: the edges of the graph, in short.

    The gradient comes from the next partition; the inside must be there; and with dependencies, in each partition
    micro-batch i is done before anything of i - 1 begins.
    """
    found: dict[str, set[str]] = {}
    for i in range(micro_batches):
        for j in range(partitions):
            before = {f"B{i}{j + 1}"} if j + 1 < partitions else set()
            if dependencies and i + 1 < micro_batches:
                before.add(f"B{i + 1}{j}")
            found[f"R{i}{j}"], found[f"B{i}{j}"] = before, {f"R{i}{j}"}
    return found


def turn(op: str) -> tuple[bool, int, int]:
    """Return the place of an operation among those that are ready, the highest first: their sequence numbers, in short.

    Every R before any B; then the later clock of forward (i + j); then the later partition.
    """
    i, j = int(op[1]), int(op[2])
    return op[0] == "R", i + j, j


def by_hand(micro_batches: int, partitions: int, *, dependencies: bool = True) -> list[str]:
    """Return the order of "always", from `needs` and `turn` alone: no autograd is asked."""
    waiting = needs(micro_batches, partitions, dependencies=dependencies)
    order: list[str] = []
    while waiting:
        op = max((op for op, before in waiting.items() if before <= set(order)), key=turn)
        order.append(op)
        del waiting[op]
    return order
