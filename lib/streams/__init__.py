"""Copies that run beside the computing: a prefetcher, a pipeline over chunks, and a check for races."""

from lib.pipeline.recording import device_span
from lib.streams.pipeline import StreamPipeline
from lib.streams.prefetch import DevicePrefetcher
from lib.streams.pretend import PretendGPU
from lib.streams.races import Operation, Race, find_races

# fmt: off
__all__ = [
    "DevicePrefetcher", "Operation", "PretendGPU", "Race", "StreamPipeline", "device_span", "find_races",
]
