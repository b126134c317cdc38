"""Whether something is copied: which operators give new memory, however little is seen of it afterwards."""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def two_columns(*numbers: float) -> Tensor:
    """Return two columns of doubles, as a leaf: who makes rows or floats of it copies it."""
    return torch.tensor(numbers, dtype=torch.float64).reshape(2, -1).t().requires_grad_()


class NewMemory(TorchDispatchMode):
    """Note the operators that give a tensor of at least so many numbers, two or more, in memory of its own.

    What is only asked of a tensor, as x.isnan(), is true or false, and no copy.
    """

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = max(2, numbers)
        self.operators: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and look where its results lie."""
        result = func(*args, **(kwargs or {}))
        given = {_memory(x) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        for y in tree_leaves(result):
            is_large = isinstance(y, Tensor) and y.numel() >= self.numbers and y.dtype != torch.bool
            if is_large and _memory(y) not in given:
                self.operators.append(func.overloadpacket.__name__.strip("_"))
        return result


def _memory(x: Tensor) -> Any:
    return x.untyped_storage()._cdata
