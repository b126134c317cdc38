"""What the trials of notebook 06 begin with: values drawn at random, and when two tensors are equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: What is said behind torch's own words, in all trials.
ASK_DIST = {
    "Default process group has not been initialized": "Everything is asked of the dist that you are given."
}


def drawn_values(*shape: int, seed: int = 0) -> Tensor:
    """Return float64 values of a normal distribution, always the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got: Tensor, due: Tensor) -> bool:
    """Say whether two tensors have the same shape, and the same values to 1e-9, of float32 to 1e-5."""
    single = torch.float32 in (got.dtype, due.dtype)
    return got.shape == due.shape and torch.allclose(
        got.double(), due.double(), rtol=0, atol=1e-5 if single else 1e-9
    )


def told_apart(got: float, due: float) -> tuple[str, str]:
    """Return two numbers with five digits, or with as many more as it takes to see that they differ."""
    texts = f"{got:.5g}", f"{due:.5g}"
    for digits in range(6, 18):
        if texts[0] != texts[1]:
            break
        texts = f"{got:#.{digits}g}", f"{due:#.{digits}g}"  # with the zeros at the end
    return texts


class Noting:
    """A dist that notes each name that is asked of it."""

    def __init__(self, dist: Any) -> None:
        self._dist = dist
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        """Note the name, and hand on what the dist has."""
        self.asked.append(name)
        return getattr(self._dist, name)
