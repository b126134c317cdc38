"""One model on many devices: micro-batches, workers, checkpoints, the order of backward; and GPipe, all of it."""

from lib.pipeline.balance import balance_by_size, balance_by_time, partition
from lib.pipeline.batchnorm import DeferredBatchNorm, convert_deferred_batch_norm
from lib.pipeline.checkpoint import is_checkpointing, is_recomputing
from lib.pipeline.gpipe import GPipe
from lib.pipeline.pipeline import Pipeline, clock_cycles
from lib.pipeline.skip import Namespace, pop, skippable, stash, verify_skippables
from lib.runtime.microbatch import Batch, gather, scatter
from lib.runtime.partitions import flatten_sequential

# fmt: off
__all__ = [
    "Batch", "DeferredBatchNorm", "GPipe", "Namespace", "Pipeline", "balance_by_size", "balance_by_time",
    "clock_cycles", "convert_deferred_batch_norm", "flatten_sequential", "gather", "is_checkpointing", "is_recomputing",
    "partition", "pop", "scatter", "skippable", "stash", "verify_skippables",
]
