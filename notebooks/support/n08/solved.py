"""What the reader of notebook 08 writes, and GPipe's order: its figures run on them where an answer is missing.

orders   a list for each rank: its tasks ("F", i), ("B", i), ("R", i) in the order in which it does them
costs    {"F": [ticks on each rank], "B": [ticks on each rank]}
ends     {(kind, i, rank): when that task has ended}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, TypeAlias

Task: TypeAlias = tuple[Any, int]
Orders: TypeAlias = Sequence[Sequence[Task]]
Costs: TypeAlias = Mapping[str, Sequence[float]]
Ends: TypeAlias = dict[tuple[str, int, int], float]


def clock_cycles(m: int, n: int) -> list[list[tuple[int, int]]]:
    """Return for each clock its pairs (micro-batch, partition): those with i + j = k that exist."""
    clocks = []
    for k in range(m + n - 1):
        clocks.append([(k - j, j) for j in range(n) if 0 <= k - j < m])
    return clocks


def simulate(orders: Orders, costs: Costs, message: float = 0) -> Ends:
    """Return when each task ends by the data-flow law. Raises RuntimeError if no rank can go on with tasks left."""
    ends: Ends = {}
    free, left = [0.0] * len(orders), [list(order) for order in orders]

    def arrival(kind: str, i: int, j: int) -> float:
        """Return when the task's input is there: infinity, as long as that is not known."""
        if kind not in "FB" or (kind == "F" and j == 0):
            return 0.0
        if kind == "B" and j == len(orders) - 1:
            return ends.get(("F", i, j), inf)
        return ends.get((kind, i, j - 1 if kind == "F" else j + 1), inf) + message

    while any(left):
        able = [j for j, order in enumerate(left) if order and arrival(*order[0], j) < inf]
        if not able:
            waiting = [f"rank {j} waits with {o[0][0]}{o[0][1]}" for j, o in enumerate(left) if o]
            raise RuntimeError("deadlock: " + ", ".join(waiting))
        for j in able:
            kind, i = left[j].pop(0)
            free[j] = ends[kind, i, j] = max(free[j], arrival(kind, i, j)) + costs[kind][j]
    return ends


def gpipe(m: int, n: int) -> list[list[Task]]:
    """Return GPipe's orders: all forwards, then all backwards, the last micro-batch first."""
    forwards = [("F", i) for i in range(m)]
    return [forwards + [("B", i) for i in reversed(range(m))] for _ in range(n)]


def live_activations(orders: Orders) -> list[int]:
    """Return the most activations that each rank holds at once."""
    peaks = []
    for order in orders:
        live = peak = 0
        for kind, _ in order:
            live += {"F": 1, "B": -1}.get(kind, 0)
            peak = max(peak, live)
        peaks.append(peak)
    return peaks


def turn_early(m: int, n: int) -> list[list[Task]]:
    """Return 1F1B's orders: rank j goes n - j forwards ahead, then does one backward and one forward in turn."""
    orders = []
    for j in range(n):
        ahead = min(n - j, m)
        order = [("F", i) for i in range(ahead)]
        for i in range(m):
            order.append(("B", i))
            if i + ahead < m:
                order.append(("F", i + ahead))
        orders.append(order)
    return orders


def best_m(
    make: Callable[[int, int], Orders],
    seconds: Mapping[int, tuple[float, float, float]],
    n: int,
    memory: float = 1.0,
) -> int | None:
    """Return the m of the shortest step that fits.

    seconds[m]: a forward, a backward and a message of one of m micro-batches. memory: the share of the batch whose
    activations a rank can hold. Of equals the smallest; None if none fits.
    """
    steps = {}
    for m in sorted(seconds):
        orders = make(m, n)
        forward, backward, message = seconds[m]
        if max(live_activations(orders)) <= memory * m:
            costs = {"F": [forward] * n, "B": [backward] * n}
            steps[m] = max(simulate(orders, costs, message).values())
    return min(steps, key=lambda m: steps[m], default=None)
