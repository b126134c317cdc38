"""Where a loss has no gradient, none is made: who hands on None tells those behind that they have nothing to do.

autograd walks a model from the loss to what that was made of, and to nothing else. In a pipeline backward also comes to
what the loss makes no use of: Fork and Join lead there for the sake of the order. No gradient arrives, and most of
torch's functions then hand on none. But one in Python (a compiled layer is one) is given zeros, unless it has said
ctx.set_materialize_grads(False), and makes zeros of them: parameters before it would have a gradient, and a weight
decay, or the momentum of an optimizer, would move them.

    used ─────────────┐
                      Fork ── loss        Fork has a gradient for `used`, and None for `ignored`: before it hands that
    ignored ── Twice ─┘                   on, it tells all nodes behind, up to the next Passage, to make none of none

So the graph is walked only where something is ignored, and only there nodes get a hook. What a node does beside
handing on can't be held back: torch's reentrant checkpoint adds to parameters by itself, and is refused there.

One difference to the plain model is left. A function that the loss does use may return None for its input. In the plain
model a function in Python before it is given zeros then; across the border of a partition it is told to make nothing,
as None looks the same from there, whatever it came from. So parameters before it keep None where they would have zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils.checkpoint import CheckpointFunction

_Gradients = Sequence[Tensor | None]
_TOLD = "lib: makes nothing of nothing"  # a mark in the metadata that torch keeps for each node


def leads_back(tensor: Tensor) -> bool:
    """Say whether backward can begin at a tensor: not where it needs no gradient, and not at a view without a graph.

    Of a view that was taken in torch.no_grad() torch says that it requires grad if its base does, and then can't go
    back from it. A plain model has no gradient there, and no error: whatever is made of the view ends at it.
    """
    is_graphless_view = tensor.grad_fn is None and tensor._is_view()
    return tensor.requires_grad and not is_graphless_view


class Passage(torch.autograd.Function):
    """A function of ours between the layers: it knows what to do without a gradient, and hands on by `hand_on`."""


def hand_on(node: Any, grads: _Gradients) -> tuple[Tensor | None, ...]:
    """Return the gradients that a Passage's backward hands on: one for each tensor that forward was given.

    node: the ctx of that backward.
    """
    followers = zip(node.next_functions, grads, strict=True)
    _tell([follower for (follower, _), grad in followers if grad is None and follower is not None])
    return tuple(grads)


def _tell(nodes: list[Node]) -> None:
    """Let these nodes, and all behind them as far as the next Passages and the leaves, make nothing of nothing."""
    to_visit = [*nodes]
    while to_visit:
        node = to_visit.pop()
        known: Any = node.metadata
        # A leaf makes nothing, and it outlives this graph: it would keep the hook.
        if _is_passage(node) or not node.next_functions or _TOLD in known:
            continue
        known[_TOLD] = True
        node.register_hook(_nothing_of_nothing)
        if issubclass(_function_of(node), CheckpointFunction):
            node.register_prehook(_refuse_nothing)
        to_visit += [child for child, _ in node.next_functions if child is not None]


def _is_passage(node: Node) -> bool:
    return issubclass(_function_of(node), Passage)


def _function_of(node: Node) -> type:
    """Return the class of a function in Python; of one in C++ that of its node."""
    function: type = getattr(type(node), "_forward_cls", type(node))
    return function


def _refuse_nothing(arrived: _Gradients) -> None:
    """Raise RuntimeError if nothing has arrived at torch's checkpoint: it adds to parameters by itself, zeros then."""
    if all(grad is None for grad in arrived):
        raise RuntimeError(
            "torch.utils.checkpoint with use_reentrant=True would give its parameters gradients of zeros, as the loss "
            "makes no use of what it returned: take use_reentrant=False"
        )


def _nothing_of_nothing(made: _Gradients, arrived: _Gradients) -> _Gradients | None:
    if any(grad is not None for grad in arrived):
        return None  # stays as it is
    return (None,) * len(made)
