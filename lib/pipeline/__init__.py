"""One model on many devices: micro-batches, workers, checkpoints, the order of backward; and GPipe, all of it.

gpipe, balance                            the model, as an experiment uses it; how many layers each partition gets
pipeline, worker                          the engine, clock by clock, and the threads that compute for it
partition_tasks, layer                    what a partition does with a micro-batch: the task, and the call inside it
copy, checkpoint, backward_order          the nodes that a step adds to the autograd graph, and their order
skip, skip_layout, skip_tracker           tensors that skip layers: who stashes them, who pops them
portal, portal_tracker                    the way of such a tensor past the partitions between
batchnorm                                 statistics of the whole mini-batch
watch, structure, looking, checksums      whether a partition, computed again, is what it was in forward

torchgpipe's public names are all here, under their own names. Two of them are modules in this package as well, and so
have their own way: lib.pipeline.checkpoint.checkpoint and lib.pipeline.worker.worker.

What differs from torchgpipe 0.0.7 on purpose (tests/lib/pipeline/test_torchgpipe_differences.py tries each line):

    where                                   torchgpipe                            here
    a tuple with unequal rows               each tensor is cut for itself         ValueError
    5 rows, chunks=4                        three micro-batches: 2, 2, 1          four: 2, 1, 1, 1
    3 rows, chunks=8, except_last           all are computed twice                the last is not
    partitions on a CPU                     share one worker, nothing overlaps    have a worker each
    threads                                 are new in each forward               live as long as the model
    SystemExit in a layer                   ends the worker: the caller waits     is raised in the caller
    a layer that writes into its input      an error, or a wrong gradient         gets a copy, and is right
    a weight that changes before backward   is computed again with the new one    RuntimeError
    no_grad in training                     is checkpointed all the same          is not
    random numbers on a CPU                 come from the process's generator     from one of each (i, j)
    autocast                                stays in the caller's thread          comes along to the workers
    DeferredBatchNorm                       takes the biased variance             the unbiased one, as BatchNorm
"""

from lib.pipeline.balance import (
    balance_by_size,
    balance_by_time,
    blockpartition,
    layerwise_sandbox,
    partition,
    profile_sizes,
    profile_times,
)
from lib.pipeline.batchnorm import DeferredBatchNorm, convert_deferred_batch_norm
from lib.pipeline.checkpoint import (
    Checkpoint,
    Checkpointing,
    Recompute,
    enable_checkpointing,
    enable_recomputing,
    is_checkpointing,
    is_recomputing,
)
from lib.pipeline.copy import Copy, Wait
from lib.pipeline.gpipe import GPipe
from lib.pipeline.pipeline import Pipeline, clock_cycles
from lib.pipeline.portal import Portal, PortalBlue, PortalCopy, PortalOrange
from lib.pipeline.portal_tracker import SkipTrackerThroughPortals, SkipTrackerThroughPotals
from lib.pipeline.skip import Skippable, pop, skippable, stash, verify_skippables
from lib.pipeline.skip_layout import SkipLayout, inspect_skip_layout
from lib.pipeline.skip_tracker import Namespace, SkipTracker, current_skip_tracker, use_skip_tracker
from lib.pipeline.worker import Task, spawn_workers
from lib.runtime.dependency import Fork, Join, fork, get_phony, join
from lib.runtime.device import (
    AbstractStream,
    CPUStream,
    as_cuda,
    current_stream,
    default_stream,
    get_device,
    is_cuda,
    new_stream,
    record_stream,
    use_device,
    use_stream,
    wait_stream,
)
from lib.runtime.microbatch import Batch, check, gather, scatter
from lib.runtime.partitions import BalanceError, flatten_sequential, split_module, verify_module

# fmt: off
__all__ = [
    "AbstractStream", "BalanceError", "Batch", "CPUStream", "Checkpoint", "Checkpointing", "Copy", "DeferredBatchNorm",
    "Fork", "GPipe", "Join", "Namespace", "Pipeline", "Portal", "PortalBlue", "PortalCopy", "PortalOrange", "Recompute",
    "SkipLayout", "SkipTracker", "SkipTrackerThroughPortals", "SkipTrackerThroughPotals", "Skippable", "Task", "Wait",
    "as_cuda", "balance_by_size", "balance_by_time", "blockpartition", "check", "clock_cycles",
    "convert_deferred_batch_norm", "current_skip_tracker", "current_stream", "default_stream", "enable_checkpointing",
    "enable_recomputing", "flatten_sequential", "fork", "gather", "get_device", "get_phony", "inspect_skip_layout",
    "is_checkpointing", "is_cuda", "is_recomputing", "join", "layerwise_sandbox", "new_stream", "partition", "pop",
    "profile_sizes", "profile_times", "record_stream", "scatter", "skippable", "spawn_workers", "split_module", "stash",
    "use_device", "use_skip_tracker", "use_stream", "verify_module", "verify_skippables", "wait_stream",
]
