"""Predictions and exercises of notebook 15, scale out."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import TypeAlias, cast

from support.checks import Exercise, Guess, Verdict, cases, letter
from support.n15.figures import ORDERS, links_of
from support.n15.runs import Plan, make_plan

# ---- predictions


def _order() -> str:
    sizes = [sum(link.size for link in links_of(16, 4, 4, order) if link.crosses) for order in ORDERS]
    return "AB"[sizes.index(min(sizes))]


guess_data_rank = Guess("the replica of rank 5", lambda: 5 // 4)
"""Section 1: the replica of rank 5, with 8 ranks in pipelines of 4."""
guess_rows = Guess("a micro-batch", lambda: 320 // 2 // 4, unit="rows")
"""Section 2: rows of a micro-batch for 4 ranks, pipelines of 2, m = 4, 320 rows a step."""
guess_bubble = Guess("the bubble", lambda: 100 * 1 // 5, unit="%", tolerance=0.02)
"""Section 3: per cent idle of 2 ranks with 4 micro-batches, if stages are equal."""
guess_order = Guess("the order that sends less", _order, read=letter)
"""Section 4: which numbering sends less between machines, A or B."""
guess_loss = Guess("the loss after 24 steps, about", lambda: round(math.log(10), 2), tolerance=0.05)
""" "Break it": the loss of a model that has nothing to learn from, with ten classes."""


# ---- exercise 1: place_of

check_place = Exercise(
    "place_of",
    reference=lambda rank, ranks, partitions: divmod(rank, partitions),
    cases=cases(
        "rank ranks partitions",
        (
            (rank, ranks, n)
            for ranks, n in ((8, 2), (8, 4), (6, 3), (4, 4), (3, 1))
            for rank in reversed(range(ranks))
        ),
    ),
    mistakes={
        "That is (stage, replica): swapped.": lambda rank, ranks, partitions: divmod(rank, partitions)[::-1],
        "That counts down a column; ranks of one pipeline have neighbouring numbers here.": (
            lambda rank, ranks, partitions: divmod(rank, ranks // partitions)[::-1]
        ),
        "The rank is not the replica: the ranks of one replica would read different rows.": (
            lambda rank, ranks, partitions: (rank, rank % partitions)
        ),
    },
)
"""Exercise 1, (replica, stage) of every rank of several meshes."""


# ---- exercise 2: steps_in_epoch

Steps: TypeAlias = Callable[[int, int, int, int], int]


def _steps(
    share: Callable[[int, int], int] = operator.floordiv,
    batches: Callable[[int, int], int] = operator.floordiv,
) -> Steps:
    """Make an answer: each mini-epoch of a replica is cut into full batches of its share of the global batch."""

    def steps(size: int, batch: int, replicas: int, mini_epochs: int) -> int:
        turns = math.ceil(size / replicas)
        ends = [turns * k // mini_epochs for k in range(mini_epochs + 1)]
        return sum(batches(end - begin, share(batch, replicas)) for begin, end in pairwise(ends))

    return steps


check_steps = Exercise(
    "steps_in_epoch",
    reference=_steps(),
    cases=cases(
        "size batch replicas mini_epochs",
        (
            (size, batch, replicas, mini_epochs)
            for size, batch in ((1437, 320), (100, 12), (1437, 64), (97, 8))
            for replicas in (1, 2, 4)
            for mini_epochs in (1, 2, 5)
        ),
    ),
    mistakes={
        "Every mini-epoch drops its own rest, not only the epoch.": lambda size, batch, replicas, mini_epochs: (
            _steps()(size, batch, replicas, 1)
        ),
        "A replica loads batch / replicas rows a step, not the whole batch.": _steps(
            share=lambda batch, replicas: batch
        ),
        "drop_last=True: a batch that is not full is no step.": _steps(
            batches=lambda rows, share: math.ceil(rows / share)
        ),
    },
)
"""Exercise 2 for several data sets, batches and meshes."""


# ---- exercise 3: my_plan

RANKS, LIMIT, LEAST = 64, 70e6, 16  # ranks, bytes that a rank may hold, rows that a micro-batch must have


@cache
def best_plan() -> Plan:
    """Return the fastest plan that keeps the limits of exercise 3."""
    plans = [make_plan(RANKS, n, m) for n in (1, 2, 4, 8, 16, 32, 64) for m in (1, 2, 4, 8, 16, 32, 64)
             if 4096 % (RANKS // n * m) == 0]  # fmt: skip
    return min((p for p in plans if p.memory <= LIMIT and p.rows >= LEAST), key=lambda plan: plan.seconds)


def _check_plan(exercise: Exercise, answer: object) -> Verdict:
    """Say which limit a plan breaks, or what it wastes; up to 5 % above the best is right."""
    try:
        stages, micro_batches = cast(tuple[int, int], answer)
        plan = make_plan(RANKS, stages, micro_batches)
    except (TypeError, ValueError) as error:
        return exercise.wrong(f"{answer!r} is no plan: {error}.")
    shape = f"{plan.partitions} stages × {plan.replicas} replicas, m = {plan.micro_batches}"
    if plan.states > LIMIT:
        return exercise.wrong(
            f"{shape}: weights alone are {plan.states / 1e6:.0f} MB a rank. More stages share them."
        )
    if plan.memory > LIMIT:
        held = f"{plan.states / 1e6:.0f} + {plan.activations / 1e6:.0f} MB"
        return exercise.wrong(
            f"{shape}: {held}: the activations are too much. 1F1B holds n micro-batches: smaller ones."
        )
    if plan.rows < LEAST:
        return exercise.wrong(f"{shape}: micro-batches of {plan.rows} rows; at least {LEAST} were asked for.")
    best = best_plan()
    if plan.seconds > 1.05 * best.seconds:
        slower = f"{plan.seconds / best.seconds:.1f} times the time of the best plan"
        return exercise.wrong(f"{shape}: it fits, but takes {slower}; {plan.bubble:.0%} of it is bubble.")
    return exercise.right(
        f"{shape}: {plan.memory / 1e6:.0f} MB, {1e3 * plan.seconds:.0f} ms, {plan.bubble:.0%} idle."
    )


check_plan = Exercise("my_plan", reference=(16, 64), judge=_check_plan)
"""Exercise 3: (stages, micro-batches) for 64 ranks."""
