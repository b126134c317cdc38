"""Batches on a PretendGPU, and a consumer of them."""

import torch

from lib.streams.prefetch import each_tensor


def plain(x):
    return each_tensor(lambda y: y.as_subclass(torch.Tensor), x)


def items(count=7):
    return [torch.full((4,), float(i)) for i in range(count)]


def on_pretend(gpu, count=7):
    return [gpu.host(x, f"batch {i}") for i, x in enumerate(items(count))]


def train(gpu, batches):
    """A consumer: one launch F0, F1, … a batch, and nothing kept."""
    seen = []
    for batch in batches:  # no enumerate: it holds on to its last item
        with gpu.span(gpu.current_stream(), "compute", f"F{len(seen)}"):
            result = batch + 0
        seen.append(plain(result))
        del batch, result
    return seen
