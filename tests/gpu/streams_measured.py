"""How long a StreamPipeline and a prefetched epoch take on a GPU, beside what the lanes alone predict."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from lib.measure import measure
from lib.pipeline.recording import device_span
from lib.streams import DevicePrefetcher, StreamPipeline
from lib.timeline import Recorder, Trace, overlap_share
from support.recordings import as_rows, need_gpu
from support.runs import LANES, predict_chunks

CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS, WIDTH = 16384, 4096  # 256 MiB of float32


def measure_chunks(
    chunks: Sequence[int] = CHUNKS, *, rows: int = ROWS, ratio: float = 1.0, repeats: int = 5
) -> dict[str, Any]:
    """Return "alone" (seconds of the whole tensor; "launch" of a chunk), "rows" by chunk count, and "traces".

    ratio: computing takes about so many times as long as the copy to the device. A row is {"chunks", "seconds",
    "predicted", "overlap"}: the shortest of `repeats` runs, from its CUDA events; the prediction knows only "alone".
    launch: the host's seconds for a chunk, of a run that has nearly nothing to copy or to compute, so that the device
    waits for the host. Raises RuntimeError without a GPU.
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
    alone["launch"] = _best(StreamPipeline(stage, 256), small, repeats).makespan / 256
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
    return predict_chunks(chunks, *stages, launch=alone["launch"]).makespan


def _seconds(work: Any) -> float:
    return min(measure(work, device="cuda").samples)


def _best(pipeline: StreamPipeline, x: Tensor, repeats: int) -> Trace:
    traces = []
    for _ in range(repeats + 1):  # the first one fills torch's pools of memory
        with Recorder() as recorder:
            pipeline(x)
        traces.append(recorder.trace(LANES))
    return min(traces[1:], key=lambda trace: trace.makespan)


# ---- The time of a training step with and without a DevicePrefetcher, on a GPU.

RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
MEBIBYTES = 128


def measure_prefetch(
    ratios: Sequence[float] = RATIOS, *, steps: int = 30, mebibytes: int = MEBIBYTES
) -> dict[str, Any]:
    """Return "rows" by the ratio of computing to copying, and "traces" of a few steps of ratio 1.

    A row is {"ratio", "copy", "compute", "plain", "prefetched"}: seconds of one batch alone, and of a step. Computing
    is a kernel that only waits, so that it takes no bandwidth. Raises RuntimeError without a GPU.
    """
    need_gpu("measure_prefetch")
    batches = [torch.zeros(mebibytes << 18).pin_memory() for _ in range(4)]
    copy = min(measure(lambda: batches[0].to("cuda", non_blocking=True), device="cuda").samples)
    tick = min(measure(lambda: _compute(10_000_000), device="cuda").samples) / 10_000_000
    rows, traces = [], {}
    for ratio in ratios:
        cycles = round(ratio * copy / tick)
        compute = min(measure(lambda: _compute(cycles), device="cuda").samples)  # noqa: B023
        row = {"ratio": ratio, "copy": copy, "compute": compute}
        for name in ("plain", "prefetched"):
            trace = run_epoch(batches, steps, cycles, ahead=name == "prefetched")
            ends = [span.end for span in trace.only(kind="compute")]
            warm = steps // 3  # without the filling of the pipeline
            row[name] = (ends[-1] - ends[warm]) / (steps - 1 - warm)
            if ratio == 1.0:
                traces[name] = as_rows(Trace([s for s in trace if int(s.label[1:]) < 6]))
        rows.append(row)
    return {"rows": rows, "traces": traces, "bytes": batches[0].nbytes}


def run_epoch(batches: Sequence[Tensor], steps: int, cycles: int, *, ahead: bool) -> Trace:
    """Return the spans of an epoch: copies in the loop itself, or ahead by a DevicePrefetcher. Needs a GPU."""
    source = islice(cycle(batches), steps)
    loader: Iterable[Tensor] = DevicePrefetcher(source, "cuda") if ahead else _in_the_loop(source)
    with Recorder() as recorder:
        for i, _ in enumerate(loader):
            with device_span(torch.cuda.current_stream(), "compute", f"F{i}", "compute"):
                _compute(cycles)
    return recorder.trace(("copy", "compute"))


def _in_the_loop(batches: Iterable[Tensor]) -> Iterable[Tensor]:
    for i, x in enumerate(batches):
        with device_span(torch.cuda.current_stream(), "copy", f"C{i}", "copy"):
            y = x.to("cuda", non_blocking=True)
        yield y


def _compute(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
