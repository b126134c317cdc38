"""Phonies: tensors of no elements, which carry an edge of the autograd graph and nothing else."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from lib.pipeline.stream import default_stream, use_stream


@cache
def get_phony(device: torch.device, *, requires_grad: bool) -> Tensor:
    """Return the phony of a device, one with and one without gradient.

    An autograd function that returns one must detach it, or else autograd would write into the shared one.
    """
    # as a leaf of the default stream, and an ordinary tensor even when first asked for in inference mode
    with use_stream(default_stream(device)), torch.inference_mode(False):
        return torch.empty(0, device=device, requires_grad=requires_grad)
