"""Predictions and exercises of notebook 15, scale out."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import cast

from support.checks import Verdict, check_function, guess, not_attempted
from support.n15.figures import ORDERS, links_of
from support.n15.runs import Plan, make_plan

# ---- predictions


def guess_data_rank(my_guess: object) -> Verdict:
    """Comment on the guess of section 1: the replica of rank 5, with 8 ranks in pipelines of 4."""
    return guess(my_guess, 5 // 4, what="the replica of rank 5")


def guess_rows(my_guess: object) -> Verdict:
    """Comment on the guess of section 2: rows of a micro-batch for 4 ranks, pipelines of 2, m = 4, 320 rows a step."""
    return guess(my_guess, 320 // 2 // 4, what="a micro-batch", unit="rows")


def guess_bubble(my_guess: object) -> Verdict:
    """Comment on the guess of section 3: per cent idle of 2 ranks with 4 micro-batches, if stages are equal."""
    return guess(my_guess, 100 * 1 // 5, what="the bubble", unit="%", tolerance=0.02)


def guess_order(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: which numbering sends less between machines, A or B."""
    sizes = [sum(link.size for link in links_of(16, 4, 4, order) if link.crosses) for order in ORDERS]
    letter = my_guess.strip().upper() if isinstance(my_guess, str) else my_guess
    return guess(letter, "AB"[sizes.index(min(sizes))], what="the order that sends less")


def guess_loss(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": the loss of a model that has nothing to learn from, with ten classes."""
    return guess(my_guess, round(math.log(10), 2), what="the loss after 24 steps, about", tolerance=0.05)


# ---- exercise 1: place_of


def true_place(rank: int, ranks: int, partitions: int) -> tuple[int, int]:
    """Return (replica, stage) of a rank."""
    return divmod(rank, partitions)


def swapped(rank: int, ranks: int, partitions: int) -> tuple[int, int]:
    """Return (stage, replica) (wrong)."""
    return rank % partitions, rank // partitions


def other_order(rank: int, ranks: int, partitions: int) -> tuple[int, int]:
    """Number the ranks column by column (wrong here: the mesh is numbered row by row)."""
    replicas = ranks // partitions
    return rank % replicas, rank // replicas


def global_rank(rank: int, ranks: int, partitions: int) -> tuple[int, int]:
    """Take the rank itself for the replica (wrong)."""
    return rank, rank % partitions


def check_place(answer: Callable[[int, int, int], tuple[int, int]]) -> Verdict:
    """Check exercise 1 on every rank of several meshes."""
    mistakes = {
        "That is (stage, replica): swapped.": swapped,
        "That counts down a column; ranks of one pipeline have neighbouring numbers here.": other_order,
        "The rank is not the replica: the ranks of one replica would read different rows.": global_rank,
    }
    meshes = ((8, 2), (8, 4), (6, 3), (4, 4), (3, 1))
    cases = [
        {"rank": r, "ranks": ranks, "partitions": n} for ranks, n in meshes for r in reversed(range(ranks))
    ]
    return check_function(answer, true_place, cases, what="place_of", mistakes=mistakes)


# ---- exercise 2: steps_in_epoch


def true_steps(size: int, batch: int, replicas: int, mini_epochs: int) -> int:
    """Return the steps of an epoch: each mini-epoch of a replica is cut into full batches of its share."""
    turns, share = math.ceil(size / replicas), batch // replicas
    ends = [turns * k // mini_epochs for k in range(mini_epochs + 1)]
    return sum((end - begin) // share for begin, end in pairwise(ends))


def one_cut(size: int, batch: int, replicas: int, mini_epochs: int) -> int:
    """Cut the whole epoch (wrong: every mini-epoch drops its own rest)."""
    return math.ceil(size / replicas) // (batch // replicas)


def batch_of_each(size: int, batch: int, replicas: int, mini_epochs: int) -> int:
    """Let every replica load the global batch (wrong)."""
    turns = math.ceil(size / replicas)
    ends = [turns * k // mini_epochs for k in range(mini_epochs + 1)]
    return sum((end - begin) // batch for begin, end in pairwise(ends))


def rest_kept(size: int, batch: int, replicas: int, mini_epochs: int) -> int:
    """Count the shorter batches at the ends (wrong: they are dropped)."""
    turns, share = math.ceil(size / replicas), batch // replicas
    ends = [turns * k // mini_epochs for k in range(mini_epochs + 1)]
    return sum(math.ceil((end - begin) / share) for begin, end in pairwise(ends))


def check_steps(answer: Callable[[int, int, int, int], int]) -> Verdict:
    """Check exercise 2 on several data sets, batches and meshes."""
    mistakes = {
        "Every mini-epoch drops its own rest, not only the epoch.": one_cut,
        "A replica loads batch / replicas rows a step, not the whole batch.": batch_of_each,
        "drop_last=True: a batch that is not full is no step.": rest_kept,
    }
    cases = [
        {"size": size, "batch": batch, "replicas": replicas, "mini_epochs": mini_epochs}
        for size, batch in ((1437, 320), (100, 12), (1437, 64), (97, 8))
        for replicas in (1, 2, 4)
        for mini_epochs in (1, 2, 5)
    ]
    return check_function(answer, true_steps, cases, what="steps_in_epoch", mistakes=mistakes)


# ---- exercise 3: my_plan

RANKS, LIMIT, LEAST = 64, 70e6, 16  # ranks, bytes that a rank may hold, rows that a micro-batch must have


def best_plan() -> Plan:
    """Return the fastest plan that keeps the limits of exercise 3."""
    plans = [make_plan(RANKS, n, m) for n in (1, 2, 4, 8, 16, 32, 64) for m in (1, 2, 4, 8, 16, 32, 64)
             if 4096 % (RANKS // n * m) == 0]  # fmt: skip
    return min((p for p in plans if p.memory <= LIMIT and p.rows >= LEAST), key=lambda plan: plan.seconds)


def check_plan(answer: object) -> Verdict:
    """Check exercise 3: (stages, micro-batches) for 64 ranks; says which limit a plan breaks, or what it wastes."""
    if answer is None or answer is ...:
        return not_attempted("my_plan")
    try:
        stages, micro_batches = cast(tuple[int, int], answer)
        plan = make_plan(RANKS, stages, micro_batches)
    except (TypeError, ValueError) as error:
        return Verdict("wrong", f"my_plan: {answer!r} is no plan: {error}.")
    what = f"my_plan: {plan.partitions} stages × {plan.replicas} replicas, m = {plan.micro_batches}"
    if plan.states > LIMIT:
        return Verdict(
            "wrong", f"{what}: weights alone are {plan.states / 1e6:.0f} MB a rank. More stages share them."
        )
    if plan.memory > LIMIT:
        held = f"{plan.states / 1e6:.0f} + {plan.activations / 1e6:.0f} MB"
        return Verdict(
            "wrong",
            f"{what}: {held}: the activations are too much. 1F1B holds n micro-batches: smaller ones.",
        )
    if plan.rows < LEAST:
        return Verdict(
            "wrong", f"{what}: micro-batches of {plan.rows} rows; at least {LEAST} were asked for."
        )
    best = best_plan()
    if plan.seconds > 1.05 * best.seconds:
        slower = f"{plan.seconds / best.seconds:.1f} times the time of the best plan"
        return Verdict("wrong", f"{what}: it fits, but takes {slower}; {plan.bubble:.0%} of it is bubble.")
    return Verdict(
        "right", f"{what}: {plan.memory / 1e6:.0f} MB, {1e3 * plan.seconds:.0f} ms, {plan.bubble:.0%} idle."
    )
