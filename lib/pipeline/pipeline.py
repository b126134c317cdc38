"""One run of the pipeline: clock by clock, fence the micro-batches, then compute them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from lib import timeline
from lib.pipeline.checkpoint import Checkpointing, Guard, is_recomputing
from lib.pipeline.copy import Copy, Wait
from lib.pipeline.portal import SkipTrackerThroughPortals
from lib.pipeline.skip import SkipLayout, SkipTracker, inspect_skip_layout
from lib.pipeline.worker import Result, Task, Workers, attempt, error_of
from lib.runtime import recording
from lib.runtime.dependency import fork_batch, get_phony, join, join_batch
from lib.runtime.device import AbstractStream, current_stream, get_device, on_accelerator
from lib.runtime.microbatch import Batch, TensorOrTensors, check
from lib.runtime.queues import next_answer
from lib.runtime.random_state import Seeds
from lib.runtime.recording import Place
from lib.runtime.thread_state import during, only_here, this_thread

Clock = Sequence[tuple[int, int]]
"""The pairs (micro-batch i, partition j) that run at the same time."""


def clock_cycles(m: int, n: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each clock k, the pairs (micro-batch i, partition j) with i + j = k: they run at the same time.

    For m = 3, n = 2:  [(0, 0)]    [(1, 0), (0, 1)]    [(2, 0), (1, 1)]    [(2, 1)]
    """
    for k in range(m + n - 1):
        yield [(k - j, j) for j in range(max(0, k - m + 1), min(k + 1, n))]


def copy(batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    """Bring a batch from the device of one stream to that of the next, in place."""
    if _matters(prev_stream, next_stream):
        batch[:] = Copy.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


def wait(batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    """Let the next stream wait until the previous one has made the batch, in place."""
    if _matters(prev_stream, next_stream):
        batch[:] = Wait.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


def _matters(prev_stream: AbstractStream, next_stream: AbstractStream) -> bool:
    # Between two CPU partitions there is nothing to copy and nothing to wait for. Copy and Wait would only pass the
    # tensors on: they stand in the graph if a recorder wants to see them.
    return on_accelerator(prev_stream) or on_accelerator(next_stream) or timeline.current is not None


class Pipeline:
    """Run micro-batches through partitions; `run()` replaces each of `batches` by its output.

    devices: one a partition, CPUs if not given. copy_streams[j][i]: the stream on which micro-batch i is copied to
    partition j. checkpoint_stop: micro-batches below this number are checkpointed.

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
    ) -> None:
        if devices is None:
            devices = [torch.device("cpu") for _ in partitions]
        if copy_streams is None:
            copy_streams = [[current_stream(device)] * len(batches) for device in devices]
        if skip_layout is None:
            skip_layout = inspect_skip_layout(partitions)
        self.batches = batches
        self.partitions = partitions
        self.devices = list(devices)
        self.copy_streams = copy_streams
        self.skip_layout = skip_layout
        self.checkpoint_stop = checkpoint_stop

        self.seeds = Seeds(len(batches), len(partitions))
        # Only what is computed again has to find its modules as they were.
        self.guards = [Guard(partition.modules() if checkpoint_stop else ()) for partition in partitions]
        self._ties: dict[int, torch.Tensor] = {}  # by micro-batch: the phony that its next Checkpoint takes
        self._turn = 0  # the number that the next Checkpoint gets: see _in_turn

    def run(self, workers: Workers | None = None) -> None:
        """Run all clocks, in these workers or in new ones. Raises what a layer raises.

        Where this thread is in a mode that no worker can be given (see only_here), all runs here, task by task.
        """
        m, n = self.seeds.shape
        if only_here():
            workers = Workers([])
        elif workers is None:
            workers = Workers(self.devices)
        if self.checkpoint_stop:
            self._turn = _below_all_nodes_to_come(m * n)
        skip_trackers = [SkipTrackerThroughPortals(self.skip_layout) for _ in self.batches]
        for clock in clock_cycles(m, n):
            self.fence(clock, skip_trackers)
            self.compute(clock, skip_trackers, workers)

    def fence(self, clock: Clock, skip_trackers: list[SkipTrackerThroughPortals]) -> None:
        """Order backward, then bring to each partition what it needs: skip tensors, and the previous one's output."""
        for i, j in clock:
            if i != 0 and self.dependencies:
                self.depend(i)  # micro-batch i goes backward before i - 1 does
            if j == 0:
                continue
            next_stream = self.copy_streams[j][i]
            with recording.span("copy", Place(i, j), next_stream):
                for prev_j, ns, name in self.skip_layout.copy_policy(j):
                    prev_stream = self.copy_streams[prev_j][i]
                    skip_trackers[i].copy(self.batches[i], prev_stream, next_stream, ns, name)
                copy(self.batches[i], self.copy_streams[j - 1][i], next_stream)

    def depend(self, i: int) -> None:
        """Let backward finish micro-batch i, as far as it is now, before it comes to what i - 1 is now."""
        phony = fork_batch(self.batches[i - 1])
        batch = self.batches[i]
        if phony is None or join_batch(batch, phony):
            return
        # The input of the model, without gradient. A Checkpoint can be tied by its own phony; a plain partition only by
        # its input, which costs the gradient of that input: not worth it where nothing is recomputed.
        if i < self.checkpoint_stop:
            self._ties[i] = phony
        elif self.checkpoint_stop:
            lane = next((k for k, x in enumerate(batch) if x.is_floating_point()), None)
            if lane is not None:
                batch[lane] = join(batch[lane], phony)

    def compute(self, clock: Clock, skip_trackers: list[SkipTrackerThroughPortals], workers: Workers) -> None:
        """Run the tasks of a clock, each in its partition's worker.

        With checkpointing the autograd graph of a task is:

            │ Copy                        (fence)
            │ Wait          [1]  the compute stream waits for the copied input
            │ Checkpoint    [2]  the partition, without its inside
            │ Wait          [3]  the copy stream waits for the output
            ├── Recompute   [4]  hangs beside, so that backward may start with it
            │ Copy                        (fence of the next clock)
        """
        # A method of its own: the tasks hold their inputs, and end with this frame, before the next clock needs memory.
        tasks = self.submit(clock, skip_trackers, workers)
        outputs = self.collect(clock, tasks, workers)
        self.finish(clock, tasks, outputs)

    def submit(self, clock: Clock, skip_trackers: list[SkipTrackerThroughPortals], workers: Workers) -> list[Task]:
        """Hand each partition its micro-batch; return the tasks, in the order of the clock."""
        tasks = []
        for i, j in clock:
            stream = current_stream(self.devices[j])
            if j != 0:
                wait(self.batches[i], self.copy_streams[j][i], stream)  # [1]
            task = self._task(i, j, stream, skip_trackers[i])
            if workers.threads:
                workers.in_queues[j].put(task)  # [2]
            tasks.append(task)
        return tasks

    def _task(self, i: int, j: int, stream: AbstractStream, skip_tracker: SkipTracker) -> Task:
        """Say how partition j computes micro-batch i, and what follows once its output is there."""
        batch = self.batches[i]
        guard = self.guards[j]
        layer = _Layer(Place(i, j), self.partitions[j], stream, self.seeds, _to_take_along(skip_tracker))
        if i < self.checkpoint_stop:
            tie = self._ties.pop(i, None)
            checkpointing = Checkpointing(layer, batch, guard=guard, phony=tie)
            return Task(stream, compute=checkpointing.checkpoint, finalize=checkpointing.recompute)
        if self._may_spoil_others(j):
            return Task(stream, compute=partial(guard.call, layer, batch), finalize=None)
        return Task(stream, compute=partial(batch.call, layer), finalize=None)

    def _may_spoil_others(self, j: int) -> bool:
        # The micro-batches that partition 0 gets are views of one mini-batch. If its first layer changes one in place
        # (nn.ReLU(inplace=True)), autograd takes all of them for changed, and refuses to go backward through those
        # that were saved. The guard gives the partition a copy, until it has seen that nothing is written.
        if j != 0 or len(self.batches) == 1:
            return False
        if not torch.is_grad_enabled():
            return False
        return self.guards[j].writes is not False

    def collect(self, clock: Clock, tasks: list[Task], workers: Workers) -> list[Batch]:
        """Wait until every task is done; return the outputs in the order of the clock.

        Raises the error of the first partition that has failed; those of others are dropped.
        """
        results: dict[int, Result] = {}  # by partition
        if workers.threads:
            for j in workers.last_first(j for _, j in clock):
                results[j] = next_answer(workers.out_queues[j])
        else:
            for (_, j), task in zip(clock, tasks, strict=True):
                results[j] = attempt(task)  # [2]
        failed = [j for j, (ok, _) in results.items() if not ok]
        if failed:
            error = error_of(results[min(failed)])
            results.clear()
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which must hold neither it nor its answer: no circle
        outputs = []
        for _, j in clock:
            _, (_, output) = results[j]
            outputs.append(output)
        return outputs

    def finish(self, clock: Clock, tasks: list[Task], outputs: list[Batch]) -> None:
        """Put each output in the place of its micro-batch, and into the graph."""
        for (i, j), task, batch in zip(clock, tasks, outputs, strict=True):
            self.batches[i] = batch
            if i < self.checkpoint_stop:
                self._in_turn(batch)
            if j + 1 < len(self.partitions):
                wait(batch, task.stream, self.copy_streams[j][i])  # [3]
            task.finalize(batch)  # [4]

    def _in_turn(self, batch: Batch) -> None:
        """Number the Checkpoint that made `batch`: of the nodes that are ready, autograd runs the highest number first.

        By itself each worker thread counts for itself, and the order of backward on a CPU would hang on how many nodes
        a thread has ever made. So: every Recompute before any Checkpoint (this thread's numbers are all above _turn),
        the Checkpoints last computed first.
        """
        node: Any = next((x.grad_fn for x in batch if x.grad_fn is not None), None)
        if node is not None:
            node._set_sequence_nr(self._turn)
            self._turn += 1


def _below_all_nodes_to_come(nodes: int) -> int:
    """Return the first of `nodes` numbers that lie below that of every node which this thread will add to a graph."""
    node: Any = (get_phony(torch.device("cpu"), requires_grad=True) * 1).grad_fn
    newest: int = node._sequence_nr()
    return max(0, newest - nodes)


def _to_take_along(skip_tracker: SkipTracker) -> dict[str, Any]:
    """Return what of `this_thread` a task needs in its worker, and again where it is recomputed."""
    state: dict[str, Any] = {"skip_tracker": skip_tracker, "statistics": this_thread.statistics}
    if is_recomputing():  # this pipeline is inside a layer of another one, which computes it again
        state["recomputing"] = True
    return state


@dataclass(eq=False)
class _Layer:
    """A partition with a micro-batch to compute, and perhaps to recompute; an error is told where it happened.

    Knows nothing of the pipeline and its other micro-batches: the graph keeps it until backward.
    """

    place: Place
    partition: nn.Sequential
    stream: AbstractStream
    seeds: Seeds
    thread_state: dict[str, Any]

    def __call__(self, input: TensorOrTensors) -> TensorOrTensors:
        kind = "recompute" if is_recomputing() else "compute"
        try:
            with (
                recording.span(kind, self.place, self.stream),
                self.seeds.own(*self.place),
                during(**self.thread_state),
            ):
                output: TensorOrTensors = self.partition(input)
            check(output)
            recording.follow(input, output, self.place, self.stream)
            return output
        except BaseException as error:
            error.add_note(self._where())
            raise

    def _where(self) -> str:
        i, j = self.place
        m, n = self.seeds.shape
        doing = "while recomputing" if is_recomputing() else "in"
        return f"{doing} micro-batch {i} of {m} in partition {j} of {n} (on {get_device(self.stream)})"
