"""What scenarios are made of: programs whose numbers are right on any device, however late it is."""

import copy

import torch
from torch import nn

from lib.simulated import Kernel, Link, start

DEVICES = 3
WHERE = [f"simgpu:{index}" for index in range(DEVICES)]

SCENARIOS = []


def scenario(function):
    """Let `function(delay)` be one: it raises AssertionError for a wrong number; `delay` is how late things are."""
    SCENARIOS.append(function)
    return function


def costs(**given):
    """Let the devices cost what is given, and all else nothing."""
    synchronize()
    start(DEVICES, **{"kernel": Kernel(), "host_link": Link(), "peer_link": Link(), **given})


def synchronize():
    for index in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(index)


def busy(device, seconds):
    """Let this thread's stream of a device be busy; a CPU never is."""
    if device.type == "simgpu":
        with torch.simgpu.device(device):
            torch.simgpu.sleep(seconds)


class Late(nn.Module):
    """Return the input after a while, and the gradient after a while, too."""

    class Clone(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, seconds):
            ctx.seconds = seconds
            busy(x.device, seconds)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            busy(grad.device, ctx.seconds)
            return grad.clone(), None

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        return self.Clone.apply(x, self.seconds)


def late(x, device, seconds):
    """Return x on a device, on its way: this thread's stream there comes to it after a while."""
    device = torch.device(device)
    target = torch.empty_like(x, device=device)
    source = x.to(device)
    busy(device, seconds)
    target.copy_(source)
    return target


def layers(number, delay, width=4):
    """Return so many layers of the CPU, always with the same weights; each of them is late."""
    generator = torch.Generator().manual_seed(number)
    made = [nn.Sequential(Late(delay), nn.Linear(width, width), nn.Tanh()) for _ in range(number)]
    for parameter in nn.Sequential(*made).parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return nn.Sequential(*made).double()


def rows(number, width=4):
    """Return data, always the same."""
    return torch.randn(number, width, dtype=torch.float64, generator=torch.Generator().manual_seed(number))


def plain(model, x, target=None):
    """Return the output of a model of the CPU and the gradients of its parameters and of x, without any device."""
    model = copy.deepcopy(model)
    x = x.clone().requires_grad_()
    output = model(x)
    loss = output.square().sum() if target is None else nn.functional.mse_loss(output, target)
    loss.backward()
    return output.detach(), [parameter.grad for parameter in model.parameters()], x.grad


def assert_same(found, expected):
    """Compare tensors, wherever they are, or lists of them."""
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for mine, other in zip(found, expected, strict=True):
            assert_same(mine, other)
        return
    torch.testing.assert_close(found.cpu(), expected)
