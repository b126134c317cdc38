"""One run of the pipeline: clock by clock, fence the micro-batches, then compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn

from lib import recorder as recording
from lib.pipeline import tracing
from lib.pipeline.checkpoint import Checkpointing, is_recomputing
from lib.pipeline.copy import Copy, Wait
from lib.pipeline.dependency import fork_batch, join, join_batch, lanes_of
from lib.pipeline.microbatch import Batch, Function, TensorOrTensors, check
from lib.pipeline.modes import Modes
from lib.pipeline.phony import get_phony
from lib.pipeline.random_state import Seeds
from lib.pipeline.skip.layout import SkipLayout, inspect_skip_layout
from lib.pipeline.skip.tracker import SkipTrackerThroughPotals, use_skip_tracker
from lib.pipeline.stream import AbstractStream, current_stream, is_cuda, use_device
from lib.pipeline.tracing import Place
from lib.pipeline.worker import InQueue, OutQueue, Result, Task, Workers, spawn_workers

Schedule = Sequence[tuple[int, int]]


def clock_cycles(m: int, n: int) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each of the m + n - 1 clocks, the pairs (micro-batch i, partition j) that run at the same time.

    A pair runs at clock k = i + j, one clock after its input (i, j - 1). For m = 3, n = 3:

        k   (i, j)
        0   (0, 0)
        1   (1, 0)  (0, 1)
        2   (2, 0)  (1, 1)  (0, 2)
        3           (2, 1)  (1, 2)
        4                   (2, 2)
    """
    for k in range(m + n - 1):
        yield [(k - j, j) for j in range(max(0, k - m + 1), min(k + 1, n))]


def copy(batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    """Copy a batch from the device of one stream to that of another, in place."""
    if _matters(prev_stream, next_stream):
        batch[:] = Copy.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


def wait(batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    """Let `next_stream` wait for `prev_stream` before it uses the batch, in place."""
    if _matters(prev_stream, next_stream):
        batch[:] = Wait.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


def _matters(prev_stream: AbstractStream, next_stream: AbstractStream) -> bool:
    # Between CPU partitions there is nothing to copy and to wait for: Copy and Wait are there only when one is looking.
    return is_cuda(prev_stream) or is_cuda(next_stream) or recording.current is not None


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
        self.batches, self.partitions = batches, partitions
        self.devices = [torch.device("cpu")] * len(partitions) if devices is None else list(devices)
        if copy_streams is None:
            copy_streams = [[current_stream(device)] * len(batches) for device in self.devices]
        self.copy_streams = copy_streams
        self.skip_layout = inspect_skip_layout(partitions) if skip_layout is None else skip_layout
        self.checkpoint_stop = checkpoint_stop
        self.seeds = Seeds(len(batches), len(partitions))
        self._ties: dict[int, torch.Tensor] = {}  # by micro-batch: the phony that its Checkpoint takes
        self._turn = 0

    def run(self, workers: Workers | None = None) -> None:
        """Run all clocks, in these workers or in new ones. Raises what a layer raises."""
        skip_trackers = [SkipTrackerThroughPotals(self.skip_layout) for _ in self.batches]
        tasks = len(self.batches) * len(self.partitions)
        self._turn = max(0, _sequence_number() - tasks) if self.checkpoint_stop else 0
        queues: AbstractContextManager[tuple[list[InQueue], list[OutQueue]]]
        if workers is None:
            queues = spawn_workers(self.devices)
        else:
            queues = nullcontext((workers.in_queues, workers.out_queues))
        with queues as (in_queues, out_queues):
            for schedule in clock_cycles(len(self.batches), len(self.partitions)):
                self.fence(schedule, skip_trackers)
                self.compute(schedule, skip_trackers, in_queues, out_queues)

    def fence(self, schedule: Schedule, skip_trackers: list[SkipTrackerThroughPotals]) -> None:
        """Order backward, then bring to each partition what it needs: skip tensors, and the previous one's output."""
        for i, j in schedule:
            if i != 0 and self.dependencies:
                self.depend(i)  # micro-batch i goes backward before i - 1 does
            next_stream = self.copy_streams[j][i]
            for prev_j, ns, name in self.skip_layout.copy_policy(j):
                skip_trackers[i].copy(self.batches[i], self.copy_streams[prev_j][i], next_stream, ns, name)
            if j != 0:
                with tracing.span("copy", Place(i, j), next_stream):
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

    def compute(
        self,
        schedule: Schedule,
        skip_trackers: list[SkipTrackerThroughPotals],
        in_queues: Sequence[InQueue],
        out_queues: Sequence[OutQueue],
    ) -> None:
        """Run the tasks of a clock, each in its partition's worker.

        With checkpointing the autograd graph of a task is:

            │ Copy                        (fence)
            │ Wait          [1]  the compute stream waits for the copied input
            │ Checkpoint    [2]  the partition, without its inside
            │ Wait          [3]  the copy stream waits for the output
            ├── Recompute   [4]  hangs beside, so that backward may start with it
            │ Copy                        (fence of the next clock)
        """
        m, n, modes = len(self.batches), len(self.partitions), Modes.current()
        streams = [current_stream(device) for device in self.devices]
        for i, j in schedule:
            batch, place = self.batches[i], Place(i, j)
            if j != 0:
                wait(batch, self.copy_streams[j][i], streams[j])  # [1]
            layer = partial(
                _run_layer, self.partitions[j], place, (m, n), self.devices[j], self.seeds, skip_trackers[i]
            )
            if i < self.checkpoint_stop:
                checkpointing = Checkpointing(layer, batch, modes=modes, owns_random=True, place=place)
                checkpointing.phony = self._ties.pop(i, None)
                work, finalize = checkpointing.checkpoint, checkpointing.recompute
            else:
                work, finalize = partial(_run_bounded, layer, batch, place, streams[j]), None
            compute = partial(_run_recorded, work, place, streams[j])
            in_queues[j].put(Task(streams[j], compute=compute, finalize=finalize, modes=modes))  # [2]
        error: BaseException | None = None
        # Wait for the last one first: this thread sleeps until all are done, and takes no turn at the interpreter from
        # a worker. Partitions on one CUDA device share a queue, which gives the answers in the order of the tasks.
        answers: dict[int, list[Result]] = {}
        for _, j in reversed(schedule):
            answers.setdefault(id(out_queues[j]), []).append(out_queues[j].get())
        for i, j in schedule:
            ok, answer = answers[id(out_queues[j])].pop(0)
            if not ok and error is None:  # of several errors, that of the first partition
                error = answer[1] if answer else RuntimeError(f"the worker of partition {j} has ended")
            if error is not None:
                continue
            task, batch = answer
            if i < self.checkpoint_stop:
                self._in_turn(batch)
            if j != n - 1:
                wait(batch, streams[j], self.copy_streams[j][i])  # [3]
            with use_device(self.devices[j]):
                task.finalize(batch)  # [4]
            self.batches[i] = batch
        if error is not None:
            try:
                raise error
            finally:
                del error, answer, answers  # their traceback holds this frame: no circle

    def _in_turn(self, batch: Batch) -> None:
        """Number the Checkpoint that made `batch`: of the nodes that are ready, autograd runs the highest number first.

        By itself each worker thread counts for itself, and the order of backward on a CPU would hang on how many nodes
        a thread has ever made. So: every Recompute before any Checkpoint (this thread's numbers are all above _turn),
        the Checkpoints last computed first.
        """
        if lanes := lanes_of(batch):
            batch[lanes[0]].grad_fn._set_sequence_nr(self._turn)  # type: ignore[union-attr]
            self._turn += 1


def _sequence_number() -> int:
    fresh = get_phony(torch.device("cpu"), requires_grad=True) * 1
    return int(fresh.grad_fn._sequence_nr())  # type: ignore[union-attr]


def _run_recorded(work: Callable[[], Batch], place: Place, stream: AbstractStream) -> Batch:
    with tracing.span("compute", place, stream):
        return work()


def _run_bounded(layer: Function, batch: Batch, place: Place, stream: AbstractStream) -> Batch:
    # Here, not in the scheduler: autograd counts nodes by thread, and these must go backward next to the layer's.
    tracing.boundary(batch, place, stream, enters=False)
    output = batch.call(layer)
    tracing.boundary(output, place, stream, enters=True)
    return output


def _run_layer(
    partition: nn.Sequential,
    place: Place,
    shape: tuple[int, int],
    device: torch.device,
    seeds: Seeds,
    skip_tracker: SkipTrackerThroughPotals,
    input: TensorOrTensors,
) -> TensorOrTensors:
    """Compute or recompute a micro-batch; an error is told where it happened.

    Knows nothing of the pipeline and its other micro-batches: the graph keeps this function until backward.
    """
    try:
        with seeds.own(*place), use_skip_tracker(skip_tracker):
            output: TensorOrTensors = partition(input)
        check(output)
        return output
    except BaseException as error:
        note = f"micro-batch {place.i} of {shape[0]} in partition {place.j} of {shape[1]} (on {device})"
        error.add_note(f"{'while recomputing' if is_recomputing() else 'in'} {note}")
        raise
