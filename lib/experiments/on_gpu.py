"""What the GPU experiments have in common: find the data (measured here, else recorded, else none), and record it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from lib import recorded
from lib.timeline import Span, Trace


def need_gpu(what: str) -> None:
    """Raise RuntimeError where torch sees no GPU."""
    if not torch.cuda.is_available():
        raise RuntimeError(f"{what} needs a CUDA device; without one, show the recording or the prediction")


def find(name: str, measure: Callable[[], dict[str, Any]]) -> tuple[dict[str, Any] | None, str]:
    """Return data and a sentence that says where they come from; None where there is neither GPU nor recording."""
    if torch.cuda.is_available():
        return measure(), f"Measured here, on {torch.cuda.get_device_name()}"
    try:
        record = recorded.load(name)
    except FileNotFoundError:
        return None, "No GPU here, and no recording yet"
    return record, recorded.provenance(record)


def record(name: str, data: Mapping[str, Any], module: str) -> Path:
    """Write notebooks/recorded/NAME.json with this GPU's provenance; `module` is what was run by python -m."""
    return recorded.save(name, data, command=f"python -m {module}", gpu=torch.cuda.get_device_name())


def as_rows(trace: Trace) -> list[list[Any]]:
    """Return the spans as lists, for JSON."""
    return [[span.lane, span.label, span.start, span.end, span.kind] for span in trace]


def as_trace(rows: list[list[Any]], lanes: tuple[str, ...]) -> Trace:
    """Return the trace of such lists."""
    return Trace((Span(*row) for row in rows), lanes)
