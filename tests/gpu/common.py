"""What the tests on a GPU share. The GPU is CUDA's, or a simulated one: `pytest tests/gpu --simulated`.

A test names it by GPU, KIND and gpu, torch's module for it, and has two sizes where a CPU would be too slow for one.
What only CUDA can show is marked `cuda_only`, with the reason.
"""

from typing import Any, TypeVar

import torch
from torch import nn

from lib.pipeline import pop, skippable, stash
from lib.simulated import Kernel, Link, start

Value = TypeVar("Value")

SIMULATED = hasattr(torch, "simgpu")  # conftest.py has started it, before a test is read
KIND = "simgpu" if SIMULATED else "cuda"
GPU = torch.device(KIND, 0)
gpu: Any = torch.get_device_module(KIND)

MODES = ["always", "except_last", "never"]
CYCLES = 2e9  # of a GPU's clock in a second, about


def sized(*, cuda: Value, simulated: Value) -> Value:
    """Return the size that holds on the GPU that is here."""
    return simulated if SIMULATED else cuda


def sleep(seconds: float) -> None:
    """Keep the current stream busy, on CUDA for about that time: its cycles are of a clock that changes."""
    if SIMULATED:
        gpu.sleep(seconds)
    else:
        gpu._sleep(round(seconds * CYCLES))


def let_it_cost(*, host_link: float = 0.0, peer_link: float = 0.0, kernel: float = 0.0, forgets: tuple[str, ...] = ()):
    """Give a simulated GPU its speeds, in bytes a second (0: the CPU's); CUDA has its own. Until the test ends."""
    if SIMULATED:
        links = {"host_link": Link(bandwidth=host_link), "peer_link": Link(bandwidth=peer_link)}
        start(gpu.device_count(), kernel=Kernel(bandwidth=kernel), forgets=forgets, **links)


def forget(monkeypatch, name: str) -> None:
    """Let a call do nothing until the test ends: "wait_event" or "record_stream"."""
    if SIMULATED:
        let_it_cost(forgets=(name,))  # a torch.Stream can't be patched
    else:
        owner = torch.Tensor if name == "record_stream" else torch.cuda.Stream
        monkeypatch.setattr(owner, name, lambda self, other: None)


class Slow(nn.Module):
    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, seconds):
            ctx.seconds = seconds
            sleep(seconds)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            sleep(ctx.seconds)
            return grad, None

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def forward(self, x):
        return self.Sleep.apply(x, self.seconds)


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
    gpu.synchronize()
    gpu.empty_cache()  # what earlier tests let go is then really free
    gpu.reset_peak_memory_stats()
    return active_bytes("current")


def active_bytes(which):
    return gpu.memory_stats()[f"active_bytes.all.{which}"]
