"""Layers that recompute can trip over, and a run that says what a checkpoint makes of each.

    verdicts()["dropout"]["ours"]     "same"

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

from lib.pipeline.checkpoint import checkpoint, is_recomputing

Outcome: TypeAlias = Literal["same", "wrong", "error", "no gradient", "counted twice"]
How: TypeAlias = Callable[[nn.Module, Tensor], Any]


class SometimesTanh(nn.Module):
    """Tanh or nothing, by Python's random numbers, whose state no checkpoint keeps: the second time another branch."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(6)  # draws: below 0.8, then above

    def forward(self, x: Tensor) -> Tensor:
        """Return tanh(x) or x."""
        return x.tanh() if self._random.random() < 0.8 else x


class Noise(nn.Module):
    """Scale by Python's random numbers: nothing but the values shows that the second forward is another."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(6)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times a random number."""
        return (x * (0.5 + self._random.random())).tanh()


class Count(nn.Module):
    """Count the forwards; with `careful` only those that are no recompute."""

    def __init__(self, careful: bool = False) -> None:
        super().__init__()
        self.careful, self.calls = careful, 0

    def forward(self, x: Tensor) -> Tensor:
        """Return x as it is."""
        if not (self.careful and is_recomputing()):
            self.calls += 1
        return x


HOWS: Mapping[str, How] = {
    "ours": checkpoint,
    "torch reentrant": partial(torch_checkpoint, use_reentrant=True),
    "torch not reentrant": partial(torch_checkpoint, use_reentrant=False),
}
CASES: Mapping[str, Callable[[], list[nn.Module]]] = {  # the segment: layers on 8 features
    "dropout": lambda: [nn.Linear(8, 8), nn.Dropout(0.5)],
    "in place, inside": lambda: [nn.Linear(8, 8), nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, on its input": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "in place, on the data": lambda: [nn.SiLU(inplace=True), nn.Linear(8, 8)],
    "other random numbers: values": lambda: [Noise(), nn.Linear(8, 8)],
    "other random numbers: a branch": lambda: [nn.Linear(8, 8), SometimesTanh(), nn.Linear(8, 8)],
    "BatchNorm": lambda: [nn.Linear(8, 8), nn.BatchNorm1d(8)],
    "input without grad": lambda: [nn.Linear(8, 8)],
}
NO_GRAD = ("in place, on the data", "input without grad")  # the segment comes first


def _gradients(case: str, how: How | None) -> tuple[list[Tensor | None], int]:
    """Return the gradients of the segment's parameters and of the layer before, and BatchNorm's count."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first: nn.Module = nn.Identity() if case in NO_GRAD else nn.Linear(8, 8)
        segment, last = nn.Sequential(*CASES[case]()), nn.Linear(8, 8)
        x = first(torch.randn(16, 8))
        y = segment(x) if how is None else how(segment, x)
        (last(y) ** 2).sum().backward()
    grads = [p.grad for p in (*first.parameters(), *segment.parameters())]
    counts = dict(segment.named_buffers())
    return grads, int(sum(n for name, n in counts.items() if name.endswith("num_batches_tracked")))


def outcome(case: str, how: How) -> Outcome:
    """Return what becomes of a case when its segment is checkpointed this way."""
    expected, count = _gradients(case, None)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got, counted = _gradients(case, how)
    except RuntimeError:  # torch's CheckpointError is one
        return "error"
    if any(grad is None for grad in got):
        return "no gradient"
    pairs = zip(got, expected, strict=True)
    if not all(torch.allclose(a, b, atol=1e-6) for a, b in pairs if a is not None and b is not None):
        return "wrong"
    return "same" if counted == count else "counted twice"


def verdicts() -> dict[str, dict[str, Outcome]]:
    """Return the outcome of every case under every checkpoint."""
    return {case: {name: outcome(case, how) for name, how in HOWS.items()} for case in CASES}
