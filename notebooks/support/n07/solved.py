"""The solutions of notebook 07, word for word: what its later cells run on where an exercise was left out."""

# mypy: allow-untyped-defs, allow-untyped-calls, disable-error-code=var-annotated
# ruff: noqa: D103

import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks

from support.built import gather as gather
from support.built import scatter as scatter


def accumulate(model, parts):
    count = sum((y != -100).sum().item() for _, y in parts)
    model.zero_grad()
    total = 0.0
    for x, y in parts:
        loss = F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum") / count
        loss.backward()
        total += loss.item()
    return total


def saved_bytes(forward, parameters):
    weights = {parameter.data_ptr() for parameter in parameters}
    saved = {}

    def pack(tensor):
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.detach()
        return tensor.detach()

    with saved_tensors_hooks(pack, lambda packed: packed):
        forward()
    return sum(tensor.nbytes for tensor in saved.values())


def join(sizes, means, variances):
    total = sum(sizes)
    parts = list(zip(sizes, means, variances, strict=True))
    mean = sum(n * part for n, part, _ in parts) / total
    within = sum((n - 1) * variance for n, _, variance in parts)
    between = sum(n * (part - mean) ** 2 for n, part, _ in parts)
    return mean, (within + between) / (total - 1)
