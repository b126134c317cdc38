"""What lib.streams asks of a GPU: a real one, by the functions of lib.runtime.device, or a PretendGPU."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.runtime.device import current_stream, new_stream, use_stream
from lib.runtime.recording import device_span
from lib.streams.pretend import PretendGPU


def pinned(x: Tensor) -> Tensor:
    """Return x, or a pinned copy, which takes the host's time; so that the copy to the device takes none of it."""
    # torch's allocator of pinned memory does not give the pinned copy away while a stream still reads it
    return x if x.is_cuda or x.is_pinned() else x.pin_memory()


class CUDA:
    """A CUDA device: the streams of lib.pipeline, and memory from torch's allocators."""

    use_stream, span = staticmethod(use_stream), staticmethod(device_span)  # a span: two events, if something records

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def new_stream(self, name: str) -> Any:
        """Return a stream that does not wait for the default one."""
        return new_stream(self.device)

    def current_stream(self) -> Any:
        """Return this thread's stream of the device."""
        return current_stream(self.device)

    def empty_like(self, x: Tensor) -> Tensor:
        """Return uninitialised memory."""
        return torch.empty(x.shape, dtype=x.dtype, device=self.device)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return memory that the copy engine can write to by itself."""
        return torch.empty(shape, dtype=dtype, pin_memory=True)


GPU: TypeAlias = CUDA | PretendGPU
"""What lib.streams computes on. Streams are torch.cuda.Stream or look like it; a stream's name is for those who read
the record of a PretendGPU."""


def find_gpu(device: str | int | torch.device | GPU) -> GPU | None:
    """Return the GPU behind `device`, None for the CPU.

    A number is that GPU. Raises ValueError or TypeError for another kind of device, RuntimeError for CUDA where torch
    sees none.
    """
    if not isinstance(device, (str, int, torch.device)):
        if not hasattr(device, "new_stream"):
            raise TypeError(f"device must be 'cuda', 'cpu' or a torch.device, not {device!r}")
        return device
    place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if place.type == "cpu":
        return None
    if place.type != "cuda":
        raise ValueError(f"device must be cpu or cuda, not {str(place)!r}")
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch sees no CUDA device here, so there is no {str(place)!r}; use 'cpu'")
    index = torch.cuda.current_device() if place.index is None else place.index
    if index >= torch.cuda.device_count():
        raise RuntimeError(f"there is no {str(place)!r}: torch sees {torch.cuda.device_count()} CUDA device(s)")
    return CUDA(torch.device("cuda", index))
