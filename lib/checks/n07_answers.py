"""Answers to the exercises of notebook 07: the right ones, and the wrong ones that its checks know by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lib.figures.micro_batches import zip_of_chunks
from lib.pipeline.microbatch import scatter

Parts: TypeAlias = Sequence[Any]
Cut: TypeAlias = Callable[[tuple[Tensor, ...], int], Parts]
Join: TypeAlias = Callable[[Parts], Any]


# ---- exercise 1: cut


def true_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Cut every tensor along its rows, as even as can be, the longer parts first, none empty."""
    return [tuple(batch) for batch in scatter(tensors, chunks)]


def chunk_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Use torch.chunk's sizes (wrong)."""
    return zip_of_chunks(tensors, chunks)


def floor_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Cut parts of rows // chunks and stop (wrong)."""
    size = len(tensors[0]) // chunks
    return [tuple(x[i * size : (i + 1) * size] for x in tensors) for i in range(chunks)]


def rest_last(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Cut parts of rows // chunks and give the rest to the last (wrong)."""
    size, rows = len(tensors[0]) // chunks, len(tensors[0])
    ends = [(i + 1) * size for i in range(chunks - 1)] + [rows]
    return [tuple(x[i * size : end] for x in tensors) for i, end in enumerate(ends)]


def ceil_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Cut parts of the ceiling, down to empty ones (wrong)."""
    size = -(-len(tensors[0]) // chunks)
    return [tuple(x[i * size : (i + 1) * size] for x in tensors) for i in range(chunks)]


def empty_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Use tensor_split as it is (wrong with fewer rows than chunks)."""
    return list(zip(*(x.tensor_split(chunks) for x in tensors), strict=True))


def longer_last(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Cut at the multiples of rows / chunks (even, but another order)."""
    rows = len(tensors[0])
    m = min(rows, chunks)
    return [tuple(x[i * rows // m : (i + 1) * rows // m] for x in tensors) for i in range(m)]


def stride_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Take every chunks-th row, as DistributedSampler does (wrong)."""
    return [tuple(x[i::chunks] for x in tensors) for i in range(min(chunks, len(tensors[0])))]


def column_cut(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Cut dimension 1 (wrong)."""
    return list(zip(*(x.tensor_split(chunks, dim=1) for x in tensors), strict=True))


def by_tensor(tensors: tuple[Tensor, ...], chunks: int) -> Parts:
    """Return a list a tensor instead of a tuple a micro-batch (wrong)."""
    return [x.tensor_split(min(chunks, len(x))) for x in tensors]


# ---- exercise 2: join


def true_join(parts: Parts) -> tuple[Tensor, ...]:
    """Join the k-th tensors of all micro-batches, for every k."""
    return tuple(torch.cat(same) for same in zip(*parts, strict=True))


def stacked(parts: Parts) -> Any:
    """Stack (wrong): a new dimension, and only for parts of one size."""
    return tuple(torch.stack(same) for same in zip(*parts, strict=True))


def joined_columns(parts: Parts) -> Any:
    """Join along dimension 1 (wrong)."""
    return tuple(torch.cat(same, dim=1) for same in zip(*parts, strict=True))


def joined_across(parts: Parts) -> Any:
    """Join the tensors of one micro-batch with each other (wrong)."""
    return tuple(torch.cat(part, dim=1) for part in parts)


def first_only(parts: Parts) -> Any:
    """Join the first tensor only (wrong)."""
    return (torch.cat([part[0] for part in parts]),)


def not_a_tuple(parts: Parts) -> Any:
    """Join all, but for one tensor return it bare (wrong here: a tuple was cut)."""
    joined = true_join(parts)
    return joined[0] if len(joined) == 1 else joined


# ---- exercise 3: the gradient of all tokens

NO_TOKEN = -100
Backward: TypeAlias = Callable[[nn.Module, list[tuple[Tensor, Tensor]]], object]


def true_backward(model: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> None:
    """Add to .grad the gradient of the mean loss over all tokens."""
    tokens = sum(int((y != NO_TOKEN).sum()) for _, y in parts)
    for x, y in parts:
        torch.autograd.backward(F.cross_entropy(model(x), y, ignore_index=NO_TOKEN, reduction="sum") / tokens)


def _weighted(weigh: Callable[[int, list[tuple[Tensor, Tensor]]], float]) -> Backward:
    """Make a wrong answer that multiplies the mean loss of micro-batch i by weigh(i, parts)."""

    def backward(model: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> None:
        for i, (x, y) in enumerate(parts):
            torch.autograd.backward(F.cross_entropy(model(x), y, ignore_index=NO_TOKEN) * weigh(i, parts))

    return backward


undivided = _weighted(lambda i, parts: 1.0)
by_parts = _weighted(lambda i, parts: 1 / len(parts))
by_rows = _weighted(lambda i, parts: len(parts[i][0]) / sum(len(x) for x, _ in parts))


def sum_over_rows(model: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> None:
    """Divide the summed loss by all rows, padding included (wrong)."""
    rows = sum(len(x) for x, _ in parts)
    for x, y in parts:
        torch.autograd.backward(F.cross_entropy(model(x), y, ignore_index=NO_TOKEN, reduction="sum") / rows)


def last_only(model: nn.Module, parts: list[tuple[Tensor, Tensor]]) -> None:
    """Clear .grad before every backward (wrong)."""
    tokens = sum(int((y != NO_TOKEN).sum()) for _, y in parts)
    for x, y in parts:
        model.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(x), y, ignore_index=NO_TOKEN, reduction="sum") / tokens)
