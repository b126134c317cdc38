"""What notebook 12 hands to the reader beside the parts of the notebooks before: for nests, and for devices.

Partitioned            says what computes a pair; a MiniGPipe is one
with_checkpoint, tie      a checkpoint and a tie for micro-batches that are nests of tensors
copy_between, wait_between   Copy and Wait where there are streams; between two CPUs there is nothing to do
drawing_from, OwnDropout   random numbers from a generator that the thread was told
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from lib.pipeline import enable_recomputing
from lib.runtime.device import AbstractStream, on_accelerator
from support.built import MyCopy, MyWait, depend

# ---- what a MiniGPipe is


class Partitioned(nn.Module):
    """Hold `partitions`, and say what computes a pair: who wants another answer overrides `layer`."""

    partitions: nn.ModuleList

    def layer(self, i: int, j: int) -> Callable[[Any], Any]:
        """Return what computes micro-batch i in partition j."""
        return self.partitions[j]


# ---- micro-batches that are nests


def with_checkpoint(function: Callable[..., Any], x: Any) -> Any:
    """Return function(x) and keep only x; backward computes it again, and is_recomputing() is true then."""
    contexts = lambda: (nullcontext(), enable_recomputing())  # noqa: E731  (of the first and the second run)
    return checkpoint(function, x, use_reentrant=False, context_fn=contexts)


def tie(batches: list[Any], i: int) -> None:
    """Let backward finish micro-batch i before it comes to i - 1: notebook 11's depend, on one tensor of each nest."""
    flat = [tree_flatten(batches[k]) for k in (i - 1, i)]
    if not all(any(map(can_go_backward, leaves)) for leaves, _ in flat):
        return  # integers alone, as words are: nothing goes back through them
    places = [next(k for k, x in enumerate(leaves) if can_go_backward(x)) for leaves, _ in flat]
    pair = [leaves[place] for (leaves, _), place in zip(flat, places, strict=True)]
    depend(pair, 1)  # type: ignore[no-untyped-call]
    for (leaves, _), place, tied in zip(flat, places, pair, strict=True):
        leaves[place] = tied
    batches[i - 1], batches[i] = (tree_unflatten(leaves, nest) for leaves, nest in flat)


def can_go_backward(x: Any) -> bool:
    """Return whether this is a tensor that may have a gradient: a mask or an index may not."""
    return isinstance(x, Tensor) and x.is_floating_point()


# ---- streams, where there are any


def copy_between(prev_stream: AbstractStream, next_stream: AbstractStream, x: Tensor) -> Tensor:
    """Bring x from the device of one stream to that of the other; backward brings its gradient back."""
    if not on_accelerator(next_stream):
        return x
    moved: Tensor = MyCopy.apply(prev_stream, next_stream, x)  # type: ignore[no-untyped-call]
    return moved


def wait_between(prev_stream: AbstractStream, next_stream: AbstractStream, x: Tensor) -> Tensor:
    """Let next_stream wait for prev_stream; in backward the other way round. Return x, with that in its graph."""
    if not on_accelerator(next_stream):
        return x
    waited: Tensor = MyWait.apply(prev_stream, next_stream, x)  # type: ignore[no-untyped-call]
    return waited


# ---- random numbers

_here = threading.local()


@contextmanager
def drawing_from(generator: torch.Generator) -> Iterator[None]:
    """Let every OwnDropout of this thread draw from the generator within a `with`."""
    before = getattr(_here, "generator", None)
    _here.generator = generator
    try:
        yield
    finally:
        _here.generator = before


class OwnDropout(nn.Module):
    """Set half of the numbers to zero, and double the others; `masks` notes what was drawn, call by call."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """Draw from the generator that the thread was told, else from that of the process."""
        mask = torch.rand(x.shape, generator=getattr(_here, "generator", None)) < 0.5
        self.masks.append(mask)
        return x * mask * 2
