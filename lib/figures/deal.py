"""What the figures of notebook 03 share: the deal of one epoch, asked from real samplers, and a canvas in inches.

deal        ask one DistributedSampler a rank for its indices
canvas      axes on which one unit is one inch; rows have their names at the left
draw_index  the cell of an index on such a canvas
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lib.data.samplers import DistributedSampler


@dataclass(frozen=True)
class Deal:
    """What the samplers of all ranks give out in one epoch: shares[r][t] is rank r's index in step t."""

    size: int
    shares: list[list[int]]
    dropped: list[int]

    @property
    def order(self) -> list[int]:
        """The order that all ranks share, padding included: its position p belongs to rank p % W, step p // W."""
        steps = max(map(len, self.shares))
        return [share[t] for t in range(steps) for share in self.shares if t < len(share)]

    @property
    def repeated(self) -> int:
        """How many positions are padding."""
        return max(0, len(self.order) - self.size)


def deal(size: int, world_size: int, *, seed: int = 0, epoch: int = 0, **arguments: Any) -> Deal:
    """Ask one DistributedSampler a rank for its epoch; further arguments go to the samplers."""

    def taken(world: int, rank: int, **more: Any) -> list[int]:
        sampler = DistributedSampler(range(size), world, rank, seed=seed, **more)
        sampler.set_epoch(epoch)
        return list(sampler)

    shares = [taken(world_size, rank, **arguments) for rank in range(world_size)]
    whole_order = taken(1, 0, shuffle=arguments.get("shuffle", True), order=arguments.get("order", "torch"))
    return Deal(size, shares, whole_order[sum(map(len, shares)) :])


def words(indices: Sequence[int]) -> str:
    """Return indices as text: 4 5 0 2, or "nothing"."""
    return " ".join(map(str, indices)) or "nothing"


def listed(shares: Sequence[Sequence[int]]) -> str:
    """Return the shares of all ranks as a sentence, for descriptions."""
    return "; ".join(f"rank {rank}: {words(share)}" for rank, share in enumerate(shares)) + "."


def what_happened(one: Deal) -> str:
    """Say what padding or dropping did to an epoch, as a sum: 10 samples + 2 repeated = 3 ranks × 4 steps."""
    world, steps = len(one.shares), len(one.shares[0])
    change = (
        f" + {one.repeated} repeated"
        if one.repeated
        else f" − {len(one.dropped)} dropped"
        if one.dropped
        else ""
    )
    counted = ((one.size, "sample"), (world, "rank"), (steps, "step"))
    samples, ranks, turns = (f"{number} {noun}{'s' * (number != 1)}" for number, noun in counted)
    return f"{samples}{change} = {ranks} × {turns}"
