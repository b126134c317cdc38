"""What lib.streams asks of a GPU: one that torch knows, by the functions of lib.runtime.device, or a PretendGPU."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.runtime.device import accelerators, current_stream, locate, named_device, new_stream, use_stream
from lib.runtime.recording import device_span
from lib.streams.pretend import PretendGPU


class Accelerator:
    """A device with streams, and memory from torch's allocators."""

    use_stream = staticmethod(use_stream)
    span = staticmethod(device_span)  # two events, if something records

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def new_stream(self, name: str = "side") -> Any:
        """Return a stream that does not wait for the default one; the name is for whoever reads the program."""
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


GPU: TypeAlias = Accelerator | PretendGPU
"""What lib.streams computes on. Its streams are torch.Stream or look like it, hence Any; a stream's name is for those
who read the record of a PretendGPU."""


def pinned(x: Tensor, gpu: GPU) -> Tensor:
    """Return x, or a pinned copy, which takes the host's time; so that the copy to the device takes none of it."""
    if not x.is_cpu or x.is_pinned():
        return x
    if isinstance(gpu, PretendGPU):
        x = gpu.host(x, pinned=False)
    # torch's allocator of pinned memory does not give the pinned copy away while a stream still reads it
    return x.pin_memory()


def find_gpu(device: str | int | torch.device | GPU) -> GPU | None:
    """Return the GPU behind `device`, None for the CPU.

    A number is the GPU of that number. Raises ValueError for a device that has no streams, TypeError for what is none,
    RuntimeError for a device that torch does not see here.
    """
    if isinstance(device, int):
        seen = accelerators()
        device = torch.device(seen[0].type if seen else "cuda", device)
    if isinstance(device, str):
        device = named_device(device)
    if isinstance(device, torch.device):
        return None if device.type == "cpu" else Accelerator(locate(device))
    if not hasattr(device, "new_stream"):
        raise TypeError(f"device must be 'cuda', 'cpu' or a torch.device, not {device!r}")
    return device
