"""Checks of notebook 10: a checkpoint as one autograd function, segments for a budget, the time of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lib.checks.base import Verdict, check_function, guess
from lib.checks.n10_checkpoint import TrueCheckpoint, check_checkpoint
from lib.experiments.recompute import predict_early
from lib.experiments.staircase import peak, predict

__all__ = ["TrueCheckpoint", "check_checkpoint"]  # exercise 1

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
