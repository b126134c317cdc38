"""The ranks of one run of a schedule: a thread each; queues hand over what a stage makes.

rank 0   0F0  0F1   .   0B0  0F2  0B1        each rank: a thread, and on a GPU a stream
          │    ▲         ▲ gradient          in between: a queue for each activation and each gradient
          │ activation   │
rank 1    .   1F0  1B0 ──┘ 1F1  1B1          an action begins when what it needs is there
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor

from lib.runtime.device import (
    AbstractStream,
    current_stream,
    default_generator,
    has_streams,
    on_accelerator,
    record_stream,
    use_device,
    use_stream,
    wait_stream,
)
from lib.runtime.microbatch import Batch
from lib.runtime.no_gradient import leads_back
from lib.runtime.queues import next_answer
from lib.runtime.random_state import Seeds, listening
from lib.runtime.recording import device_span, read
from lib.runtime.thread_state import Modes
from lib.schedules.stage import Parcel, Stage
from lib.schedules.table import KINDS, Action, Schedule
from lib.timeline import Recorder, Trace

Queue: TypeAlias = "SimpleQueue[tuple[Parcel, Any] | None]"  # with the event after which the parcel is ready
Destination: TypeAlias = tuple[str, int, int]  # who needs a parcel: F or B (or I, its first half), stage, micro-batch


class _StoppedError(Exception):
    """Another rank has failed: end without a word."""


class RankThreads:
    """The threads of one run, and what they share. `live`: the most micro-batches x stages that each rank held."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Sequence[Stage],
        devices: Sequence[torch.device],
        streams: Sequence[AbstractStream],
        recorder: Recorder,
    ) -> None:
        m = schedule.micro_batches
        n = schedule.stages
        self.schedule = schedule
        self.stages = stages
        self.devices = devices
        self.streams = streams
        self.recorder = recorder
        self.live = [0] * len(devices)
        self.modes = Modes.current()
        self.seeds = Seeds(m, n)
        self.generators = {device: Lock() for device in devices}
        every = [(op, s, i) for op in "FB" for s in range(n) for i in range(m)]
        self.queues: dict[Destination, Queue] = {destination: SimpleQueue() for destination in every}
        self.made: dict[Destination, Parcel] = {}  # what no stage needs: losses, gradients of inputs
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stopped = False

    def run(self, batches: Sequence[Batch], sources: Collection[torch.device]) -> tuple[list[Tensor], Trace]:
        """Do all actions, once only. Return what each micro-batch adds to the loss, and what ran when.

        sources: the devices of inputs and targets.
        """
        n = len(self.stages)
        for i, batch in enumerate(batches):
            self.queues["F", 0, i].put((Parcel.of(batch), None))  # nobody makes it: it is there, see below
            self.queues["B", n - 1, i].put((Parcel([]), None))  # the loss waits for nobody's gradient
        for device, stream in zip(self.devices, self.streams, strict=True):
            # The caller may still be writing inputs and targets, on any device, and weights on this one.
            for place in {*sources, device}:
                wait_stream(stream, current_stream(place))
        self.start_and_wait()
        for device, stream in zip(self.devices, self.streams, strict=True):
            wait_stream(current_stream(device), stream)
        self.back_to_inputs(batches)
        read(self.recorder)
        losses = [self.made["F", n, i].tensors[0] for i in range(len(batches))]
        lanes = [f"rank {rank}" for rank in range(len(self.devices))]
        return cast("list[Tensor]", losses), self.recorder.trace(lanes)

    def start_and_wait(self) -> None:
        """Start a thread for each rank, wait for all, raise the first error of any."""
        ranks = range(len(self.devices))
        # Each in a copy of this thread's contextvars: a context is one thread's at a time.
        threads = [
            Thread(target=copy_context().run, args=(self.rank, rank), name=f"rank {rank}", daemon=True)
            for rank in ranks
        ]
        error: BaseException | None = None
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                error = next_answer(self.ended)
                if error is not None:
                    raise error
        finally:  # also when this thread is interrupted: no rank may go on, or wait for one that has ended
            del error  # its traceback holds this frame: no circle
            self.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    def stop(self) -> None:
        """Let every rank end: after the action that it is in, or at once where it waits."""
        self.stopped = True
        for queue in self.queues.values():
            queue.put(None)

    # ---- in the thread of a rank

    def rank(self, rank: int) -> None:
        """Do the actions of a rank in order; say how it ended."""
        # Backward of what autocast did is not autocast again; autograd looks at this thread's mode.
        modes = self.modes._replace(autocast=())
        try:
            device = use_device(self.devices[rank])
            stream = use_stream(self.streams[rank])
            with device, stream, modes.use(), listening():
                for action in self.schedule.actions(rank):
                    try:
                        self.act(rank, action)
                    except BaseException as inner:
                        inner.add_note(f"while doing {action} on rank {rank}")
                        raise
            self.ended.put(None)
        except _StoppedError:
            self.ended.put(None)
        except BaseException as error:  # into no variable that stays: its traceback holds this frame
            self.ended.put(error)

    def act(self, rank: int, action: Action) -> None:
        """Do one action, on the stream of its rank."""
        op, s, i = action
        device = self.devices[rank]
        # 1 Wait for what it needs: an activation, a gradient, or (a W) nothing.
        parcel = self.receive(action, device)
        # 2 Do it. Only this is its span: a rank that waits has done nothing yet.
        with device_span(self.streams[rank], f"rank {rank}", str(action), KINDS[op], self.recorder):
            made = self.compute(action, parcel, device)
        # 3 Count what the rank holds. Only a forward has added to it.
        if op == "F":
            mine = (stage for t, stage in enumerate(self.stages) if self.schedule.rank_of[t] == rank)
            self.live[rank] = max(self.live[rank], sum(stage.live for stage in mine))
        # 4 Hand over what it made: an activation to the next stage, a gradient to the one before.
        if made is not None:
            needed_by = ("F", s + 1, i) if op == "F" else ("B", s - 1, i)
            if needed_by in self.queues:
                self.queues[needed_by].put((made, _event(device)))
            else:
                self.made[needed_by] = made

    def receive(self, action: Action, device: torch.device) -> Parcel:
        """Take what this action waits for, to its device; on a GPU its stream waits, not the thread."""
        op, s, i = action
        if op == "W":
            return Parcel([])
        if self.stopped:
            raise _StoppedError
        item = self.queues["F" if op == "F" else "B", s, i].get()
        if item is None:
            raise _StoppedError
        parcel, ready = item
        if ready is not None:
            stream = current_stream(device)
            if on_accelerator(stream):
                stream.wait_event(ready)
            else:
                ready.synchronize()
        return parcel._replace(tensors=[x if x is None else move_to(device, x) for x in parcel.tensors])

    def compute(self, action: Action, parcel: Parcel, device: torch.device) -> Parcel | None:
        """Let the stage do it; return what it makes."""
        op, s, i = action
        stage = self.stages[s]
        if op == "F":
            with self.modes.use(), self.own_random_numbers(i, s, device):
                return stage.forward(i, parcel)
        # What is drawn again in backward (torch.utils.checkpoint) must not meet that of the other ranks.
        with self.seeds.own(i, s, backward=True):
            if op == "B":
                return stage.backward(i, parcel.tensors)
            if op == "I":
                return stage.backward_input(i, parcel.tensors)
            stage.backward_weight(i)
            return None

    @contextmanager
    def own_random_numbers(self, i: int, s: int, device: torch.device) -> Iterator[None]:
        """Let this thread draw the numbers of (micro-batch, stage)."""
        with self.seeds.own(i, s):
            if not has_streams(device):
                yield
                return
            generator = default_generator(device)
            with self.generators[device]:  # the ranks on a GPU share its generator: one launches at a time
                before = generator.get_state()
                generator.manual_seed(self.seeds[i, s])
                try:
                    yield
                finally:
                    generator.set_state(before)

    # ---- after all have ended

    def back_to_inputs(self, batches: Sequence[Batch]) -> None:
        """Add the gradients of the inputs to what the caller made these of."""
        inputs = []
        gradients = []
        for i, batch in enumerate(batches):
            for x, g in zip(batch, self.made["B", -1, i].tensors, strict=True):
                if g is not None and leads_back(x):
                    inputs.append(x)
                    gradients.append(g.to(x.device))
        if inputs:
            torch.autograd.backward(inputs, gradients)


def _event(device: torch.device) -> Any:
    """Mark what is queued now on this thread's stream of a GPU; None for a CPU."""
    stream = current_stream(device)
    return stream.record_event() if on_accelerator(stream) else None


def move_to(device: torch.device, x: Tensor) -> Tensor:
    """Return x for use on the current stream of `device`; its memory isn't given away before."""
    record_stream(x, current_stream(x.device))  # of another device: this stream of it is where the copy runs
    return x.to(device, non_blocking=has_streams(device))
