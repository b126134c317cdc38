"""What notebook 09, streams, tasks, workers, measures: kernels in one CUDA stream and in two."""

from __future__ import annotations

from typing import Any

import torch

from lib._values import integer
from lib.timeline import Span, Trace
from support.recordings import as_rows, as_trace, measured_or_recorded, need_gpu, origin_of

LANES = ("stream 0", "stream 1")
CYCLES = 2_000_000  # of the GPU's clock: about a millisecond


def measure_streams(streams: int, kernels: int = 4) -> Trace:
    """Launch kernels A0, A1, … and then B0, B1, … from one thread, A and B in one stream or in one each.

    Returns a span a kernel in lanes "stream 0", …; a kernel does nothing but wait on one multiprocessor, so the GPU has
    room for two. Raises RuntimeError without a GPU, ValueError for counts below 1 or more than two streams.
    """
    streams = integer("streams", streams, at_least=1, below=3)
    kernels = integer("kernels", kernels, at_least=1)
    need_gpu("measure_streams")
    _launch(streams, 1)  # the first launch loads the kernel
    zero, marks = _launch(streams, kernels)
    spans = []
    for lane, label, start, end in marks:
        times = [zero.elapsed_time(event) / 1e3 for event in (start, end)]
        spans.append(Span(lane, label, times[0], times[1]))
    return Trace(spans, LANES[:streams])


def _launch(streams: int, kernels: int) -> tuple[Any, list[tuple[str, str, Any, Any]]]:
    """Return the event of the beginning and, for each kernel, lane, label and the events around it; all are done."""
    running: list[Any] = [torch.cuda.Stream() for _ in range(streams)]  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    zero, marks = _mark(torch.cuda.current_stream()), []
    for name in "AB":
        s = "AB".index(name) % streams
        for number in range(kernels):
            start = _mark(running[s])
            with torch.cuda.stream(running[s]):
                torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
            marks.append((f"stream {s}", f"{name}{number}", start, _mark(running[s])))
    torch.cuda.synchronize()
    return zero, marks


def _mark(stream: torch.cuda.Stream) -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def measure_traces() -> dict[str, Any]:
    """Return {"traces": …}, by number of streams, for JSON. Raises RuntimeError without a GPU."""
    return {"traces": {str(streams): as_rows(measure_streams(streams)) for streams in (1, 2)}}


def find_streams() -> tuple[dict[int, Trace] | None, str | None]:
    """Return traces by number of streams, and where they come from.

    Measured here (provenance None); without a GPU the recording; without a recording (None, None).
    """
    data, _ = measured_or_recorded("two_streams", measure_traces)
    if data is None:
        return None, None
    traces = {int(streams): as_trace(rows, LANES[: int(streams)]) for streams, rows in data["traces"].items()}
    return traces, origin_of(data)
