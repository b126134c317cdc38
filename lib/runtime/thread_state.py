"""What is local to a thread: torch's modes, which a worker gets from its caller, and values of our own.

torch keeps grad, inference, autocast and the threads per operation for each thread, so a worker would not know that its
caller stands in `with torch.autocast(…)`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.utils._device import DeviceContext


def _autocast() -> tuple[tuple[str, torch.dtype], ...]:
    """Return the kinds of device for which this thread casts now, and to what."""
    # Nearly always none, and this is asked for every task. torch's own look at all kinds leaves one out.
    if not (torch._C._is_any_autocast_enabled() or torch.is_autocast_enabled("mps")):
        return ()
    kinds = filter(torch.is_autocast_enabled, torch._C._autocast_supported_devices())
    return tuple((kind, torch.get_autocast_dtype(kind)) for kind in kinds)


class Modes(NamedTuple):
    """Say how a thread computes; equal modes need no switch. What else is local to it, see `only_here`."""

    grad: bool
    inference: bool
    threads: int
    autocast: tuple[tuple[str, torch.dtype], ...]  # the kinds of device for which it is on, and the dtype

    @classmethod
    def current(cls) -> Modes:
        """Return the modes of the calling thread."""
        inference = torch.is_inference_mode_enabled()
        return cls(torch.is_grad_enabled(), inference, torch.get_num_threads(), _autocast())

    def use(self) -> AbstractContextManager[Any]:
        """Compute in these modes within a `with`.

        Autocast runs without its cache of cast weights: a weight that was cast under no_grad (a checkpoint) would be
        taken from there when gradients are wanted, and get none. Every micro-batch casts the weights anew.
        """
        now = Modes.current()
        if self == now:
            return nullcontext()
        if self[1:] == now[1:]:  # all but grad, which is switched most often and at little cost
            return torch.set_grad_enabled(self.grad)
        return self._switch()

    @contextmanager
    def _switch(self) -> Iterator[None]:
        torch.set_num_threads(self.threads)  # stays: the number of a new thread is a default, nobody's choice
        with ExitStack() as stack:
            wanted = dict(self.autocast)
            for kind in wanted.keys() | dict(_autocast()).keys():
                autocast = torch.autocast(kind, dtype=wanted.get(kind), enabled=kind in wanted, cache_enabled=False)
                stack.enter_context(autocast)
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield


def only_here() -> bool:
    """Return whether the calling thread is in a mode that others can't be given, as it may hold state.

    TorchDispatchMode, TorchFunctionMode, saved-tensor hooks; but not a default device: workers have none.
    """
    if torch._C._len_torch_dispatch_stack() > 0:
        return True
    functions = (torch._C._get_function_stack_at(k) for k in range(torch._C._len_torch_function_stack()))
    if not all(isinstance(mode, DeviceContext) for mode in functions):
        return True
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


# ---- values of our own

T = TypeVar("T")


class PerThread(threading.local, Generic[T]):
    """Hold a value that each thread has for itself, the same one at first. Who needs one makes it: see `during`.

    busy = PerThread(False)

    with during({busy: True}):
        busy.value
    """

    def __init__(self, initial: T) -> None:
        # Python calls this anew, with the same argument, in each thread that asks for the value.
        self.initial = initial
        self.value = initial


Values = Mapping[PerThread[Any], Any]


class during:
    """Give this thread other values within a `with`."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def __enter__(self) -> None:
        self.before = [(local, local.value) for local in self.values]
        for local, value in self.values.items():
            local.value = value

    def __exit__(self, *_: object) -> None:
        for local, value in self.before:
            local.value = value


_going_along: list[PerThread[Any]] = []


def goes_along(local: PerThread[T]) -> PerThread[T]:
    """Let each task take this value from the thread that made it: into its worker, and to where it is recomputed."""
    _going_along.append(local)
    return local


def to_take_along() -> dict[PerThread[Any], Any]:
    """Return the values of this thread that a task takes along, as far as they are others than at first."""
    return {local: local.value for local in _going_along if local.value is not local.initial}
