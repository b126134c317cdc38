"""Micro-batches: a mini-batch cut into parts along its first dimension, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias, cast, overload

import torch
from torch import Tensor

from lib._arguments import integer

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
        if not self.atomic:
            raise AttributeError("not an atomic batch: use .tensors")
        return cast(Tensor, self.value)

    @property
    def tensors(self) -> Tensors:
        """The tuple; raises AttributeError for an atomic batch."""
        if self.atomic:
            raise AttributeError("an atomic batch: use .tensor")
        return cast(Tensors, self.value)

    @property
    def tensor_or_tensors(self) -> TensorOrTensors:
        """What the batch holds, as it is."""
        return self.value

    def call(self, function: Function) -> Batch:
        """Return function(value) as a Batch."""
        return Batch(function(self.value))

    def __repr__(self) -> str:
        return f"Batch[atomic={self.atomic}]({self.value!r})"

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.tensor,) if self.atomic else self.tensors)

    def __len__(self) -> int:
        return 1 if self.atomic else len(self.tensors)

    def __getitem__(self, index: int) -> Tensor:
        index = self._index(index)
        return cast(Tensor, self.value) if self.atomic else self.value[index]

    @overload
    def __setitem__(self, index: int, value: Tensor) -> None: ...
    @overload
    def __setitem__(self, index: slice, value: Tensors) -> None: ...
    def __setitem__(self, index: int | slice, value: TensorOrTensors) -> None:
        if isinstance(index, slice):
            if index != slice(None):
                raise NotImplementedError(f"of the slices only [:] can be assigned, not {index}")
            if self.atomic and len(value) != 1:
                raise IndexError(f"an atomic batch takes one tensor, not {len(value)}")
            self.value = value[0] if self.atomic else tuple(value)
            return
        changed = list(self)
        changed[self._index(index)] = cast(Tensor, value)
        self.value = changed[0] if self.atomic else tuple(changed)

    def _index(self, index: int) -> int:
        if self.atomic and index != 0:
            raise IndexError(f"an atomic batch has index 0 only, not {index}")
        return index


def check(input: object) -> None:
    """Raise TypeError unless `input` is a tensor or a tuple of tensors."""
    for x in input if isinstance(input, tuple) else (input,):
        if not isinstance(x, Tensor):
            raise TypeError(f"expected a Tensor or a tuple of Tensors, but got {type(x).__name__}")


def scatter(input: TensorOrTensors, chunks: int) -> list[Batch]:
    """Cut a mini-batch along dimension 0 into `chunks` micro-batches: views, as even as can be, the longer ones first.

    7 rows in 4 chunks are 2, 2, 2, 1; 3 rows in 4 chunks are three micro-batches: none is empty (but 0 rows are one
    micro-batch of 0 rows). Every tensor of a tuple is cut alike. Raises ValueError for chunks < 1, an empty tuple,
    a tensor without dimensions, or tensors of unequal length; TypeError for what is no tensor.
    """
    chunks = integer("chunks", chunks, at_least=1)
    check(input)
    tensors = tuple(Batch(input))
    if not tensors:
        raise ValueError("an empty tuple has no rows to scatter: give at least one tensor")
    if any(x.dim() == 0 for x in tensors):
        raise ValueError("a tensor without dimensions has no rows to scatter: give it a batch dimension")
    lengths = [len(x) for x in tensors]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"the tensors of a mini-batch must have the same number of rows, not {lengths}: "
            "dimension 0 is the batch"
        )
    cuts = [x.tensor_split(max(1, min(chunks, lengths[0]))) for x in tensors]
    if isinstance(input, Tensor):
        return [Batch(part) for part in cuts[0]]
    return [Batch(parts) for parts in zip(*cuts, strict=True)]


def gather(outputs: Sequence[Batch]) -> TensorOrTensors:
    """Join micro-batches along dimension 0: the inverse of scatter. One micro-batch is returned as it is, not copied.

    Raises ValueError where they are not of one kind (a tensor here, a tuple there) or a tensor has no dimension.
    """
    if len(outputs) == 1:
        return outputs[0].value
    kinds = {(batch.atomic, len(batch)) for batch in outputs}
    if len(kinds) != 1:
        found = ", ".join(
            "a tensor" if atomic else f"a tuple of {length}" for atomic, length in sorted(kinds)
        )
        raise ValueError(f"micro-batches must be alike to be gathered, but here are {found or 'none'}")
    if any(x.dim() == 0 for batch in outputs for x in batch):
        raise ValueError(
            "a layer returned a tensor without dimensions, which can't be gathered: keep dimension 0 as the batch "
            "(compute a mean loss outside of the pipeline)"
        )
    joined = tuple(torch.cat(parts) for parts in zip(*outputs, strict=True))
    return joined[0] if outputs[0].atomic else joined
