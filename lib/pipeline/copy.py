"""Copy and Wait: autograd functions that move micro-batches between streams, and back again in backward.

Copy runs on streams of its own, so a copy overlaps with the computing of other micro-batches. Wait is the point where
one stream must have finished before the other goes on. Between two CPU partitions nothing is copied: both only pass on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lib.runtime import recording
from lib.runtime.device import (
    AbstractStream,
    current_stream,
    get_device,
    on_accelerator,
    record_stream,
    use_stream,
    wait_stream,
)
from lib.runtime.microbatch import Batch, Tensors
from lib.runtime.no_gradient import Passage, hand_on
from lib.timeline import current_recorder


def _move(tensors: Sequence[Any], source: AbstractStream, target: AbstractStream) -> Sequence[Any]:
    if not on_accelerator(source) and not on_accelerator(target):
        return tensors
    device = get_device(target)
    user = current_stream(device)
    with use_stream(source), use_stream(target):
        moved: list[Any] = [None if x is None else x.to(device) for x in tensors]
    for x, y in zip(tensors, moved, strict=True):
        if x is not None:
            record_stream(x, source)  # x was allocated on its own compute stream, and is read on this one
            record_stream(y, user)  # y is allocated on the copy stream, and used on the current one
    return moved


def _pass_on(
    ctx: Any, way: tuple[AbstractStream, AbstractStream], input: Sequence[Tensor], output: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    ctx.set_materialize_grads(False)
    ctx.way = way
    ctx.place = recording.here()
    aliases = tuple(y.detach() for y in output)
    # Without this a mask or an index that travels with a tensor that requires grad would seem to require it as well.
    without = [y for x, y in zip(input, aliases, strict=True) if not x.requires_grad]
    ctx.mark_non_differentiable(*without)
    return aliases


class Copy(Passage):
    """Copy tensors from the device of one stream to that of another; backward copies the gradients back."""

    @staticmethod
    def forward(ctx: Any, prev_stream: AbstractStream, next_stream: AbstractStream, *input: Tensor) -> Tensors:
        """Return a tuple, also for one tensor."""
        return _pass_on(ctx, (prev_stream, next_stream), input, _move(input, prev_stream, next_stream))

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        """Copy the gradients that there are."""
        prev_stream, next_stream = ctx.way
        with recording.span("copy", ctx.place, next_stream):
            return None, None, *hand_on(ctx, _move(grad_output, next_stream, prev_stream))


class Wait(Passage):
    """Let `next_stream` wait for `prev_stream`; in backward the other way round."""

    @staticmethod
    def forward(ctx: Any, prev_stream: AbstractStream, next_stream: AbstractStream, *input: Tensor) -> Tensors:
        """Return aliases of the inputs."""
        wait_stream(next_stream, prev_stream)
        return _pass_on(ctx, (prev_stream, next_stream), input, input)

    @staticmethod
    def backward(ctx: Any, *grad_input: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand the gradients on once the other stream is done."""
        prev_stream, next_stream = ctx.way
        wait_stream(prev_stream, next_stream)
        return None, None, *hand_on(ctx, grad_input)


def copy(batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    """Bring a batch from the device of one stream to that of the next, in place."""
    if _matters(prev_stream, next_stream):
        batch[:] = Copy.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


def wait(batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    """Let the next stream wait until the previous one has made the batch, in place."""
    if _matters(prev_stream, next_stream):
        batch[:] = Wait.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


def _matters(prev_stream: AbstractStream, next_stream: AbstractStream) -> bool:
    # Between two CPU partitions there is nothing to copy and nothing to wait for. Copy and Wait would only pass the
    # tensors on: they stand in the graph if a recorder wants to see them.
    return on_accelerator(prev_stream) or on_accelerator(next_stream) or current_recorder() is not None
