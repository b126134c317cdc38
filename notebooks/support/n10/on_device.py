"""What notebook 10 runs on a device with 64 MiB of memory: a step that fits or not, and dropout computed twice."""

# mypy: disable-error-code="var-annotated, no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from support.built import MyCheckpoint
from support.devices import RealStreams, key_of, start_device
from support.n10.solved import hook_checkpoint

MIB = 2**20
MEMORY = 64 * MIB
ROWS = (256, 12_288, 16_384, 20_480, 24_576)
SEGMENTS = (0, 1, 2, 4, 8, 16)  # 0: no checkpoint


def deep(layers=16):  # type: ignore[no-untyped-def]  # as in the notebook; so are fits and same_mask
    """Make layers of 64 × 64 with tanh, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(layers)))


def through(model, x, starts):  # type: ignore[no-untyped-def]
    """Send x through the model, each segment in a checkpoint."""
    for start, end in zip(starts, [*starts[1:], len(model)], strict=True):
        x = MyCheckpoint.apply(model[start:end], x)
    return x


def send(model, x, segments):  # type: ignore[no-untyped-def]
    """Send x through the model, in so many segments of equal length; 0: without a checkpoint."""
    if segments == 0:
        return model(x)
    return through(model, x, [*range(0, len(model), len(model) // segments)])


checkpoints = {"MyCheckpoint": MyCheckpoint.apply, "hook_checkpoint": hook_checkpoint}


def fits(gpu, rows, segments):  # type: ignore[no-untyped-def]
    """Train one step of 16 layers on a device; return whether it fits, and the MiB at the peak."""
    model = deep().to(gpu.device)
    x = torch.randn(rows, 64, device=gpu.device, requires_grad=True)
    torch.accelerator.reset_peak_memory_stats()
    fitted = True
    try:
        send(model, x, segments).sum().backward()
    except torch.OutOfMemoryError:
        fitted = False
    return torch.tensor([fitted, torch.accelerator.max_memory_allocated() / MIB])


def same_mask(gpu, name):  # type: ignore[no-untyped-def]
    """Return the share of a thousand units that dropout treats alike in both forwards, on a device."""
    masks = []

    def drop(x):  # type: ignore[no-untyped-def]
        y = F.dropout(x, 0.5)
        masks.append(y.detach() != 0)
        return y.tanh()

    x = torch.ones(1000, device=gpu.device, requires_grad=True)
    checkpoints[name](drop, x).sum().backward()
    return (masks[0] == masks[1]).float().mean()


def record_memory() -> dict[str, Any]:
    """Return what the notebook's cells give, on a simulated device."""
    device = start_device("memory_limit", memory=MEMORY)
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"memory_limit is recorded on a simulated device, and this is {device}")
    results: dict[str, Any] = {}
    for rows in ROWS:
        for segments in SEGMENTS:
            results[key_of(rows, segments)] = device.run(fits, rows, segments)
    for name in checkpoints:
        results[key_of(name)] = device.run(same_mask, name)
    return {"results": results}
