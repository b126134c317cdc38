"""The exercises of notebook 15, as its solution has them, word for word."""

# ruff: noqa: D103
# mypy: ignore-errors

from __future__ import annotations

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


def follow(actions, part, images, targets, m, before, behind, shape, dist):
    kept, begun, total = {}, [], 0.0
    for op, i in actions:
        if op == "F":
            x = images.chunk(m)[i] if before is None else torch.empty(shape, dtype=torch.float64)
            if before is not None:
                dist.recv(x, before)
            y = part(x.requires_grad_(before is not None))
            if behind is None:
                y = F.cross_entropy(y, targets.chunk(m)[i]) / m
                total += y.item()
            else:
                begun.append(dist.isend(y.detach(), behind))
            kept[i] = x, y
        else:
            x, y = kept.pop(i)
            gradient = None if behind is None else torch.empty_like(y)
            if behind is not None:
                dist.recv(gradient, behind)
            y.backward(gradient)
            if before is not None:
                begun.append(dist.isend(x.grad, before))
    for handle in begun:
        handle.wait()
    return total if behind is None else None


def average(parameters, replicas, group, dist):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    means = (flat / replicas).split([gradient.numel() for gradient in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))


def clip(parameters, max_norm, group, dist):
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.zeros(1, dtype=torch.float64)
    for gradient in gradients:
        squares += gradient.pow(2).sum()
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt().item()
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)
    return norm


def memory_of_rank(model, n, held, recompute, zero, replicas):
    whole = (18, 6, 2, 0)[zero]
    states = (whole + (18 - whole) / replicas) * model.parameters / n
    unit = model.tokens * model.hidden
    kept = 2 if recompute else 32
    activations = held * kept * unit * model.layers / n
    working = 32 * unit if recompute else 0
    return states + activations + working


def exposed(reduce, backward, buckets):
    free = 0.0
    for k in range(1, buckets + 1):
        ready = backward * k / buckets
        free = max(free, ready) + reduce / buckets
    return free - backward


my_exposed = exposed


def step_seconds(model, n, replicas, link, speed, gather_waits):
    m = model.sequences / replicas
    forward = 2 * model.parameters / n * model.tokens / speed
    backward = 2 * forward
    share = (replicas - 1) / replicas * model.parameters / n
    buckets = model.layers // n
    pipeline = (m + n - 1) * (forward + backward)
    reduce = my_exposed(4 * share / link, backward, buckets)
    gather = 2 * share / link
    late = gather if gather_waits else my_exposed(gather, forward, buckets)
    return pipeline + reduce + late
