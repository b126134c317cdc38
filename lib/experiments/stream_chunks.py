"""A StreamPipeline on a GPU, by its number of chunks, measured and predicted: notebook 13.

`python -m lib.recordings stream_chunks`, on a GPU, writes notebooks/recorded/stream_chunks.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lib.measure import measure
from lib.recorder import Recorder
from lib.recordings import as_rows, measured_or_recorded, need_gpu
from lib.streams.model import LANES, overlap_share, predict_chunks
from lib.streams.pipeline import StreamPipeline
from lib.timeline import Trace

CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS, WIDTH = 16384, 4096  # 256 MiB of float32


def measure_chunks(
    chunks: Sequence[int] = CHUNKS, *, rows: int = ROWS, ratio: float = 1.0, repeats: int = 5
) -> dict[str, Any]:
    """Return "alone" (seconds of the whole tensor, and "overhead" of a launch), "rows" by chunk count, and "traces".

    ratio: computing takes about so many times as long as the copy to the device. A row is {"chunks", "seconds",
    "predicted", "overlap"}: the shortest of `repeats` runs, from its CUDA events; the prediction knows only "alone".
    Raises RuntimeError without a GPU.
    """
    need_gpu("measure_chunks")
    x = torch.ones(rows, WIDTH, pin_memory=True)
    on_device, back = x.cuda(), torch.empty_like(x, pin_memory=True)
    alone = {
        "copy_in": _seconds(lambda: on_device.copy_(x, non_blocking=True)),
        "copy_out": _seconds(lambda: back.copy_(on_device, non_blocking=True)),
    }
    times = max(1, round(ratio * alone["copy_in"] / _seconds(lambda: on_device.sin())))

    def stage(y: Any) -> Tensor:
        z = y.sin()
        for _ in range(times - 1):
            z.sin_()
        return z  # type: ignore[no-any-return]

    alone["compute"] = _seconds(lambda: stage(on_device))
    small = torch.ones(256, 1, pin_memory=True)
    alone["overhead"] = _best(StreamPipeline(stage, 256), small, repeats).makespan / 256
    found: dict[str, Any] = {"alone": alone, "bytes": x.nbytes, "rows": [], "traces": {}}
    for count in chunks:
        trace = _best(StreamPipeline(stage, count), x, repeats)
        row = {"chunks": count, "seconds": trace.makespan, "overlap": overlap_share(trace)}
        found["rows"].append({**row, "predicted": _predicted(count, alone)})
        if count <= 16:
            found["traces"][str(count)] = as_rows(trace)
    return found


def _predicted(chunks: int, alone: Mapping[str, float]) -> float:
    stages = (alone[name] for name in ("copy_in", "compute", "copy_out"))
    return predict_chunks(chunks, *stages, overhead=alone["overhead"]).makespan


def _seconds(work: Any) -> float:
    return min(measure(work, device="cuda").samples)


def _best(pipeline: StreamPipeline, x: Tensor, repeats: int) -> Trace:
    traces = []
    for _ in range(repeats + 1):  # the first one fills torch's pools of memory
        with Recorder() as recorder:
            pipeline(x)
        traces.append(recorder.trace(LANES))
    return min(traces[1:], key=lambda trace: trace.makespan)


def find_chunks() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("stream_chunks", measure_chunks)
