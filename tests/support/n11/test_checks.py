"""What is particular about the checks of notebook 11; what all exercises have in common is in test_detectors."""

import pytest
import torch

from support.built import MyFork, MyJoin, depend, fence
from support.kit.mistakes import edited
from support.n11 import checks as n11
from support.n11.runs import MyCheckpoint, MyRecompute, engine_order, my_tie


def ask_with(base, half, function):
    """Return the verdict on MyFork and MyJoin, of which `half` of `base` is replaced."""
    variant = type(base.__name__, (base,), {half: staticmethod(function)})
    return n11.check_fork_join(*(variant if own is base else own for own in (MyFork, MyJoin)))


def test_other_right_ways_pass():
    assert ask_with(MyFork, "forward", lambda ctx, x: (x.view_as(x), torch.empty(0)))
    # whoever does not store the forked tensor has tied all the same: Fork is one more user of what lies behind it
    assert n11.check_fence(*edited((depend, fence), ("batches[i - 1], phony", "_, phony")))


def test_the_fence_is_tried_with_the_depend_that_is_given_beside_it():
    verdict = n11.check_fence(lambda batches, i: batches, fence)
    assert verdict.status == "wrong"
    assert "Nothing is held back" in verdict.message


def test_a_tie_that_gives_nothing_is_an_answer_and_a_wrong_one():
    verdict = n11.check_halves(MyCheckpoint, MyRecompute, lambda *_: None)
    assert verdict.status == "wrong"
    assert "returned None" in verdict.message


def dead_phony(ctx, x):
    phony = torch.empty(0)
    ctx.mark_non_differentiable(phony)
    return x.detach(), phony


@pytest.mark.parametrize(
    ("base", "half", "wrong", "says"),
    [
        (MyFork, "forward", lambda ctx, x: x.detach(), "must return two tensors"),
        (MyFork, "forward", lambda ctx, x: (x * 2, torch.empty(0)), "must not change x"),
        (MyFork, "forward", lambda ctx, x: (x.detach(), torch.empty(1)), "The phony has 1 elements"),
        (MyFork, "forward", lambda ctx, x: (x.detach(), x.detach()), "The phony has 3 elements"),
        (MyFork, "forward", dead_phony, "The phony does not lead to this Fork"),
        (MyFork, "backward", lambda ctx, x, phony: (x, phony), "one gradient for each argument of forward"),
        (MyFork, "backward", lambda ctx, x, phony: None, "MyFork.backward returns None: chain a gets no gradient"),
        (MyFork, "backward", lambda ctx, x, phony: x * 2, "gradient of chain a is 4, not 2"),
        (MyFork, "backward", lambda ctx, x: x, "one gradient for each output of forward"),
        (MyJoin, "forward", lambda ctx, x, phony: [].clear(), "returned None"),
        (MyJoin, "forward", lambda ctx, x, phony: x + 1, "must not change x"),
        (MyJoin, "backward", lambda ctx, x: x, "one gradient for each argument of forward"),
        (MyJoin, "backward", lambda ctx, x: (x, x), "The phony's has no elements"),
        (MyJoin, "backward", lambda ctx, x: (None, None), "MyJoin.backward returns None: chain b gets no gradient"),
        (MyJoin, "backward", lambda ctx, x: (2 * x, None), "gradient of chain b is 6, not 3"),
        (MyJoin, "apply", lambda x, phony: x * 1, "Backward ran a1 a0 b1 b0, so nothing holds a back"),
        (MyFork, "apply", lambda x: (x, torch.empty(0)), "without a Fork node"),
    ],
)
def test_a_wrong_half_of_fork_and_join_is_named(base, half, wrong, says):
    verdict = ask_with(base, half, wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(("old", "new", "says"), [
        ("return MyJoin.apply(output, phony)", "MyJoin.apply(output, phony)", "returned None"),
        ("None, None, None, x.grad", "None, None, None, None", "the gradient of parameter 0 is [0.0,"),
        ("None, None, None, x.grad", "None, x.grad", "one gradient for each argument of forward"),
        ("None, None, None, x.grad", "None, None, None, 2 * x.grad", "the gradient of parameter 0 is"),
        ('= x, ctx.function(x)', '= x, (ctx.function(x), ctx.function(x))[1]', "recomputes, once and before"),
])  # fmt: skip
def test_a_wrong_part_of_the_two_nodes_is_told(old, new, says):
    verdict = n11.check_halves(*edited((MyCheckpoint, MyRecompute, my_tie), (old, new)))
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize("old, new", [
    ("batches[i - 1], phony = Fork", "batches[i], phony = Fork"),  # from i, to i
    ("batches[i] = Join.apply(batches[i], phony)", "Join.apply(batches[i], phony)"),
    ("batches[i] = Join.apply(batches[i], phony)", "batches[i - 1] = Join.apply(batches[i - 1], phony)"),
    ("for i, j in clock:", "for j, i in clock:"), ("copy(batches[i], j)", "copy(batches[i], j) * 2"),
])  # fmt: skip
def test_a_wrong_line_of_the_fence_is_refused(old, new):
    assert n11.check_fence(*edited((depend, fence), (old, new))).status == "wrong"


def test_another_form_is_told_and_the_forgotten_tie_is_in_the_order():
    assert "gave a tuple" in n11.check_engine(lambda root: tuple(engine_order(root))).message
    assert n11.check_engine(lambda root: [node.name() for node in engine_order(root)]).status == "wrong"
    order = n11.forgetful_order()
    late = [(i, j) for i in range(1, 4) for j in range(2) if order.index(f"B{i}{j}") > order.index(f"R{i - 1}{j}")]
    assert late == [n11.MISSING]


def test_a_famous_wrong_number_of_one_prediction_is_none_of_another():
    assert "checkpoint in one node" in n11.guess_ticks(12, 4, 3, 5).message
    assert "checkpoint in one node" not in n11.guess_first(12).message
