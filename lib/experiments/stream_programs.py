"""Small programs on a PretendGPU: ways to wait for a side stream, and a damaged pipeline. Notebook 13."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lib.pipeline.microbatch import TensorOrTensors
from lib.streams.operations import Operation, Region, waits, without
from lib.streams.pipeline import StreamPipeline
from lib.streams.prefetch import DevicePrefetcher
from lib.streams.pretend import PretendGPU
from lib.streams.races import orders, replay

WAYS = ("one stream", "no wait", "wait_event", "wait_stream", "synchronize")


def run_way(way: str, batches: int = 3) -> list[Operation]:
    """Launch the copies C0, C1, … on a side stream, then F0, F1, … that read them; return the operations.

    way: what stands before F(i): nothing ("one stream": there is no other; "no wait"), a wait for the event behind
    C(i), a wait for the whole side stream, or the host's own. Raises ValueError for another way.
    """
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    gpu = PretendGPU()
    compute = gpu.current_stream()
    side = compute if way == "one stream" else gpu.new_stream("side")
    copied, events = [], []
    for i in range(batches):
        with gpu.use_stream(side), gpu.span(side, "", f"C{i}"):
            copied.append(gpu.host(torch.ones(4), f"batch {i}").to("cuda", non_blocking=True))
        events.append(side.record_event())
    for i, x in enumerate(copied):
        if way == "wait_event":
            compute.wait_event(events[i])
        elif way == "wait_stream":
            compute.wait_stream(side)
        elif way == "synchronize":
            side.synchronize()
        with gpu.span(compute, "", f"F{i}"):
            x * 2
    del copied, x
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


def run_prefetcher(forgets: Sequence[str] = (), batches: int = 6, depth: int = 2) -> list[Operation]:
    """Run a DevicePrefetcher and launches F0, F1, … over its batches; return the operations. forgets: as PretendGPU."""
    gpu = PretendGPU(forgets)
    loader = [gpu.host(torch.full((4,), float(i)), f"batch {i}") for i in range(batches)]
    labels = iter(range(batches))
    for batch in DevicePrefetcher(loader, gpu, depth):  # no enumerate: it would hold on to its last item
        with gpu.span(gpu.current_stream(), "", f"F{next(labels)}"):
            batch.square()
        del batch
    return gpu.operations


def run_chunks(chunks: int = 4, depth: int = 2) -> list[Operation]:
    """Run a StreamPipeline over rows 0, 1, …, one a chunk; return the operations."""
    gpu = PretendGPU()
    StreamPipeline(_plus_one, chunks, device=gpu, depth=depth)(gpu.host(torch.arange(float(chunks)), "rows"))
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


def _plus_one(x: TensorOrTensors) -> TensorOrTensors:
    return x + 1 if isinstance(x, Tensor) else x


def damaged(wait: int | None, chunks: int = 4, depth: int = 2) -> list[Operation]:
    """Return run_chunks without its wait number `wait`, in order of the list; None: with all of them."""
    operations = run_chunks(chunks, depth)
    return operations if wait is None else without(operations, waits(operations)[wait])


def outcomes(
    operations: Sequence[Operation], chunks: int, tries: int = 100, seed: int = 0
) -> list[list[str]]:
    """Return, for random orders that the waits allow, which chunk's data each place of the result holds in the end."""
    contents = {Region("rows", 4 * i, 4 * i + 4): str(i) for i in range(chunks)}
    found = []
    for _, order in zip(range(tries), orders(operations, seed), strict=False):
        end = replay(operations, order, contents)
        found.append([end.get(Region("result", 4 * i, 4 * i + 4), "?") for i in range(chunks)])
    return found
