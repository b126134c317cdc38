"""What the tests on a GPU share: kernels that take their time, a skip connection, equal gradients, memory."""

import torch
from torch import nn

from lib.pipeline import pop, skippable, stash

MODES = ["always", "except_last", "never"]


class Slow(nn.Module):
    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, ticks):
            ctx.ticks = ticks
            torch.cuda._sleep(ticks)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            torch.cuda._sleep(ctx.ticks)
            return grad, None

    def __init__(self, ticks):
        super().__init__()
        self.ticks = ticks

    def forward(self, x):
        return self.Sleep.apply(x, self.ticks)


@skippable(stash=["skip"])
class First(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x):
        x = self.conv(x)
        yield stash("skip", x.tanh())
        return x


@skippable(pop=["skip"])
class Last(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, 3, padding=1)

    def forward(self, x):
        skip = yield pop("skip")
        return self.conv(x * skip)


def assert_equal_gradients(ours, theirs):
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), other.grad)


def memory_at_rest():
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what earlier tests let go is then really free
    torch.cuda.reset_peak_memory_stats()
    return active_bytes("current")


def active_bytes(which):
    return torch.cuda.memory_stats()[f"active_bytes.all.{which}"]
