"""The exercises of notebook 15 as its solution has them, word for word: what its later cells run on, too."""

# mypy: allow-untyped-defs
# ruff: noqa: D103

import torch
from torch.nn import functional as F


def pipeline_step(part, images, targets, m, before, behind, shape, dist):
    kept, total = [], 0.0
    for i in range(m):
        x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)
        if before is not None:
            dist.recv(x, before)
            x.requires_grad_()
        y = part(x)
        if behind is None:
            y = F.cross_entropy(y, targets.chunk(m)[i]) / m
            total += y.item()
        else:
            dist.send(y.detach(), behind)
        kept.append((x, y))
    for x, y in kept:
        if behind is None:
            y.backward()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, behind)
            y.backward(gradient)
        if before is not None:
            dist.send(x.grad, before)
    return total if behind is None else None


def average(parameters, replicas, group, dist):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    means = (flat / replicas).split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


def memory_of_rank(model, n, held, shards, recompute):
    states = (4 + 12 / shards) * model.parameters / n
    unit = model.tokens * model.hidden
    kept = 2 if recompute else 32
    activations = held * kept * unit * model.layers / n
    working = 32 * unit if recompute else 0
    return states + activations + working
