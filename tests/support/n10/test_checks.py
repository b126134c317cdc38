"""The checks of notebook 10 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest
import torch
from support.n10 import checks as n10
from support.n10.runs import MODES, measure


class Stub(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x): ...

    @staticmethod
    def backward(ctx, gradient): ...


def stub(*arguments): ...


@pytest.mark.parametrize(
    "check, reference, untouched",
    [
        (n10.check_checkpoint, n10.TrueCheckpoint, Stub),
        (n10.check_segments, n10.true_segments, stub),
        (n10.check_step_time, n10.true_time, stub),
    ],
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference, untouched):
    assert check(reference).status == "right"
    assert check(untouched).status == "open"


def variant(*, forward=None, backward=None, name="Variant"):
    """The reference with one half replaced."""
    parts = {
        "forward": forward or n10.TrueCheckpoint.forward,
        "backward": backward or n10.TrueCheckpoint.backward,
    }
    return type(name, (torch.autograd.Function,), {key: staticmethod(value) for key, value in parts.items()})


def again(ctx, *, x=None, grad=True, rng=True, fork=True):
    """The second forward, with something left out; returns (x, y)."""
    x = ctx.saved_tensors[0].detach().requires_grad_() if x is None else x
    with torch.random.fork_rng(devices=[], enabled=fork), torch.set_grad_enabled(grad):
        if rng:
            torch.set_rng_state(ctx.rng_state)
        return x, ctx.function(x)


def keeps_the_graph(ctx, function, x):
    ctx.x = x.detach().requires_grad_()
    with torch.enable_grad():
        ctx.y = function(ctx.x)
    return ctx.y.detach()


def through_the_graph(ctx, gradient):
    torch.autograd.backward(ctx.y, gradient)
    return None, ctx.x.grad


def forgets_enable_grad(ctx, gradient):
    x, y = again(ctx, grad=False)
    torch.autograd.backward(y, gradient)
    return None, x.grad


def forgets_the_random_state(ctx, gradient):
    x, y = again(ctx, rng=False)
    torch.autograd.backward(y, gradient)
    return None, x.grad


def leaves_the_random_state(ctx, gradient):
    x, y = again(ctx, fork=False)
    torch.autograd.backward(y, gradient)
    return None, x.grad


def forgets_requires_grad(ctx, gradient):
    x, y = again(ctx, x=ctx.saved_tensors[0].detach())
    torch.autograd.backward(y, gradient)
    return None, x.grad


def forgets_the_parameters(ctx, gradient):
    x, y = again(ctx)
    return None, *torch.autograd.grad(y, x, gradient)


def goes_back_twice(ctx, gradient):
    x, y = again(ctx)
    torch.autograd.backward(y, gradient, retain_graph=True)
    grad = x.grad.clone()
    torch.autograd.backward(y, gradient)
    return None, grad


def does_not_detach(ctx, gradient):
    x, y = again(ctx, x=ctx.saved_tensors[0])
    torch.autograd.backward(y, gradient)
    return None, x.grad


def ignores_the_gradient(ctx, gradient):
    x, y = again(ctx)
    torch.autograd.backward(y, torch.ones_like(y))
    return None, x.grad


def returns_one_gradient(ctx, gradient):
    x, y = again(ctx)
    torch.autograd.backward(y, gradient)
    return x.grad


def returns_none(ctx, function, x):
    ctx.function, ctx.rng_state = function, torch.get_rng_state()
    function(x)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (variant(forward=returns_none), "forward must return function(x), a tensor, not NoneType"),
        (variant(forward=keeps_the_graph, backward=through_the_graph), "A graph was made in forward"),
        (variant(backward=forgets_enable_grad), "Run it in `with torch.enable_grad():`"),
        (variant(backward=forgets_the_random_state), "the second forward drew another dropout mask"),
        (variant(backward=leaves_the_random_state), "the random state after backward is another one"),
        (variant(backward=forgets_requires_grad), "the layer before's weight has no gradient: x got none"),
        (variant(backward=forgets_the_parameters), "torch.autograd.grad(y, x, gradient) does not"),
        (variant(backward=goes_back_twice), "the segment's 0.weight has twice its gradient"),
        (variant(backward=does_not_detach), "must start at `x.detach()`"),
        (variant(backward=ignores_the_gradient), "the gradient is off by"),
        (variant(backward=returns_one_gradient), "None for the function, then that of x"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_checkpoints_are_named(wrong, says):
    verdict = n10.check_checkpoint(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_the_check_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    n10.check_checkpoint(n10.TrueCheckpoint)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_reference_segments_fit_when_they_are_run():
    for layers in (5, 9, 12):
        for budget in range(3, layers + 3):
            chosen = n10.true_segments(layers, budget)
            peaks = {s: max(count for *_, count in measure(layers, s)) for s in range(1, layers + 1)}
            fitting = [s for s, value in peaks.items() if value <= budget]
            assert chosen == (0 if layers + 1 <= budget else fitting[0] if fitting else None)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n10.square_root, "the budget may allow fewer segments"),
        (n10.inside_only, "the inputs of the segments are held as well"),
        (n10.rounded_up, "The longest segments come last in backward"),
        (n10.never_zero, "no checkpoint is needed: 0"),
        (n10.most_segments, "fewer segments do as well"),
    ],
)
def test_wrong_segments_are_named(wrong, says):
    verdict = n10.check_segments(wrong)
    assert verdict.status == "wrong"
    assert "for layers = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (n10.all_again, "the last micro-batch is not recomputed"),
        (n10.last_again, "not only the last"),
        (n10.backward_twice, "backward still runs once"),
        (n10.quarter, "rule of thumb"),
    ],
)
def test_wrong_times_are_named(wrong, says):
    verdict = n10.check_step_time(wrong)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_the_reference_time_is_that_of_the_predicted_spans():
    from support.n10.runs import predict_step

    for mode in MODES:
        spans = predict_step(1.5, 2.5, 4, mode)
        assert max(span.end for span in spans) == n10.true_time(1.5, 2.5, 4, mode)


def test_guesses_know_the_truth():
    truths = {
        n10.guess_one_segment: 17,
        n10.guess_least: 16,
        n10.guess_ratio: 4 / 3,
        n10.guess_fewer: 0,
        n10.guess_sooner: 3,
        n10.guess_differ: 50,
        n10.guess_batches: 2,
    }
    for check, truth in truths.items():
        assert "that is it" in check(truth).message
        assert check(None).status == check(-7).status == "note"
