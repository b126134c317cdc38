"""Copies that run beside the computing: a prefetcher, a pipeline over chunks, and a check for races.

prefetch, stream_pipeline            the next batches come while this one is computed; chunks go in and out
gpu                                  the device of both: a real one, or one that only pretends
races                                launches that touch the same memory, and nothing orders them
pretend                              a GPU that writes down what is done, and runs it on the CPU
pretend_stream, pretend_tensor       its streams and events; its tensors
pretend_memory, pretend_backward     its allocator; in which stream backward runs
stand_in                             the pretended GPU in the place of "cuda"
"""

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
