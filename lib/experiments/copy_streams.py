"""Copies on the compute stream and on a stream of their own, timed by CUDA events: the GPU cell of notebook 11.

`python -m lib.recordings copy_streams`, on a GPU, writes notebooks/recorded/copy_streams.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from lib._arguments import integer
from lib.pipeline.copy import Copy, Wait
from lib.pipeline.stream import CPUStream, current_stream, new_stream
from lib.recordings import as_rows, as_trace, measured_or_recorded, need_gpu, origin_of
from lib.timeline import Span, Trace

LANES = ("copy", "compute")
NAMES = {False: "one stream for both", True: "a copy stream"}
CYCLES = 4_000_000  # of the GPU's clock: some milliseconds, about as long as a copy
MEGABYTES = 64


def predict_copies(
    own_stream: bool, micro_batches: int = 4, copy: float = 1.0, compute: float = 1.5
) -> Trace:
    """Return the trace of a model: a copy waits for its stream, a computation for its copy and for the one before."""
    spans, copied, computed = [], 0.0, 0.0
    for i in range(integer("micro_batches", micro_batches, at_least=1)):
        start = copied if own_stream else computed
        copied = start + copy
        spans.append(Span("copy", f"C{i}", start, copied, "copy"))
        start = max(copied, computed)
        computed = start + compute
        spans.append(Span("compute", f"F{i}", start, computed, "compute"))
    return Trace(spans, LANES)


def measure_copies(own_stream: bool, micro_batches: int = 4) -> Trace:
    """Bring micro-batches from pinned memory to the GPU by Copy, then Wait, then compute: as fence and compute do.

    own_stream: copy on a stream of its own, else on the one that computes. Raises RuntimeError without a GPU,
    ValueError for less than one micro-batch.
    """
    micro_batches = integer("micro_batches", micro_batches, at_least=1)
    need_gpu("measure_copies")
    _launch(own_stream, 1)  # the first launch loads the kernels and makes room
    zero, marks = _launch(own_stream, micro_batches)
    spans = []
    for kind, label, start, end in marks:
        times = [zero.elapsed_time(event) / 1e3 for event in (start, end)]
        spans.append(Span(kind, label, times[0], max(times), kind))
    return Trace(spans, LANES)


def _launch(own_stream: bool, micro_batches: int) -> tuple[Any, list[tuple[str, str, Any, Any]]]:
    """Return the event of the beginning and, for each span, kind, label and the events around it; all are done."""
    device = torch.device("cuda")
    computes: Any = current_stream(device)
    copies: Any = new_stream(device) if own_stream else computes
    host = [torch.empty(MEGABYTES << 18).pin_memory() for _ in range(micro_batches)]
    torch.cuda.synchronize()
    zero, marks = _mark(computes), []
    for i, x in enumerate(host):
        start = _mark(copies)
        (y,) = Copy.apply(CPUStream, copies, x)  # type: ignore[no-untyped-call]
        marks.append(("copy", f"C{i}", start, _mark(copies)))
        Wait.apply(copies, computes, y)  # type: ignore[no-untyped-call]
        start = _mark(computes)
        torch.cuda._sleep(CYCLES)  # type: ignore[no-untyped-call]
        marks.append(("compute", f"F{i}", start, _mark(computes)))
    torch.cuda.synchronize()
    return zero, marks


def _mark(stream: Any) -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def measure_traces() -> dict[str, Any]:
    """Return {"traces": …}, by NAMES, for JSON. Raises RuntimeError without a GPU."""
    return {"traces": {name: as_rows(measure_copies(own)) for own, name in NAMES.items()}}


def copies_traces() -> tuple[dict[str, Trace], str | None]:
    """Return the traces by NAMES: measured here, with None as provenance; else recorded; else ({}, None)."""
    data, _ = measured_or_recorded("copy_streams", measure_traces)
    traces = data["traces"] if data else {}
    return {name: as_trace(rows, LANES) for name, rows in traces.items()}, origin_of(data)


def below_each_other(traces: Mapping[str, Trace]) -> Trace | None:
    """Return one trace with the lanes of all, named after them; None for no trace."""
    spans = [replace(span, lane=f"{name}: {span.lane}") for name, trace in traces.items() for span in trace]
    return (
        Trace(spans, [f"{name}: {lane}" for name, trace in traces.items() for lane in trace.lanes])
        if spans
        else None
    )
