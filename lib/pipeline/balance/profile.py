"""What each layer of a sequential module costs, in time and in memory; the module itself is left alone."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lib.pipeline.microbatch import Batch, TensorOrTensors, scatter
from lib.pipeline.skip.tracker import SkipTracker, use_skip_tracker
from lib.saved import LiveTensors

BLOCK = 512  # CUDA's allocator hands out multiples of this many bytes


def layerwise_sandbox(module: nn.Sequential, device: torch.device) -> Iterator[nn.Module]:
    """Yield a copy of each layer on `device`, in training mode; one at a time, so that one at a time needs memory."""
    for layer in module:
        yield copy.deepcopy(layer).to(device).train()


def profile_times(
    module: nn.Sequential, sample: TensorOrTensors, timeout: float, device: torch.device
) -> list[float]:
    """Return the median seconds of forward and backward of each layer.

    Rounds over all the layers are repeated until `timeout` is over, so that a slow moment of the machine falls on all
    layers alike; the first round warms up and does not count, a second one is always done.
    """
    if any(parameter.grad is not None for parameter in module.parameters()):
        raise ValueError("some parameter already has gradient; call zero_grad() before you measure")
    rounds: list[list[float]] = []
    end = 0.0
    while len(rounds) < 2 or time.perf_counter() < end:
        rounds.append([])
        with _sandbox(device) as alone:
            batch = Batch(sample)
            for layer in layerwise_sandbox(module, device):
                batch = alone(batch)
                began = _now(device)
                batch = batch.call(layer)
                if ends := tuple(y for y in batch if y.requires_grad):
                    torch.autograd.backward(ends, tuple(y.detach() for y in ends))
                rounds[-1].append(_now(device) - began)
        end = end or time.perf_counter() + timeout
    return [median(seconds) for seconds in zip(*rounds[1:], strict=True)]


def profile_sizes(
    module: nn.Sequential, input: TensorOrTensors, chunks: int, param_scale: float, device: torch.device
) -> list[int]:
    """Return the bytes of each layer: parameters times `param_scale`, buffers, and what a micro-batch leaves behind."""
    sizes = []
    with _sandbox(device) as alone:
        batch = scatter(input, chunks)[0]
        for layer in layerwise_sandbox(module, device):
            batch = alone(batch)
            with LiveTensors(BLOCK) as new:
                batch = batch.call(layer)
            parameters, buffers = (sum(x.nbytes for x in xs) for xs in (layer.parameters(), layer.buffers()))
            sizes.append(int(new.now + parameters * param_scale + buffers))
    return sizes


@contextmanager
def _sandbox(device: torch.device) -> Iterator[Callable[[Batch], Batch]]:
    """Keep the random generators as they are, and give a function that cuts a batch and all skip tensors off the graph.

    What it returns is no leaf of its own: a layer may change its input in place.
    """
    tracker = SkipTracker()

    def alone(batch: Batch) -> Batch:
        value, tracker.tensors = tree_map_only(Tensor, cut, (batch.value, tracker.tensors))
        return Batch(value)

    def cut(x: Tensor) -> Tensor:
        return x.detach().to(device).requires_grad_(x.requires_grad).clone()

    rng = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with rng, torch.inference_mode(False), torch.enable_grad(), use_skip_tracker(tracker):
        yield alone


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
