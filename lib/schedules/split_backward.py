"""Backward in halves: I, the gradient of the input, which the stage before waits for; W, that of the weights, later.

    output ── Add ── MatMul ── ReLU ── Add ── MatMul ── input      the trunk: every node that leads to the input
               │        │               │        │
              bias    weight           bias    weight              branches: what leads to weights only

I walks the trunk and writes down the gradient that arrives at every node where a branch begins. W starts from there and
walks the branches. So nothing is computed twice: of the two matrix products that backward of a linear layer has, I does
one and W the other. What it costs: the activations stay until W, and so do the gradients that I wrote down.

Two exceptions. Where a weight is used in several places of a stage, W also walks the trunk between them again. And a
custom autograd Function that does not ask `ctx.needs_input_grad` computes all its gradients each time.
torch.distributed.pipelining splits the same way (stage_backward_input, stage_backward_weight in its _backward.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Grads: TypeAlias = Sequence[Tensor | None]
Arriving: TypeAlias = list[tuple[Tensor, Any]]  # tensors, each with its gradient
Arrived: TypeAlias = dict[Node, tuple[Tensor | None, ...]]
Branches: TypeAlias = dict[Node, set[Node]]  # the weights (AccumulateGrad) that each node's branches lead to
ACCUMULATE = "torch::autograd::AccumulateGrad"


def backward_input(
    outputs: Sequence[Tensor], grads: Grads, inputs: Sequence[Tensor]
) -> tuple[list[Tensor | None], Callable[[], None]]:
    """Return the gradients of `inputs`, and the function that adds those of the weights to their `.grad`: W.

    outputs: tensors with a graph, grads: what arrives at them (None for a loss). inputs: leaves; None is the gradient
    of one that needs none or is not used. Where no input needs one there is no I: all the work is left to W.
    W keeps the graph alive; call it once.

    What a tensor's hook (`register_hook`) makes of the gradient counts once, as in a whole backward; where a weight
    joins in, W calls it a second time, with zeros, and takes no notice of what it returns. Hooks of torch's
    `register_post_accumulate_grad_hook` are not called. Raises RuntimeError for a GPipe inside that computes again.
    """
    wanted = [x for x in inputs if x.requires_grad]
    on_trunk, branches = trunk([y.grad_fn for y in outputs if y.grad_fn is not None], wanted)
    upper: Arriving = []  # outputs that lead to an input, or are one
    aside: Arriving = []  # outputs that lead to weights only
    for y, g in zip(outputs, grads, strict=True):
        if y.grad_fn in on_trunk or any(y is x for x in wanted):
            upper.append((y, g))
        else:
            aside.append((y, g))
    arrived: Arrived = {}
    found: Sequence[Tensor | None] = [None] * len(wanted)
    if upper:
        ends, arriving = zip(*upper, strict=True)
        with ExitStack() as hooks:
            for node in branches:
                note = partial(arrived.__setitem__, node)
                hooks.callback(node.register_prehook(note).remove)
            found = torch.autograd.grad(ends, wanted, arriving, retain_graph=True, allow_unused=True)
    by_input = {id(x): g for x, g in zip(wanted, found, strict=True)}
    # `upper` goes along: a node of a custom Function lives only as long as a tensor that it has led to
    later = partial(_backward_weight, branches, arrived, aside, upper, on_trunk)
    return [by_input.get(id(x)) for x in inputs], later


def _refuse_checkpoint(node: Node) -> None:
    """Raise RuntimeError for a Checkpoint of lib.pipeline: it adds to weights by itself, each time it is walked."""
    if node.name() == "CheckpointBackward":
        raise RuntimeError(
            "a checkpoint goes backward as a whole, not in halves: take a schedule without W (one_f_one_b), or "
            "checkpoint='never' in the GPipe inside"
        )


def trunk(roots: Sequence[Node], inputs: Sequence[Tensor]) -> tuple[set[Node], Branches]:
    """Return the nodes that lead to an input, and those of them at which a branch to weights begins."""
    on_trunk: set[Node] = set()
    leads_to: Branches = {}  # of nodes off the trunk: their weights
    branches: Branches = {}
    for node in _inputs_first(roots):
        below = [child for child, _ in node.next_functions if child is not None]
        weights: set[Node] = set().union(*(leads_to[child] for child in below if child not in on_trunk))
        if node.name() == ACCUMULATE:
            if any(node.variable is x for x in inputs):  # type: ignore[attr-defined]
                on_trunk.add(node)
            else:
                leads_to[node] = {node}
        elif any(child in on_trunk for child in below):
            _refuse_checkpoint(node)
            on_trunk.add(node)
            if weights:
                branches[node] = weights
        else:
            leads_to[node] = weights
    return on_trunk, branches


def _inputs_first(roots: Iterable[Node]) -> list[Node]:
    """Return every node below `roots`, each after all that it leads to; without recursion, for deep graphs."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(root, False) for root in roots]
    while stack:
        node, children_done = stack.pop()
        if children_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((child, False) for child, _ in node.next_functions if child is not None)
    return order


def _backward_weight(
    branches: Branches, arrived: Arrived, aside: Arriving, upper: Arriving, on_trunk: set[Node]
) -> None:
    """Do W: what leads to weights only, then the branches from what has arrived at them."""
    aside_edges = [get_gradient_edge(y) for y, _ in aside]
    # A hook of a weight is to see the whole gradient of it: who shares one with another way goes together with it.
    used = Counter(weight for node in arrived for weight in branches[node])
    by_aside = [node for node in _inputs_first(edge.node for edge in aside_edges) if used[node]]
    used.update(by_aside)
    together = [node for node in arrived if any(used[weight] > 1 for weight in branches[node])]
    alone = [node for node in arrived if node not in together]
    if aside and not by_aside:
        ends, grads = zip(*aside, strict=True)
        torch.autograd.backward(ends, grads, retain_graph=bool(arrived))
        aside = []
    for node in alone:
        _walk_branches([node], branches, arrived, retain_graph=bool(together))
    if together:
        with ExitStack() as hooks:
            for node in together:
                hooks.callback(_only_zeros_go_further(node, on_trunk))
            _walk_branches(together, branches, arrived, aside, retain_graph=False)


def _walk_branches(
    nodes: list[Node],
    branches: Branches,
    arrived: Arrived,
    aside: Sequence[tuple[Tensor, Any]] = (),
    *,
    retain_graph: bool,
) -> None:
    """Add to `.grad` of the weights what the branches of these nodes, and what is aside, give; in one call."""
    starts = [
        (GradientEdge(node, k), _zeros(g)) for node in nodes for k, g in enumerate(arrived[node]) if g is not None
    ]
    starts += [(get_gradient_edge(y), torch.ones_like(y) if g is None else g) for y, g in aside]
    if not starts:
        return
    leaves: Any = dict.fromkeys(leaf for node in nodes for leaf in branches[node])
    for node in _inputs_first(edge.node for edge, _ in starts[len(starts) - len(aside) :]):
        if node.name() == ACCUMULATE:
            leaves[node] = None
    weights: list[Tensor] = [leaf.variable for leaf in leaves]
    edges, grads = zip(*starts, strict=True)
    with ExitStack() as hooks:
        for node in nodes:
            hooks.callback(arrives_again(node, arrived[node]))
        found = torch.autograd.grad(edges, weights, grads, retain_graph=retain_graph, allow_unused=True)
    for weight, grad in zip(weights, found, strict=True):
        if grad is None:
            continue
        if weight.grad is None:
            weight.grad = grad.clone()  # it may be the very tensor that arrived, which others hold as well
        else:
            weight.grad += grad


def arrives_again(node: Node, grads: tuple[Tensor | None, ...]) -> Callable[[], None]:
    """Let these gradients arrive at a node, whatever comes to it; return what ends that.

    They have been through the hooks of the node's tensors (`h.register_hook`, `h.retain_grad`), which autograd calls
    for all that comes, and comes before this.
    """
    handle = node.register_prehook(lambda _: grads)
    return handle.remove


def _only_zeros_go_further(node: Node, on_trunk: set[Node]) -> Callable[[], None]:
    """Let nothing but zeros go on from a node along the trunk; return what ends that.

    From the upper of two nodes with a common weight a way to it leads along the trunk, through the lower one. I has
    been there, and what came along that way is in what arrived at the lower one.
    """
    further = [child in on_trunk for child, _ in node.next_functions]

    def to_branches(found: Grads, _: Grads) -> tuple[Tensor | None, ...]:
        return tuple(_zeros(g) if on and g is not None else g for g, on in zip(found, further, strict=True))

    return node.register_hook(to_branches).remove


def _zeros(like: Tensor) -> Tensor:
    """Return zeros that take no memory: the hooks of a tensor see them in W, and what they add up stays as it is."""
    return torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape)
