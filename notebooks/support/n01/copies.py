"""A batch on its way to a device, pageable or pinned, blocking or not (notebook 01): what the host does meanwhile."""

from __future__ import annotations

import time
from typing import Any

import torch

from support.devices import RealStreams, key_of, start_device

BANDWIDTH = 1e9
"""Bytes a second of the simulated link: 16 MB take 16 ms."""
WAYS = ((False, False), (False, True), (True, False), (True, True))


def copy_seconds(gpu, pinned, non_blocking):  # type: ignore[no-untyped-def]  # word for word as the notebook has it
    """Return the seconds until the call comes back, and until the copy is done: medians of seven."""
    source = gpu.host(torch.zeros(4_000_000), pinned=pinned)
    target = gpu.empty_like(source)
    rows = []
    for _ in range(7):
        gpu.synchronize()
        begun = time.perf_counter()
        target.copy_(source, non_blocking=non_blocking)
        back = time.perf_counter() - begun
        gpu.synchronize()
        rows.append([back, time.perf_counter() - begun])
    return torch.tensor(rows).median(0).values


def record_copies() -> dict[str, Any]:
    """Return what the notebook's cell measures in all four ways, on a simulated device."""
    device = start_device("copy_seconds")
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"copy_seconds is recorded on a simulated device, and this is {device}")
    with device.slow_copies(BANDWIDTH):
        return {"results": {key_of(*way): device.run(copy_seconds, *way) for way in WAYS}}
