"""What the trials of notebook 06 begin with: values drawn at random, a small model, and when two tensors are equal."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn


def drawn_values(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 values of a normal distribution, always the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got: Tensor, due: Tensor) -> bool:
    """Say whether two tensors have the same shape, and the same values to 1e-9."""
    return got.shape == due.shape and torch.allclose(got, due, rtol=0, atol=1e-9)


def redrawn(module: nn.Module, seed: int) -> None:
    """Give a module first weights of its own, without touching torch's global generator."""
    for number, parameter in enumerate(module.parameters()):
        parameter.data = drawn_values(*parameter.shape, seed=100 * seed + number)


def chain(seed: int) -> nn.Sequential:
    """Return four layers, one after the other, and a buffer; float64."""
    sizes = (6, 5, 4, 4, 3)
    model = nn.Sequential(*(nn.Linear(a, b, dtype=torch.float64) for a, b in pairwise(sizes)))
    redrawn(model, seed)
    model.register_buffer("mean", drawn_values(2, seed=100 * seed + 99))
    return model
