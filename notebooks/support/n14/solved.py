"""What the reader of notebook 14 writes: checks compare with it, and cells run on it where an answer is missing.

A task is (op, stage, micro-batch), such as ("F", 2, 0), which is 2F0 in a table; orders: a list of tasks for each rank.
"""

from __future__ import annotations

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


def zb_h1(m: int, n: int) -> list[list[Task]]:
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
