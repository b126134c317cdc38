"""What is particular about the checks of notebook 11; what all exercises have in common is in test_exercises."""

import pytest
import torch

from support.n11 import checks as n11
from support.n11.figures import ties_of

TRUTH = "R12 B12 R02 R11 B02 B11 R01 R10 B01 B10 R00 B00"


class MyFork(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.detach(), torch.empty(0)

    @staticmethod
    def backward(ctx, grad_x, grad_phony):
        return grad_x


class MyJoin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phony):
        return x.detach()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def ask_with(base, half, function):
    """Return the verdict on MyFork and MyJoin, of which `half` of `base` is replaced."""
    variant = type(base.__name__, (base,), {half: staticmethod(function)})
    return n11.check_fork_join(*(variant if own is base else own for own in (MyFork, MyJoin)))


def test_what_the_notebook_asks_for_passes_and_half_of_it_is_not_attempted():
    assert n11.check_fork_join(MyFork, MyJoin)
    assert ask_with(MyFork, "forward", lambda ctx, x: (x.view_as(x), torch.empty(0)))
    assert ask_with(MyJoin, "backward", lambda ctx, gradient: None).status == "open"


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
        (MyFork, "forward", dead_phony, "does not require grad, so it leads nowhere"),
        (MyFork, "backward", lambda ctx, x, phony: (x, phony), "one gradient for each argument of forward"),
        (MyFork, "backward", lambda ctx, x, phony: [].clear(), "Chain a gets no gradient"),
        (MyFork, "backward", lambda ctx, x, phony: x * 2, "gradient of chain a is 4, not 2"),
        (MyFork, "backward", lambda ctx, x: x, "two in Fork, one in Join"),
        (MyJoin, "backward", lambda ctx, x: x, "one gradient for each argument of forward"),
        (MyJoin, "backward", lambda ctx, x: (x, x), "The phony's has no elements"),
        (MyJoin, "backward", lambda ctx, x: (None, None), "Chain b gets no gradient"),
        (MyJoin, "backward", lambda ctx, x: (2 * x, None), "gradient of chain b is 6, not 3"),
        (MyJoin, "apply", lambda x, phony: x * 1, "Backward ran a1 a0 b1 b0, so nothing holds a back"),
        (MyFork, "apply", lambda x: (x, torch.empty(0)), "without a Fork node"),
    ],
)
def test_a_wrong_half_is_named(base, half, wrong, says):
    verdict = ask_with(base, half, wrong)
    assert verdict.status == "wrong" and says in verdict.message


def test_the_order_by_hand_passes_as_text_or_list():
    assert n11.check_by_hand(TRUTH) and n11.check_by_hand(TRUTH.lower().split())


def wrong_order(begins):
    return next(wrong for why, wrong in n11.check_by_hand.mistakes.items() if why.startswith(begins))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (wrong_order("This is the order without"), "R02 at position 1 needs B12 first"),
        (wrong_order("Here each R waits"), "at position 3 ready are B02, R11: R11 has the highest number, not"),
        (["B12", "R12", *TRUTH.split()[2:]], "B12 at position 0 needs R12 first"),
        (TRUTH.split()[:-1], "missing: B00"),
        ([*TRUTH.split()[:-1], "B99"], "unknown: B99"),
        ([*TRUTH.split(), "B00"], "twice: B00"),
        (12, "a text such as"),
    ],
)
def test_a_wrong_order_is_told_its_first_fault(wrong, says):
    verdict = n11.check_by_hand(" ".join(wrong) if isinstance(wrong, list) else wrong)
    assert verdict.status == "wrong" and says in verdict.message


def test_the_damaged_graph_misses_exactly_the_edge_that_is_asked_for():
    nodes = n11.damaged_run().nodes
    earlier = {(nodes[b].place.i, nodes[b].place.j) for _, b in ties_of(nodes)}
    i, j = n11.MISSING
    assert {(i, j) for i in range(3) for j in range(2)} - earlier == {(i - 1, j)}
    assert n11.damaged_run().ops.index("R11") < n11.damaged_run().ops.index("B21")
    assert n11.check_missing([2, 1])
