"""What gloo makes of a tensor's memory: messages are bytes, sums are over what lies side by side."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor


class InTransit:
    """A tensor on its way: read when it is received, as a real one may be until `wait()` has returned."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.taken = False


class Expected:
    """A receive that has only begun: the next message of its sender is for it, and need not wait for `wait()`."""

    def __init__(self) -> None:
        self.sent: Tensor | None = None

    def take(self, message: InTransit) -> None:
        """Take a message in: its sender may go on."""
        self.sent = message.tensor.clone()
        message.taken = True


def writing(tensor: Tensor) -> AbstractContextManager[object]:
    """Return in what a tensor can be written to, as real ranks write to any, also to one of inference mode."""
    return torch.inference_mode() if tensor.is_inference() else torch.no_grad()


def dtype_named(tensor: Tensor) -> str:
    """Name a dtype without its module."""
    return str(tensor.dtype).removeprefix("torch.")


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Say whether two tensors of a shape and dtype hold the same, NaN included."""
    return torch.equal(one.detach().flatten().view(torch.uint8), other.flatten().view(torch.uint8))


def sum_of(parts: Sequence[Tensor], tensor: Tensor) -> Tensor:
    """Return the sum of all ranks' tensors, in the shape of this one."""
    return torch.stack([part.view_as(tensor) for part in parts]).sum(dim=0)


def all_listed(what: str, tensors: Sequence[Tensor] | None, tensor: Tensor, count: int) -> Sequence[Tensor]:
    """Return the tensors of a list, or none of no list. Raises ValueError unless they are so many, like this one."""
    found = tensors or ()
    if len(found) != count:
        raise ValueError(f"{what} needs a list of {count} tensors, not {len(found)}")
    for place, part in enumerate(found):
        if (part.shape, part.dtype) != (tensor.shape, tensor.dtype):
            theirs = f"{list(part.shape)} in {dtype_named(part)}"
            ours = f"{list(tensor.shape)} in {dtype_named(tensor)}"
            raise ValueError(f"{what}: tensor {place} of the list is {theirs}, yours is {ours}")
    return found


def without_gaps(tensor: Tensor, what: str) -> None:
    """Raise TypeError for what is no tensor; ValueError for one whose values don't lie side by side."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} needs a tensor, and got {tensor!r}")
    if not torch.ops.aten.is_non_overlapping_and_dense(tensor):
        raise ValueError("gloo adds up memory, and this tensor is a view with gaps: reduce a copy of it")


def in_one_piece(tensor: Tensor, what: str) -> None:
    """Raise TypeError for what is no tensor; ValueError for a view with gaps, as gloo does: messages are memory."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} needs a tensor, and got {tensor!r}")
    if not tensor.is_contiguous():
        raise ValueError(f"{what} of a view with gaps: tensors must be contiguous")
