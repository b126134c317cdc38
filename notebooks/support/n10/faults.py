"""Layers that recompute can trip over, and a run that says what a checkpoint makes of each.

Every case is a small model of a first layer and a segment that is checkpointed; its gradients are compared with those
of the same model without checkpoint, from the same weights, inputs and random state.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from support import built
from support.n10.solved import hook_checkpoint

Outcome: TypeAlias = Literal["same", "wrong", "error", "warned", "no gradient", "counted twice"]
How: TypeAlias = Callable[..., Any]


class Noise(nn.Module):
    """Scale by Python's random numbers, whose state no checkpoint keeps: only the values show it."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(6)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times a random number."""
        return (x * (0.5 + self._random.random())).tanh()


class SometimesTanh(Noise):
    """Tanh or nothing, by Python's random numbers: the second time it takes the other branch."""

    def forward(self, x: Tensor) -> Tensor:
        """Return tanh(x) or x."""
        return x.tanh() if self._random.random() < 0.8 else x  # draws: below 0.8, then above


class Scale(nn.Linear):
    """Scale by a second input, which it doubles in place."""

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        """Return the layer's output times twice the scale."""
        return super().forward(x) * scale.mul_(2)


HOWS: Mapping[str, How] = {
    "MyCheckpoint": built.MyCheckpoint.apply,
    "my_checkpoint": built.my_checkpoint,
    "hook_checkpoint": hook_checkpoint,
    "torch reentrant": partial(torch_checkpoint, use_reentrant=True),
    "torch not reentrant": partial(torch_checkpoint, use_reentrant=False),
}
CASES: Mapping[str, Callable[[], list[nn.Module]]] = {  # the segment: layers on 8 features
    "dropout": lambda: [nn.Linear(8, 8), nn.Dropout(0.5)],
    "in place, inside": lambda: [nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "input without gradient": lambda: [nn.Linear(8, 8)],
    "in place, input with gradient": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, a second input": lambda: [Scale(8, 8)],
    "BatchNorm": lambda: [nn.Linear(8, 8), nn.BatchNorm1d(8)],
    "Python's random: values": lambda: [Noise(), nn.Linear(8, 8)],
    "Python's random: a branch": lambda: [nn.Linear(8, 8), SometimesTanh(), nn.Linear(8, 8)],
}
NO_GRAD = ("input without gradient",)  # the segment comes first


def _gradients(case: str, how: How | None) -> tuple[list[Tensor | None], int]:
    """Return the gradients of the segment's parameters and of the layer before, and BatchNorm's count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first: nn.Module = nn.Identity() if case in NO_GRAD else nn.Linear(8, 8)
        layers = CASES[case]()
        last = nn.Linear(8, 8)
        segment = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
        inputs = [first(torch.randn(16, 8)), torch.ones(8)][: 1 + isinstance(segment, Scale)]
        y = segment(*inputs) if how is None else how(segment, *inputs)
        (last(y) ** 2).sum().backward()
    grads = [p.grad for p in (*first.parameters(), *segment.parameters())]
    counts = dict(segment.named_buffers())
    return grads, int(sum(n for name, n in counts.items() if name.endswith("num_batches_tracked")))


def outcome(case: str, how: How) -> Outcome:
    """Return what becomes of a case when its segment is checkpointed this way; a warning is no silence."""
    expected, count = _gradients(case, None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            got, counted = _gradients(case, how)
        except Exception:  # whatever a reader's checkpoint raises is no silence
            return "error"
    if any(grad is None for grad in got):
        return "warned" if caught else "no gradient"
    pairs = zip(got, expected, strict=True)
    if not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs if a is not None and b is not None):
        return "wrong"
    return "same" if counted == count else "counted twice"


def verdicts(hows: Mapping[str, How]) -> dict[str, dict[str, Outcome]]:
    """Return the outcome of every case under every checkpoint."""
    return {case: {name: outcome(case, how) for name, how in hows.items()} for case in CASES}
