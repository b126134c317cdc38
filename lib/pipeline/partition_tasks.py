"""What a partition does with a micro-batch: the task for its worker, with all that the layers must find there.

The engine (lib.pipeline.pipeline) says when and on which stream. Here stands how: with or without a Checkpoint, with
the micro-batch's random numbers and skip tensors, with the caller's modes, and so that nobody writes what others need.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from lib.pipeline.checkpoint import Checkpointing
from lib.pipeline.layer import Layer, has_compiled_layers
from lib.pipeline.portal_tracker import SkipTrackerThroughPortals
from lib.pipeline.watch import ModuleWatch, Snapshots, end_forward
from lib.pipeline.worker import Task
from lib.runtime.device import AbstractStream
from lib.runtime.microbatch import Batch
from lib.runtime.random_state import Seeds
from lib.runtime.recording import Place
from lib.runtime.sharing import Lending
from lib.runtime.thread_state import Values, to_take_along


class PartitionTasks:
    """Make the tasks of one run of a pipeline.

    skip_trackers: one a micro-batch. checkpoint_stop: micro-batches below this number are checkpointed. check_values:
    as GPipe's `check`. snapshots: see ModuleWatch.
    """

    def __init__(
        self,
        partitions: Sequence[nn.Sequential],
        skip_trackers: Sequence[SkipTrackerThroughPortals],
        checkpoint_stop: int,
        check_values: bool,
        snapshots: Snapshots | None,
    ) -> None:
        self.partitions = partitions
        self.skip_trackers = skip_trackers
        self.checkpoint_stop = checkpoint_stop
        # Only what is computed again has to find its modules as they were.
        watched = partitions if checkpoint_stop else []
        self.watches = [ModuleWatch(partition, check_values=check_values, snapshots=snapshots) for partition in watched]
        self.lendings = [Lending() for _ in partitions]
        self.compiled = [has_compiled_layers(partition) for partition in partitions]
        self.seeds = Seeds(len(skip_trackers), len(partitions))
        self.taken_along: Values = {}  # by tasks, from the thread that calls the pipeline

    def begin(self) -> None:
        """Take along what this thread has set: autocast, grad mode and the like."""
        self.taken_along = to_take_along()

    def make(self, i: int, j: int, stream: AbstractStream, batch: Batch, phony: Tensor | None) -> Task:
        """Say how partition j computes micro-batch i on a stream, and what follows once its output is there.

        phony: ties the Checkpoint, if it gets one, to what must go backward later.
        """
        tracker = self.skip_trackers[i]
        lending = self.lendings[j]
        checkpointed = i < self.checkpoint_stop
        layer = Layer(
            place=Place(i, j),
            partition=self.partitions[j],
            stream=stream,
            checkpointed=checkpointed,
            seeds=self.seeds,
            skip_tracker=tracker,
            taken_along=self.taken_along,
            compiled=self.compiled[j],
            shared=tracker.shared,
        )
        if checkpointed:
            twice = Checkpointing(
                layer,
                batch,
                lending=lending,
                watch=self.watches[j],
                owns_random_numbers=True,
                phony=phony,
                shared=tracker.shared,
                shared_after=tracker.now_shared,
            )
            return Task(stream, compute=twice.checkpoint, finalize=twice.recompute)
        if j == 0 and self._would_spoil_others() and lending.may_write():
            compute = partial(lending.call, layer, batch, shared=tracker.shared, shared_after=tracker.now_shared)
            return Task(stream, compute=compute, finalize=None)
        return Task(stream, compute=partial(batch.call, layer), finalize=None)

    def _would_spoil_others(self) -> bool:
        # The first partition gets views of one mini-batch. A layer that writes into one of them (nn.ReLU(inplace=True))
        # makes it a new version, which backward of all the others refuses.
        return len(self.skip_trackers) > 1 and torch.is_grad_enabled()

    def end(self, last: Batch) -> None:
        """Keep, for the recomputations, how the modules are after forward; `last` is the last output of it."""
        if self.checkpoint_stop:
            end_forward(self.watches, last)
