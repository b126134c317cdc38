"""Small stages and their data, for tests of what runs schedules; gradients of the plain model to compare with."""

import copy

import torch
from torch import nn


def mlp(stages, width=4, dtype=torch.float64):
    """Return so many stages, always with the same weights."""
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.LayerNorm(width)) for _ in range(stages)]
    for parameter in nn.Sequential(*layers).parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return [layer.to(dtype) for layer in layers]


def data(rows, width=4, dtype=torch.float64):
    """Return inputs and targets, always the same."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, width, dtype=dtype, generator=generator)
    targets = torch.randn(rows, width, dtype=dtype, generator=generator)
    return inputs, targets


def plain_grads(stages, x, target, loss_fn):
    """Return the loss of the whole batch and the gradients of all parameters, without any schedule."""
    plain = nn.Sequential(*copy.deepcopy(stages))
    plain.zero_grad()
    loss = loss_fn(plain(x), target)
    loss.backward()
    return loss.detach(), [parameter.grad for parameter in plain.parameters()]
