"""Random numbers of compiled layers: whether those of the recomputation are those of forward.

A compiled layer runs code that torch has made, one piece for a forward without gradients, one for a forward with them,
one for each new shape; and none at all once it has made as many as it may (torch._dynamo.config.recompile_limit). They
may draw in different ways, from a generator that was seeded alike: then gradients would be those of other masks.

So what draws is written down the first time and compared the second time. Whoever draws past the generator of this
micro-batch is refused at once: of that one there is no second time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor

from lib.runtime.thread_state import PerThread

_noted: PerThread[list[str] | None] = PerThread(None)  # what this thread draws; None where nobody asks for it
_ANY_DTYPE = frozenset(["aten::bernoulli_.float"])  # draws the same zeros and ones whatever they are written as
_WAY_OUT = "compile the whole GPipe, or use checkpoint='never'"


def note_draw(operation: str, arguments: Mapping[str, Any]) -> None:
    """Note an operation that draws, if somebody asks for it."""
    if _noted.value is not None:
        dtype_matters = operation not in _ANY_DTYPE
        told = (f"{name}={_told(value, dtype_matters)}" for name, value in arguments.items() if name != "generator")
        _noted.value.append(f"{operation}({', '.join(told)})")


def _told(value: object, dtype_matters: bool) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    # in which order its elements are drawn is a matter of the strides, where there is more than one
    strides = [stride for stride, size in zip(value.stride(), value.shape, strict=True) if size > 1]
    dtype = value.dtype if dtype_matters else "any"
    return f"{dtype} {tuple(value.shape)} {strides}"


class CompiledDraws:
    """What a function with compiled layers draws, in a first call and whenever it is called again. name: in errors."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.first: list[str] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what is drawn within a `with`. Raises RuntimeError if the process's generator moves."""
        before = torch.default_generator.get_state()
        with compiled_graphs_heard(), _noting() as self.first:
            yield
        if not torch.equal(before, torch.default_generator.get_state()):
            raise RuntimeError(f"{self.name} drew random numbers that a recomputation would not draw again: {_WAY_OUT}")

    @contextmanager
    def compared(self) -> Iterator[None]:
        """Raise RuntimeError if within a `with` something else is drawn, or otherwise, than the first time."""
        with compiled_graphs_heard(), _noting() as again:
            yield
        if again != self.first:
            raise RuntimeError(
                f"{self.name} draws its random numbers in another way in the recomputation than in forward, as torch "
                "has other code for it there, or none (see torch._dynamo.config.recompile_limit): gradients would be "
                f"those of other numbers; {_WAY_OUT}"
            )


@contextmanager
def _noting() -> Iterator[list[str]]:
    outside = _noted.value
    _noted.value = []
    try:
        yield _noted.value
    finally:
        _noted.value = outside


@contextmanager
def compiled_graphs_heard() -> Iterator[None]:
    """Switch off, for this thread, a check of torch's for custom operators.

    It does the first run of a compiled graph in a dispatch mode, where nobody sees what an operator's operators draw.
    """
    settings: Any = torch._functorch.config
    before = getattr(settings, "check_custom_op_aliasing", False)
    if not before:
        yield
        return
    settings.check_custom_op_aliasing = False
    try:
        yield
    finally:
        settings.check_custom_op_aliasing = before
