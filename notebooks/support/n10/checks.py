"""Predictions and exercises of notebook 10, checkpoint and recompute."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from lib.saved import SavedTensors
from support.checks import Exercise, Guess, Verdict, cases
from support.n10.runs import peak, predict, predict_early

# ---- predictions


def _fewer() -> int:
    except_last, always = (peak(predict(8, 1, 4, mode)) for mode in ("except_last", "always"))
    return except_last - always


def _sooner() -> int:
    late, early = (predict_early(4, 4, early=early).makespan for early in (False, True))
    return round(late - early)


guess_one_segment = Guess("the peak with one segment", lambda: peak(predict(16, 1)), unit="tensors")
"""Section 2: the peak of 16 layers in one segment."""
guess_least = Guess(
    "the least peak of 64 layers", lambda: min(peak(predict(64, s)) for s in range(1, 65)), unit="tensors"
)
"""Section 3: the least peak of 64 layers, over all numbers of segments."""
guess_ratio = Guess("the time with recompute", lambda: (1 + 2 + 1) / (1 + 2), unit="×", tolerance=0.03)
"""Section 4: a step with recompute over one without, if backward costs two forwards."""
guess_fewer = Guess("what 'always' saves over 'except_last'", _fewer, unit="tensors")
"""Section 5: how many tensors fewer "always" holds than "except_last", in one segment."""
guess_sooner = Guess("the time saved", _sooner, unit="forwards")
"""Section 6: forwards saved by an early Recompute in 4 partitions."""
guess_differ = Guess("the expected share of other units", lambda: 50, unit="%", tolerance=0.2)
""" "Break it": per cent of units whose dropout mask differs by chance at p = 0.5."""
guess_batches = Guess("num_batches_tracked after one step", lambda: 2)
""" "Break it": what BatchNorm counts in one step with a checkpoint."""


# ---- exercise 1: a checkpoint as one autograd function

AutogradFunction: TypeAlias = Any  # a class derived from torch.autograd.Function


class _Case:
    """A layer, two segments with dropout and a last layer; run with or without an answer."""

    def __init__(self, apply: Callable[[nn.Module, Tensor], Tensor] | None) -> None:
        torch.manual_seed(7)
        self.first, draw, self.masks = nn.Linear(6, 6), nn.Dropout(0.5), list[Tensor]()
        draw.register_forward_hook(lambda _, x, output: self.masks.append(output.detach() != 0))
        self.segment = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), draw, nn.Linear(6, 6), nn.Tanh())
        self.second = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        apply = apply or (lambda function, x: function(x))
        with SavedTensors(
            p for part in (self.first, self.segment, self.second) for p in part.parameters()
        ) as saved:
            start = self.first(torch.randn(10, 6))
            before = saved.count
            self.y = apply(self.segment, start)
            self.kept = saved.count - before
            if isinstance(self.y, Tensor):
                self.end = apply(self.second, self.y)

    def backward(self) -> None:
        torch.rand(3)  # the generator moves on, as it does in training
        self.before_backward = torch.get_rng_state()
        (self.end**2).sum().backward()

    def grads(self) -> dict[str, Any]:
        parts = {"the layer before": self.first, "the segment": self.segment, "a second segment": self.second}
        return {
            f"{where}'s {name}": p.grad
            for where, part in parts.items()
            for name, p in part.named_parameters()
        }


ERRORS = {  # what torch says: what is behind it
    "does not require grad and does not have a grad_fn": "The second forward made no graph: inside an autograd "
    "function gradients are off. Run it in `with torch.enable_grad():`.",
    "returned an incorrect number of gradients": "backward returns one gradient for each argument of forward: None "
    "for the function, then that of x.",
    "a second time": "The second forward must start at `x.detach()`: without that, backward runs on into the layers "
    "before.",
}
NONE_BEFORE = (
    "x got none. A detached x requires no grad until you say .requires_grad_(), and backward must return its "
    ".grad."
)
NONE_INSIDE = (
    "the parameters are no arguments of forward. torch.autograd.backward(y, gradient) gives them theirs; "
    "torch.autograd.grad(y, x, gradient) does not."
)


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
    masks = mine.masks
    if len(masks) != 2:
        return f"function ran {len(masks)} time{'s' * (len(masks) != 1)}; a checkpoint runs it twice."
    if not torch.equal(*masks):
        other = int((masks[0] != masks[1]).sum())
        return (
            f"the second forward drew another dropout mask ({other} of {masks[0].numel()} units differ): keep "
            "torch.get_rng_state() in forward, and set it before the second one."
        )
    expected = plain.grads()
    gradients = [(name, got, expected[name]) for name, got in mine.grads().items()]
    for name, got, want in gradients:
        if got is None or not got.any():
            before = name.startswith("the layer before")
            return f"{name} has no gradient: " + (NONE_BEFORE if before else NONE_INSIDE)
        if torch.allclose(got, 2 * want, atol=1e-6):
            return f"{name} has twice its gradient: backward went through the graph two times."
    for name, got, want in gradients:
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
    """The reference of exercise 1: one function that keeps the input and computes again when the gradient arrives."""

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


def _check_checkpoint(exercise: Exercise, answer: AutogradFunction) -> Verdict:
    """Run the answer on a small model with dropout; every symptom of a known mistake has a sentence of its own."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = _problem(answer)
    return exercise.wrong(problem) if problem else exercise.right(f"{exercise.praise}.")


check_checkpoint = Exercise(
    "MyCheckpoint",
    name="forward and backward of MyCheckpoint",
    reference=TrueCheckpoint,
    methods=("forward", "backward"),
    judge=_check_checkpoint,
    praise="output, gradients and random state as without checkpoint, and only the input is kept",
)
"""Exercise 1: output, kept tensors, gradients, dropout mask and random state, against no checkpoint."""


# ---- exercise 2: segments for a budget

Segments: TypeAlias = Callable[[int, int], int | None]


def _segments(
    held: Callable[[int, int], int] = lambda layers, s: s + layers // s,
    *,
    most: bool = False,
    zero: bool = True,
) -> Segments:
    """Make an answer: the fewest segments whose peak `held` fits; 0 if none is needed, None if nothing fits."""

    def segments(layers: int, budget: int) -> int | None:
        if zero and layers + 1 <= budget:
            return 0
        numbers = range(1, layers + 1)[:: -1 if most else 1]
        return next((s for s in numbers if held(layers, s) <= budget), None)

    return segments


check_segments = Exercise(
    "fewest_segments",
    reference=_segments(),
    cases=cases(
        "layers budget",
        (
            (layers, budget)
            for layers in (16, *range(1, 25))
            for budget in (9, 10, 8, 17, 7, *range(2, layers + 3))
        ),
    ),
    mistakes={
        "√layers needs least memory, but the budget may allow fewer segments, or not even that.": (
            lambda layers, budget: 0 if layers + 1 <= budget else round(math.sqrt(layers))
        ),
        "That counts one segment's inside only; the inputs of the segments are held as well.": _segments(
            lambda layers, s: layers // s
        ),
        "The longest segments come last in backward, when fewer inputs are left: s + layers // s.": _segments(
            lambda layers, s: s + math.ceil(layers / s)
        ),
        "If layers + 1 tensors fit, no checkpoint is needed: 0.": _segments(zero=False),
        "These fit, but fewer segments do as well.": _segments(most=True),
    },
)
"""Exercise 2 over layers 1..24 and budgets around the least and the largest peak."""


# ---- exercise 3: the time of a step


def _step_time(
    except_last: Callable[[int], int] = lambda m: m - 1,
    recompute: Callable[[float, float], float] = lambda forward, backward: forward,
) -> Callable[[float, float, int, str], float]:
    """Make an answer: each micro-batch goes forward and back, and some are recomputed, at a price."""

    def time(forward: float, backward: float, micro_batches: int, mode: str) -> float:
        again = {"never": 0, "except_last": except_last(micro_batches), "always": micro_batches}[mode]
        return micro_batches * (forward + backward) + again * recompute(forward, backward)

    return time


check_step_time = Exercise(
    "step_time",
    reference=_step_time(),
    cases=cases(
        "forward backward micro_batches mode",
        (
            (*prices, m, mode)
            for prices in ((1.0, 2.0), (2.0, 3.0), (1.5, 1.0))
            for m in (4, 1, 8)
            for mode in ("except_last", "always", "never")
        ),
    ),
    mistakes={
        "In except_last the last micro-batch is not recomputed.": _step_time(lambda m: m),
        "except_last recomputes all but the last micro-batch, not only the last.": _step_time(lambda m: 1),
        "Recompute is a forward; backward still runs once.": _step_time(
            recompute=lambda forward, backward: forward + backward
        ),
        "A quarter is a rule of thumb: here are the numbers.": lambda forward, backward, micro_batches, mode: (
            micro_batches * (forward + backward) * (1 if mode == "never" else 1.25)
        ),
    },
)
"""Exercise 3 over modes, micro-batches and several ratios of backward to forward."""
