"""BatchNorm in a pipeline: normalise each micro-batch, update the running statistics once a mini-batch.

An nn.BatchNorm that sees m micro-batches updates its running statistics m times, each time with a part of the batch.
DeferredBatchNorm keeps the mean and variance of each and joins them at the end, into what nn.BatchNorm finds in the
whole batch. Normalisation stays per micro-batch: that is what micro-batches change, here as in torchgpipe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TypeAlias, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from lib.arguments import integer
from lib.pipeline.checkpoint import is_recomputing
from lib.runtime.thread_state import PerThread, during, goes_along

M = TypeVar("M", bound=nn.Module)
Seen: TypeAlias = list[tuple[int, Tensor, Tensor]]
"""Of each micro-batch since the last commit: the values per channel, their mean, their unbiased variance."""

_statistics: PerThread[dict[DeferredBatchNorm, Seen] | None] = goes_along(PerThread(None))
"""Of the mini-batch that this thread works on, by layer; None outside of one."""

_lock = RLock()  # of all running statistics: threads may use one model


class DeferredBatchNorm(_BatchNorm):
    """Normalise each micro-batch as nn.BatchNorm1d, 2d and 3d do; track the running statistics of whole mini-batches.

    A mini-batch ends at its `chunks`-th micro-batch; inside `mini_batch(…)`, as in a GPipe, at the end of the block,
    however many there were. What lib's own checkpoint recomputes is not counted again; what torch's does, is. What is
    gathered is no buffer: a state dict has the keys of nn.BatchNorm and can be loaded from one to the other.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True, chunks: int = 1
    ) -> None:
        super().__init__(num_features, eps, momentum, affine)
        self._begin(chunks)

    def _begin(self, chunks: int) -> None:
        self.chunks = integer("chunks", chunks, at_least=1)
        self._own: Seen = []

    @property
    def _seen(self) -> Seen:
        """What the mini-batch of this thread has seen, where it is in one; else what the layer itself counts."""
        if _statistics.value is None:
            return self._own
        return _statistics.value.get(self, self._own)

    def forward(self, input: Tensor) -> Tensor:
        """Normalise a micro-batch of shape (batch, channel, …)."""
        if not 2 <= input.dim() <= 5:
            raise ValueError(f"expected (batch, channel, …) of 2 to 5 dimensions, got {tuple(input.shape)}")
        mean = self.running_mean
        var = self.running_var
        if self.training:
            # With momentum 1 torch's own kernel writes this micro-batch's statistics here: no second pass over the
            # input.
            mean = torch.zeros_like(mean)
            var = torch.zeros_like(var)
        output = F.batch_norm(input, mean, var, self.weight, self.bias, self.training, 1.0, self.eps)
        if self.training and not is_recomputing():
            self._count(input.numel() // input.size(1), mean, var)
        return output

    def _count(self, size: int, mean: Tensor, var: Tensor) -> None:
        with _lock:
            seen = self._seen
            seen.append((size, mean, var))
            if seen is self._own and len(seen) == self.chunks:
                self.commit()

    @torch.no_grad()
    def commit(self) -> None:
        """End a mini-batch: move the running statistics towards those of its micro-batches taken together."""
        with _lock:
            if not self._seen:
                return
            mean, var = _together(self._seen)
            self._seen.clear()
            self.num_batches_tracked += 1
            share = self.momentum
            if share is None:  # torch's cumulative average: every mini-batch counts alike
                share = 1 / int(self.num_batches_tracked)
            self.running_mean.copy_(self.running_mean + share * (mean - self.running_mean))
            self.running_var.copy_(self.running_var + share * (var - self.running_var))

    @property
    def sum(self) -> Tensor:
        """The total of each channel over the micro-batches since the last commit (torchgpipe's buffer of that name)."""
        return sum((size * mean for size, mean, _ in self._seen), torch.zeros_like(self.running_mean))

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
            if isinstance(module, (nn.SyncBatchNorm, LazyModuleMixin)):
                kind = type(module).__name__
                raise TypeError(f"a {kind} can't be deferred; use nn.BatchNorm1d, 2d or 3d in the pipeline")
            converted = cls.__new__(cls)
            vars(converted).update(vars(module))  # the very same parameters, buffers and hooks
            converted._begin(chunks)
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_deferred_batch_norm(child, chunks))
        return cast(M, converted)


convert_deferred_batch_norm = DeferredBatchNorm.convert_deferred_batch_norm


def _together(seen: Seen) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased variance of all the values, given those of disjoint parts (Chan et al., 1979).

    Sums of squares would cancel at a large mean, so all is taken as distances from the mean. Sizes and their sum are
    float32: half precision holds whole numbers exactly up to 2,048 only.
    """
    sizes, means, variances = zip(*seen, strict=True)
    size = torch.tensor(sizes, device=means[0].device).float()[:, None]
    mean_of = torch.stack(means)
    mean = (size * mean_of).sum(0) / size.sum()
    squares = (size - 1) * torch.stack(variances) + size * (mean_of - mean) ** 2
    return mean, squares.sum(0) / (size.sum() - 1)


@contextmanager
def mini_batch(*modules: nn.Module) -> Iterator[None]:
    """Make the block one mini-batch for every DeferredBatchNorm in `modules`. An error in it leaves nothing behind.

    It is the mini-batch of this thread, and of the workers that compute for it: another thread has one of its own.
    """
    norms = [part for module in modules for part in module.modules() if isinstance(part, DeferredBatchNorm)]
    statistics: dict[DeferredBatchNorm, Seen] | None = {norm: [] for norm in norms}
    if not statistics:
        statistics = _statistics.value  # a GPipe without such layers, inside of a layer of one that has them
    with during({_statistics: statistics}):
        yield
        for norm in norms:
            norm.commit()
