"""What the partitions of a MiniGPipe have to be: the layers themselves, cut as the balance says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from torch import nn

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
