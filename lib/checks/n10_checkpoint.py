"""The check of notebook 10's exercise 1: a checkpoint written as one autograd function.

The answer is run on a small model with dropout; every symptom that a known mistake shows has a sentence of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lib.checks.base import Verdict, not_attempted, untouched
from lib.experiments.saved import SavedTensors

AutogradFunction: TypeAlias = Any  # a class derived from torch.autograd.Function


class _Draw(nn.Dropout):
    """Dropout that remembers its masks."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.masks: list[Tensor] = []

    def forward(self, input: Tensor) -> Tensor:
        output = super().forward(input)
        self.masks.append(output.detach() != 0)
        return output


class _Case:
    """A layer, two segments with dropout and a last layer; run with or without an answer."""

    def __init__(self, apply: Callable[[nn.Module, Tensor], Tensor] | None) -> None:
        torch.manual_seed(7)
        self.first, self.draw = nn.Linear(6, 6), _Draw()
        self.segment = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), self.draw, nn.Linear(6, 6), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.x = torch.randn(10, 6)
        apply = apply or (lambda function, x: function(x))
        with SavedTensors(
            p for part in (self.first, self.segment, self.second) for p in part.parameters()
        ) as saved:
            start = self.first(self.x)
            before = saved.count
            self.y = apply(self.segment, start)
            self.kept = saved.count - before
            if isinstance(self.y, Tensor):
                self.end = apply(self.second, self.y)

    def backward(self) -> None:
        torch.rand(3)  # the generator moves on, as it does in training
        self.before_backward = torch.get_rng_state()
        (self.end**2).sum().backward()

    def grads(self) -> dict[str, Tensor | None]:
        parts = {"the layer before": self.first, "the segment": self.segment, "a second segment": self.second}
        return {
            f"{where}'s {name}": p.grad
            for where, part in parts.items()
            for name, p in part.named_parameters()
        }


def check_checkpoint(answer: AutogradFunction) -> Verdict:
    """Check exercise 1: output, kept tensors, gradients, dropout mask and random state, against no checkpoint."""
    if untouched(answer.forward) or untouched(answer.backward):
        return not_attempted("forward and backward of MyCheckpoint")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = _problem(answer)
    if problem:
        return Verdict("wrong", f"MyCheckpoint: {problem}")
    return Verdict(
        "right",
        "MyCheckpoint: output, gradients and random state as without checkpoint, and only the input is kept.",
    )


ERRORS = {  # what torch says: what is behind it
    "does not require grad and does not have a grad_fn": "The second forward made no graph: inside an autograd "
    "function gradients are off. Run it in `with torch.enable_grad():`.",
    "returned an incorrect number of gradients": "backward returns one gradient for each argument of forward: None "
    "for the function, then that of x.",
    "a second time": "The second forward must start at `x.detach()`: without that, backward runs on into the layers "
    "before.",
}


def _problem(answer: AutogradFunction) -> str:
    plain = _Case(None)
    plain.backward()
    try:
        mine = _Case(answer.apply)
    except Exception as error:
        return f"forward raised {type(error).__name__}: {error}"
    if not isinstance(mine.y, Tensor):
        return f"forward must return function(x), a tensor, not {type(mine.y).__name__}."
    if mine.y.shape != plain.y.shape or not torch.allclose(mine.y, plain.y):
        return "forward does not return what function(x) returns."
    if mine.kept > 1:
        return (
            f"{mine.kept} tensors are kept after forward, {plain.kept} without checkpoint: only x may stay. "
            + ("A graph was made in forward." if mine.kept > 2 else "What else do you save?")
        )
    try:
        mine.backward()
    except Exception as error:
        reason = next((why for text, why in ERRORS.items() if text in str(error)), "")
        return f"backward raised {type(error).__name__}: {str(error).splitlines()[0]} {reason}".rstrip()
    return _problem_of_gradients(mine, plain)


def _problem_of_gradients(mine: _Case, plain: _Case) -> str:
    masks = mine.draw.masks
    if len(masks) != 2:
        return f"function ran {len(masks)} time{'s' * (len(masks) != 1)}; a checkpoint runs it twice."
    if not torch.equal(*masks):
        other = int((masks[0] != masks[1]).sum())
        return (
            f"the second forward drew another dropout mask ({other} of {masks[0].numel()} units differ): keep "
            "torch.get_rng_state() in forward, and set it before the second one."
        )
    expected = plain.grads()
    for name, got in mine.grads().items():
        want = expected[name]
        assert want is not None
        if got is None or not got.any():
            if name.startswith("the layer before"):
                return (
                    f"{name} has no gradient: x got none. A detached x requires no grad until you say "
                    ".requires_grad_(), and backward must return its .grad."
                )
            return (
                f"{name} has no gradient: the parameters are no arguments of forward. "
                "torch.autograd.backward(y, gradient) gives them theirs; torch.autograd.grad(y, x, gradient) does not."
            )
        if torch.allclose(got, 2 * want, atol=1e-6):
            return f"{name} has twice its gradient: backward went through the graph two times."
    for name, got in mine.grads().items():
        want = expected[name]
        assert want is not None
        assert got is not None
        if not torch.allclose(got, want, atol=1e-6):
            off = float((got - want).norm() / want.norm())
            return f"{name}: the gradient is off by {off:.0%}. Is the gradient that arrives passed on?"
    if not torch.equal(torch.get_rng_state(), mine.before_backward):
        return (
            "gradients are right, but the random state after backward is another one than before it: whoever "
            "draws next gets used numbers. Put it back (torch.random.fork_rng does)."
        )
    return ""


class TrueCheckpoint(torch.autograd.Function):
    """The reference: one function that keeps the input and computes again when the gradient arrives."""

    @staticmethod
    def forward(ctx: Any, function: nn.Module, x: Tensor) -> Any:
        """Compute without graph; keep the function, the input and the random state."""
        ctx.function, ctx.rng_state = function, torch.get_rng_state()
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Compute again with a graph, from a new leaf and the same random state; then go through it."""
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.rng_state)
            y = ctx.function(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad
