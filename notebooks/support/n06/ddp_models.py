"""The models with which a MyDDP of notebook 06 is tried, and limits of buckets that go with them."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from support.n06.drawn import drawn_values

#: Values in the first bucket of `chain`, and in each of those behind it; the last one has fewer.
LIMITS = (10, 36)

#: Buckets of TwoBranches: top, spare, the right branch, the left one.
LAYERS: tuple[int, ...] = (15, 20, 28)
#: Both branches in one bucket.
TOGETHER = (15, 20, 56)

#: The top and spare in one bucket, both branches in the other.
SPARE_WITH_TOP = (20, 56)


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


class Turned(nn.Module):
    """A chain, two of whose layers share a bias, behind a parameter that is no layer's, stored transposed."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.chain = chain(seed)
        self.chain[2].bias = self.chain[1].bias
        self.turn = nn.Parameter(drawn_values(6, 6, seed=100 * seed + 96).T)

    def forward(self, rows: Tensor) -> Tensor:
        """Return what the chain makes of the turned rows."""
        out: Tensor = self.chain(rows @ self.turn)
        return out


class TwoBranches(nn.Module):
    """Two branches that are added up; `turned` computes the second one first, so backward meets them in turned order.

    A layer `spare` is only used if `with_spare`; the layer with the name `frozen` is not trained.
    """

    def __init__(self, seed: int, turned: bool = False, with_spare: bool = True, frozen: str = "") -> None:
        super().__init__()
        self.left = nn.Linear(6, 4, dtype=torch.float64)
        self.right = nn.Linear(6, 4, dtype=torch.float64)
        self.spare = nn.Linear(4, 4, dtype=torch.float64)
        self.top = nn.Linear(4, 3, dtype=torch.float64)
        redrawn(self, seed)
        # an integer, as in BatchNorm; then one that is in no state_dict
        self.register_buffer("batches", torch.tensor(seed + 5))
        self.register_buffer("scale", drawn_values(2, seed=100 * seed + 98), persistent=False)
        self.top.register_buffer("centre", drawn_values(3, seed=100 * seed + 97))
        if frozen:
            self.get_submodule(frozen).requires_grad_(False)
        self.turned = turned
        self.with_spare = with_spare

    def forward(self, rows: Tensor) -> Tensor:
        """Return what the top makes of the sum of both branches."""
        if self.turned:
            total = self.right(rows).tanh()
            total = total + self.left(rows).tanh()
        else:
            total = self.left(rows).tanh()
            total = total + self.right(rows).tanh()
        if self.with_spare:
            total = self.spare(total)
        out: Tensor = self.top(total)
        return out
