"""What a message costs, α + bytes / bandwidth, and what each way to add up a gradient makes of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lib.arguments import integer

AllReduce = Callable[[float, int, float, float, int], float]
"""Seconds to add up so many bytes on so many ranks: way(size, world_size, latency, bandwidth, shared).

size: bytes. latency: seconds a message. bandwidth: bytes a second of a link. shared: so many ranks share each link that
leads farther than to the next rank; 1: every pair has a link of its own.
"""


def ring_seconds(size: float, world_size: int, latency: float, bandwidth: float, shared: int = 1) -> float:
    """Return the seconds of a ring: 2 (W − 1) messages one after the other, each of a W-th of the bytes, to the next.

    The arguments are those of AllReduce.
    """
    return 2 * (world_size - 1) * (latency + size / world_size / bandwidth)


def centre_seconds(size: float, world_size: int, latency: float, bandwidth: float, shared: int = 1) -> float:
    """Return the seconds if rank 0 receives all gradients, one after the other, and sends the sum to each."""
    return 2 * (world_size - 1) * (latency + size / bandwidth)


def tree_seconds(size: float, world_size: int, latency: float, bandwidth: float, shared: int = 1) -> float:
    """Return the seconds of a tree: ranks add up in pairs, pairs of pairs, and so on, whole gradients; then back."""
    levels = math.ceil(math.log2(world_size))
    far = sum(max(1.0, shared / 2.0**level) for level in range(2, levels + 1))  # of 2**level ranks one sends
    gradients = 1 + far  # the first pairs are neighbours
    return 2 * (levels * latency + gradients * size / bandwidth)


def halving_seconds(size: float, world_size: int, latency: float, bandwidth: float, shared: int = 1) -> float:
    """Return the seconds of recursive halving and doubling, W a power of two: G/2 with the neighbour, then G/4, …."""
    levels = math.ceil(math.log2(world_size))
    far = 1 / 2 - 1 / world_size  # G/4 + G/8 + … + G/W; the largest piece stays among neighbours
    return 2 * (levels * latency + (far * shared + 1 / 2) * size / bandwidth)


WAYS: dict[str, AllReduce] = {
    "ring": ring_seconds,
    "tree": tree_seconds,
    "halving and doubling": halving_seconds,
    "centre": centre_seconds,
}


def border(
    world_size: int, latency: float, bandwidth: float, shared: int = 1, other: AllReduce = tree_seconds
) -> float:
    """Return the bytes from which on a ring is as fast as another way: 0 where it always is, inf where it never is.

    latency, bandwidth, shared: as in AllReduce. Raises ValueError for less than two ranks.
    """
    integer("world_size", world_size, at_least=2)
    link = latency, bandwidth, shared
    later = ring_seconds(0, world_size, *link) - other(0, world_size, *link)
    gigabyte = 1e9  # both are straight lines over the size
    ring_slope = ring_seconds(gigabyte, world_size, 0.0, bandwidth, shared) / gigabyte
    saved = other(gigabyte, world_size, 0.0, bandwidth, shared) / gigabyte - ring_slope
    if later <= 1e-12 * latency:
        return 0.0
    return later / saved if saved > 1e-9 * ring_slope else math.inf


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
