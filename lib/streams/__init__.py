"""Copies that run beside the computing: a prefetcher, a pipeline over chunks, and a check for races."""

from lib.runtime.recording import device_span
from lib.streams.prefetch import DevicePrefetcher
from lib.streams.pretend import PretendGPU
from lib.streams.races import Operation, Race, find_races
from lib.streams.stand_in import in_place_of_cuda
from lib.streams.stream_pipeline import StreamPipeline

# fmt: off
__all__ = [
    "DevicePrefetcher", "Operation", "PretendGPU", "Race", "StreamPipeline", "device_span", "find_races",
    "in_place_of_cuda",
]
