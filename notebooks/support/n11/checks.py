"""Exercises of notebook 11, the order of backward; its predictions stand in guesses.py."""

# mypy: allow-untyped-calls

from __future__ import annotations

import warnings
from functools import partial
from types import FunctionType
from typing import Any
from unittest.mock import patch

from lib.runtime.device import current_stream
from support.built import (
    MyCopy,
    MyFork,
    MyJoin,
    MyRecompute,
    MyTwoNodeCheckpoint,
    MyWait,
    depend,
    fence,
    moved,
    my_tie,
)
from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import edited, famous
from support.n11.copying import fault_of_copy_wait
from support.n11.edges import fault_of_fork_join
from support.n11.fences import fault_of_copied_batches, fault_of_copies, fault_of_fence
from support.n11.guesses import MISSING
from support.n11.guesses import guess_ages as guess_ages
from support.n11.guesses import guess_changes as guess_changes
from support.n11.guesses import guess_first as guess_first
from support.n11.guesses import guess_missing as guess_missing
from support.n11.guesses import guess_sequence as guess_sequence
from support.n11.guesses import guess_ticks as guess_ticks
from support.n11.on_device import judged_on_devices_too
from support.n11.runs import engine_order, fenced
from support.n11.trials import fault_of_engine, fault_of_two_nodes


def _calling(function: Any, **names: Any) -> Any:
    """Return the function with these among its globals while it runs: its helpers in the notebook see them, too."""
    if not isinstance(function, FunctionType):
        return function

    def called(*arguments: Any) -> Any:
        with patch.dict(function.__globals__, names):
            return function(*arguments)

    return called


# ---- the order that a prediction asks of


def forgetful_order() -> list[str]:
    """Return the order of a pipeline of 4 micro-batches in 2 partitions in which one tie was forgotten."""
    _, forgetful = edited((depend, fence), ("i > 0", f"i > 0 and (i, j) != {MISSING}"))
    ran, _, _ = fenced(4, 2, forgetful)
    return [op for op in ran if op[0] != "C"]


# ---- exercise 1: the engine's rule

HIGHEST = "max(ready, key=lambda node: node._sequence_nr())"
ENGINES = {
    "A leaf w has two users in sin(w) + w * w, and three edges lead to it. You counted users and not edges, so it ran "
    "before sin.": (
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
    "A node stands in the list once for each edge to it; it runs once, when all of them have delivered.": (
        "if users[x] == 0:",
        "if users[x] >= 0:",
    ),
}
check_engine = Exercise(
    "the engine's rule",
    name="engine_order",
    reference=engine_order,
    judge=judged(fault_of_engine, "the order in which autograd really ran fifteen graphs, node by node."),
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

FORKS = {
    "A second tensor over the same memory is no copy.": ("x.detach()", "x.clone()"),
    "The phony's gradient has no elements, it is nothing to be added: hand on grad_x alone.": (
        "return grad_x\n",
        "return grad_x + grad_phony\n",
    ),
    "A gradient goes back as it came: Join gets that of its output, and x has no other.": (
        "return grad_x, None",
        "return None, None",
    ),
    "That is a whole activation, for an edge that carries no data.": (
        "return x.detach(), torch",
        "ctx.x = x\n        return x.detach(), torch",
    ),
}
check_fork_join = Exercise(
    "MyFork and MyJoin",
    name="forward and backward of MyFork and MyJoin",
    reference=(MyFork, MyJoin),
    answers=2,
    methods=("forward", "backward"),
    judge=judged(
        fault_of_fork_join, "values and gradients untouched, nothing copied, and b goes backward before a."
    ),
    mistakes=famous((MyFork, MyJoin), FORKS),
)
"""Exercise 2: the phony, the values, the gradients, and the order that the edge forces."""


# ---- exercise 3: Copy and Wait

WITH = "with source, target:\n        y"
COPIES = {
    "A copy works in the streams that are current, and here these are the compute streams.": (
        WITH,
        "if True:\n        y",
    ),
    "A copy between devices uses a stream on each: one copies, in the other the memory is taken.": (
        WITH,
        "with source:\n        y",
    ),
    "It is launched in the source's current stream.": (
        WITH,
        "with target:\n        y",
    ),
    "x is read in a copy stream and was allocated in a compute stream: the allocator must know of both.": (
        "    x.record_stream(source)\n",
        "",
    ),
    "What arrives is allocated in a copy stream and used in a compute stream: the allocator must know of both.": (
        "    y.record_stream(user)\n",
        "",
    ),
    "What arrives is used by a compute stream; here another stream is recorded, so its memory is free too early.": (
        "    y.record_stream(user)\n",
        "    y.record_stream(source)\n",
    ),
    "Both tensors are used in a stream that they weren't allocated in.": (
        "    x.record_stream(source)\n    y.record_stream(user)\n",
        "",
    ),
    "What arrives is recorded for the copy stream in which its memory was taken, which needs no record; inside the "
    "`with` that stream is the current one.": (
        "    user = current_stream(target.device)\n    with source, target:\n",
        "    with source, target:\n        user = current_stream(target.device)\n",
    ),
    "Backward has the same two duties towards the allocator as forward.": (
        "moved(gradient, next_stream, prev_stream)",
        "copied(gradient, next_stream, prev_stream)",
    ),
    "Backward copies in the streams that are current there, the compute streams; it has copy streams, too.": (
        "moved(gradient, next_stream, prev_stream)",
        "gradient.to(prev_stream.device)",
    ),
    "What ctx keeps lives no longer than the graph, and the copy may last longer: the allocator must know of it.": (
        "return None, None, moved(gradient, next_stream, prev_stream)",
        "ctx.gradient = gradient\n        return None, None, arrived(gradient, next_stream, prev_stream)",
    ),
    "In backward the gradient starts at next_stream and goes to prev_stream.": (
        "moved(gradient, next_stream, prev_stream)",
        "moved(gradient, prev_stream, next_stream)",
    ),
    "What stands outside of ctx belongs to all copies, so backward finds the streams of the last one.": (
        "ctx.streams = prev_stream, next_stream\n        return moved",
        "MyCopy.streams = prev_stream, next_stream\n        return moved",
        "prev_stream, next_stream = ctx.streams\n        return None, None, moved",
        "prev_stream, next_stream = MyCopy.streams\n        return None, None, moved",
    ),
    "Copy and Wait are two nodes: the compute stream waits later, when it needs what was copied.": (
        "    return y\n",
        "    user.wait_stream(target)\n    return y\n",
    ),
    "Where forward lets one stream wait, backward lets the other one wait; here nobody does.": (
        "        prev_stream.wait_stream(next_stream)\n",
        "",
    ),
    "In backward the gradient comes from next_stream, so it is prev_stream that has to wait.": (
        "        prev_stream.wait_stream(next_stream)\n",
        "        next_stream.wait_stream(prev_stream)\n",
    ),
    "next_stream must wait for what prev_stream has launched.": (
        "        next_stream.wait_stream(prev_stream)\n",
        "",
    ),
    "a.wait_stream(b) lets a wait.": (
        "        next_stream.wait_stream(prev_stream)\n",
        "        prev_stream.wait_stream(next_stream)\n",
    ),
    "While the host stands still it launches nothing.": (
        "next_stream.wait_stream(prev_stream)",
        "prev_stream.synchronize()",
    ),
    "Backward needs only the streams.": (
        "        return moved(x, prev_stream",
        "        ctx.save_for_backward(x)\n        return moved(x, prev_stream",
    ),
    "In both directions one stream waits for the other; each time only one of them needs something.": (
        "        prev_stream.wait_stream(next_stream)\n",
        "        prev_stream.wait_stream(next_stream)\n        next_stream.wait_stream(prev_stream)\n",
    ),
    "Another kernel takes time, and its result takes memory.": ("return x.detach()", "return x.clone()"),
}


def copied(x: Any, source: Any, target: Any) -> Any:
    """Copy in both streams, and tell the allocator nothing: for a famous mistake."""
    with source, target:
        return x.to(target.device)


def arrived(x: Any, source: Any, target: Any) -> Any:
    """Copy in both streams, and tell the allocator of what arrives alone: for a famous mistake."""
    user = current_stream(target.device)
    y = copied(x, source, target)
    y.record_stream(user)
    return y


check_copy_wait = Exercise(
    "MyCopy and MyWait",
    name="forward and backward of MyCopy and MyWait",
    reference=(MyCopy, MyWait),
    answers=2,
    methods=("forward", "backward"),
    judge=judged_on_devices_too(
        judged(
            fault_of_copy_wait,
            "right numbers, copies beside the computing, and find_races finds nothing, there and back.",
        )
    ),
    mistakes={
        sentence: answer[1:]
        for sentence, answer in famous(
            (moved, MyCopy, MyWait), COPIES, {"copied": copied, "arrived": arrived}
        ).items()
    },
)
"""Exercise 3: what is launched where, who waits for whom, and when memory may be given away."""


# ---- exercise 4: a checkpoint of two nodes, tied together

HALVES = {
    "Where x requires grad, what the function gets must, too, or the gradient ends there.": (
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
    "x gets no gradient here: that of the new leaf has to go on.": ("None, x.grad", "None, None"),
    "What ctx holds lives as long as the loss: a local name is enough for the inside.": (
        "x, output = ctx",
        "x, output = ctx.inside = ctx",
    ),
    "The pair goes into `shared` in one order, and out in the other.": ("x, output = ctx", "output, x = ctx"),
    "What my_tie returns must come out of a Join that got the phony of Recompute.": (
        "return Join.apply(output, phony)",
        "return output",
    ),
    "Recompute's phony is a leaf, so no edge holds anybody back until Recompute has run: the numbers decide.": (
        "output, phony = Fork.apply(output)",
        "phony = torch.empty(0, requires_grad=True)",
    ),
    "What Fork returns takes the place of the output. Thrown away, it gets zeros for a gradient, which are added to "
    "the real one before Wait's backward: the sum reads what a copy may still be writing.": (
        "output, phony = Fork",
        "_, phony = Fork",
    ),
    "The Fork is on x: what waits for Recompute then is what made x, and not the Wait and the Checkpoint.": (
        "output, phony = Fork.apply(output)",
        "_, phony = Fork.apply(x)",
    ),
    "What is handed to Recompute is detached, so it doesn't know that x requires grad.": (
        "apply(phony, shared, function, x)",
        "apply(phony, shared, function, x.detach())",
    ),
    "Recompute has to start from x, the input of the function, not from its output.": (
        "apply(phony, shared, function, x)",
        "apply(phony, shared, function, output)",
    ),
    "Inside backward no graph is recorded unless one asks for it: with torch.enable_grad().": (
        "with torch.enable_grad():",
        "if True:",
    ),
    "The inside must begin with a new leaf, or the nested backward runs on into what made x.": (
        "x = x.detach().requires_grad_(x.requires_grad)",
        "x.requires_grad and x.retain_grad()",
    ),
    "A nested backward for x alone leaves the parameters without their gradients.": (
        "torch.autograd.backward(output, gradient)",
        "x.grad = torch.autograd.grad(output, x, gradient, allow_unused=True)[0]",
    ),
    "The nested backward must begin with the gradient that arrived, not with ones.": (
        "backward(output, gradient)",
        "backward(output, torch.ones_like(output))",
    ),
    "The nested backward must begin at the recomputed output and its graph, with the gradient that arrived.": (
        "backward(output, gradient)",
        "backward(output.sum())",
    ),
    "Its memory is not free: take it out (pop).": (
        '.pop("inside")',
        '["inside"]',
    ),
}
check_halves = Exercise(
    "a checkpoint of two nodes",
    name="both backward functions and my_tie",
    reference=(MyTwoNodeCheckpoint, MyRecompute, my_tie),
    answers=3,
    methods=("backward",),
    judge=judged(
        lambda answer: fault_of_two_nodes((*answer[:2], _calling(answer[2], Recompute=answer[1]))),
        "gradients as without a checkpoint, each inside computed once more, before the Wait, and then let go.",
        around=partial(warnings.catch_warnings, action="ignore"),  # torch, on a gradient asked of no leaf
    ),
    mistakes=famous((MyTwoNodeCheckpoint, MyRecompute, my_tie), HALVES),
)
"""Exercise 4: the two backward functions, and the tie between them."""


# ---- exercise 5: depend and fence

FIRST = "        if i > 0:\n            depend(batches, i)"
THEN = "        if j > 0:\n            batches[i] = copy(batches[i], j)"
TIE = "            depend(batches, i)"
FENCES = {
    "Nothing is held back: no edge leads from a Join of i to a Fork of i - 1.": (
        "batches[i], phony)",
        "batches[i], torch.empty(0))",
    ),
    "Fork and Join have changed places: Fork takes what shall wait, i - 1, and Join what shall go first, i.": (
        "batches[i - 1], phony = Fork.apply(batches[i - 1])\n    batches[i] = Join.apply(batches[i], phony)",
        "batches[i], phony = Fork.apply(batches[i])\n    batches[i - 1] = Join.apply(batches[i - 1], phony)",
    ),
    "The list that fence was given is unchanged: what it prepares must stand in `batches` itself.": (
        "    for i, j in clock:",
        "    batches = list(batches)\n    for i, j in clock:",
    ),
    "What Fork returns takes the place of batches[i - 1]. Thrown away, it gets zeros for a gradient, which are added "
    "to the real one before anything has waited for that.": (
        "batches[i - 1], phony = Fork",
        "_, phony = Fork",
    ),
    "Partition 0 is not tied: every pair with i > 0 needs it, whatever j is.": ("i > 0", "i > 0 and j > 0"),
    "Only partition 0 is tied: every pair with i > 0 needs it, whatever j is.": (
        "i > 0",
        "i > 0 and not j",
    ),
    "Micro-batch 1 has one before it, 0: every pair with i > 0 is tied.": ("i > 0", "i > 1"),
    "Micro-batch 0 has nobody before it; batches[-1] is the last: tie only with i > 0.": ("i > 0", "True"),
    "With j > 0 batches[i] must become what `copy` gives; here it stays as it was.": ("j > 0", "False"),
    "Partition 0 has nobody to copy from: copy only with j > 0.": ("j > 0", "True"),
    "copy takes the partition that the batch goes to: j.": ("], j)", "], j - 1)"),
    "What is copied is micro-batch i, not the one before it.": ("copy(batches[i]", "copy(batches[i - 1]"),
    "A pair may need both, the tie and the copy; here what is tied is not copied.": (
        "        if j > 0:",
        "        elif j > 0:",
    ),
    "depend takes the number of the micro-batch, i; here it gets that of the partition.": (
        TIE,
        TIE.replace("i)", "j)"),
    ),
    "Ties of one clock cross: i - 1 was joined in this clock before i was tied to it, so i - 2 waits for i, too. "
    "Tie in the order of the clock, and only its pairs.": (
        f"    for i, j in clock:\n{FIRST}",
        "    for i in range(1, len(batches)):\n        depend(batches, i)\n    for i, j in clock:",
    ),
    "Only micro-batch 1 is tied; each with i > 0 must be.": ("i > 0", "i == 1"),
    "Only the first pair of a clock is tied; all of them must be.": ("i > 0", "i and (i, j) in clock[:1]"),
    "Each is tied to the one before it; here all are tied to micro-batch 0.": ("i - 1]", "0]"),
    "When i is tied, i - 1 has been copied to the next partition already: go through the clock from its beginning.": (
        "in clock:",
        "in clock[::-1]:",
    ),
    "The copy stands before the Join, so (i - 1, j) does not wait for the copy's way back: join first, then copy.": (
        f"{FIRST}\n{THEN}",
        f"{THEN}\n{FIRST}",
    ),
    "All copies stand before the first tie, so i - 1 has left its partition when i is tied to it: tie and copy pair by "
    "pair.": (f"{FIRST}\n{THEN}", f"{THEN}\n    for i, j in clock:\n{FIRST}"),
}


def _fault_of_both(answer: tuple[Any, Any]) -> str:
    """Try the reader's fence with their depend, and then that depend by itself, with our fence."""
    tied, prepare = answer
    alone = _calling(fence, depend=tied)
    return (
        fault_of_fence(_calling(prepare, depend=tied))
        or fault_of_fence(alone, "depend in a fence of ours: ")
        or fault_of_copies(tied)
        or fault_of_copied_batches(_calling(prepare, depend=tied))
    )


check_fence = Exercise(
    "fence",
    name="depend and fence",
    reference=(depend, fence),
    answers=2,
    judge=judged(
        _fault_of_both,
        "in five pipelines backward runs in the order of a fence that ties every pair, and the edges see to it.",
    ),
    mistakes=famous((depend, fence), FENCES),
)
"""Exercise 5: (depend, fence); the order in which a fenced pipeline goes backward, and the edges that make it."""
