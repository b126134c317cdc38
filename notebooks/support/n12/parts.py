"""What the partitions of a MiniGPipe have to be: the layers themselves, cut as the balance says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from support.kit.raised import in_case


def fault_of_parts(model: Any, balance: Sequence[int], layers: Sequence[nn.Module]) -> str:
    """Say which weights the pipeline does not know, or how its partitions are not those of the balance."""
    known = {id(parameter) for parameter in model.parameters()}
    weights = [weight for layer in layers for weight in layer.parameters()]
    lost = sum(id(weight) not in known for weight in weights)
    parts = getattr(model, "partitions", None)
    if lost:
        why = "nn.ModuleList registers them"
        if isinstance(parts, nn.Module):
            why = "are they copies, or do layers lie in no partition?"
        return f"model.parameters() misses {lost} of {len(weights)}: {why}"
    rest = iter(layers)
    cut = [[*part] if isinstance(part, nn.Sequential) else [] for part in parts or ()]
    if cut != [[*islice(rest, size)] for size in balance]:
        wanted = f"one nn.Sequential per partition, with {list(balance)} layers"
        return f"model.partitions should hold {wanted}"
    if not isinstance(parts, nn.ModuleList):
        return f"model.partitions should be an nn.ModuleList, not {type(parts).__name__}"
    return ""


def fault_of_a_nest(answer: Callable[..., Any]) -> str:
    """Say whether a nested Sequential is opened: in a balance it counts as one layer."""
    layers = [nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1)]
    balance = [1, 1]
    told = f"with a nested Sequential among the layers, balance {balance}"
    with in_case(told):
        model = answer(nn.Sequential(*layers), balance, 2)
    fault = fault_of_parts(model, balance, layers)
    if not fault:
        return ""
    return f"{told}: {fault}{'' if fault.endswith('?') else '.'}"


class _Two(nn.Module):
    """Make two tensors of one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((), 3.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return what comes, and a multiple of it."""
        return x, x * self.weight


def fault_of_two_tensors(answer: Callable[..., Any]) -> str:
    """Say whether forward returns other than the layers, which make two tensors of one, or moves gradients."""
    layers = nn.Sequential(nn.Identity(), _Two())
    weight = layers[1].weight
    x = torch.arange(4.0).reshape(4, 1)
    told = "with a last layer that makes two tensors of one"
    with in_case(told):
        model = answer(layers, [1, 1], 2)
        weight.grad = torch.tensor(1.0)
        output = model(x)
    if not isinstance(output, tuple) or len(output) != 2:
        return (
            f"{told}: the layers return a tuple of two tensors, and forward returned {type(output).__name__}."
        )
    if not all(
        isinstance(y, Tensor) and torch.equal(y, right) for y, right in zip(output, layers(x), strict=True)
    ):
        return f"{told}: the output is not that of the layers."
    if weight.grad is None or weight.grad.item() != 1:
        return f"{told}: the gradients that were there before are changed: forward is to leave them."
    return ""
