"""Predictions and exercises of notebook 00, start here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional as F

from lib.timeline import Span, Trace
from support.checks import Exercise, Guess, cases
from support.checks import use as use
from support.n00.figures import shared_step

# ---- predictions

guess_weight = Guess("the weight of rank 0's gradient", lambda rows: rows[0] / sum(rows))
"""Unequal shares: a gradient that is a mean over more rows weighs more."""
guess_slow_rank = Guess("the whole step", lambda ranks, slow: shared_step(ranks, slow).makespan, unit="ticks")
"""All wait for the slowest."""
guess_python_speedup = Guess("the speed-up by two threads that count", lambda: 1.0, unit="×")
"""Threads that run Python: the interpreter's lock lets one of them run at a time."""

# ---- exercise 1: one step that ranks share

Batch: TypeAlias = tuple[torch.Tensor, torch.Tensor]
Step: TypeAlias = Callable[[list[nn.Module], list[Batch], float], Any]


def whole_batch_step(replicas: list[nn.Module], batches: list[Batch], learning_rate: float) -> None:
    """Step every replica by torch's gradient of all rows together: what the ranks' step has to equal."""
    _gathered(replicas, batches, learning_rate, replicas[0].forward)  # the method: no hook sees it


def _gathered(
    replicas: list[nn.Module], batches: list[Batch], learning_rate: float, forward: Callable[..., Any]
) -> None:
    rows, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    F.cross_entropy(forward(rows), labels).backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad for weight in replicas[0].parameters()]
    for replica in replicas:
        for weight, gradient in zip(replica.parameters(), gradients, strict=True):
            weight.grad = gradient
        optimizer = torch.optim.SGD(replica.parameters(), learning_rate)
        optimizer.step()
        optimizer.zero_grad()


def _mistaken(
    *, combine: str = "mean", stepped: int | None = None, clear: bool = True, sign: float = -1.0
) -> Step:
    """Return the ranks' step with one thing wrong."""

    def step(replicas: list[nn.Module], batches: list[Batch], learning_rate: float) -> None:
        for replica, (rows, labels) in zip(replicas, batches, strict=True):
            F.cross_entropy(replica(rows), labels).backward()  # type: ignore[no-untyped-call]
        for weights in zip(*(replica.parameters() for replica in replicas), strict=True):
            gradients = [weight.grad.clone() for weight in weights]
            for rank, weight in enumerate(weights[:stepped]):
                if combine == "own":
                    gradient = gradients[rank]
                elif combine == "overwritten":
                    gradient = gradients[rank] = sum(gradients) / len(gradients)
                else:
                    gradient = sum(gradients) / {"sum": 1, "half": 2}.get(combine, len(gradients))
                weight.data += sign * learning_rate * gradient
            for weight in weights:
                weight.grad = None if clear else weight.grad

    return step


def _weights_after(step: Step) -> Callable[..., list[Any]]:
    """Turn a step into the function of a case: after each of some steps the weights of each rank, and whether a
    forward got more rows than a rank has.
    """

    def run(ranks: int, rows: int, steps: int) -> list[Any]:
        generator = torch.Generator().manual_seed(ranks)
        replicas: list[nn.Module] = [
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double() for _ in range(ranks)
        ]
        with torch.no_grad():
            for weights in zip(*(replica.parameters() for replica in replicas), strict=True):
                value = torch.randn(weights[0].shape, generator=generator, dtype=torch.float64)
                for weight in weights:
                    weight.copy_(value)
        seen: list[int] = []
        for replica in replicas:
            replica.register_forward_pre_hook(lambda _, got: seen.append(len(got[0])))
        after: list[Any] = []
        for _ in range(steps):
            batches = [
                (
                    torch.randn(rows, 3, generator=generator, dtype=torch.float64),
                    torch.randint(0, 3, (rows,), generator=generator),
                )
                for _ in range(ranks)
            ]
            step(replicas, batches, 0.5)
            flat = [nn.utils.parameters_to_vector(r.parameters()).tolist() for r in replicas]
            after.append((flat, any(count > rows for count in seen)))
        return after

    return run


def _first_difference(got: Any, expected: Any, case: Mapping[str, Any]) -> str:
    for number, ((mine, together), (theirs, _)) in enumerate(zip(got, expected, strict=True), start=1):
        for rank, (weights, wanted) in enumerate(zip(mine, theirs, strict=True)):
            for place, (weight, right) in enumerate(zip(weights, wanted, strict=True)):
                if not math.isclose(weight, right, rel_tol=1e-9, abs_tol=1e-12):
                    return (
                        f"after step {number} weight {place} of rank {rank} is {weight:.6f}, but "
                        f"{right:.6f} when torch steps on the whole batch"
                    )
        if together:
            return f"the weights are right, but a forward got more than the {case['rows']} rows of one rank"
    return ""


check_step = Exercise(
    "one step of all ranks",
    reference=whole_batch_step,
    cases=cases("ranks rows steps", [(2, 4, 1), (2, 4, 3), (1, 5, 2), (3, 2, 2), (8, 1, 2)]),
    view=_weights_after,
    fault=_first_difference,
    praise="the same weights on every rank as torch on the whole batch, in all {count} cases",
    mistakes={
        "Each rank stepped by its own gradient: the replicas are different models now.": _mistaken(
            combine="own"
        ),
        "You took the sum of the gradients: the whole batch's loss is a mean, and so is its gradient.": _mistaken(
            combine="sum"
        ),
        "You divided by 2, but the mean over the ranks divides by their number.": _mistaken(combine="half"),
        "You put the rows of all ranks together: real ranks have no place where all rows are.": (
            lambda replicas, batches, learning_rate: _gathered(replicas, batches, learning_rate, replicas[0])
        ),
        "Rank 0 stepped, the others did not: each rank has weights of its own to change.": _mistaken(
            stepped=1
        ),
        "The gradients were not cleared: backward adds to what is there from the step before.": _mistaken(
            clear=False
        ),
        "You overwrote rank 0's gradient with the mean before the others had read it.": _mistaken(
            combine="overwritten"
        ),
        "You went up the gradient: a step subtracts it.": _mistaken(sign=1.0),
    },
)
"""Exercise 1: forward and backward on each rank, the mean of the gradients, the same step on all."""

# ---- the verdicts' demonstration, and exercise 2

Rows: TypeAlias = Sequence[tuple[str, float, float]]


def _idle_share(spans: Rows) -> float:
    return Trace(Span(lane, "", start, end) for lane, start, end in spans).bubble


check_makespan = Exercise(
    "makespan",
    reference=lambda times: Trace(Span("a", "", start, end) for start, end in times).makespan,
    cases=cases(
        "times",
        [[(0, 2)], [(0, 2), (2, 5)], [(1, 2), (4, 6)], [(3, 9), (4, 5)], [(5, 6), (0, 1), (2, 8)]],
    ),
    mistakes={
        "You added the durations up: that counts overlapping work twice and waiting not at all.": lambda times: (
            sum(end - start for start, end in times)
        ),
        "You took the last end: this timeline does not begin at 0.": lambda times: max(
            end for _, end in times
        ),
        "You took the first and last span of the list: spans need not be in order.": lambda times: (
            times[-1][1] - times[0][0]
        ),
    },
)
"""Not an exercise: on it the notebook shows what a check says to a wrong answer."""

check_idle_share = Exercise(
    "idle share",
    reference=_idle_share,
    cases=[
        {"spans": [("a", 0, 4), ("b", 0, 4)]},
        {"spans": [("a", 0, 2), ("b", 2, 4)]},
        {"spans": [("a", 0, 1), ("a", 1, 4), ("b", 0, 1)]},
        {"spans": [("a", 2, 4), ("b", 3, 6), ("c", 4, 5)]},
        {"spans": [("a", 0, 1), ("b", 1, 2), ("c", 2, 3), ("d", 3, 4)]},
    ],
    mistakes={
        "You divided by the makespan alone: several lanes could have worked all that time.": lambda spans: (
            _idle_share(spans) * len({lane for lane, _, _ in spans})
        ),
        "That is the busy share; the idle share is the rest.": lambda spans: 1 - _idle_share(spans),
    },
)
"""Exercise 2: the share of lanes × makespan in which nothing ran."""
