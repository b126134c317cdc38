"""Predictions and exercises of notebook 11, the order of backward."""

# mypy: allow-untyped-calls

from __future__ import annotations

import warnings
from functools import partial
from types import FunctionType
from typing import Any

from support.built import MyFork, MyJoin, depend, fence
from support.kit.exact import exact_number
from support.kit.exercise import Exercise
from support.kit.guess import Guess, Tried, letter
from support.kit.judged import judged
from support.kit.mistakes import edited, famous
from support.n11 import runs
from support.n11.runs import MyCheckpoint, MyRecompute, engine_order, fenced, my_tie
from support.n11.trials import fault_of_engine, fault_of_fence, fault_of_fork_join, fault_of_two_nodes

# ---- predictions


def _pair(said: Any) -> Any:
    return tuple(said) if isinstance(said, list) else said


guess_first = Guess(
    "the chain that goes backward first",
    lambda: "A",
    read=letter,
    tried=Tried(right="a", wrong="b"),
)
guess_ticks = exact_number(
    "the end of the partition's backward in ticks",
    lambda copy, again, back: max(copy, again) + back,
    said={
        12: "4 + 3 + 5 is the checkpoint in one node, in which the recomputation waits for the copy",
        7: "4 + 3 is when the recomputation ends if it waits for the copy; it need not",
        8: "3 + 5 forgets that the backward needs the gradient, too, and the copy takes longer",
    },
    tried=Tried(right=9, wrong=12, known=(4, 3, 5)),
)
guess_alive = Guess(
    "the most insides alive in partitions 0 and 1",
    lambda: tuple(runs.peaks(runs.order_of(8, 2, False))),
    read=_pair,
    tried=Tried(right=(2, 8), wrong=(8, 8)),
)
guess_changes = Guess("the number of gradient entries that change", lambda: 0, tried=Tried(right=0, wrong=4))
MISSING = (2, 1)
guess_missing = Guess(
    "the pair (i, j) whose tie was forgotten",
    lambda: MISSING,
    read=_pair,
    tried=Tried(right=(2, 1), wrong=(1, 1)),
)


def forgetful_order() -> list[str]:
    """Return the order of a pipeline of 4 micro-batches in 2 partitions in which one tie was forgotten."""
    _, forgetful = edited((depend, fence), ("i > 0", f"i > 0 and (i, j) != {MISSING}"))
    ran, _, _ = fenced(4, 2, forgetful)
    return [op for op in ran if op[0] != "C"]


# ---- exercise 1: the engine's rule

HIGHEST = "max(ready, key=lambda node: node._sequence_nr())"
ENGINES = {
    "A leaf w has three users in sin(w) + w * w: one edge of sin and two of w * w. You counted nodes, not edges, so "
    "it ran before sin.": (
        "read\n        for x in following(node)",
        "read\n        for x in set(following(node))",
    ),
    "A node is ready only when all its users have run, not the first of them.": (
        "if users[x] == 0:",
        "if x not in order + ready:",
    ),
    "Among the ready nodes the highest number goes first; here it is the lowest.": ("max(ready", "min(ready"),
    "Here the node that has been ready for longest goes first; the numbers decide.": (HIGHEST, "ready[0]"),
    "Here the node that became ready last goes first; the numbers decide.": (HIGHEST, "ready[-1]"),
}
check_engine = Exercise(
    "the engine's rule",
    name="engine_order",
    reference=engine_order,
    judge=judged(fault_of_engine, "the order in which autograd really ran seven graphs, node by node."),
    mistakes={
        **famous(engine_order, ENGINES),
        "AccumulateGrad is a node, too; it belongs into the list.": (
            lambda root: [node for node in engine_order(root) if "Accumulate" not in node.name()]
        ),
        "All nodes in the order of their numbers: which of them are ready is forgotten.": (
            lambda root: sorted(engine_order(root), key=lambda node: -node._sequence_nr())
        ),
        "The root itself runs, too, and first.": lambda root: engine_order(root)[1:],
    },
)
"""Exercise 1: which node runs when, against what autograd does."""


# ---- exercise 2: Fork and Join

check_fork_join = Exercise(
    "MyFork and MyJoin",
    name="forward and backward of MyFork and MyJoin",
    reference=(MyFork, MyJoin),
    answers=2,
    methods=("forward", "backward"),
    judge=judged(fault_of_fork_join, "values and gradients untouched, and b goes backward before a."),
)
"""Exercise 2: the phony, the values, the gradients, and the order that the edge forces."""


# ---- exercise 3: a checkpoint of two nodes, tied together

HALVES = {
    "Where x requires grad the new leaf must, too, or the gradient ends there.": (
        ".requires_grad_(x.requires_grad)",
        "",
    ),
    "Where x requires no grad, the new leaf must not either: its gradient costs time, and nobody wants it.": (
        "requires_grad_(x.requires_grad)",
        "requires_grad_(True)",
    ),
    "x is to get the gradient of the new leaf, x.grad: `gradient` is that of the output.": (
        "None, x.grad",
        "None, gradient",
    ),
    "The inside is out of `shared`, but ctx holds it, so it lives as long as the loss: a local name is enough.": (
        "x, output = ctx",
        "x, output = ctx.inside = ctx",
    ),
    "Nothing leads to Recompute: the Join is missing, or its result is thrown away.": (
        "return MyJoin.apply(output, phony)",
        "return output",
    ),
    "Only sequence numbers put Recompute before Checkpoint here: take its phony from a Fork of the output.": (
        "output, phony = MyFork.apply(output)",
        "phony = torch.empty(0, requires_grad=True)",
    ),
    "Inside backward no graph is recorded unless one asks for it: with torch.enable_grad().": (
        "with torch.enable_grad():",
        "if True:",
    ),
    "The inside must begin with a new leaf (x.detach()), or the nested backward runs on into what made x.": (
        "x = x.detach().requires_grad_(x.requires_grad)",
        "x.requires_grad and x.retain_grad()",
    ),
    "torch.autograd.grad for x alone leaves the parameters without their gradients.": (
        "torch.autograd.backward(output, gradient)",
        "x.grad = torch.autograd.grad(output, x, gradient, allow_unused=True)[0]",
    ),
    "The nested backward must begin with the gradient that arrived, not with ones.": (
        "backward(output, gradient)",
        "backward(output.sum())",
    ),
    "After backward the inside is still in `shared`, so its memory is not free: take it out (pop).": (
        '.pop("inside")',
        '["inside"]',
    ),
}
check_halves = Exercise(
    "a checkpoint of two nodes",
    name="both backward functions and my_tie",
    reference=(MyCheckpoint, MyRecompute, my_tie),
    answers=3,
    methods=("backward",),
    judge=judged(
        fault_of_two_nodes,
        "gradients as without a checkpoint, each inside computed once more, before the Wait, and then let go.",
        around=partial(warnings.catch_warnings, action="ignore"),  # torch, on a gradient asked of no leaf
    ),
    mistakes=famous((MyCheckpoint, MyRecompute, my_tie), HALVES),
)
"""Exercise 3: Checkpoint.backward, Recompute.backward, and the tie between them."""


# ---- exercise 4: depend and fence

FIRST = "        if i > 0:\n            depend(batches, i)"
THEN = "        if j > 0:\n            batches[i] = copy(batches[i], j)"
FENCES = {
    "Nothing is held back: the phony must come from a Fork of i - 1 and be joined to i, and what Join returns must be "
    "stored.": ("batches[i], phony)", "batches[i], torch.empty(0))"),
    "Partition 0 is not tied: every pair with i > 0 needs it, whatever j is.": ("i > 0", "i > 0 and j > 0"),
    "Only partition 0 is tied: for every pair with i > 0 fork batches[i - 1], the output of (i - 1, j).": (
        "i > 0",
        "i > 0 and not j",
    ),
    "Micro-batch 1 has one before it, 0: every pair with i > 0 is tied.": ("i > 0", "i > 1"),
    "Micro-batch 0 has nobody before it, and batches[-1] is the last one: tie only with i > 0.": (
        "i > 0",
        "True",
    ),
    "No copy is made: with j > 0 the batch must come from the partition before.": ("j > 0", "False"),
    "Partition 0 has nobody to copy from: copy only with j > 0.": ("j > 0", "True"),
    "copy takes the partition that the batch goes to: j, not j - 1.": ("], j)", "], j - 1)"),
    "Only the first pair of a clock is tied; all of them must be.": ("i > 0", "i and (i, j) in clock[:1]"),
    "Each is tied to the one before it; here all are tied to micro-batch 0.": ("i - 1]", "0]"),
    "When i is tied, i - 1 has been copied to the next partition already: go through the clock from its beginning.": (
        "in clock:",
        "in clock[::-1]:",
    ),
    "The copy stands before the tie, so (i - 1, j) does not wait for the copy's way back: tie first, then copy.": (
        f"{FIRST}\n{THEN}",
        f"{THEN}\n{FIRST}",
    ),
    "All copies stand before the first tie, so i - 1 has left its partition when i is tied to it: tie and copy pair by "
    "pair.": (f"{FIRST}\n{THEN}", f"{THEN}\n    for i, j in clock:\n{FIRST}"),
}


def _calling(depend: Any, fence: Any) -> Any:
    """Return the fence with this depend among its globals, where it stands in a notebook."""
    if not isinstance(fence, FunctionType):
        return fence
    return FunctionType(
        fence.__code__,
        {**fence.__globals__, "depend": depend},
        fence.__name__,
        fence.__defaults__,
        fence.__closure__,
    )


check_fence = Exercise(
    "fence",
    name="depend and fence",
    reference=(depend, fence),
    answers=2,
    judge=judged(
        lambda answer: fault_of_fence(_calling(*answer)),
        "in five pipelines backward runs in the order of a fence that ties every pair, and the edges see to it.",
    ),
    mistakes=famous((depend, fence), FENCES),
)
"""Exercise 4: (depend, fence); the order in which a fenced pipeline goes backward, and the edges that make it."""
