"""What the partitions of a MiniGPipe have to be, and what comes out of them for tuples, and for two batches."""

from __future__ import annotations

from collections import OrderedDict
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


def _fault_of_a_nested_sequential(answer: Callable[..., Any]) -> str:
    """Say whether layers are found by numbers, or a nested Sequential is opened: in a balance it counts as one."""
    layers = [nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1)]
    balance = [1, 1]
    told = f"with named layers, a nested Sequential among them, balance {balance}"
    with in_case(told):
        model = answer(nn.Sequential(OrderedDict(zip(("block", "last"), layers, strict=True))), balance, 2)
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


def fault_of_nests(answer: Callable[..., Any]) -> str:
    """Say whether a nested Sequential is opened, or forward returns another tuple than the layers."""
    x = torch.arange(4.0).reshape(4, 1)
    return (
        _fault_of_a_nested_sequential(answer)
        or _fault_of_a_tuple(answer, "a last layer that makes two tensors of one", _Two(), x)
        or _fault_of_a_tuple(answer, "a tuple of one tensor", nn.Identity(), (x,))
        or _fault_of_a_tuple(answer, "a tuple of three tensors", nn.Identity(), (torch.arange(4), x, -x))
    )


def _fault_of_a_tuple(answer: Callable[..., Any], what: str, last: nn.Module, batch: Any) -> str:
    """Say whether forward returns other than the layers, or moves gradients."""
    layers = nn.Sequential(nn.Identity(), last)
    told = f"with {what}"
    with in_case(told):
        model = answer(layers, [1, 1], 2)
        for weight in layers.parameters():
            weight.grad = torch.tensor(1.0)
        output = model(batch)
    right = layers(batch)
    if not isinstance(output, tuple) or len(output) != len(right):
        kind = f"a tuple of {len(output)}" if isinstance(output, tuple) else type(output).__name__
        return f"{told}: the layers return a tuple of {len(right)}, and forward returned {kind}."
    if not all(isinstance(y, Tensor) and torch.equal(y, z) for y, z in zip(output, right, strict=True)):
        return f"{told}: the output is not that of the layers."
    if any(weight.grad is None or weight.grad.item() != 1 for weight in layers.parameters()):
        return f"{told}: the gradients that were there before are changed: forward is to leave them."
    return ""


def fault_of_a_later_batch(answer: Callable[..., Any]) -> str:
    """Say whether a batch that goes backward behind the forward of another one goes through what that one left."""
    layers = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    for layer in layers:
        nn.init.ones_(layer.weight)
    told = "in backward behind the forward of another batch"
    with in_case(told):
        model = answer(nn.Sequential(*layers), [1, 1], 4, "always")
        inside = model.layer
        model.layer = lambda i, j: lambda x: inside(i, j)(2 * x)
        output = model(torch.ones(8, 1))
        model.layer = lambda i, j: lambda x: inside(i, j)(3 * x)
        model(torch.ones(2, 1))
        output.sum().backward()
    for j, layer in enumerate(layers):
        if layer.weight.grad is None or layer.weight.grad.item() != 32:
            slope = "None" if layer.weight.grad is None else f"{layer.weight.grad.item():g}"
            return f"{told}: the gradient of partition {j} is {slope}, not 32."
    return ""
