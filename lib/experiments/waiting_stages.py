"""Stages that take their time without computing: they sleep, as a thread does while its GPU computes.

So a run of the executor shows what a schedule does with as many ranks as one likes, also where there is one core only.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return grads[0], None, None


class WaitingStage(nn.Module):
    """A small linear layer; forward sleeps for `forward` seconds, its gradients for `input` and `weight`."""

    def __init__(self, width: int, forward: float, input: float, weight: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = forward, input, weight

    def forward(self, x: Tensor) -> Tensor:
        """Compute, and sleep."""
        forward, input, weight = self.seconds
        late = _Sleep.apply(self.linear.weight, 0.0, weight)  # type: ignore[no-untyped-call]
        return F.linear(_Sleep.apply(x, forward, input), late, self.linear.bias)  # type: ignore[no-untyped-call]


def waiting_stages(
    count: int, tick: float, *, per_rank: int = 1, forward: float = 1, backward: float = 2, seed: int = 0
) -> list[nn.Module]:
    """Make `count` stages; forward takes so many ticks, backward half of its own for the input, half for the weights.

    tick: in seconds. per_rank: v stages share the time of one. Give them an input that requires a gradient, else stage
    0 has none to compute and is faster than the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        each = tick / per_rank
        return [
            WaitingStage(4, forward * each, backward * each / 2, backward * each / 2) for _ in range(count)
        ]
