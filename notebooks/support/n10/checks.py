"""Predictions and exercises of notebook 10, checkpoint and recompute."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from lib.saved import SavedTensors
from torch import Tensor, nn

from support.checks import Verdict, check_function, guess, not_attempted, untouched
from support.n10.runs import peak, predict, predict_early

# ---- The check of notebook 10's exercise 1: a checkpoint written as one autograd function.
#
# The answer is run on a small model with dropout; every symptom that a known mistake shows has a sentence of its own.

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


# ---- Checks of notebook 10: a checkpoint as one autograd function, segments for a budget, the time of a step.

# ---- predictions


def guess_one_segment(my_guess: object) -> Verdict:
    """Comment on the guess of section 2: the peak of 16 layers in one segment."""
    return guess(my_guess, peak(predict(16, 1)), what="the peak with one segment", unit="tensors")


def guess_least(my_guess: object) -> Verdict:
    """Comment on the guess of section 3: the least peak of 64 layers, over all numbers of segments."""
    least = min(peak(predict(64, s)) for s in range(1, 65))
    return guess(my_guess, least, what="the least peak of 64 layers", unit="tensors")


def guess_ratio(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: a step with recompute over one without, if backward costs two forwards."""
    return guess(my_guess, (1 + 2 + 1) / (1 + 2), what="the time with recompute", unit="×", tolerance=0.03)


def guess_fewer(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: how many tensors fewer "always" holds than "except_last", in one segment."""
    fewer = peak(predict(8, 1, 4, "except_last")) - peak(predict(8, 1, 4, "always"))
    return guess(my_guess, fewer, what="what 'always' saves over 'except_last'", unit="tensors")


def guess_sooner(my_guess: object) -> Verdict:
    """Comment on the guess of section 6: forwards saved by an early Recompute in 4 partitions."""
    late, early = (predict_early(4, 4, early=early).makespan for early in (False, True))
    return guess(my_guess, round(late - early), what="the time saved", unit="forwards")


def guess_differ(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": per cent of units whose dropout mask differs by chance at p = 0.5."""
    return guess(my_guess, 50, what="the expected share of other units", unit="%", tolerance=0.2)


def guess_batches(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": what BatchNorm counts in one step with a checkpoint."""
    return guess(my_guess, 2, what="num_batches_tracked after one step")


# ---- exercise 2: segments for a budget


def true_segments(layers: int, budget: int) -> int | None:
    """Return the fewest segments whose peak fits: 0 if no checkpoint is needed, None if nothing fits."""
    if layers + 1 <= budget:
        return 0
    return next((s for s in range(1, layers + 1) if s + layers // s <= budget), None)


def square_root(layers: int, budget: int) -> int | None:
    """Take the square root, whatever the budget (wrong)."""
    return 0 if layers + 1 <= budget else round(math.sqrt(layers))


def inside_only(layers: int, budget: int) -> int | None:
    """Forget the inputs of the segments (wrong)."""
    return (
        0 if layers + 1 <= budget else next((s for s in range(1, layers + 1) if layers // s <= budget), None)
    )


def rounded_up(layers: int, budget: int) -> int | None:
    """Take the longest segment together with all inputs (wrong: the longest come first)."""
    if layers + 1 <= budget:
        return 0
    return next((s for s in range(1, layers + 1) if s - (-layers // s) <= budget), None)


def never_zero(layers: int, budget: int) -> int | None:
    """Always checkpoint (wrong)."""
    return next((s for s in range(1, layers + 1) if s + layers // s <= budget), None)


def most_segments(layers: int, budget: int) -> int | None:
    """Return the most segments that fit (wrong)."""
    if layers + 1 <= budget:
        return 0
    return next((s for s in range(layers, 0, -1) if s + layers // s <= budget), None)


def check_segments(answer: Callable[[int, int], int | None]) -> Verdict:
    """Check exercise 2 over layers 1..24 and budgets around the least and the largest peak."""
    mistakes: dict[str, Callable[..., Any]] = {
        "√layers needs least memory, but the budget may allow fewer segments, or not even that.": square_root,
        "That counts one segment's inside only; the inputs of the segments are held as well.": inside_only,
        "The longest segments come last in backward, when fewer inputs are left: s + layers // s.": rounded_up,
        "If layers + 1 tensors fit, no checkpoint is needed: 0.": never_zero,
        "These fit, but fewer segments do as well.": most_segments,
    }
    cases = [
        {"layers": layers, "budget": budget}
        for layers in (16, *range(1, 25))
        for budget in (9, 10, 8, 17, 7, *range(2, layers + 3))
    ]
    return check_function(answer, true_segments, cases, what="fewest_segments", mistakes=mistakes)


# ---- exercise 3: the time of a step


def true_time(forward: float, backward: float, micro_batches: int, mode: str) -> float:
    """Return the time of a step: every micro-batch once forward and back, the checkpointed ones forward again."""
    again = {"never": 0, "except_last": micro_batches - 1, "always": micro_batches}[mode]
    return micro_batches * (forward + backward) + again * forward


def all_again(forward: float, backward: float, micro_batches: int, mode: str) -> float:
    """Recompute the last micro-batch, too (wrong)."""
    return micro_batches * (forward + backward) + (mode != "never") * micro_batches * forward


def last_again(forward: float, backward: float, micro_batches: int, mode: str) -> float:
    """Recompute only the last one in except_last (wrong)."""
    again = {"never": 0, "except_last": 1, "always": micro_batches}[mode]
    return micro_batches * (forward + backward) + again * forward


def backward_twice(forward: float, backward: float, micro_batches: int, mode: str) -> float:
    """Count a second backward with the second forward (wrong)."""
    again = {"never": 0, "except_last": micro_batches - 1, "always": micro_batches}[mode]
    return (micro_batches + again) * (forward + backward)


def quarter(forward: float, backward: float, micro_batches: int, mode: str) -> float:
    """Add a quarter, whatever the numbers are (wrong)."""
    return micro_batches * (forward + backward) * (1 if mode == "never" else 1.25)


def check_step_time(answer: Callable[[float, float, int, str], float]) -> Verdict:
    """Check exercise 3 over modes, micro-batches and several ratios of backward to forward."""
    mistakes: dict[str, Callable[..., Any]] = {
        "In except_last the last micro-batch is not recomputed.": all_again,
        "except_last recomputes all but the last micro-batch, not only the last.": last_again,
        "Recompute is a forward; backward still runs once.": backward_twice,
        "A quarter is a rule of thumb: here are the numbers.": quarter,
    }
    cases = [
        {"forward": forward, "backward": backward, "micro_batches": m, "mode": mode}
        for forward, backward in ((1.0, 2.0), (2.0, 3.0), (1.5, 1.0))
        for m in (4, 1, 8)
        for mode in ("except_last", "always", "never")
    ]
    return check_function(answer, true_time, cases, what="step_time", mistakes=mistakes)
