"""BatchNorm in a pipeline: normalise each micro-batch, update the running statistics once a mini-batch."""

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
from lib.runtime.thread_state import during, this_thread

M = TypeVar("M", bound=nn.Module)
Seen: TypeAlias = list[tuple[int, Tensor, Tensor]]
"""Of each micro-batch since the last commit: the values per channel, their mean, their unbiased variance."""

_lock = RLock()  # of all running statistics: threads may use one model


class DeferredBatchNorm(_BatchNorm):
    """Normalise each micro-batch as nn.BatchNorm1d, 2d and 3d do; track the running statistics of whole mini-batches.

    It keeps the mean and variance of each micro-batch, and joins them into what nn.BatchNorm finds in the whole batch.
    A mini-batch ends at its `chunks`-th micro-batch; inside `mini_batch(…)`, as in a GPipe, at the end of the block,
    however many there were. A recomputed micro-batch is not counted again. What is gathered is no buffer: a state dict
    has the keys of nn.BatchNorm and can be loaded from one to the other.
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
        return cast(Seen, (this_thread.statistics or {}).get(self, self._own))

    def forward(self, input: Tensor) -> Tensor:
        """Normalise a micro-batch of shape (batch, channel, …)."""
        if not 2 <= input.dim() <= 5:
            raise ValueError(f"expected (batch, channel, …) of 2 to 5 dimensions, got {tuple(input.shape)}")
        mean, var = self.running_mean, self.running_var
        if self.training:  # with momentum 1 torch's own kernel writes this micro-batch's statistics here
            mean, var = torch.zeros_like(mean), torch.zeros_like(var)
        output = F.batch_norm(input, mean, var, self.weight, self.bias, self.training, 1.0, self.eps)
        if self.training and not is_recomputing():
            with _lock:
                seen = self._seen
                seen.append((input.numel() // input.size(1), mean, var))
                if seen is self._own and len(seen) == self.chunks:
                    self.commit()
        return output

    @torch.no_grad()
    def commit(self) -> None:
        """End a mini-batch: move the running statistics towards those of its micro-batches taken together."""
        with _lock:
            if not self._seen:
                return
            sizes, means, variances = zip(*self._seen, strict=True)
            self._seen.clear()
            self.num_batches_tracked += 1
            share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
            # distances from the mean, as sums of squares would cancel at a large one; size and sum are float32
            size, mean_of = torch.tensor(sizes, device=means[0].device).float()[:, None], torch.stack(means)
            mean = (size * mean_of).sum(0) / size.sum()
            squares = (size - 1) * torch.stack(variances) + size * (mean_of - mean) ** 2
            for running, found in ((self.running_mean, mean), (self.running_var, squares.sum(0) / (size.sum() - 1))):
                running.copy_(running + share * (found - running))

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
            vars(converted).update(vars(module))
            converted._begin(chunks)
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_deferred_batch_norm(child, chunks))
        return cast(M, converted)


convert_deferred_batch_norm = DeferredBatchNorm.convert_deferred_batch_norm


@contextmanager
def mini_batch(*modules: nn.Module) -> Iterator[None]:
    """Make the block a mini-batch, for this thread and its workers, of all DeferredBatchNorms; an error leaves none."""
    norms = [part for module in modules for part in module.modules() if isinstance(part, DeferredBatchNorm)]
    statistics: dict[DeferredBatchNorm, Seen] = {norm: [] for norm in norms}
    with during(statistics=statistics or this_thread.statistics):
        yield
        for norm in norms:
            norm.commit()
