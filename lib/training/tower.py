"""An image tower that is deep enough to be cut into stages: equal blocks between a first and a last layer.

    image (B, 1, 8, 8) ── 64 pixels ── width ── block ── block ── … ── block ── 10 points

The ten are the captions of lib.training.clip, "a handwritten zero" to "… nine": the image goes to the nearest.
"""

from __future__ import annotations

import torch
from torch import nn

from lib._arguments import integer


def tower(blocks: int = 6, width: int = 384, seed: int = 0) -> nn.Sequential:
    """Return `blocks` + 2 layers in one nn.Sequential, float32 (B, 1, 8, 8) to (B, 10).

    A block is Linear(width, width) and ReLU. seed: of the first weights, drawn without touching the global generator,
    so that every rank begins with the same. Raises ValueError for blocks < 0 or width < 1.
    """
    blocks, width = integer("blocks", blocks, at_least=0), integer("width", width, at_least=1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # only in here: fork_rng puts the state back
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU())
        inside = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(blocks)]
        model = nn.Sequential(first, *inside, nn.Linear(width, 10))
        for layer in model.modules():
            if isinstance(
                layer, nn.Linear
            ):  # keeps the size of what passes a ReLU (He et al. 2015, arXiv:1502.01852)
                nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)
    return model


def even_balance(layers: int, stages: int) -> list[int]:
    """Return how many layers each stage gets, as even as can be, the longer ones first.

    Raises ValueError for more stages than layers.
    """
    stages = integer("stages", stages, at_least=1)
    if stages > layers:
        raise ValueError(f"{layers} layers can't be cut into {stages} stages: give at most {layers}")
    return [layers // stages + (j < layers % stages) for j in range(stages)]
