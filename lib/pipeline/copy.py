"""Copy and Wait: autograd functions that move micro-batches between streams, and back again in backward.

Copy runs on streams of its own, so a copy overlaps with the computing of other micro-batches. Wait is the point where
one stream must have finished before the other goes on. Between two CPU partitions nothing is copied: both only pass on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lib.pipeline import tracing
from lib.pipeline.stream import (
    AbstractStream,
    current_stream,
    get_device,
    is_cuda,
    record_stream,
    use_stream,
    wait_stream,
)


def _move(
    tensors: Iterable[Tensor | None], source: AbstractStream, target: AbstractStream
) -> list[Tensor | None]:
    if not is_cuda(source) and not is_cuda(target):
        return list(tensors)
    device = get_device(target)
    user = current_stream(device)
    moved: list[Tensor | None] = []
    with use_stream(source), use_stream(target):
        for x in tensors:
            y = None if x is None else x.to(device)
            if x is not None and y is not None:
                record_stream(x, source)  # x was allocated on its own compute stream, and is read on this one
                record_stream(y, user)  # y is allocated on the copy stream, and used on the current one
            moved.append(y)
    return moved


def _without_grad(ctx: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
    # else a mask or an index that travels with a tensor that requires grad would seem to require it as well
    ctx.mark_non_differentiable(*(y for x, y in zip(inputs, outputs, strict=True) if not x.requires_grad))


class Copy(torch.autograd.Function):
    """Copy tensors from the device of one stream to that of another; backward copies the gradients back."""

    @staticmethod
    def forward(
        ctx: Any, prev_stream: AbstractStream, next_stream: AbstractStream, *input: Tensor
    ) -> tuple[Tensor, ...]:
        """Return a tuple, also for one tensor."""
        ctx.set_materialize_grads(False)
        ctx.streams, ctx.place = (prev_stream, next_stream), tracing.here()
        output = tuple(y.detach() for y in _move(input, prev_stream, next_stream) if y is not None)
        _without_grad(ctx, input, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
        """Copy the gradients that there are."""
        prev_stream, next_stream = ctx.streams
        with tracing.span("copy", ctx.place, next_stream):
            return None, None, *_move(grad_output, next_stream, prev_stream)


class Wait(torch.autograd.Function):
    """Let `next_stream` wait for `prev_stream`; in backward the other way round."""

    @staticmethod
    def forward(
        ctx: Any, prev_stream: AbstractStream, next_stream: AbstractStream, *input: Tensor
    ) -> tuple[Tensor, ...]:
        """Return aliases of the inputs."""
        ctx.set_materialize_grads(False)
        ctx.streams = prev_stream, next_stream
        wait_stream(next_stream, prev_stream)
        output = tuple(x.detach() for x in input)
        _without_grad(ctx, input, output)
        return output

    @staticmethod
    def backward(ctx: Any, *grad_input: Tensor | None) -> tuple[Tensor | None, ...]:
        """Hand the gradients on once the other stream is done."""
        prev_stream, next_stream = ctx.streams
        wait_stream(prev_stream, next_stream)
        return None, None, *grad_input
