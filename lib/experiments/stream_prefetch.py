"""The time of a training step with and without a DevicePrefetcher, on a GPU: notebook 13.

`python -m lib.recordings stream_prefetch`, on a GPU, writes notebooks/recorded/stream_prefetch.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any

import torch
from torch import Tensor

from lib.measure import measure
from lib.pipeline.spans import device_span
from lib.recorder import Recorder
from lib.recordings import as_rows, measured_or_recorded, need_gpu
from lib.streams.prefetch import DevicePrefetcher
from lib.timeline import Trace

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


def find_prefetch() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("stream_prefetch", measure_prefetch)
