"""A batch whose items say where they come from, and the way of cutting it in which rows get lost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def numbered(rows: int, width: int) -> Tensor:
    """Return a tensor of rows × width whose items say where they come from: 42 is row 4, column 2."""
    return 10 * torch.arange(rows)[:, None] + torch.arange(width)


def zip_of_chunks(tensors: Sequence[Tensor], chunks: int) -> Sequence[Sequence[Tensor]]:
    """Cut each tensor by torch.chunk and zip the parts, as torchgpipe does: what has no partner is lost."""
    return list(zip(*(tensor.chunk(chunks) for tensor in tensors), strict=False))
