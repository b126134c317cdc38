"""StreamPipeline: a host tensor goes through the GPU in chunks, on three streams.

    copy in    [C0][C1]    [C2]    [C3]
    compute        [ F0 ][ F1 ][ F2 ][ F3 ]
    copy out             [D0]  [D1]  [D2]  [D3]

Two buffers (depth = 2) are enough: C2 writes where C0 wrote, so it waits for F0. What waits for what:

    [1]  F(i) for C(i)             the data have arrived
    [2]  C(i) for F(i - depth)     its buffer has been read
    [3]  D(i) for F(i)             the result is there
    [4]  F(i) for D(i - depth)     the memory of that result may be used again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lib.arguments import integer
from lib.runtime.device import CPUStream
from lib.runtime.microbatch import Batch, Function, TensorOrTensors, check, gather, scatter
from lib.runtime.recording import device_span
from lib.streams.gpu import GPU, find_gpu, pinned


@dataclass
class _Slot:
    """What a chunk and the one `depth` after it have in common."""

    buffers: tuple[Tensor, ...]  # the chunk's input, on the device
    outputs: Batch | None = None
    free: Any = None  # the event after which the buffers may be written
    fetched: Any = None  # the event after which the outputs are on the host


class StreamPipeline:
    """Call `stage` on a host tensor (or a tuple of them), chunk by chunk, and return the result on the host.

        predict = StreamPipeline(model, chunks=16)        # model is on the GPU, x and the result on the host
        y = predict(x)

    The result is stage(x): `stage` must treat the rows of a batch alike, and return as many rows as it gets, in new
    memory or that of its input: a buffer of its own (a CUDA graph's) would be written again while it is still being
    fetched. Chunks are as even as can be. The device holds `depth` chunks of inputs and of outputs, and what `stage`
    needs for one. No gradients. The call returns when all is done, and its result is in pinned memory. Pin x for copies
    that overlap; else each chunk is pinned in turn. Within a `with Recorder():` the three lanes become a Trace.

    device: cuda, another accelerator with streams, or cpu, where chunks just follow each other. Raises ValueError for
    chunks or depth below 1, a device without streams, and a stage that changes the number of rows; TypeError for what
    is neither tensor nor tuple of tensors; RuntimeError for a device that is not there.
    """

    def __init__(
        self, stage: Function, chunks: int, *, device: str | int | torch.device | GPU = "cuda", depth: int = 2
    ) -> None:
        if not callable(stage):
            raise TypeError(f"stage must be a function of a batch, not {stage!r}")
        self.stage = stage
        self.chunks = integer("chunks", chunks, at_least=1)
        self.depth = integer("depth", depth, at_least=1)
        self._gpu = find_gpu(device)
        self._in: Any = None if self._gpu is None else self._gpu.new_stream("copy in")
        self._out: Any = None if self._gpu is None else self._gpu.new_stream("copy out")

    def __repr__(self) -> str:
        streams = "one after the other, on a CPU" if self._gpu is None else "three streams"
        return f"<StreamPipeline: {self.chunks} chunks, depth {self.depth}, {streams}>"

    @torch.no_grad()
    def __call__(self, input: TensorOrTensors) -> TensorOrTensors:
        """Return stage(input), on the host."""
        batches = scatter(input, self.chunks)
        if self._gpu is None:
            return self._on_cpu(batches)
        return self._streamed(self._gpu, batches)

    def _on_cpu(self, batches: Sequence[Batch]) -> TensorOrTensors:
        outputs = []
        for i, batch in enumerate(batches):
            with device_span(CPUStream, "compute", f"F{i}", "compute"):
                outputs.append(batch.call(self.stage))
            _check_rows(outputs[-1], batch[0])
        return gather(outputs)

    def _streamed(self, gpu: GPU, batches: Sequence[Batch]) -> TensorOrTensors:
        compute: Any = gpu.current_stream()
        slots: list[_Slot] = []
        results: list[Tensor] = []
        rows = sum(len(batch[0]) for batch in batches)
        row = 0
        try:
            with gpu.use_stream(self._in):  # the first chunk is the largest
                for batch in batches[: self.depth]:
                    slots.append(_Slot(tuple(gpu.empty_like(x) for x in batch)))
            if not all(x.is_cpu for x in batches[0]):
                self._in.wait_stream(compute)  # which may still be writing it
            for i, batch in enumerate(batches):
                slot = slots[i % self.depth]
                ready = [pinned(x, gpu) for x in batch]  # before the span: it is the host's work, and no copy

                if i >= self.depth:
                    self._in.wait_event(slot.free)  # [2]
                with gpu.use_stream(self._in), gpu.span(self._in, "copy in", f"C{i}", "copy"):
                    pairs = zip(ready, slot.buffers, strict=True)
                    views = tuple(to[: len(x)].copy_(x, non_blocking=True) for x, to in pairs)

                compute.wait_event(self._in.record_event())  # [1]
                if i >= self.depth:
                    compute.wait_event(slot.fetched)  # [4]
                    # Only now: the memory goes back to the pool of this stream, which has waited for its reader. So
                    # no record_stream is needed, and the next output takes this place instead of a new one.
                    slot.outputs = None
                with gpu.span(compute, "compute", f"F{i}", "compute"):
                    slot.outputs = Batch(self.stage(views[0] if batch.atomic else views))
                _check_rows(slot.outputs, batch[0])
                computed = compute.record_event()

                self._out.wait_event(computed)  # [3]
                if not results:
                    results = [gpu.pinned((rows, *y.shape[1:]), y.dtype) for y in slot.outputs]
                with gpu.use_stream(self._out), gpu.span(self._out, "copy out", f"D{i}", "copy"):
                    _fetch(slot.outputs, results, row)
                slot.fetched = self._out.record_event()

                # a stage that returns its input, or a view of it: the buffer is read until it has been fetched
                shared = any(_memory(y) == _memory(x) for y in slot.outputs for x in slot.buffers)
                slot.free = slot.fetched if shared else computed
                row += len(batch[0])
        finally:  # also after an exception: the buffers are about to be given back
            for stream in (self._in, compute, self._out):
                stream.synchronize()
        assert slots[0].outputs is not None
        if slots[0].outputs.atomic:
            return results[0]
        return tuple(results)


def _fetch(outputs: Batch, results: Sequence[Tensor], row: int) -> None:
    # a function, so that no name of the loop above keeps an output alive: the next one takes its memory
    for y, result in zip(outputs, results, strict=True):
        result[row : row + len(y)].copy_(y, non_blocking=True)


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _check_rows(outputs: Batch, x: Tensor) -> None:
    check(outputs.value)
    for y in outputs:
        if y.dim() == 0 or len(y) != len(x):
            got = "a tensor without dimensions" if y.dim() == 0 else f"{len(y)} rows"
            raise ValueError(f"stage got {len(x)} rows and returned {got}: each row of the input must give one row")
