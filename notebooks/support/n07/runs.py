"""What notebook 07, micro-batches, runs: a training step in parts, and what autograd saves meanwhile."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from lib.saved import SavedTensors


def step_in_parts(
    model: torch.nn.Module, parts: Iterable[Tensor], order: str = "one at a time"
) -> SavedTensors:
    """Run forward and backward of each part and return what was saved meanwhile.

    order: "one at a time" (forward, backward, forward, backward …) or "all forwards first", as a pipeline does.
    """
    orders = ("one at a time", "all forwards first")
    if order not in orders:
        raise ValueError(f"order must be one of {', '.join(orders)}, not {order!r}")
    with SavedTensors(model.parameters()) as saved:
        if order == orders[0]:
            for part in parts:
                model(part).sum().backward()
        else:
            for loss in [model(part).sum() for part in parts]:
                loss.backward()
    return saved
