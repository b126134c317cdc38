"""Devices: a CPU and any accelerator under one set of names.

A stream is a queue of a device: what is put into one runs in order, two may overlap. A CPU runs each operation when it
is called: its stream `CPUStream` is a placeholder, and there is nothing to wait for.

torch keeps what an accelerator can do in a module of its own, torch.cuda or torch.xpu, and a backend from outside of
torch brings another one. It has the name of the kind of device, and `device` is always that of a tensor or of an
argument. torch.accelerator would save that look-up, but it knows only one kind of accelerator in a process, and there
may be two: a simulated one beside CUDA.

What a module must have to be of use here, with the meaning that it has in torch.cuda: is_available, is_initialized,
device_count, current_device, get_device_name, device, Stream, Event, stream, current_stream, synchronize,
default_generators; for peaks of memory memory_stats and reset_peak_memory_stats. A device without streams, as torch.mps
with its single queue, pipelines treat like a CPU; lib.streams and lib.measure refuse it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeAlias, TypeGuard, cast

import torch
from torch import Tensor

Device: TypeAlias = torch.device | int | str
"""What names a device where a caller may name one; torch.device(…) takes all of them."""


class CPUStreamType:
    """The type of `CPUStream`, of which there is only one, also after pickle and deepcopy."""

    def __reduce__(self) -> str:
        return "CPUStream"

    __repr__ = __reduce__


CPUStream = CPUStreamType()
AbstractStream: TypeAlias = torch.Stream | CPUStreamType  # torch.cuda.Stream is a torch.Stream, as are all others


def has_streams(device: torch.device) -> bool:
    """Return whether work for this device is put into streams."""
    # torch.cpu has a class of that name as well, but there is nothing in its streams
    return device.type != "cpu" and hasattr(_module(device), "Stream")


def on_accelerator(stream: AbstractStream) -> TypeGuard[torch.Stream]:
    """Return whether this is a real stream: any but the CPUStream."""
    return stream is not CPUStream


_stand_ins: dict[str, Any] = {}  # by kind of device: what is asked in the place of torch's module


def _module(device: torch.device) -> Any:
    """Return torch's module of this kind of device, or what stands in for it; None where there is neither."""
    return _stand_ins.get(device.type) or getattr(torch, device.type, None)


@contextmanager
def stand_in(kind: str, module: Any) -> Iterator[None]:
    """Ask `module` in the place of torch's for this kind of device, such as "cuda", within a `with`.

    For a device that only pretends to be one: lib.streams.stand_in. Raises RuntimeError inside of another one.
    """
    if kind in _stand_ins:
        raise RuntimeError(f"something stands in for {kind!r} already: {_stand_ins[kind]!r}")
    _stand_ins[kind] = module
    try:
        yield
    finally:
        del _stand_ins[kind]


# ---- streams


def new_stream(device: torch.device) -> AbstractStream:
    """Return a new stream of an accelerator; for a CPU the CPUStream."""
    if not has_streams(device):
        return CPUStream
    stream: torch.Stream = _module(device).Stream(device)
    return stream


def current_stream(device: torch.device) -> AbstractStream:
    """Return the stream that this thread uses on `device` now."""
    if not has_streams(device):
        return CPUStream
    stream: torch.Stream = _module(device).current_stream(device)
    return stream


def default_stream(device: torch.device) -> AbstractStream:
    """Return the stream that a device starts with."""
    if not has_streams(device):
        return CPUStream
    module = _module(device)
    if hasattr(module, "default_stream"):
        stream: torch.Stream = module.default_stream(device)
        return stream
    here = module.current_stream(device)  # torch.xpu has no such function; number 0 is what every thread begins with
    return torch.Stream(stream_id=0, device_index=here.device_index, device_type=here.device_type)


def use_stream(stream: AbstractStream) -> AbstractContextManager[object]:
    """Make `stream` the current one of its device within a `with`; nothing happens for the CPUStream."""
    if not on_accelerator(stream):
        return nullcontext()
    # Not `with stream:` itself: it keeps the stream to return to in the object, so that of two threads in one stream
    # each would return to the other's.
    switch: AbstractContextManager[object] = _module(stream.device).stream(stream)
    return switch


def wait_stream(source: AbstractStream, target: AbstractStream) -> None:
    """Let `source` wait until `target` has done what is queued in it now.

    Between streams of accelerators the devices wait, not the caller; a CPU as `source` really blocks, one as `target`
    is done.
    """
    if not on_accelerator(target):
        return
    if on_accelerator(source):
        source.wait_stream(target)
    else:
        target.synchronize()


def record_stream(tensor: Tensor, stream: AbstractStream) -> None:
    """Tell the allocator that another stream than the tensor's own uses it, so that its memory waits for `stream`."""
    if on_accelerator(stream) and not tensor.is_cpu:
        tensor.record_stream(stream)


def timed_event(stream: AbstractStream) -> torch.Event:
    """Put an event into the stream of an accelerator; it notes when the device comes to it."""
    assert on_accelerator(stream)
    event: torch.Event = _module(stream.device).Event(enable_timing=True)
    event.record(stream)
    return event


# ---- devices


def get_device(stream: AbstractStream) -> torch.device:
    """Return the device that the stream belongs to."""
    return stream.device if on_accelerator(stream) else torch.device("cpu")


def named_device(device: Device) -> torch.device:
    """Return the device of this name; raises RuntimeError for a name that torch does not know, TypeError for none."""
    try:
        return torch.device(device)
    except TypeError:
        raise TypeError(f"a device must be a name such as 'cpu' or a torch.device, not {device!r}") from None
    except RuntimeError:
        if str(device).partition(":")[0] == "simgpu":
            way_out = "call lib.simulated.start() first"
            raise RuntimeError(f"there is no {device!r} in this process yet: {way_out}") from None
        raise RuntimeError(f"no device is called {device!r}: write 'cpu', 'cuda:0' or another that is here") from None


def locate(device: torch.device) -> torch.device:
    """Return an accelerator that is here, with its number.

    Raises ValueError for a device that has no streams, RuntimeError for one that torch does not see here.
    """
    if not has_streams(device):
        raise ValueError(f"device must be an accelerator with streams, such as 'cuda', not {str(device)!r}")
    module = _module(device)
    kind = device.type.upper()
    if not module.is_available():
        raise RuntimeError(f"torch sees no {kind} device here, so there is no {str(device)!r}; use 'cpu'")
    index = module.current_device() if device.index is None else device.index
    if index >= module.device_count():
        raise RuntimeError(f"there is no {str(device)!r}: torch sees {module.device_count()} {kind} device(s)")
    return torch.device(device.type, index)


def device_name(device: torch.device) -> str:
    """Return what a device is called: a GPU by its maker's name, "CPU" for what has no streams."""
    if not has_streams(device):
        return "CPU"
    name: str = _module(device).get_device_name(device)
    return name


def with_index(device: torch.device) -> torch.device:
    """Return the device with its number: "cuda" is one of several, and of one only."""
    return get_device(current_stream(device)) if has_streams(device) else device


def use_device(device: torch.device) -> AbstractContextManager[object]:
    """Make `device` the current one of its kind within a `with`; nothing happens for a CPU."""
    if not has_streams(device):
        return nullcontext()
    switch: AbstractContextManager[object] = _module(device).device(device)
    return switch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was given; a CPU has."""
    if has_streams(device):
        _module(device).synchronize(device)


def default_generator(device: torch.device) -> torch.Generator:
    """Return the generator from which a device draws where nobody names another: all threads share it."""
    if not has_streams(device):
        return torch.default_generator
    generator: torch.Generator = _module(device).default_generators[with_index(device).index]
    return generator


def active_bytes(device: torch.device, which: str) -> int:
    """Return the bytes of tensors on an accelerator: "current", or the "peak" since reset_peak(device)."""
    found: int = _module(device).memory_stats(device).get(f"active_bytes.all.{which}", 0)
    return found


def reset_peak(device: torch.device) -> None:
    """Let the peak of an accelerator's bytes begin anew."""
    _module(device).reset_peak_memory_stats(device)


# ---- where nobody names a device


def _kinds() -> list[torch.device]:
    """Return the kinds of accelerators with streams that may be here.

    CUDA comes first: torch.accelerator names one kind only, and once a process has loaded a simulated device, it is
    that one.
    """
    kinds = [torch.device("cuda")]
    other = torch.accelerator.current_accelerator()
    if other is not None and other.type != "cuda" and has_streams(other):
        kinds.append(other)
    return kinds


def accelerators() -> list[torch.device]:
    """Return the accelerators that torch sees here, all of one kind; empty without any."""
    for kind in _kinds():
        module = _module(kind)
        if module.is_available():
            return [torch.device(kind.type, number) for number in range(module.device_count())]
    return []


def synchronize_used() -> None:
    """Wait for the current accelerator of each kind that this process has used; open none that it has not."""
    for kind in _kinds():
        module = _module(kind)
        if module.is_initialized():
            module.synchronize()


# ---- torchgpipe's names, from when CUDA was the only accelerator

is_cuda = on_accelerator


def as_cuda(stream: AbstractStream) -> torch.Stream:
    """Return the stream typed as that of an accelerator; it must be one."""
    return cast(torch.Stream, stream)
