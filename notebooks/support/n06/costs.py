"""What a message costs, α + bytes / bandwidth, and what each way to add up a gradient makes of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lib.arguments import integer

AllReduce = Callable[[float, int, float, float], float]
"""Seconds to add up so many bytes on so many ranks: way(size, world_size, latency, bandwidth)."""


def ring_seconds(size: float, world_size: int, latency: float, bandwidth: float) -> float:
    """Return the seconds of a ring: 2 (W − 1) messages one after the other, each of a W-th of the bytes.

    size: bytes. latency: seconds a message. bandwidth: bytes a second.
    """
    return 2 * (world_size - 1) * (latency + size / world_size / bandwidth)


def centre_seconds(size: float, world_size: int, latency: float, bandwidth: float) -> float:
    """Return the seconds if rank 0 receives all gradients, one after the other, and sends the sum to each."""
    return 2 * (world_size - 1) * (latency + size / bandwidth)


def tree_seconds(size: float, world_size: int, latency: float, bandwidth: float) -> float:
    """Return the seconds of a tree: ranks add up in pairs, pairs of pairs, and so on, whole gradients; then back."""
    return 2 * math.ceil(math.log2(world_size)) * (latency + size / bandwidth)


WAYS: dict[str, AllReduce] = {"ring": ring_seconds, "tree": tree_seconds, "centre": centre_seconds}


def border(world_size: int, latency: float, bandwidth: float) -> float:
    """Return the bytes above which a ring is faster than a tree; 0 where it always is."""
    integer("world_size", world_size, at_least=2)
    levels = math.ceil(math.log2(world_size))
    more_messages = world_size - 1 - levels
    fewer_gradients = levels - (world_size - 1) / world_size
    return more_messages * latency * bandwidth / fewer_gradients


def line(sizes: Sequence[float], seconds: Sequence[float]) -> tuple[float, float]:
    """Return α and β of seconds = α + β · size, with the least squares of what is relative to each measured time."""
    weights = [1 / taken**2 for taken in seconds]
    total = sum(weights)
    mean_size = sum(w * size for w, size in zip(weights, sizes, strict=True)) / total
    mean_seconds = sum(w * taken for w, taken in zip(weights, seconds, strict=True)) / total
    moments = [
        (w * (size - mean_size) * (taken - mean_seconds), w * (size - mean_size) ** 2)
        for w, size, taken in zip(weights, sizes, seconds, strict=True)
    ]
    slope = sum(together for together, _ in moments) / sum(alone for _, alone in moments)
    return mean_seconds - slope * mean_size, slope
