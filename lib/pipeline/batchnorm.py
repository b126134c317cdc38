"""BatchNorm in a pipeline: normalise each micro-batch, update the running statistics once a mini-batch.

An nn.BatchNorm that sees m micro-batches updates its running statistics m times, each time with a part of the batch.
DeferredBatchNorm keeps the mean and variance of each and joins them at the end, into what nn.BatchNorm finds in the
whole batch. Normalisation stays per micro-batch: that is what micro-batches change, here as in torchgpipe.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from lib._arguments import integer
from lib.pipeline.checkpoint import is_recomputing

M = TypeVar("M", bound=nn.Module)


class DeferredBatchNorm(_BatchNorm):
    """Normalise as nn.BatchNorm1d, 2d and 3d do, and track the running statistics of whole mini-batches.

    A mini-batch ends at its `chunks`-th micro-batch, or with `commit()` if it had fewer. In a pipeline nobody has to
    count: `with mini_batch(model):` makes all that is inside one mini-batch, however many micro-batches there are, and
    drops what a failed forward has gathered. A recomputed micro-batch is not counted again. What is gathered is no
    buffer, so a state dict has the keys of nn.BatchNorm and can be loaded from one to the other.
    """

    _counts = True  # False inside mini_batch
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        chunks: int = 1,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine)
        self.chunks = integer("chunks", chunks, at_least=1)
        self.reset()

    def reset(self) -> None:
        """Forget the micro-batches since the last commit."""
        # of each: the number of values per channel, their mean, their unbiased variance
        self._seen: list[tuple[int, Tensor, Tensor]] = []

    def forward(self, input: Tensor) -> Tensor:
        """Normalise a micro-batch of shape (batch, channel, …)."""
        if not 2 <= input.dim() <= 5:
            raise ValueError(f"expected (batch, channel, …) of 2 to 5 dimensions, got {tuple(input.shape)}")
        affine = self.weight, self.bias
        if not self.training:
            return F.batch_norm(input, self.running_mean, self.running_var, *affine, eps=self.eps)
        if is_recomputing():
            return F.batch_norm(input, None, None, *affine, training=True, eps=self.eps)
        # With momentum 1 torch's own kernel writes this micro-batch's statistics here: no second pass over the input.
        mean, var = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        output = F.batch_norm(input, mean, var, *affine, training=True, momentum=1.0, eps=self.eps)
        self._seen.append((input.numel() // input.size(1), mean, var))
        if self._counts and len(self._seen) == self.chunks:
            self.commit()
        return output

    @torch.no_grad()
    def commit(self) -> None:
        """End a mini-batch: move the running statistics towards those of its micro-batches taken together."""
        if not self._seen:
            return
        mean, var = _together(self._seen)
        self.reset()
        self.num_batches_tracked += 1
        share = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        for running, of_batch in (self.running_mean, mean), (self.running_var, var):
            running.copy_(running + share * (of_batch.to(running.device) - running))

    @property
    def sum(self) -> Tensor:
        """The total of each channel over the micro-batches since the last commit (torchgpipe's buffer of that name)."""
        zero = torch.zeros_like(self.running_mean)
        return torch.stack([zero, *(size * mean for size, mean, _ in self._seen)]).sum(0)

    @classmethod
    def convert_deferred_batch_norm(cls, module: M, chunks: int = 1) -> M:
        """Return `module` with its BatchNorms deferred; parameters, buffers, mode and hooks stay the same objects.

        One that tracks nothing stays as it is. Raises TypeError for a SyncBatchNorm, whose ranks would part unnoticed,
        and for a lazy one, which has no buffers yet.
        """
        if isinstance(module, DeferredBatchNorm) and module.chunks == chunks:
            return cast(M, module)
        converted: nn.Module = module
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            kind = type(module).__name__
            if isinstance(module, (nn.SyncBatchNorm, LazyModuleMixin)):
                raise TypeError(f"a {kind} can't be deferred; use nn.BatchNorm1d, 2d or 3d in the pipeline")
            converted = cls.__new__(cls)
            for name, value in vars(module).items():
                vars(converted)[name] = copy.copy(value) if isinstance(value, (dict, set)) else value
            converted.chunks = integer("chunks", chunks, at_least=1)
            converted.reset()
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_deferred_batch_norm(child, chunks))
        return cast(M, converted)


convert_deferred_batch_norm = DeferredBatchNorm.convert_deferred_batch_norm


@contextmanager
def mini_batch(*modules: nn.Module) -> Iterator[None]:
    """Make the block one mini-batch for every DeferredBatchNorm in `modules`; an error in it leaves nothing behind."""
    norms = [part for module in modules for part in module.modules() if isinstance(part, DeferredBatchNorm)]
    for norm in norms:
        norm._counts = False
        norm.reset()
    try:
        yield
        for norm in norms:
            norm.commit()
    finally:
        for norm in norms:
            norm._counts = True
            norm.reset()


def _together(parts: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased variance of all the values, given those of disjoint parts (Chan et al., 1979).

    Sums of squares would cancel at a large mean, so all is taken as distances: from the first mean, then from the mean.
    """
    dtype = torch.promote_types(parts[0][1].dtype, torch.float32)
    means = torch.stack([mean.to(dtype) for _, mean, _ in parts])
    variances = torch.stack([var.to(dtype) for _, _, var in parts])
    sizes = torch.tensor([[size] for size, _, _ in parts], dtype=dtype, device=means.device)
    total = sizes.sum()
    mean = means[0] + (sizes / total * (means - means[0])).sum(0)
    squares = ((sizes - 1) * variances + sizes * (means - mean) ** 2).sum(0)
    return mean, squares / (total - 1)
