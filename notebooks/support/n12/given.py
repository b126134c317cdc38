"""What notebook 12 hands to the reader beside the parts of the notebooks before: for nests, and for devices.

Partitioned            says what computes a pair; a MiniGPipe is one
with_checkpoint, tie      a checkpoint and a tie for micro-batches that are nests of tensors
copy_between, wait_between   Copy and Wait where there are streams; between two CPUs there is nothing to do
drawing_from, OwnDropout   random numbers from a generator that the thread was told
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import checkpoint

from lib.pipeline import enable_recomputing
from lib.runtime.dependency import fork, join
from lib.runtime.device import AbstractStream, on_accelerator
from lib.runtime.microbatch import can_have_a_gradient
from support.built import MyCopy, MyWait

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
    """Let backward finish micro-batch i before it comes to i - 1: as notebook 11's depend, tensor by tensor."""
    (earlier, before), (later, after) = (tree_flatten(batches[k]) for k in (i - 1, i))
    for a, b in product(ways_back(earlier), ways_back(later)):
        earlier[a], phony = fork(earlier[a])
        later[b] = join(later[b], phony)
    batches[i - 1] = tree_unflatten(earlier, before)
    batches[i] = tree_unflatten(later, after)


def ways_back(leaves: Sequence[Any]) -> list[int]:
    """Return the places of the tensors that want a gradient; if none does, the first that can have one."""
    places = [k for k, x in enumerate(leaves) if isinstance(x, Tensor) and can_have_a_gradient(x)]
    return [k for k in places if leaves[k].requires_grad] or places[:1]


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
