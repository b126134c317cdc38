"""The model of notebook 15: an image tower that can be cut into stages, equal blocks between a first and a last layer.

    image (B, 1, 8, 8) ── 64 pixels ── width ── block ── block ── … ── block ── 10 points

The ten are the digits. It is made on the meta device, without memory; each rank fills the layers that it holds.
"""

from __future__ import annotations

import torch
from torch import nn

from lib.arguments import integer


def tower_on_meta(blocks: int = 6, width: int = 192) -> nn.Sequential:
    """Return `blocks` + 2 layers in one nn.Sequential, float64 (B, 1, 8, 8) to (B, 10), that take no memory yet.

    A block is Linear(width, width) and ReLU.
    """
    with torch.device("meta"):
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        inside = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)]
        return nn.Sequential(first, *inside, nn.Linear(width, 10)).double()


def fill(layers: nn.Sequential, first: int, seed: int = 0) -> nn.Sequential:
    """Give these layers of the tower, of which the first has the number `first`, memory and their first weights.

    Every layer's weights come from (seed, its number) alone, so they are the same whoever fills it, and with whatever
    else. No other generator is touched. Returns the layers.
    """
    for number, layer in enumerate(layers.children(), start=first):
        layer.to_empty(device="cpu")
        draw = torch.Generator().manual_seed(1000 * seed + number)
        for part in layer.modules():
            if isinstance(part, nn.Linear):  # keeps the size of what passes a ReLU (He et al. 2015)
                nn.init.kaiming_uniform_(part.weight, nonlinearity="relu", generator=draw)
                nn.init.zeros_(part.bias)
    return layers


def tower(blocks: int = 6, width: int = 192, seed: int = 0) -> nn.Sequential:
    """Return the whole tower with its first weights; arguments as of tower_on_meta and fill."""
    return fill(tower_on_meta(blocks, width), 0, seed)


def even_balance(layers: int, stages: int) -> list[int]:
    """Return how many layers each stage gets, as even as can be, the longer ones first.

    Raises ValueError for more stages than layers.
    """
    stages = integer("stages", stages, at_least=1)
    if stages > layers:
        raise ValueError(f"{layers} layers can't be cut into {stages} stages: give at most {layers}")
    return [layers // stages + (j < layers % stages) for j in range(stages)]


def batches_of(rows: int, batch: int, steps: int) -> list[list[int]]:
    """Return the rows of each step: a new order of all rows in every epoch, whole batches only."""
    found: list[list[int]] = []
    epoch = 0
    while len(found) < steps:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(epoch)).tolist()
        found += [order[k : k + batch] for k in range(0, rows - batch + 1, batch)]
        epoch += 1
    return found[:steps]
