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
from lib.pipeline.skip import SkipLayout, SkipTrackerThroughPortals, inspect_skip_layout
from lib.pipeline.worker import InQueue, OutQueue, Task, Workers, attempt
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
    """Yield, for each clock k, the pairs (micro-batch i, partition j) with i + j = k: they run at the same time."""
    for k in range(m + n - 1):
        yield [(k - j, j) for j in range(max(0, k - m + 1), min(k + 1, n))]


def _apply(function: type[Copy | Wait], batch: Batch, prev_stream: AbstractStream, next_stream: AbstractStream) -> None:
    # Between CPU partitions there is nothing to copy and to wait for: Copy and Wait are there only when one is looking.
    if on_accelerator(prev_stream) or on_accelerator(next_stream) or timeline.current is not None:
        batch[:] = function.apply(prev_stream, next_stream, *batch)  # type: ignore[no-untyped-call]


copy, wait = partial(_apply, Copy), partial(_apply, Wait)


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
        self.batches, self.partitions, self.checkpoint_stop = batches, partitions, checkpoint_stop
        self.devices = [torch.device("cpu")] * len(partitions) if devices is None else list(devices)
        self.copy_streams = copy_streams or [[current_stream(x)] * len(batches) for x in self.devices]
        self.skip_layout = inspect_skip_layout(partitions) if skip_layout is None else skip_layout
        self.seeds = Seeds(len(batches), len(partitions))
        self.guards = [Guard(partition.modules() if checkpoint_stop else ()) for partition in partitions]
        self._ties: dict[int, torch.Tensor] = {}  # by micro-batch: the phony that its Checkpoint takes
        self._turn = 0

    def run(self, workers: Workers | None = None) -> None:
        """Run all clocks, in these workers or new ones (or none: see only_here). Raises what a layer raises."""
        m, n = self.seeds.shape
        skip_trackers = [SkipTrackerThroughPortals(self.skip_layout) for _ in self.batches]
        if self.checkpoint_stop:
            newest = (get_phony(torch.device("cpu"), requires_grad=True) * 1).grad_fn
            self._turn = max(0, newest._sequence_nr() - m * n)  # type: ignore[union-attr]
        workers = Workers([]) if only_here() else workers or Workers(self.devices)
        for clock in clock_cycles(m, n):
            self.fence(clock, skip_trackers)
            self.compute(clock, skip_trackers, workers.in_queues, workers.out_queues)

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

    def compute(
        self,
        clock: Clock,
        skip_trackers: list[SkipTrackerThroughPortals],
        in_queues: Sequence[InQueue],
        out_queues: Sequence[OutQueue],
    ) -> None:
        """Run the tasks of a clock, each in its partition's worker; without queues here, one after another.

        With checkpointing the autograd graph of a task is:

            │ Copy                        (fence)
            │ Wait          [1]  the compute stream waits for the copied input
            │ Checkpoint    [2]  the partition, without its inside
            │ Wait          [3]  the copy stream waits for the output
            ├── Recompute   [4]  hangs beside, so that backward may start with it
            │ Copy                        (fence of the next clock)
        """
        streams, tasks = [current_stream(device) for device in self.devices], []
        inside = {"recomputing": True} if is_recomputing() else {}  # a partition of another pipeline
        for i, j in clock:
            batch = self.batches[i]
            if j != 0:
                wait(batch, self.copy_streams[j][i], streams[j])  # [1]
            mine = {"skip_tracker": skip_trackers[i], "statistics": this_thread.statistics, **inside}
            layer, guard = _Layer(Place(i, j), self.partitions[j], streams[j], self.seeds, mine), self.guards[j]
            if i < self.checkpoint_stop:
                checkpointing = Checkpointing(layer, batch, guard=guard, phony=self._ties.pop(i, None))
                compute, finalize = checkpointing.checkpoint, checkpointing.recompute
            elif j == 0 and len(self.batches) > 1 and guard.writes is not False and torch.is_grad_enabled():
                compute, finalize = partial(guard.call, layer, batch), None  # a view: its base is the others', too
            else:
                compute, finalize = partial(batch.call, layer), None
            tasks.append(Task(streams[j], compute=compute, finalize=finalize))  # [2]
            if in_queues:
                in_queues[j].put(tasks[-1])
        # The last one first: this thread sleeps until all are done, and takes no turn at the interpreter from a worker.
        # Partitions on one GPU share a queue, which answers in the order in which it was asked.
        order: Clock = clock
        if out_queues:
            order = sorted(clock, key=lambda pair: out_queues.index(out_queues[pair[1]]), reverse=True)
        answers = [next_answer(out_queues[j]) for _, j in order] if out_queues else [*map(attempt, tasks)]
        ended = None, RuntimeError("a worker has ended")
        errors = {j: (answer or ended)[1] for (_, j), (ok, answer) in zip(order, answers, strict=True) if not ok}
        done = dict(answer for ok, answer in answers if ok)
        del answers
        if errors:
            first = min(errors)
            raise errors.pop(first)  # its traceback holds this frame, which must not hold it
        for (i, j), task in zip(clock, tasks, strict=True):
            batch = self.batches[i] = done[task]
            if i < self.checkpoint_stop:
                self._in_turn(batch)
            if j + 1 < len(self.partitions):
                wait(batch, streams[j], self.copy_streams[j][i])  # [3]
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


@dataclass(eq=False)
class _Layer:
    """A partition with a micro-batch to compute, and perhaps to recompute; an error is told where it happened.

    Knows nothing of the pipeline and its other micro-batches: the graph keeps it until backward.
    """

    place: Place
    partition: nn.Sequential
    stream: AbstractStream
    seeds: Seeds
    mine: dict[str, Any]  # of `this_thread`

    def __call__(self, input: TensorOrTensors) -> TensorOrTensors:
        kind = "recompute" if is_recomputing() else "compute"
        try:
            with recording.span(kind, self.place, self.stream), self.seeds.own(*self.place), during(**self.mine):
                output: TensorOrTensors = self.partition(input)
            check(output)
            recording.follow(input, output, self.place, self.stream)
            return output
        except BaseException as error:
            (i, j), (m, n) = self.place, self.seeds.shape
            note = f"micro-batch {i} of {m} in partition {j} of {n} (on {get_device(self.stream)})"
            error.add_note(f"{'while recomputing' if is_recomputing() else 'in'} {note}")
            raise
