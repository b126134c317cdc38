"""What is particular about the checks of notebook 10; what all exercises have in common is in test_exercises."""

import pytest
import torch

from support.n10 import checks as n10
from support.n10.runs import MODES, measure, predict_step


def through(y, x, gradient):
    torch.autograd.backward(y, gradient)
    return None, x.grad


def through_twice(y, x, gradient):
    torch.autograd.backward(y, gradient, retain_graph=True)
    once = x.grad.clone()
    torch.autograd.backward(y, gradient)
    return None, once


def variant(leaf=lambda x: x.detach().requires_grad_(), *, graph=True, set_state=True, fork=True, go=through):
    class Variant(n10.TrueCheckpoint):
        @staticmethod
        def backward(ctx, gradient):
            x = leaf(ctx.saved_tensors[0])
            with torch.random.fork_rng(devices=[], enabled=fork), torch.set_grad_enabled(graph):
                if set_state:
                    torch.set_rng_state(ctx.rng_state)
                y = ctx.function(x)
            return go(y, x, gradient)

    return Variant


class KeepsTheGraph(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):
        ctx.x = x.detach().requires_grad_()
        with torch.enable_grad():
            ctx.y = function(ctx.x)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return through(ctx.y, ctx.x, gradient)


class ReturnsNothing(n10.TrueCheckpoint):
    @staticmethod
    def forward(ctx, function, x):
        function(x)


def test_the_variant_without_a_change_is_right_and_leaves_the_random_state_alone():
    assert n10.check_checkpoint(variant())
    before = torch.get_rng_state()
    n10.check_checkpoint(n10.TrueCheckpoint)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (ReturnsNothing, "forward must return function(x), a tensor, not NoneType"),
        (KeepsTheGraph, "A graph was made in forward"),
        (variant(graph=False), "Run it in `with torch.enable_grad():`"),
        (variant(set_state=False), "the second forward drew another dropout mask"),
        (variant(fork=False), "the random state after backward is another one"),
        (variant(lambda x: x.detach()), "the layer before's weight has no gradient: x got none"),
        (
            variant(go=lambda y, x, gradient: (None, *torch.autograd.grad(y, x, gradient))),
            "torch.autograd.grad(y, x, gradient) does not",
        ),
        (variant(go=through_twice), "the segment's 0.weight has twice its gradient"),
        (variant(lambda x: x), "must start at `x.detach()`"),
        (variant(go=lambda y, x, gradient: through(y, x, torch.ones_like(y))), "the gradient is off by"),
        (variant(go=lambda y, x, gradient: through(y, x, gradient)[1]), "None for the function, then that of x"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_checkpoints_are_named(wrong, says):
    verdict = n10.check_checkpoint(wrong)
    assert verdict.status == "wrong" and says in verdict.message


def test_the_reference_segments_fit_and_the_reference_time_is_that_of_the_predicted_spans():
    for layers in (5, 9, 12):
        for budget in range(3, layers + 3):
            chosen = n10.check_segments.reference(layers, budget)
            peaks = {s: max(count for *_, count in measure(layers, s)) for s in range(1, layers + 1)}
            fitting = [s for s, value in peaks.items() if value <= budget]
            assert chosen == (0 if layers + 1 <= budget else fitting[0] if fitting else None)
    for mode in MODES:
        spans = predict_step(1.5, 2.5, 4, mode)
        assert max(span.end for span in spans) == n10.check_step_time.reference(1.5, 2.5, 4, mode)
