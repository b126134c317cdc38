"""What the reader of notebook 14 writes: checks compare with it, and cells run on it where an answer is missing.

A task is (op, stage, micro-batch), such as ("F", 2, 0), which is 2F0 in a table; orders: a list of tasks for each rank.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.schedules import Action, Schedule

Task: TypeAlias = tuple[Any, int, int]
Orders: TypeAlias = Sequence[Sequence[Task]]


def table(name: str, orders: Iterable[Iterable[Task]]) -> Schedule:
    """Return orders as lib's Schedule."""
    return Schedule(name, [[Action(*task) for task in order] for order in orders])


def alternate(forwards: list[Task], backwards: list[Task], ahead: int) -> list[Task]:
    """Return `ahead` forwards, then a backward and a forward in turn, then the backwards that are left."""
    order = forwards[:ahead]
    for k, backward in enumerate(backwards, start=ahead):
        order += [backward, *forwards[k : k + 1]]
    return order


def beat_1f1b(m: int, n: int) -> list[list[Task]]:
    """Return 1F1B's orders with each backward in two halves, one right behind the other."""
    orders = []
    for j in range(n):
        order = list[Task]()
        for op, _, i in alternate([("F", j, i) for i in range(m)], [("I", j, i) for i in range(m)], n - j):
            order.append((op, j, i))
            if op == "I":
                order.append(("W", j, i))
        orders.append(order)
    return orders


def fill_holes(m: int, n: int) -> list[list[Task]]:
    """Return the orders of ZB-H1: 1F1B with I for B, and rank j up to j W's behind."""
    orders = []
    for j in range(n):
        forwards, halves = ([(op, j, i) for i in range(m)] for op in "FI")
        order, owed = list[Task](), list[Task]()
        for op, _, i in alternate(forwards, halves, n - j):
            order.append((op, j, i))
            if op == "I":
                owed.append(("W", j, i))
            if len(owed) > j:
                order.append(owed.pop(0))
        orders.append(order + owed)
    return orders


class SplitLinear(torch.autograd.Function):
    """A linear layer whose backward computes the gradient of the input, and leaves that of the weights for later."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, later: list[Callable[[], None]]) -> Tensor:
        """Return x Wᵀ."""
        ctx.save_for_backward(x, weight)
        ctx.later = later
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradient of x; put what computes that of the weights into `later`."""
        x, weight = ctx.saved_tensors

        def add_to_weight() -> None:
            with torch.no_grad():
                part = gradient.T @ x
                weight.grad = part if weight.grad is None else weight.grad + part

        ctx.later.append(add_to_weight)
        return gradient @ weight, None, None


def forwards_ahead(j: int, n: int, forward: float, backward: float, message: float) -> int:
    """Return with how many forwards rank j begins, so that it never waits for a gradient between its backwards."""
    rounds = 1 + ceil(2 * message / (forward + backward))
    return 1 + (n - 1 - j) * rounds


def interleaved(m: int, n: int, v: int) -> list[list[Task]]:
    """Return the orders of interleaved 1F1B; m is a multiple of n."""
    orders = []
    for j in range(n):
        stages, groups = range(j, v * n, n), [range(first, first + n) for first in range(0, m, n)]
        forwards = [("F", s, i) for group in groups for s in stages for i in group]
        backwards = [("B", s, i) for group in groups for s in reversed(stages) for i in group]
        orders.append(alternate(forwards, backwards, (v - 1) * n + 2 * (n - 1 - j) + 1))
    return orders


def listed(
    m: int, n: int, message: float, room: int, draw: random.Random | None = None
) -> tuple[float, list[list[Task]]]:
    """Let the task that can begin first go next; of equals I before F before W, blurred by `draw` if there is one."""
    every = [(op, j, i) for op in "FIW" for j in range(n) for i in range(m)]
    rank = {task: "IFW".index(task[0]) + 1.5 * (draw.random() if draw else 0) for task in every}
    orders: list[list[Task]] = [[] for _ in range(n)]
    free, held, end = [0.0] * n, [0] * n, dict[Task, float]()
    while every:
        ready = []
        for op, j, i in every:
            needs: list[Task] = {"F": [("F", j - 1, i)] if j else [], "W": [("I", j, i)]}.get(
                op, [("F", j, i)]
            )
            if op == "I" and j < n - 1:
                needs.append(("I", j + 1, i))
            if all(need in end for need in needs) and (op != "F" or held[j] < room):
                there = [end[need] + message * (need[1] != j) for need in needs]
                ready.append((max([free[j], *there]), rank[op, j, i], (op, j, i)))
        start, _, task = min(ready)
        op, j, _ = task
        every.remove(task)
        orders[j].append(task)
        free[j] = end[task] = start + 1
        held[j] += {"F": 1, "I": 0, "W": -1}[op]
    return max(free), orders


def search(m: int, n: int, message: float, room: int) -> list[list[Task]]:
    """Return the best of some lists that chance has made."""
    draw = random.Random(0)
    return min((listed(m, n, message, room, draw) for _ in range(30)), key=lambda found: found[0])[1]
