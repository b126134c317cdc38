"""Streams of a CPU and of CUDA under one set of names, so that the pipeline need not ask which it has.

A CUDA stream is a queue of the device: what is put into one runs in order, two may overlap. A CPU runs each operation
when it is called: its stream `CPUStream` is a placeholder, and there is nothing to wait for.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias, cast

import torch
from torch import Tensor


class CPUStreamType:
    """The type of `CPUStream`, of which there is only one, also after pickle and deepcopy."""

    def __reduce__(self) -> str:
        return "CPUStream"

    __repr__ = __reduce__


CPUStream = CPUStreamType()
AbstractStream: TypeAlias = torch.cuda.Stream | CPUStreamType


def is_cuda(stream: AbstractStream) -> bool:
    """Return whether this is a CUDA stream."""
    return stream is not CPUStream


def as_cuda(stream: AbstractStream) -> torch.cuda.Stream:
    """Return the stream typed as a CUDA stream; it must be one."""
    return cast(torch.cuda.Stream, stream)


def new_stream(device: torch.device) -> AbstractStream:
    """Return a new stream of a CUDA device; for any other device the CPUStream."""
    return torch.cuda.Stream(device) if device.type == "cuda" else CPUStream  # type: ignore[no-untyped-call]


def current_stream(device: torch.device) -> AbstractStream:
    """Return the stream that this thread uses on `device` now."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else CPUStream


def default_stream(device: torch.device) -> AbstractStream:
    """Return the stream that a device starts with."""
    return torch.cuda.default_stream(device) if device.type == "cuda" else CPUStream


def use_device(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current CUDA device within a `with`; nothing happens for a CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def use_stream(stream: AbstractStream) -> AbstractContextManager[object]:
    """Make `stream` the current one of its device within a `with`; nothing happens for the CPUStream."""
    return torch.cuda.stream(as_cuda(stream)) if is_cuda(stream) else nullcontext()


def get_device(stream: AbstractStream) -> torch.device:
    """Return the device that the stream belongs to."""
    return as_cuda(stream).device if is_cuda(stream) else torch.device("cpu")


def with_index(device: torch.device) -> torch.device:
    """Return the device with its number: "cuda" is one of several, and of one only."""
    return get_device(current_stream(device)) if device.type == "cuda" else device


def wait_stream(source: AbstractStream, target: AbstractStream) -> None:
    """Let `source` wait until `target` has done what is queued in it now.

    Between CUDA streams the devices wait, not the caller; a CPU as `source` really blocks, one as `target` is done.
    """
    if is_cuda(target) and is_cuda(source):
        as_cuda(source).wait_stream(as_cuda(target))
    elif is_cuda(target):
        as_cuda(target).synchronize()


def record_stream(tensor: Tensor, stream: AbstractStream) -> None:
    """Tell the allocator that another stream than the tensor's own uses it, so that its memory waits for `stream`."""
    if is_cuda(stream) and tensor.is_cuda:
        tensor.record_stream(as_cuda(stream))
