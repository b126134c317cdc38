"""One model on many devices: micro-batches, workers, checkpoints, the order of backward; and GPipe, all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lib._lazy import load_on_use

if TYPE_CHECKING:
    from lib.pipeline.balance import balance_by_size as balance_by_size
    from lib.pipeline.balance import balance_by_time as balance_by_time
    from lib.pipeline.balance import partition as partition
    from lib.pipeline.batchnorm import DeferredBatchNorm as DeferredBatchNorm
    from lib.pipeline.batchnorm import convert_deferred_batch_norm as convert_deferred_batch_norm
    from lib.pipeline.checkpoint import is_checkpointing as is_checkpointing
    from lib.pipeline.checkpoint import is_recomputing as is_recomputing
    from lib.pipeline.gpipe import GPipe as GPipe
    from lib.pipeline.gpipe import flatten_sequential as flatten_sequential
    from lib.pipeline.microbatch import Batch as Batch
    from lib.pipeline.microbatch import gather as gather
    from lib.pipeline.microbatch import scatter as scatter
    from lib.pipeline.pipeline import Pipeline as Pipeline
    from lib.pipeline.pipeline import clock_cycles as clock_cycles
    from lib.pipeline.skip import Namespace as Namespace
    from lib.pipeline.skip import pop as pop
    from lib.pipeline.skip import stash as stash
    from lib.pipeline.skip import verify_skippables as verify_skippables
    from lib.pipeline.skip.skippable import skippable as skippable

HOME = {
    "Batch": "lib.pipeline.microbatch",
    "DeferredBatchNorm": "lib.pipeline.batchnorm",
    "GPipe": "lib.pipeline.gpipe",
    "Namespace": "lib.pipeline.skip",
    "Pipeline": "lib.pipeline.pipeline",
    "balance_by_size": "lib.pipeline.balance",
    "balance_by_time": "lib.pipeline.balance",
    "clock_cycles": "lib.pipeline.pipeline",
    "convert_deferred_batch_norm": "lib.pipeline.batchnorm",
    "flatten_sequential": "lib.pipeline.gpipe",
    "gather": "lib.pipeline.microbatch",
    "is_checkpointing": "lib.pipeline.checkpoint",
    "is_recomputing": "lib.pipeline.checkpoint",
    "partition": "lib.pipeline.balance",
    "pop": "lib.pipeline.skip",
    "scatter": "lib.pipeline.microbatch",
    "skippable": "lib.pipeline.skip",
    "stash": "lib.pipeline.skip",
    "verify_skippables": "lib.pipeline.skip",
}

__all__ = sorted(HOME)
__getattr__, __dir__ = load_on_use(__name__, HOME)
