"""The checks of notebook 11 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest
import torch
from support.n11 import checks as n11
from support.n11.figures import ties_of
from support.n11.runs import by_hand

from lib.pipeline.dependency import Fork, Join

TRUTH = "R12 B12 R02 R11 B02 B11 R01 R10 B01 B10 R00 B00"


class StubFork(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ...

    @staticmethod
    def backward(ctx, grad_x, grad_phony): ...


class StubJoin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, phony): ...

    @staticmethod
    def backward(ctx, grad_x): ...


def variant(base, **methods):
    """Return the autograd function `base` with other static methods."""
    return type(base.__name__, (base,), {name: staticmethod(method) for name, method in methods.items()})


# ---- exercise 1


def test_the_reference_passes_and_the_stub_is_neutral():
    assert n11.check_fork_join(n11.TrueFork, n11.TrueJoin)
    assert n11.check_fork_join(StubFork, StubJoin).status == "open"
    assert n11.check_fork_join(n11.TrueFork, StubJoin).status == "open"


def test_the_functions_of_lib_pass_too():
    assert n11.check_fork_join(Fork, Join)


def test_an_alias_by_view_passes():
    fork = variant(n11.TrueFork, forward=lambda ctx, x: (x.view_as(x), torch.empty(0)))
    assert n11.check_fork_join(fork, n11.TrueJoin)


def dead_phony(ctx, x):
    phony = torch.empty(0)
    ctx.mark_non_differentiable(phony)
    return x.detach(), phony


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        (lambda ctx, x: x.detach(), "must return two tensors"),
        (lambda ctx, x: (x * 2, torch.empty(0)), "must not change x"),
        (lambda ctx, x: (x.detach(), torch.empty(1)), "The phony has 1 elements"),
        (lambda ctx, x: (x.detach(), x.detach()), "The phony has 3 elements"),
        (dead_phony, "does not require grad, so it leads nowhere"),
        (lambda ctx, x: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_wrong_forward_of_fork_is_named(forward, says):
    verdict = n11.check_fork_join(variant(n11.TrueFork, forward=forward), n11.TrueJoin)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    ("backward", "says"),
    [
        (lambda ctx, grad_x, grad_phony: (grad_x, grad_phony), "one gradient for each argument of forward"),
        (lambda ctx, grad_x, grad_phony: [].clear(), "Chain a gets no gradient"),
        (lambda ctx, grad_x, grad_phony: grad_x * 2, "gradient of chain a is 4, not 2"),
        (lambda ctx, grad_x: grad_x, "two in Fork, one in Join"),
    ],
)
def test_a_wrong_backward_of_fork_is_named(backward, says):
    verdict = n11.check_fork_join(variant(n11.TrueFork, backward=backward), n11.TrueJoin)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    ("backward", "says"),
    [
        (lambda ctx, gradient: gradient, "one gradient for each argument of forward"),
        (lambda ctx, gradient: (gradient, gradient), "The phony's has no elements"),
        (lambda ctx, gradient: (None, None), "Chain b gets no gradient"),
        (lambda ctx, gradient: (2 * gradient, None), "gradient of chain b is 6, not 3"),
    ],
)
def test_a_wrong_backward_of_join_is_named(backward, says):
    verdict = n11.check_fork_join(n11.TrueFork, variant(n11.TrueJoin, backward=backward))
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_a_join_that_loses_the_phony_is_caught_by_the_order():
    class Lost:
        """Ties nothing: apply never sees the phony."""

        forward, backward = n11.TrueJoin.forward, n11.TrueJoin.backward

        @staticmethod
        def apply(x, phony):
            return x * 1

    verdict = n11.check_fork_join(n11.TrueFork, Lost)
    assert "Backward ran a1 a0 b1 b0, so nothing holds a back" in verdict.message


def test_a_fork_made_outside_of_autograd_is_caught():
    class Outside:
        """Returns the tensor itself, and a phony from nowhere."""

        forward, backward = n11.TrueFork.forward, n11.TrueFork.backward

        @staticmethod
        def apply(x):
            return x, torch.empty(0)

    verdict = n11.check_fork_join(Outside, n11.TrueJoin)
    assert verdict.status == "wrong"
    assert "without a Fork node" in verdict.message


# ---- exercise 2


def test_the_order_by_hand_passes_as_text_or_list():
    assert " ".join(by_hand(*n11.HAND)) == TRUTH
    assert n11.check_by_hand(TRUTH)
    assert n11.check_by_hand(TRUTH.lower().split())
    assert n11.check_by_hand(None).status == "open"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (by_hand(*n11.HAND, dependencies=False), "the order without dependencies"),
        (n11.forward_order(*n11.HAND), "the order of forward"),
        (n11.lazy(*n11.HAND), "each R waits for its own gradient"),
        (n11.row_by_row(*n11.HAND), "one micro-batch goes through all partitions first"),
        (by_hand(*n11.HAND, dependencies=False), "R02 at position 1 needs B12 first"),
        (n11.lazy(*n11.HAND), "at position 3 ready are B02, R11: R11 has the highest number, not B02"),
        (["B12", "R12", *TRUTH.split()[2:]], "B12 at position 0 needs R12 first"),
        (TRUTH.split()[:-1], "missing: B00"),
        ([*TRUTH.split()[:-1], "B99"], "unknown: B99"),
        ([*TRUTH.split(), "B00"], "twice: B00"),
        (12, "a text such as"),
    ],
)
def test_a_wrong_order_is_told_its_first_fault(wrong, says):
    answer = " ".join(wrong) if isinstance(wrong, list) else wrong
    verdict = n11.check_by_hand(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- exercise 3


def test_the_damaged_graph_misses_exactly_the_edge_that_is_asked_for():
    nodes = n11.damaged_run().nodes
    earlier = {(nodes[b].place.i, nodes[b].place.j) for _, b in ties_of(nodes)}
    i, j = n11.MISSING
    assert {(i, j) for i in range(3) for j in range(2)} - earlier == {(i - 1, j)}
    assert n11.damaged_run().ops.index("R11") < n11.damaged_run().ops.index("B21")


def test_the_missing_fence_passes_and_its_neighbours_are_named():
    assert n11.check_missing((2, 1))
    assert n11.check_missing([2, 1])
    assert n11.check_missing(None).status == "open"
    for wrong, says in (
        ((1, 1), "where the edge should lead"),
        ((2, 0), "on the way into the next partition"),
        ((3, 1), "Look one row up"),
        ((1, 2), "Micro-batch first"),
    ):
        verdict = n11.check_missing(wrong)
        assert verdict.status == "wrong"
        assert says in verdict.message


# ---- predictions


@pytest.mark.parametrize(
    ("comment", "hit"),
    [
        (n11.guess_first, "a"),
        (n11.guess_threads, 1),
        (n11.guess_second, "r11"),
        (n11.guess_alive, 8),
        (n11.guess_changes, 0),
    ],
)
def test_a_right_guess_is_told_so_and_no_guess_gives_nothing_away(comment, hit):
    assert "that is it" in comment(hit).message
    assert str(hit).upper() not in comment(None).message.split("Put one")[0].replace("R21", "")
    assert comment("nonsense").status == "note"
