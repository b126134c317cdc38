"""What is local to a thread: torch's modes, which a worker gets from its caller, and what the thread is at.

torch keeps grad, inference, autocast and the threads per operation for each thread, so a worker would not know that its
caller stands in `with torch.autocast(…)`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

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


class _ThisThread(threading.local):
    checkpointing = False
    recomputing = False
    hidden: list[torch.Tensor] | None = None  # while recomputing: the phonies of skip tensors in portals
    statistics: dict[Any, Any] | None = None  # of the mini-batch that it works on: lib.pipeline.batchnorm
    place: tuple[int, int] | None = None  # of what is being recorded: lib.runtime.recording
    end_backward: Callable[[], None] | None = None
    generator: Callable[[], torch.Generator] | None = None  # that it owns: lib.runtime.random_state
    listening = False  # to operations that draw random numbers: likewise
    skip_tracker: Any = None  # lib.pipeline.skip


this_thread = _ThisThread()


class during:
    """Change attributes of `this_thread` within a `with`."""

    def __init__(self, **what: Any) -> None:
        self.what = what

    def __enter__(self) -> None:
        self.before = {name: getattr(this_thread, name) for name in self.what}
        vars(this_thread).update(self.what)

    def __exit__(self, *_: object) -> None:
        vars(this_thread).update(self.before)
