"""What follows from a balance: the clocks of a forward pass, how much faster they are, and the best balance."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, combinations, pairwise

from lib.pipeline.pipeline import clock_cycles
from lib.timeline import Span, Trace


def block_costs(costs: Sequence[float], balance: Sequence[int]) -> list[float]:
    """Return what each partition costs: the sums of its layers."""
    return [sum(costs[a:b]) for a, b in pairwise([0, *accumulate(balance)])]


def predicted_forward(seconds: Sequence[float], chunks: int) -> Trace:
    """Return the spans of a forward pass, clock by clock, in which a task of partition j takes seconds[j]."""
    now = 0.0
    spans = []
    lanes = [f"partition {j}" for j in range(len(seconds))]
    for clock in clock_cycles(chunks, len(seconds)):
        spans += [Span(lanes[j], f"F{i}", now, now + seconds[j], "forward") for i, j in clock]
        now += max(seconds[j] for _, j in clock)
    return Trace(spans, lanes)


def forward_gain(seconds: Sequence[float], chunks: int) -> float:
    """Return how many times as fast as one task after the other a forward pass is, clock by clock."""
    return chunks * sum(seconds) / predicted_forward(seconds, chunks).makespan


def speedup(costs: Sequence[float], balance: Sequence[int], chunks: int, overhead: float) -> float:
    """Return how many times as fast as one device, with the whole batch, the clocks are."""
    tasks = [cost / chunks + overhead for cost in block_costs(costs, balance)]
    return (sum(costs) + overhead) / predicted_forward(tasks, chunks).makespan


def fastest(costs: Sequence[float], partitions: int, chunks: int, overhead: float) -> list[int]:
    """Return the balance with the least predicted time, by trying all."""
    cuts = combinations(range(1, len(costs)), partitions - 1)
    balances = ([b - a for a, b in pairwise([0, *cut, len(costs)])] for cut in cuts)
    return max(balances, key=lambda balance: speedup(costs, balance, chunks, overhead))


# ---- how long a pass through n partitions takes, of which each computes the whole mini-batch in f


def clock_by_clock(m: int, n: int, f: float, o: float) -> float:
    """Return the time where each clock waits for its answers: what a clock costs the host comes on top."""
    return (m + n - 1) * (f / m + o)


def launched_ahead(m: int, n: int, f: float, o: float) -> float:
    """Return the time where the host launches ahead of the devices: of both the slower one decides."""
    return (m + n - 1) * max(f / m, o)


def held_after_forward(mode: str, m: int, inside: float, its_input: float = 1.0) -> float:
    """Return what a partition holds when forward has ended. inside: of the whole mini-batch, its input included."""
    last = (m - 1) / m * its_input + inside / m
    return {"never": inside, "except_last": last, "always": its_input}[mode]


def held_at_most(mode: str, m: int, inside: float, its_input: float = 1.0) -> float:
    """Return the least peak of a partition in backward: no gradients, and nothing that is launched ahead."""
    return inside if mode == "never" else held_after_forward("except_last", m, inside, its_input)


def time_of_recompute(backward: float, share: float = 1.0) -> float:
    """Return how many times as long a step takes that computes this share of forward again; backward: in forwards."""
    return (1 + backward + share) / (1 + backward)
