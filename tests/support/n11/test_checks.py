"""What is particular about the checks of notebook 11; what all exercises have in common is in test_detectors."""

import heapq
import itertools
from collections import Counter

import pytest
import torch

from lib.runtime.device import current_stream
from support.built import (
    Fork,
    Join,
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
from support.kit.mistakes import edited
from support.n11 import checks as n11
from support.n11.runs import engine_order

COPYING = (moved, MyCopy, MyWait)
HALVES = (MyTwoNodeCheckpoint, MyRecompute, my_tie)


def ask_with(base, half, function):
    """Return the verdict on MyFork and MyJoin, of which `half` of `base` is replaced."""
    variant = type(base.__name__, (base,), {half: staticmethod(function)})
    return n11.check_fork_join(*(variant if own is base else own for own in (MyFork, MyJoin)))


# ---- other right ways


def by_a_heap(root):
    """Count all users with a stack first; then let a heap choose."""
    users = Counter()
    seen = {root}
    stack = [root]
    while stack:
        for x, _ in stack.pop().next_functions:
            if x is not None:
                users[x] += 1
                if x not in seen:
                    seen.add(x)
                    stack.append(x)
    turn = itertools.count()
    heap = [(-root._sequence_nr(), 0, root)]
    order = []
    while heap:
        _, _, node = heapq.heappop(heap)
        order.append(node)
        for x, _ in node.next_functions:
            if x is None:
                continue
            users[x] -= 1
            if not users[x]:
                heapq.heappush(heap, (-x._sequence_nr(), -next(turn), x))  # of equals the last
    return order


def by_sets(root):
    """Ask in each round which nodes have no user left among those that have not run."""
    waiting = [root]
    for node in waiting:
        waiting += {x for x, _ in node.next_functions if x is not None} - set(waiting)
    order = []
    while waiting:
        held = {x for node in waiting for x, _ in node.next_functions}
        ready = [node for node in waiting if node not in held]
        order.append(max(ready, key=lambda node: node._sequence_nr()))
        waiting.remove(order[-1])
    return order


@pytest.mark.parametrize("other", [by_a_heap, by_sets])
def test_another_engine_is_right(other):
    assert n11.check_engine(other)


HIGHEST = "max(ready, key=lambda node: node._sequence_nr())"
BY_PAIRS = (HIGHEST, "max((x._sequence_nr(), x) for x in ready)[1]")
SEEN_BY_NUMBER = ("[x] * (users[x] == 1)", "[x] * (x._sequence_nr() not in [y._sequence_nr() for y in found])")
BY_NUMBER = ("max(ready", "max((ready := [*{x._sequence_nr(): x for x in ready}.values()])")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (BY_PAIRS, "TypeError: '>' not supported"),
        (BY_NUMBER, "yours says Add Exp Mul AccumulateGrad."),
        (SEEN_BY_NUMBER, "made in other threads autograd ran"),
    ],
)
def test_a_number_is_no_name_of_a_node(change, says):
    verdict = n11.check_engine(edited(engine_order, change))
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message


PAIRS = (
    ("[root]", "[(root, 0)]"),
    ("following(node)", "[pair for pair in node[0].next_functions if pair[0]]"),
    ("node: node.", "node: node[0]."),
    ("order.append(node)", "order.append(node[0])"),
)
FIRST_OUTPUTS = (("following(node)", "[x for x, number in node.next_functions if x and number == 0]"),)


@pytest.mark.parametrize("changes", [PAIRS, FIRST_OUTPUTS])
def test_a_node_of_two_outputs_is_one_node(changes):
    verdict = n11.check_engine(edited(engine_order, *changes))
    assert verdict.status == "wrong", verdict.message
    assert "Unbind" in verdict.message


class Alias(torch.autograd.Function):
    """Fork with a view, and a phony cut out of x."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x), x.new_empty(0)

    @staticmethod
    def backward(ctx, *gradients):
        return gradients[0]


class AliasJoin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phony):
        return x.view(x.shape)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient.new_zeros(0)


@pytest.mark.parametrize("made", ["x.detach().reshape(-1)[:0]", "x.clone().flatten()[:0]"])
def test_a_phony_that_keeps_memory_is_refused(made):
    answer = edited((MyFork, MyJoin), ("torch.empty(0, device=x.device)", made))
    verdict = n11.check_fork_join(*answer)
    assert verdict.status == "wrong"
    assert "keeps memory alive" in verdict.message


def test_other_forks_and_joins_are_right():
    assert n11.check_fork_join(Alias, AliasJoin)
    assert ask_with(MyFork, "forward", lambda ctx, x: (x, torch.empty(0)))  # torch makes the alias
    assert ask_with(MyJoin, "forward", lambda ctx, x, phony: x)


class CopyByEvents(torch.autograd.Function):
    """Copy into memory that was made in the target stream; nothing is shared between the two directions."""

    @staticmethod
    def forward(ctx, source, target, x):
        ctx.way = source, target
        to_be_used_in = current_stream(target.device)
        with target, source:
            y = x.to(target.device, non_blocking=True)
        for tensor, stream in ((x, source), (y, to_be_used_in), (y, target)):
            tensor.record_stream(stream)
        return y.detach()

    @staticmethod
    def backward(ctx, gradient):
        target, source = ctx.way
        to_be_used_in = current_stream(target.device)
        gradient.record_stream(source)
        with source, target:
            back = gradient.to(target.device)
        back.record_stream(to_be_used_in)
        return None, None, back


class WaitByEvents(torch.autograd.Function):
    @staticmethod
    def forward(ctx, before, after, x):
        ctx.way = before, after
        after.wait_event(before.record_event())
        return x

    @staticmethod
    def backward(ctx, gradient):
        before, after = ctx.way
        before.wait_event(after.record_event())
        return None, None, gradient.view_as(gradient)


MOVES = "        y = x.to(target.device)\n"


@pytest.mark.parametrize(
    "made", ["torch.empty_like(x, device=target.device)", "x.new_empty(x.shape, device=target.device)"]
)
def test_a_copy_into_memory_that_was_taken_before_is_one_copy(made):
    written = f"        y = {made}\n        y.copy_(x, non_blocking=True)\n"
    _, *answer = edited(COPYING, (MOVES, written), names={"current_stream": current_stream, "torch": torch})
    verdict = n11.check_copy_wait(*answer)
    assert verdict, verdict.message


def test_other_copies_and_waits_are_right():
    assert n11.check_copy_wait(CopyByEvents, WaitByEvents)
    assert n11.check_copy_wait(CopyByEvents, MyWait)
    assert n11.check_copy_wait(MyCopy, WaitByEvents)


def tie_in_one_go(output, shared, function, x):
    kept, phony = Fork.apply(output)
    return Join.apply(kept, MyRecompute.apply(phony, shared, function, x))


def tie_by_the_name_of_the_text(output, *task):
    output, phony = Fork.apply(output)
    return Join.apply(output, Recompute.apply(phony, *task))  # noqa: F821  # the check gives it the reader's


class GradThere(MyTwoNodeCheckpoint):
    @staticmethod
    def backward(ctx, gradient):
        x, output = ctx.shared["inside"]
        del ctx.shared["inside"]
        output.backward(gradient)
        return (None,) * 3 + (x.grad,)


NEW_IF_ASKED = edited(
    MyRecompute, ("x.detach().requires_grad_(x.requires_grad)", "x.detach().requires_grad_() if x.requires_grad else x")
)


@pytest.mark.parametrize(
    ("recompute", "tie"), [(MyRecompute, tie_in_one_go), (NEW_IF_ASKED, tie_by_the_name_of_the_text)]
)
def test_other_halves_are_right(recompute, tie):
    verdict = n11.check_halves(GradThere, recompute, tie)
    assert verdict, verdict.message


def all_ties_first(clock, batches, copy):
    for i, _ in clock:
        if i:
            depend(batches, i)
    for i, j in clock:
        batches[i] = copy(batches[i], j) if j else batches[i]


def test_other_fences_are_right():
    assert n11.check_fence(depend, all_ties_first)


def crossing(clock, batches, copy):
    for i, _ in sorted(clock):
        if i > 0:
            depend(batches, i)
    for i, j in clock:
        batches[i] = copy(batches[i], j) if j else batches[i]


def test_ties_that_cross_are_told_that_they_cross():
    assert "Ties of one clock cross" in n11.check_fence(depend, crossing).message


def test_a_fork_whose_tensor_is_thrown_away_is_refused():
    verdict = n11.check_fence(*edited((depend, fence), ("batches[i - 1], phony", "_, phony")))
    assert "takes the place of batches[i - 1]" in verdict.message
    verdict = n11.check_halves(*edited(HALVES, ("output, phony = Fork", "_, phony = Fork")))
    assert "takes the place of the output" in verdict.message


# ---- wrong ones, each told what is true of it


def test_the_fence_is_tried_with_the_depend_that_is_given_beside_it():
    verdict = n11.check_fence(lambda batches, i: batches, fence)
    assert verdict.status == "wrong"
    assert "Nothing is held back" in verdict.message


def test_a_tie_that_gives_nothing_is_an_answer_and_a_wrong_one():
    verdict = n11.check_halves(MyTwoNodeCheckpoint, MyRecompute, lambda *_: None)
    assert verdict.status == "wrong"
    assert "returned None" in verdict.message
    verdict = n11.check_halves(MyTwoNodeCheckpoint, MyRecompute, lambda output, *_: (output, output))
    assert "my_tie gave tuple, no tensor" in verdict.message


def dead_phony(ctx, x):
    phony = torch.empty(0)
    ctx.mark_non_differentiable(phony)
    return x.detach(), phony


@pytest.mark.parametrize(
    ("base", "half", "wrong", "says"),
    [
        (MyFork, "forward", lambda ctx, x: x.detach(), "must return two tensors"),
        (MyFork, "forward", lambda ctx, x: (x.detach(), None), "two tensors, (x, phony), not (Tensor, NoneType)."),
        (MyFork, "forward", lambda ctx, x: (x * 2, torch.empty(0)), "must not change x"),
        (MyFork, "forward", lambda ctx, x: (x.clone(), torch.empty(0)), "MyFork copies x"),
        (MyFork, "forward", lambda ctx, x: (x.detach(), torch.empty(1)), "The phony has 1 elements"),
        (MyFork, "forward", lambda ctx, x: (x.detach(), x.detach()), "The phony has 6 elements"),
        (MyFork, "forward", dead_phony, "The phony does not lead to this Fork"),
        (MyFork, "backward", lambda ctx, x, phony: (x, phony), "one gradient for each argument of forward"),
        (MyFork, "backward", lambda ctx, x, phony: None, "MyFork.backward returns None: chain a gets no gradient"),
        (MyFork, "backward", lambda ctx, x, phony: x * 2, "gradient of chain a is 0.4, not 0.2"),
        (MyFork, "backward", lambda ctx, x, phony: phony, "The phony's has no elements."),
        (MyFork, "backward", lambda ctx, x: x, "one gradient for each output of forward"),
        (MyFork, "backward", lambda ctx, x, phony: x + phony, "nothing to be added"),
        (MyJoin, "forward", lambda ctx, x, phony: [].clear(), "returned None"),
        (MyJoin, "forward", lambda ctx, x, phony: x + 1, "must not change x"),
        (MyJoin, "forward", lambda ctx, x, phony: x.clone(), "MyJoin copies x"),
        (MyJoin, "backward", lambda ctx, x: x, "one gradient for each argument of forward"),
        (MyJoin, "backward", lambda ctx, x: (x, x), "The phony's has no elements"),
        (MyJoin, "backward", lambda ctx, x: (None, None), "MyJoin.backward returns None: chain b gets no gradient"),
        (MyJoin, "backward", lambda ctx, x: (2 * x, None), "gradient of chain b is 0.6, not 0.3"),
        (MyJoin, "apply", lambda x, phony: x * 1, "copies x"),
        (MyJoin, "apply", lambda x, phony: x.view_as(x), "Backward ran a1 a0 b1 b0, so nothing holds a back"),
        (MyFork, "apply", lambda x: (x, torch.empty(0)), "a tensor that a Fork node made"),
    ],
)
def test_a_wrong_half_of_fork_and_join_is_named(base, half, wrong, says):
    verdict = ask_with(base, half, wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


BACK = "return None, None, moved(gradient, next_stream, prev_stream)"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (BACK, "return moved(gradient, next_stream, prev_stream)", "one gradient for each argument of forward"),
        (BACK, "return None, None, 2 * moved(gradient, next_stream, prev_stream)", "of x is 8196, not 4098"),
        (BACK, "return None, None, gradient", "nothing is copied"),
        (
            BACK,
            BACK.replace("return None, None,", "_ =") + "\n        return None, None, gradient",
            "back is on cuda:1",
        ),
        (BACK, "return None, None, None", "No gradient came back"),
        ("return moved(x, prev_stream, next_stream)", "return moved(x, prev_stream, next_stream).requires_grad_()", ""),
        ("return moved(x, prev_stream", "return moved(x + 0, prev_stream", "add"),
        ("return moved(x, prev_stream, next_stream)", "return x.detach()", "MyCopy gave a tensor on cuda:0"),
        ("return moved(x, prev_stream, next_stream)", "moved(x, prev_stream, next_stream)", "returned None"),
        ("return y", "return y.cpu()", "on cpu"),
        ("return x.detach()", "return (x.detach(),)", "must return x, not tuple"),
        ("return x.detach()", "return x * 1", "launches nothing"),
        ("        return None, None, gradient", "        return None, None, gradient.clone()", ""),
        # the target's stream waits for the copy, so its mark, too, is passed only behind it
        ("    x.record_stream(source)\n", "    x.record_stream(target)\n", ""),
        (
            "next_stream.wait_stream(prev_stream)",
            "current_stream(next_stream.device).wait_stream(prev_stream)",
            "lets copy of B wait for mul",
        ),
    ],
)
def test_a_wrong_line_of_copy_and_wait_is_told(old, new, says):
    _, copy, wait = edited(COPYING, (old, new), names={"current_stream": current_stream})
    verdict = n11.check_copy_wait(copy, wait)
    if says:
        assert verdict.status == "wrong", verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(("old", "new", "says"), [
        ("return Join.apply(output, phony)", "Join.apply(output, phony)", "returned None"),
        ("None, None, None, x.grad", "None, None, None, None", "x gets no gradient here"),
        ("None, None, None, x.grad", "None, x.grad", "one gradient for each argument of forward"),
        ("None, None, None, x.grad", "None, None, None, 2 * x.grad", "the gradient of parameter 0 is"),
        ("backward(output, gradient)", "backward(output, gradient.clone())", "a copy of the gradient that arrived"),
        ("x.grad\n", "x.grad if x.grad is None else x.grad.clone()\n", "x had got a copy of the new leaf's"),
        ('= x, ctx.function(x)', '= x, (ctx.function(x), ctx.function(x))[1]', "recomputes, once and before"),
        ("output, phony = Fork.apply(output)", "phony = torch.empty(0, requires_grad=True)", "phony is a leaf"),
        ("output, phony = Fork.apply(output)", "_, phony = Fork.apply(x)", "The Fork is on x"),
        ("phony, shared, function, x)\n    return", "phony, shared, function, x.detach())\n    return", "is detached"),
])  # fmt: skip
def test_a_wrong_part_of_the_two_nodes_is_told(old, new, says):
    verdict = n11.check_halves(*edited(HALVES, (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert "Only sequence numbers" not in verdict.message


@pytest.mark.parametrize("old, new", [
    ("batches[i] = Join.apply(batches[i], phony)", "Join.apply(batches[i], phony)"),
    ("batches[i] = Join.apply(batches[i], phony)", "batches[i - 1] = Join.apply(batches[i - 1], phony)"),
    ("for i, j in clock:", "for j, i in clock:"), ("copy(batches[i], j)", "copy(batches[i], j) * 2"),
])  # fmt: skip
def test_a_wrong_line_of_the_fence_is_refused(old, new):
    assert n11.check_fence(*edited((depend, fence), (old, new))).status == "wrong"


@pytest.mark.parametrize(
    ("old", "new", "never"),
    [
        ("            depend(batches, i)", "            depend(batches, i - 1)", "that of the partition"),
        ("if i > 0:", "if i > 0 and (i, j) != clock[0]:", "that of the partition"),
        ("batches[i - 1], phony = Fork.apply(batches[i - 1])", "batches[i], phony = Fork.apply(batches[i])", "places"),
        ("Join.apply(batches[i], phony)", "Join.apply(phony, batches[i])", "nothing to add"),
    ],
)
def test_what_is_alike_in_two_partitions_is_not_told_of_another_mistake(old, new, never):
    verdict = n11.check_fence(*edited((depend, fence), (old, new)))
    assert verdict.status == "wrong"
    assert never not in verdict.message


def test_another_form_is_told_and_the_forgotten_tie_is_in_the_order():
    assert "gave a tuple" in n11.check_engine(lambda root: tuple(engine_order(root))).message
    names = n11.check_engine(lambda root: [node.name() for node in engine_order(root)])
    assert names.status == "wrong"
    assert "which is no node" in names.message
    order = n11.forgetful_order()
    late = [(i, j) for i in range(1, 4) for j in range(2) if order.index(f"B{i}{j}") > order.index(f"R{i - 1}{j}")]
    assert late == [n11.MISSING]


@pytest.mark.costly
def test_a_famous_wrong_number_of_one_prediction_is_none_of_another():
    assert "lets the recomputation wait" in n11.guess_ticks(12, 4, 3, 5).message
    assert "lets the recomputation wait" not in n11.guess_first(12).message
    assert "that is it" in n11.guess_ages([8, 1], 8).message
    assert "that is it" in n11.guess_sequence("No").message
    for guess, wrong, why in (
        (n11.guess_ages, (1, 8), "swapped"),
        (n11.guess_ages, [8, 8], "as soon as it is ready"),
        (n11.guess_ages, (1, 1), "then no tie would be needed"),
        (n11.guess_missing, (1, 1), "R11 does come too early"),
        (n11.guess_missing, [1, 2], "swapped"),
    ):
        known = (8,) if guess is n11.guess_ages else ()
        assert why in guess(wrong, *known).message
