"""Copies that run beside the computing: a prefetcher, a pipeline over chunks, their model, and a check for races."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib._lazy import load_on_use

if TYPE_CHECKING:
    from lib.pipeline.spans import device_span as device_span
    from lib.streams.model import best_chunks as best_chunks
    from lib.streams.model import overlap_share as overlap_share
    from lib.streams.model import predict_chunks as predict_chunks
    from lib.streams.model import predict_prefetch as predict_prefetch
    from lib.streams.operations import Operation as Operation
    from lib.streams.pipeline import StreamPipeline as StreamPipeline
    from lib.streams.prefetch import DevicePrefetcher as DevicePrefetcher
    from lib.streams.pretend import PretendGPU as PretendGPU
    from lib.streams.races import Race as Race
    from lib.streams.races import find_races as find_races

HOME = {
    "DevicePrefetcher": "lib.streams.prefetch",
    "Operation": "lib.streams.operations",
    "PretendGPU": "lib.streams.pretend",
    "Race": "lib.streams.races",
    "StreamPipeline": "lib.streams.pipeline",
    "best_chunks": "lib.streams.model",
    "device_span": "lib.pipeline.spans",
    "find_races": "lib.streams.races",
    "overlap_share": "lib.streams.model",
    "predict_chunks": "lib.streams.model",
    "predict_prefetch": "lib.streams.model",
}

__all__ = sorted(HOME)
__getattr__, __dir__ = load_on_use(__name__, HOME)
