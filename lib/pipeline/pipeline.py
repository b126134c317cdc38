"""The engine: one run of micro-batches through partitions, clock by clock.

What a micro-batch passes in a partition, and the node that each step adds to the autograd graph:

    fence    [1]  Join          micro-batch i goes backward before micro-batch i - 1 does
             [2]  Copy          its output of the partition before comes to this device, on a copy stream
    submit   [3]  Wait          the compute stream waits for the copy
             [4]  Checkpoint    the partition's worker computes; its inside stays out of the graph
    finish   [5]  Wait          the copy stream waits for the output
             [6]  Recompute     hangs beside, so that backward may begin with it while gradients are copied

Backward goes from [6] up to [1]. A micro-batch that is not checkpointed has the layers' own nodes at [4], none at [6].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from lib.pipeline.backward_order import BackwardOrder
from lib.pipeline.copy import copy, wait
from lib.pipeline.partition_tasks import PartitionTasks
from lib.pipeline.portal_tracker import SkipTrackerThroughPortals
from lib.pipeline.skip_layout import SkipLayout, inspect_skip_layout
from lib.pipeline.watch import Snapshots
from lib.pipeline.worker import Inline, Runner, Task, Workers
from lib.runtime import recording
from lib.runtime.device import AbstractStream, current_stream
from lib.runtime.microbatch import Batch
from lib.runtime.recording import Place
from lib.runtime.thread_state import only_here

Clock = Sequence[tuple[int, int]]
"""The pairs (micro-batch i, partition j) that run at the same time."""


def clock_cycles(m: int, n: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each clock k, the pairs (micro-batch i, partition j) with i + j = k: they run at the same time.

    m = 3, n = 2     partition 0    partition 1
        clock 0      (0, 0)
        clock 1      (1, 0)         (0, 1)
        clock 2      (2, 0)         (1, 1)
        clock 3                     (2, 1)
    """
    for k in range(m + n - 1):
        yield [(k - j, j) for j in range(max(0, k - m + 1), min(k + 1, n))]


class Pipeline:
    """Run micro-batches through partitions, once; `run()` replaces each of `batches` by its output.

    devices: one a partition, CPUs if not given. copy_streams[j][i]: the stream on which micro-batch i is copied to
    partition j. checkpoint_stop: micro-batches below this number are checkpointed. check_values: as GPipe's `check`.
    snapshots: see ModuleWatch.

    `dependencies = False` (in a subclass) leaves out fork and join: for looking at what they are good for.
    """

    dependencies = True

    def __init__(
        self,
        batches: list[Batch],
        partitions: Sequence[nn.Sequential],
        devices: Sequence[torch.device] | None = None,
        copy_streams: list[list[AbstractStream]] | None = None,
        skip_layout: SkipLayout | None = None,
        checkpoint_stop: int = 0,
        check_values: bool = False,
        snapshots: Snapshots | None = None,
    ) -> None:
        if devices is None:
            devices = [torch.device("cpu") for _ in partitions]
        if copy_streams is None:
            copy_streams = [[current_stream(device)] * len(batches) for device in devices]
        if skip_layout is None:
            skip_layout = inspect_skip_layout(partitions)
        self.partitions = partitions
        self.devices = list(devices)
        self.copy_streams = copy_streams
        self.skip_layout = skip_layout
        self.checkpoint_stop = checkpoint_stop
        # by micro-batch, as it is now: its tensors, and the skip tensors on their way
        self.batches = batches
        self.skip_trackers = [SkipTrackerThroughPortals(skip_layout) for _ in batches]
        for batch, skip_tracker in zip(batches, self.skip_trackers, strict=True):
            skip_tracker.look_who_shares(batch)

        self.tasks = PartitionTasks(partitions, self.skip_trackers, checkpoint_stop, check_values, snapshots)
        self.order = BackwardOrder(checkpoint_stop)

    def run(self, workers: Runner | None = None) -> None:
        """Run all clocks, in these workers or in new ones. Raises what a layer raises.

        Where this thread is in a mode that no worker can be given (see only_here), all runs here, task by task.
        """
        m = len(self.batches)
        n = len(self.partitions)
        if only_here():
            workers = Inline()
        elif workers is None:
            workers = Workers(self.devices)
        self.order.begin(m * n)
        self.tasks.begin()
        for clock in clock_cycles(m, n):
            self.fence(clock)
            self.compute(clock, workers)
        self.tasks.end(self.batches[-1])

    def fence(self, clock: Clock) -> None:
        """Order backward, then bring to each partition what it needs: skip tensors, and the previous one's output."""
        for i, j in clock:
            if i != 0 and self.dependencies:
                # [1] Micro-batch i goes backward before i - 1 does.
                self.order.depend(self.batches, i)

            if j != 0:
                # [2] Skip tensors come from the partitions that stashed them, the micro-batch from the one before.
                next_stream = self.copy_streams[j][i]
                with recording.span("copy", Place(i, j), next_stream):
                    for prev_j, ns, name in self.skip_layout.copy_policy(j):
                        prev_stream = self.copy_streams[prev_j][i]
                        self.skip_trackers[i].copy(self.batches[i], prev_stream, next_stream, ns, name)
                    copy(self.batches[i], self.copy_streams[j - 1][i], next_stream)

    def compute(self, clock: Clock, workers: Runner) -> None:
        """Run the tasks of a clock, each in its partition's worker, all at the same time."""
        # A method of its own: the tasks hold their inputs, and end with this frame, before the next clock needs memory.
        tasks = self.submit(clock, workers)
        outputs = self.collect(clock, workers)
        self.finish(clock, tasks, outputs)

    def submit(self, clock: Clock, workers: Runner) -> list[Task]:
        """Hand each partition its micro-batch; return the tasks, in the order of the clock."""
        tasks = []
        for i, j in clock:
            stream = current_stream(self.devices[j])

            if j != 0:
                # [3] The compute stream waits for the copy.
                wait(self.batches[i], self.copy_streams[j][i], stream)

            # [4] The partition computes, in its worker.
            task = self.tasks.make(i, j, stream, self.batches[i], self._tie(i, j))
            workers.put(j, task)
            tasks.append(task)
        return tasks

    def collect(self, clock: Clock, workers: Runner) -> list[Batch]:
        """Wait until every task is done; return the outputs, in the order of the clock.

        Raises the error of the first partition that has failed; those of others are dropped.
        """
        answers = workers.answers(j for _, j in clock)
        failed = [j for j, answer in answers.items() if not answer.ok]
        if failed:
            error = answers[min(failed)].error
            answers.clear()
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which must hold neither it nor its answer: no circle
        return [answers[j].batch for _, j in clock]

    def finish(self, clock: Clock, tasks: list[Task], outputs: list[Batch]) -> None:
        """Put each output in the place of its micro-batch, and into the graph."""
        for (i, j), task, batch in zip(clock, tasks, outputs, strict=True):
            self.batches[i] = batch
            if i < self.checkpoint_stop:
                # Before [5], where the Checkpoint still is the batch's last node: it is numbered, not the Wait.
                self.order.number(batch)

            if j + 1 < len(self.partitions):
                # [5] The copy stream waits for the output.
                wait(batch, task.stream, self.copy_streams[j][i])

            # [6] The recomputation, if there is one, hangs beside the output.
            task.finalize(batch)
            # What the partition has hidden goes back by this output.
            self.skip_trackers[i].leave(batch)

    def _tie(self, i: int, j: int) -> Tensor | None:
        """Return the phony that ties a Checkpoint to what must go backward later; None if there is no Checkpoint."""
        if i >= self.checkpoint_stop:
            return None
        return self.order.take_tie(i, self.batches[i][0].device, self.skip_trackers[i].ways_back(j))
