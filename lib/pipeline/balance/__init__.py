"""Find a balance for GPipe, how many layers each partition gets, by measured time or by memory."""

from __future__ import annotations

import torch
from torch import nn

from lib.pipeline.balance.blockpartition import partition
from lib.pipeline.balance.profile import profile_sizes, profile_times
from lib.pipeline.microbatch import TensorOrTensors

__all__ = ["balance_by_size", "balance_by_time", "partition"]

Device = torch.device | str | int | None


def balance_by_time(
    partitions: int,
    module: nn.Sequential,
    sample: TensorOrTensors,
    *,
    timeout: float = 1.0,
    device: Device = None,
) -> list[int]:
    """Return the balance with the least time in the slowest partition: forward and backward of `sample`, measured.

    Every layer is measured again until `timeout` seconds have passed; the median counts. device: where to measure, by
    default the current CUDA device if there is one, else the CPU. Copies of the layers run, one at a time and in
    training mode: the module stays as it is. Raises ValueError if a parameter has a gradient already.
    """
    return partition(profile_times(module, sample, timeout, _device(device)), partitions)


def balance_by_size(
    partitions: int,
    module: nn.Sequential,
    input: TensorOrTensors,
    *,
    chunks: int = 1,
    param_scale: float = 2.0,
    device: Device = None,
) -> list[int]:
    """Return the balance with the least memory in the largest partition: parameters, and what waits for backward.

    input: a mini-batch of the size to train with; chunks: its micro-batches, of which one is run. param_scale: how many
    times the size of the parameters training needs: 2 to 3 for SGD (gradients, momentum), 4 to 5 for Adam (amsgrad), 3
    for Adagrad, 4 for Adadelta, 3 to 5 for RMSprop.
    """
    return partition(profile_sizes(module, input, chunks, param_scale, _device(device)), partitions)


def _device(device: Device) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)
