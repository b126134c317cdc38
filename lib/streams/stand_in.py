"""A PretendGPU in the place of CUDA: code that asks for "cuda" by name, as lib.pipeline does, runs on it.

    gpu = PretendGPU(count=2)
    with in_place_of_cuda(gpu):
        model = GPipe(layers, balance=[1, 1], chunks=2)
        model(torch.randn(4, 3, device="cuda:0")).sum().backward()
    find_races(gpu.operations)

Only for lib and for torch's own tensors: torch.cuda itself stays what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._pytree import tree_leaves

from lib.runtime.dependency import get_phony
from lib.runtime.device import stand_in
from lib.streams.pretend import PretendGPU
from lib.streams.pretend_stream import PretendEvent, PretendStream
from lib.streams.pretend_tensor import PretendTensor, device_named, gpu_named, moved_as, parse_to

_CPU = torch.device("cpu")


@contextmanager
def in_place_of_cuda(gpu: PretendGPU) -> Iterator[PretendGPU]:
    """Let lib take this GPU for CUDA within a `with`, and put on it what torch makes on "cuda" or moves there.

    All runs in the calling thread: a pipeline starts no workers. Raises RuntimeError inside of another one.
    """
    places = _Places(gpu)
    engine = mock.patch.object(torch.autograd, "_engine_run_backward", places.engine(_engine_run_backward))
    made = mock.patch.object(torch.autograd.Function, "apply", classmethod(_noting_what_is_made(gpu)))
    with stand_in("cuda", PretendModule(gpu)), engine, made, places, _swapped_parameters():
        get_phony.cache_clear()  # those of another PretendGPU, or of a real one
        try:
            yield gpu
        finally:
            get_phony.cache_clear()


@contextmanager
def _swapped_parameters() -> Iterator[None]:
    """Let module.to() put a tensor of another class in the place of a parameter: by itself it fills in its memory.

    torch swaps none that a graph holds. One that is on its device already need not be: it stays what it is.
    """
    swap = torch.utils.swap_tensors
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with mock.patch.object(torch.utils, "swap_tensors", partial(_swap_unless_in_place, swap)):
            yield
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _swap_unless_in_place(swap: Callable[..., None], old: Tensor, new: Tensor) -> None:
    if isinstance(old, PretendTensor) and isinstance(new, PretendTensor) and new.block is old.block:
        return
    swap(old, new)


def _noting_what_is_made(gpu: PretendGPU) -> Callable[..., Any]:
    """Return an apply of torch.autograd.Function that notes the stream of what it has made.

    torch makes the node of a function in Python when forward has returned: its stream is the one that is current then,
    whatever streams forward itself has used.
    """
    apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def noting(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        with gpu.backward.unfinished(cls._backward_cls):
            made = apply(cls, *args, **kwargs)
        ours = [x for x in tree_leaves(made) if isinstance(x, PretendTensor)]
        for x in ours:
            gpu.note_made(x)
        gpu.backward.note(ours)
        return made

    return noting


class PretendModule:
    """Stand in for torch.cuda, as far as lib.runtime.device asks for it."""

    def __init__(self, gpu: PretendGPU) -> None:
        self.gpu = gpu
        # Its operators run on the CPU, and draw from there.
        self.default_generators = [torch.default_generator] * gpu.count

    def is_available(self) -> bool:
        """Return True."""
        return True

    is_initialized = is_available

    def device_count(self) -> int:
        """Return how many devices there are."""
        return self.gpu.count

    def current_device(self) -> int:
        """Return the number of the current device."""
        return self.gpu.current_device

    def device(self, device: torch.device) -> AbstractContextManager[None]:
        """Make a device the current one within a `with`."""
        return self.gpu.use_device(self._index(device))

    def Stream(self, device: torch.device) -> PretendStream:
        """Return a new stream of a device."""
        return self.gpu.new_stream("stream", self._index(device))

    def Event(self, enable_timing: bool = False) -> PretendEvent:
        """Return an event; none of them knows a time."""
        return PretendEvent(self.gpu)

    def stream(self, stream: PretendStream) -> AbstractContextManager[None]:
        """Make a stream the current one of its device, and that the current device, within a `with`."""
        return self.gpu.use_stream(stream)

    def current_stream(self, device: torch.device) -> PretendStream:
        """Return the stream in use on a device."""
        return self.gpu.current_stream(self._index(device))

    def default_stream(self, device: torch.device) -> PretendStream:
        """Return the stream that a device starts with."""
        return self.gpu.default_streams[self._index(device)]

    def synchronize(self, device: torch.device | None = None) -> None:
        """Let the host wait for all streams of a device."""
        self.gpu.synchronize(None if device is None else self._index(device))

    def _index(self, device: torch.device) -> int:
        return self.gpu.current_device if device.index is None else device.index


_OF_NUMBERS = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
"""What these make is a copy of memory of the host, and not pinned."""


def _default_of(func: Any) -> Any:
    """Return where a function makes its tensor if nobody says; torch.set_default_device speaks up behind our mode."""
    if func is Tensor.new_tensor:  # of a tensor that nobody watches; PretendTensor has its own
        return _CPU
    return _device.CURRENT_DEVICE if func in _device._device_constructors() else None


def _asks_for_the_shape_alone(func: Any) -> bool:
    """Return whether it takes no number of its tensor, as zeros_like and new_empty: nothing is copied then."""
    name: str = func.__name__
    return name.endswith("_like") or name.startswith("new_")


def _plain(x: Any) -> Any:
    return x.plain if isinstance(x, PretendTensor) else x


class _Places(TorchFunctionMode):
    """See what torch makes on "cuda", and which tensors of the CPU are moved there: no tensor tells of these."""

    def __init__(self, gpu: PretendGPU) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = any(isinstance(x, PretendTensor) for x in tree_leaves((args, kwargs)))
        if func is torch._C._nn._parse_to:  # what nn.Module.to asks: it makes no tensor
            device, dtype, non_blocking, _, memory_format = parse_to(*args, **kwargs)
            return device, dtype, non_blocking, memory_format
        if func is Tensor.cuda and not known:
            return self._to_gpu(*args, **kwargs)
        if func is Tensor.to and not known and (moved := self._moved(*args, **kwargs)) is not None:
            return moved
        if func is Tensor.pin_memory and not known:
            return self.gpu.host(args[0], pinned=False).pin_memory()
        if kwargs.get("pin_memory"):
            made = func(*map(_plain, args), **{**kwargs, "pin_memory": False})
            return self.gpu.adopt(made, pinned=True)
        asked = kwargs.get("device")
        asked = _default_of(func) if asked is None else asked
        return func(*args, **kwargs) if asked is None else self._made(func, device_named(asked), known, args, kwargs)

    def _made(self, func: Any, place: torch.device, known: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function makes in a place; known: of tensors of the GPU, perhaps."""
        if func in _OF_NUMBERS and known:
            made = self.gpu.move(func(*args, **{**kwargs, "device": None}), place, non_blocking=False)
            return made.detach().requires_grad_() if kwargs.get("requires_grad") else made
        if place.type != "cuda":
            return func(*args, **kwargs)
        if known and not _asks_for_the_shape_alone(func):
            made = func(*args, **{**kwargs, "device": None})
            has_numbers = isinstance(made, PretendTensor)  # else the tensor was no more than a size
            return made.to(place) if has_numbers else self.gpu.made(made, place, func.__name__)
        plain = func(*map(_plain, args), **{**kwargs, "device": "cpu"})
        if func in _OF_NUMBERS:
            copied = self.gpu.copied(plain, self.gpu.located(place), non_blocking=False)
            return copied.requires_grad_(plain.requires_grad)
        return self.gpu.made(plain, place, func.__name__)

    def _to_gpu(self, x: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        return self._moved(x, gpu_named(device), non_blocking=non_blocking, memory_format=memory_format)

    def _moved(self, x: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Any:
        """Return x on the GPU that x.to(...) asks for; None if it asks for none."""
        asked = parse_to(*args, copy=copy, **kwargs)
        if asked.device is None or asked.device.type != "cuda":
            return None
        return moved_as(x, self.gpu.move(x, asked.device, asked.non_blocking), asked)

    def engine(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return torch's call of its engine with this mode on, which torch leaves before it goes backward."""

        def backward(*args: Any, **kwargs: Any) -> Any:
            self.gpu.note_roots([x for x in tree_leaves(args[0]) if isinstance(x, PretendTensor)])
            with self:
                return run(*args, **kwargs)

        return backward
