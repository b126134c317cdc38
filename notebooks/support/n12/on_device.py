"""What notebook 12 runs on four devices: its pipeline's speed, forward and backward, and what each mode holds."""

# mypy: allow-untyped-calls, allow-untyped-defs, disable-error-code="no-any-return"

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from lib.pipeline import GPipe
from lib.pipeline import spawn_workers as device_workers
from lib.runtime.device import active_bytes, new_stream, reset_peak
from lib.simulated import Kernel, start
from support.devices import RealStreams, key_of, start_device
from support.n12.solved import run_pipeline

DEVICES = 4
MS = (1, 2, 4, 8, 16, 32, 64)
SPEEDS = (6.5e7, 6.5e8)
"""Floating point operations a second that the notebook gives the simulated device, slow and fast."""
MODES = ("never", "except_last", "always")
TOGETHER = (4, 8)  # partitions on one device

run_on_devices = run_pipeline  # as the notebook names the pipeline that it goes on with


@contextmanager
def computing_at(gpu: RealStreams, flops: float) -> Iterator[None]:
    """Let kernels take their operations / flops seconds. Only a simulated device can: CUDA is as fast as it is."""
    gpu.synchronize()
    if gpu.is_simulated:
        start(len(gpu.devices), kernel=Kernel(flops=flops))
    try:
        yield
    finally:
        gpu.synchronize()
        if gpu.is_simulated:
            start(len(gpu.devices))


def stages(devices, width, layers, kind=nn.Identity):
    """Return a partition for each device, with its weights there and room for their gradients."""
    partitions = []
    for place in devices:
        inside = [layer for _ in range(layers) for layer in (nn.Linear(width, width), kind())]
        partitions.append(nn.Sequential(*inside).to(place))
        for weight in partitions[-1].parameters():
            weight.grad = torch.zeros_like(weight)
    return partitions


def found_by(run, module, x):
    """Return output and gradients in one vector."""
    y = run(x)
    y.square().sum().backward()
    return torch.cat([part.detach().cpu().flatten() for part in (y, *(w.grad for w in module.parameters()))])


def apart(gpu, m, rows=12, width=8):
    """Return how far your pipeline and lib's GPipe are from the plain layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.Tanh())))
        x = torch.randn(rows, width)
    mine = deepcopy(plain)
    theirs = GPipe(deepcopy(plain), [2] * 4, devices=gpu.devices, chunks=m)
    partitions = [mine[2 * j : 2 * j + 2].to(place) for j, place in enumerate(gpu.devices)]

    def piped(x):
        batches = [*x.to(gpu.devices[0]).tensor_split(m)]
        copy_streams = [[new_stream(place) for _ in range(m)] for place in gpu.devices]
        with device_workers(gpu.devices) as queues:
            run_on_devices(batches, partitions, gpu.devices, copy_streams, m - 1, queues)
        return torch.cat(batches)

    expected = found_by(plain, plain, x)
    ways = [found_by(piped, mine, x), found_by(lambda x: theirs(x.to(gpu.devices[0])), theirs, x)]
    return torch.stack([(way - expected).abs().max() for way in ways])


def pipe_seconds(gpu, partitions, rows, m, queues):
    """Return the seconds of forward and of backward of a batch with so many rows."""
    x = torch.randn(rows, partitions[0][0].in_features).to(gpu.devices[0]).requires_grad_()
    batches = [*x.tensor_split(m)]
    copy_streams = [[new_stream(place) for _ in range(m)] for place in gpu.devices]
    gpu.synchronize()
    began = time.perf_counter()
    run_on_devices(batches, partitions, gpu.devices, copy_streams, 0, queues)
    gpu.synchronize()
    between = time.perf_counter()
    torch.autograd.backward(batches, [torch.ones_like(y) for y in batches])
    gpu.synchronize()
    return torch.tensor([between - began, time.perf_counter() - between])


def speeds(gpu, flops, ms, often=4):
    """Return seconds, forward and backward: f of one partition, o of an empty clock, then of each m."""
    partitions = stages(gpu.devices, width=32 if gpu.is_simulated else 2048, layers=2)
    best = torch.full((2 + len(ms), 2), math.inf)
    with (
        device_workers(gpu.devices) as queues,
        device_workers(gpu.devices[:1]) as one,
        computing_at(gpu, flops),
    ):
        for _ in range(often):  # in turns, so that whatever else the machine does hits all alike
            alone = pipe_seconds(gpu, partitions[:1], 256, 1, one)
            empty = pipe_seconds(gpu, partitions, 16, 16, queues) / (16 + 4 - 1)  # a row each
            piped = [pipe_seconds(gpu, partitions, 256, m, queues) for m in ms]
            best = torch.minimum(best, torch.stack([alone, empty, *piped]))
    return best


def held_on_device(gpu, mode, m, together=0, often=20, rows=4096, width=64):
    """Return what device 1 holds after forward, and at most in backward, in bytes of a partition's whole input."""
    place = gpu.devices[1]
    places = [place] * together or gpu.devices  # so many partitions on one device, or each has its own
    partitions = stages(places, width, layers=4, kind=nn.Tanh)
    stop = {"always": m, "except_last": m - 1, "never": 0}[mode]
    found = []
    with device_workers(places) as queues:
        for _ in range(often):  # what the host frees late counts as held: the least of some runs
            batches = [*torch.randn(rows, width).to(places[0]).tensor_split(m)]
            copy_streams = [[new_stream(device) for _ in range(m)] for device in places]
            gpu.synchronize()
            before = active_bytes(place, "current")
            run_on_devices(batches, partitions, places, copy_streams, stop, queues)
            gpu.synchronize()
            after = active_bytes(place, "current") - before
            reset_peak(place)
            torch.autograd.backward(batches, [torch.ones_like(y) for y in batches])
            gpu.synchronize()
            found.append(torch.tensor([after, active_bytes(place, "peak") - before]))
    return torch.stack(found).amin(0) / (rows * width * 4)


def record_four_devices() -> dict[str, Any]:
    """Return what the notebook's cells give, on simulated devices."""
    device = start_device("four_devices", DEVICES)
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"four_devices is recorded on simulated devices, and this is {device}")
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for flops in SPEEDS:
        results[key_of(flops, MS)] = device.run(speeds, flops, MS)
    results[key_of(4)] = device.run(apart, 4)
    for m in (8, 16):
        for mode in MODES:
            results[key_of(mode, m)] = device.run(held_on_device, mode, m)
    for together in TOGETHER:
        for mode in MODES[1:]:
            results[key_of(mode, 8, together)] = device.run(held_on_device, mode, 8, together)
    return {"results": results}
