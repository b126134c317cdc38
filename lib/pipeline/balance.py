"""Balance: how many layers each partition gets, by measured time or by memory; the module itself is left alone."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from statistics import median
from types import SimpleNamespace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lib.arguments import integer
from lib.pipeline.skip_tracker import SkipTracker, use_skip_tracker
from lib.runtime.device import Device, accelerators, has_streams, synchronize
from lib.runtime.microbatch import Batch, TensorOrTensors, scatter
from lib.runtime.no_gradient import leads_back
from lib.saved import LiveTensors


def partition(costs: Sequence[float], partitions: int) -> list[int]:
    """Return the lengths of `partitions` blocks of neighbours, none empty, whose largest sum is the least possible.

    The slowest stage sets the pace of a pipeline, so its sum is what counts; among equals the most even cut wins (least
    sum of squares). Dynamic programming over (blocks, end), O(partitions · len(costs)²) in numpy. Raises ValueError
    for fewer than one partition, more partitions than costs, or a cost that is negative or not finite.
    """
    n = integer("partitions", partitions, at_least=1)
    if n > len(costs):
        raise ValueError(f"{len(costs)} layers can't fill {n} partitions; give at most {len(costs)}")
    if not all(0 <= cost < float("inf") for cost in costs):
        raise ValueError(f"costs must be finite and not negative, not {list(costs)}")
    total = np.array([0, *accumulate(costs)], dtype=np.float64)
    block = total[None, :] - total[:, None]  # block[a, b]: what layers a..b-1 cost
    block[np.tril_indices(len(total))] = np.inf  # no block is empty
    slowest, _ = _cheapest(block, n, np.maximum)
    squares = np.where(block <= slowest, block**2, np.inf)  # of the cuts whose slowest block is no slower, …
    _, lengths = _cheapest(squares, n, np.add)  # … the most even one
    return lengths


def _blocks(sequence: Sequence[float], partitions: int = 1) -> list[list[float]]:
    """Return the blocks themselves, of which `partition` gives the lengths."""
    ends = list(accumulate(partition(sequence, partitions)))
    return [list(sequence[a:b]) for a, b in pairwise([0, *ends])]


blockpartition = SimpleNamespace(solve=_blocks)
"""torchgpipe's name for it: blockpartition.solve([1, 2, 3, 4, 5, 6], partitions=2) is [[1, 2, 3, 4], [5, 6]]."""


def _cheapest(block: NDArray[np.float64], n: int, join: np.ufunc) -> tuple[float, list[int]]:
    """Return the least joined price of n blocks that cover everything, and their lengths."""
    best = block[0]  # best[b]: the price of layers 0..b-1 in the blocks so far
    starts: list[NDArray[np.intp]] = []  # for each further block, by its end b: where it best begins
    for _ in range(n - 1):
        prices = join(best[:, None], block)  # prices[a, b]: layers 0..a-1 at their best, then one block a..b-1
        starts.append(prices.argmin(axis=0))
        best = prices.min(axis=0)
    ends = [len(block) - 1]
    for start in reversed(starts):
        ends.append(int(start[ends[-1]]))
    return float(best[-1]), [b - a for a, b in pairwise([0, *reversed(ends)])]


# ---- what each layer costs

BLOCK = 512  # CUDA's allocator hands out multiples of this many bytes


def layerwise_sandbox(module: nn.Sequential, device: torch.device) -> Iterator[nn.Module]:
    """Yield a copy of each layer on `device`, in training mode; one at a time, so that one at a time needs memory."""
    for layer in module:
        yield copy.deepcopy(layer).to(device).train()


def profile_times(module: nn.Sequential, sample: TensorOrTensors, timeout: float, device: torch.device) -> list[float]:
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
                ends = tuple(filter(leads_back, batch))
                if ends:
                    torch.autograd.backward(ends, tuple(y.detach() for y in ends))
                rounds[-1].append(_now(device) - began)
        if len(rounds) == 1:  # the warm-up is over: from now on the time counts
            end = time.perf_counter() + timeout
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
            parameters = sum(x.nbytes for x in layer.parameters())
            buffers = sum(x.nbytes for x in layer.buffers())
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

    rng = torch.random.fork_rng([device] if has_streams(device) else [], device_type=device.type)
    with rng, torch.inference_mode(False), torch.enable_grad(), use_skip_tracker(tracker):
        yield alone


def _now(device: torch.device) -> float:
    synchronize(device)
    return time.perf_counter()


# ---- a balance for GPipe


def balance_by_time(
    partitions: int,
    module: nn.Sequential,
    sample: TensorOrTensors,
    *,
    timeout: float = 1.0,
    device: Device | None = None,
) -> list[int]:
    """Return the balance with the least time in the slowest partition: forward and backward of `sample`, measured.

    Every layer is measured again until `timeout` seconds have passed; the median counts. device: where to measure, by
    default the current GPU if there is one, else the CPU. Copies of the layers run, one at a time and in training mode:
    the module stays as it is. Raises ValueError if a parameter has a gradient already.
    """
    return partition(profile_times(module, sample, timeout, _device(device)), partitions)


def balance_by_size(
    partitions: int,
    module: nn.Sequential,
    input: TensorOrTensors,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Device | None = None,
) -> list[int]:
    """Return the balance with the least memory in the largest partition: parameters, and what waits for backward.

    input: a mini-batch of the size to train with; chunks: its micro-batches, of which one is run. param_scale: how many
    times the size of the parameters training needs: 2 to 3 for SGD (gradients, momentum), 4 to 5 for Adam (amsgrad), 3
    for Adagrad, 4 for Adadelta, 3 to 5 for RMSprop.
    """
    return partition(profile_sizes(module, input, chunks, param_scale, _device(device)), partitions)


def _device(device: Device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    found = accelerators()
    return torch.device(found[0].type if found else "cpu")
