"""Micro-batches: a mini-batch cut into parts along its first dimension, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.arguments import integer

Tensors: TypeAlias = tuple[Tensor, ...]
TensorOrTensors: TypeAlias = Tensor | Tensors
Function: TypeAlias = Callable[[TensorOrTensors], TensorOrTensors]


class Batch:
    """Hold one tensor (`atomic`) or a tuple of tensors, and treat both alike: len, iteration, item, assignment.

        batch[0] = f(batch[0])
        batch[:] = f(*batch)
        batch = batch.call(layer)      # layer(x) or layer((x, y)); a Batch again

    Raises IndexError for an index other than 0 into an atomic batch, NotImplementedError for a slice other than [:].
    """

    __slots__ = ("atomic", "value")

    def __init__(self, value: TensorOrTensors) -> None:
        self.value = value
        self.atomic = isinstance(value, Tensor)

    @property
    def tensor(self) -> Tensor:
        """The one tensor of an atomic batch; raises AttributeError for a tuple."""
        if isinstance(self.value, Tensor):
            return self.value
        raise AttributeError("not an atomic batch: use .tensors")

    @property
    def tensors(self) -> Tensors:
        """The tuple of a batch that is not atomic; raises AttributeError for one tensor."""
        if isinstance(self.value, Tensor):
            raise AttributeError("an atomic batch: use .tensor")
        return self.value

    def call(self, function: Function) -> Batch:
        """Return function(value) as a Batch."""
        return Batch(function(self.value))

    def __repr__(self) -> str:
        return f"Batch[atomic={self.atomic}]({self.value!r})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.value,) if isinstance(self.value, Tensor) else self.value)

    def __len__(self) -> int:
        return 1 if self.atomic else len(self.value)

    def __getitem__(self, index: int) -> Tensor:
        return tuple(self)[index]

    def __setitem__(self, index: int | slice, value: TensorOrTensors) -> None:
        if isinstance(index, slice) and index != slice(None):
            raise NotImplementedError(f"of the slices only [:] can be assigned, not {index}")
        tensors: list[Any] = list(self)
        tensors[index] = value
        if self.atomic and len(tensors) != 1:
            raise IndexError(f"an atomic batch takes one tensor, not {len(tensors)}")
        self.value = tensors[0] if self.atomic else tuple(tensors)


def check(input: object) -> None:
    """Raise TypeError unless `input` is a tensor or a tuple of tensors."""
    for x in input if isinstance(input, tuple) else (input,):
        if not isinstance(x, Tensor):
            raise TypeError(f"expected a Tensor or a tuple of Tensors, but got {type(x).__name__}")


def can_have_a_gradient(x: Tensor) -> bool:
    """Return whether autograd knows gradients of such numbers: not of integers and masks."""
    return x.is_floating_point() or x.is_complex()


def scatter(input: TensorOrTensors, chunks: int) -> list[Batch]:
    """Cut a mini-batch along dimension 0 into `chunks` micro-batches: views, as even as can be, longer ones first.

    7 rows in 4 chunks are 2, 2, 2, 1; 3 rows in 4 chunks are three micro-batches: none is empty (but 0 rows are one
    micro-batch of 0 rows). Every tensor of a tuple is cut alike. Raises ValueError for chunks < 1, an empty tuple,
    a tensor without dimensions, or tensors of unequal length; TypeError for what is no tensor.
    """
    chunks = integer("chunks", chunks, at_least=1)
    check(input)
    batch = Batch(input)
    rows = [len(x) if x.dim() else "none" for x in batch]
    if len(set(rows)) != 1 or "none" in rows:
        raise ValueError(
            f"the tensors of a mini-batch must have the same number of rows, not {rows}: dimension 0 is the batch; "
            "view k entries of each sample as (samples, k, ...)"
        )
    count = max(1, min(chunks, len(batch[0])))
    # One micro-batch is the tensors themselves: a view may not be changed in place.
    cuts = [(x,) if count == 1 else x.tensor_split(count) for x in batch]
    if batch.atomic:
        return [Batch(part) for part in cuts[0]]
    return [Batch(parts) for parts in zip(*cuts, strict=True)]


def gather(outputs: Sequence[Batch]) -> TensorOrTensors:
    """Join micro-batches along dimension 0: the inverse of scatter. One micro-batch is returned as it is, not copied.

    Raises ValueError where they are not of one kind (a tensor here, a tuple there) or a tensor has no dimension.
    """
    if len(outputs) == 1:
        return outputs[0].value
    kinds = {"a tensor" if batch.atomic else f"a tuple of {len(batch)}" for batch in outputs}
    if len(kinds) != 1:
        found = ", ".join(sorted(kinds)) or "none"
        raise ValueError(f"micro-batches must be alike to be gathered, but here are {found}")
    if any(x.dim() == 0 for batch in outputs for x in batch):
        raise ValueError("tensors without dimensions can't be gathered: take a mean loss outside of the pipeline")
    joined = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    return joined[0] if outputs[0].atomic else joined
