"""The modes of a thread: grad, inference, autocast and the threads per operation, carried from one thread to another.

torch keeps them per thread, so a worker would not know that its caller stands in `with torch.autocast(…)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

DEVICE_TYPES = ("cpu", "cuda")


class Modes(NamedTuple):
    """Say how a thread computes; equal modes need no switch. What else is local to a thread is not carried:
    TorchFunctionMode, TorchDispatchMode, saved-tensor hooks.
    """

    grad: bool
    inference: bool
    threads: int
    autocast: tuple[torch.dtype | None, ...]  # by device type; None where it is off

    @classmethod
    def current(cls) -> Modes:
        """Return the modes of the calling thread."""
        autocast = tuple(
            [torch.get_autocast_dtype(x) if torch.is_autocast_enabled(x) else None for x in DEVICE_TYPES]
        )
        inference = torch.is_inference_mode_enabled()
        return cls(torch.is_grad_enabled(), inference, torch.get_num_threads(), autocast)

    def use(self) -> AbstractContextManager[Any]:
        """Compute in these modes within a `with`.

        Autocast runs without its cache of cast weights: a weight that was cast under no_grad (a checkpoint) would be
        taken from there when gradients are wanted, and get none. Every micro-batch casts the weights anew.
        """
        now = Modes.current()
        if self[1:] != now[1:]:
            return self._switch(now)
        return nullcontext() if self.grad == now.grad else torch.set_grad_enabled(self.grad)

    @contextmanager
    def _switch(self, now: Modes) -> Iterator[None]:
        if self.threads != now.threads:  # stays: the number of a new thread is a default, nobody's choice
            torch.set_num_threads(self.threads)
        with ExitStack() as stack:
            for device_type, dtype, already in zip(DEVICE_TYPES, self.autocast, now.autocast, strict=True):
                if dtype != already:
                    on: Any = {"enabled": dtype is not None, "cache_enabled": False}
                    stack.enter_context(torch.autocast(device_type, dtype=dtype, **on))
            if self.inference != now.inference:
                stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            yield
