"""What notebook 09 runs where streams really run: eight kernels in one stream or two, counted in ticks."""

# mypy: disable-error-code="var-annotated"

from __future__ import annotations

import time
from itertools import product
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from support.devices import RealStreams, key_of, start_device

WAYS = ((1, 1, False), (2, 1, False), (2, 2, False), (2, 1, True), (2, 2, True))
"""Streams, launching threads, whether B0 waits for A1: what the notebook's table asks for."""


def launch_all(gpu, names, queues, marks, waits, kernel, launch):  # type: ignore[no-untyped-def]  # as in the notebook
    """Launch these kernels, A into the first stream and B into the last; each launch takes its time."""
    for name in names:
        event = marks.get() if waits and name == "B0" else None  # the host waits until it is recorded
        time.sleep(launch)  # the host is busy with it
        with gpu.use_stream(queues[0 if name[0] == "A" else -1]):
            if event is not None:
                gpu.current_stream().wait_event(event)
            gpu.sleep(kernel)
            if name == "A1":
                marks.put(gpu.current_stream().record_event())


def ends_of(gpu, streams, threads, waits, kernel=3, launch=1):  # type: ignore[no-untyped-def]  # as in the notebook
    """Return when the host is done with launching, and when the device is done, in ticks of 20 ms."""
    tick = 0.02  # seconds
    queues = [gpu.new_stream() for _ in range(streams)]
    names = ["A0", "A1", "A2", "A3", "B0", "B1", "B2", "B3"]
    parts = [names] if threads == 1 else [names[:4], names[4:]]
    shared = (queues, SimpleQueue(), waits, kernel * tick, launch * tick)
    hosts = [Thread(target=launch_all, args=(gpu, part, *shared)) for part in parts]
    began = time.perf_counter()
    for host in hosts:
        host.start()
    for host in hosts:
        host.join()
    launched = time.perf_counter()
    gpu.synchronize()
    return torch.tensor([launched - began, time.perf_counter() - began]) / tick


def summed_late(gpu, waits):  # type: ignore[no-untyped-def]  # word for word as the notebook has it
    """Let a second partition read what the first one computes half a second late, behind a wait or without."""
    first = gpu.new_stream()
    second = gpu.new_stream()
    batch = torch.zeros(1000, device=gpu.device)
    gpu.synchronize()
    with gpu.use_stream(first):
        gpu.sleep(0.5)
        batch += 1
    if waits:
        second.wait_stream(first)
    with gpu.use_stream(second):
        total = batch.sum()
    gpu.synchronize()
    return total


def record_two_streams() -> dict[str, Any]:
    """Return what the notebook's cells give, on a simulated device."""
    device = start_device("two_streams")
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"two_streams is recorded on a simulated device, and this is {device}")
    results: dict[str, Any] = {}
    device.run(summed_late, True)  # the first call of a kernel also loads it
    for way in WAYS:
        results[key_of(*way)] = device.run(ends_of, *way)
    for (streams, threads, waits), (kernel, launch) in product(WAYS, ((3, 4), (6, 1))):
        asked = (streams, threads, waits, kernel, launch)
        results[key_of(*asked)] = device.run(ends_of, *asked)
    for waits in (False, True):
        results[key_of(waits)] = device.run(summed_late, waits)
    return {"results": results}
