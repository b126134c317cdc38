"""The ranks of one run: a thread for each does its actions in order; queues hand over what a stage makes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, nn

from lib.pipeline.microbatch import Batch
from lib.pipeline.modes import Modes
from lib.pipeline.random_state import Seeds
from lib.pipeline.schedule.action import Action, Schedule
from lib.pipeline.schedule.simulate import KINDS
from lib.pipeline.spans import device_span, read
from lib.pipeline.stage import Parcel, Stage
from lib.pipeline.stream import (
    AbstractStream,
    as_cuda,
    current_stream,
    is_cuda,
    use_device,
    use_stream,
    wait_stream,
)
from lib.recorder import Recorder
from lib.timeline import Trace

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
Queue: TypeAlias = (
    "SimpleQueue[tuple[Parcel, Any] | None]"  # with the CUDA event after which the parcel is ready
)


class _StoppedError(Exception):
    """Another rank has failed: end without a word."""


@dataclass(frozen=True)
class _Loss:
    """What the last stage makes of its output: what micro-batch i adds to the loss of the batch."""

    function: LossFunction
    targets: Sequence[Any]
    shares: Sequence[float]
    device: torch.device

    def __call__(self, output: Any, i: int) -> Tensor:
        target = self.targets[i]
        if isinstance(target, Tensor):
            target = _move(target, self.device)
        elif isinstance(target, tuple):
            target = tuple(_move(x, self.device) if isinstance(x, Tensor) else x for x in target)
        loss = self.function(output, target)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn must return a tensor with one number, not {found}")
        return loss * self.shares[i]


class Ranks:
    """The threads of one run, and what they share. `live`: the most micro-batches x stages that each rank held."""

    def __init__(
        self,
        schedule: Schedule,
        modules: Sequence[nn.Module],
        devices: Sequence[torch.device],
        streams: Sequence[AbstractStream],
        loss_fn: LossFunction,
    ) -> None:
        self.schedule, self.devices, self.streams, self.loss_fn = schedule, devices, streams, loss_fn
        self.live = [0] * len(devices)
        self.modes, m, n = Modes.current(), schedule.micro_batches, schedule.stages
        self.seeds = Seeds(m, n)
        self.generators = {device: Lock() for device in devices}
        self.recorder = Recorder()
        self.stages = [Stage(module) for module in modules]
        self.queues: dict[tuple[str, int, int], Queue] = {  # by who needs it: F or B, stage, micro-batch
            (op, s, i): SimpleQueue() for op in "FB" for s in range(n) for i in range(m)
        }
        self.made: dict[tuple[str, int, int], Parcel] = {}  # what no stage needs: losses, gradients of inputs
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stopped = False

    def run(
        self, batches: Sequence[Batch], targets: Sequence[Any], shares: Sequence[float]
    ) -> tuple[list[Tensor], Trace]:
        """Start a thread for each rank, wait for all; once only. shares: what the loss of a micro-batch counts."""
        n, ranks = len(self.stages), range(len(self.devices))
        device = self.devices[self.schedule.rank_of[n - 1]]
        self.stages[-1].loss = _Loss(self.loss_fn, targets, shares, device)
        for i, batch in enumerate(batches):
            self.queues["F", 0, i].put((Parcel.of(batch), _event(batch[0].device)))
            self.queues["B", n - 1, i].put((Parcel([]), None))  # the loss waits for nobody's gradient
        for device, stream in zip(self.devices, self.streams, strict=True):
            wait_stream(stream, current_stream(device))
        threads = [Thread(target=self.rank, args=(r,), name=f"rank {r}", daemon=True) for r in ranks]
        error: BaseException | None = None
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                if (error := self.ended.get()) is not None:
                    raise error
        finally:
            del error  # its traceback holds this frame: no circle
            self.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        for device, stream in zip(self.devices, self.streams, strict=True):
            wait_stream(current_stream(device), stream)
        self.back_to_inputs(batches)
        read(self.recorder)
        losses = [self.made["F", n, i].tensors[0] for i in range(len(batches))]
        return cast("list[Tensor]", losses), self.recorder.trace([f"rank {r}" for r in ranks])

    def stop(self) -> None:
        """Let every rank end: after the action that it is in, or at once where it waits."""
        self.stopped = True
        for queue in self.queues.values():
            queue.put(None)

    def rank(self, rank: int) -> None:
        """Be the thread of a rank."""
        # Backward of what autocast did is not autocast again; autograd looks at this thread's mode.
        modes = self.modes._replace(autocast=tuple(None for _ in self.modes.autocast))
        try:
            with use_device(self.devices[rank]), use_stream(self.streams[rank]), modes.use():
                for action in self.schedule.actions(rank):
                    try:
                        self.act(rank, action)
                    except BaseException as inner:
                        inner.add_note(f"while doing {action} on rank {rank}")
                        raise
            self.ended.put(None)
        except _StoppedError:
            self.ended.put(None)
        except BaseException as error:
            self.ended.put(error)  # in no variable that stays: the error's traceback holds this frame

    def act(self, rank: int, action: Action) -> None:
        """Wait for what an action needs, do it, hand over what it makes."""
        op, s, i = action
        stage, device = self.stages[s], self.devices[rank]
        parcel = self.receive("F" if op == "F" else "B", s, i, device) if op != "W" else Parcel([])
        with device_span(self.streams[rank], f"rank {rank}", str(action), KINDS[op], self.recorder):
            if op == "F":
                with self.modes.use(), self.own_random_numbers(i, s, device):
                    made, needed_by = stage.forward(i, parcel), ("F", s + 1, i)
            elif op == "W":
                stage.backward_weight(i)
            else:
                backward = stage.backward if op == "B" else stage.backward_input
                made, needed_by = backward(i, parcel.tensors), ("B", s - 1, i)
        if op == "F":
            mine = (stage for t, stage in enumerate(self.stages) if self.schedule.rank_of[t] == rank)
            self.live[rank] = max(self.live[rank], sum(stage.live for stage in mine))
        if op != "W":
            if needed_by in self.queues:
                self.queues[needed_by].put((made, _event(device)))
            else:
                self.made[needed_by] = made

    def receive(self, op: str, s: int, i: int, device: torch.device) -> Parcel:
        """Take what this action waits for, to its device; on CUDA its stream waits, not the thread."""
        item = None if self.stopped else self.queues[op, s, i].get()
        if item is None:
            raise _StoppedError
        parcel, ready = item
        if ready is not None:
            stream = current_stream(device)
            as_cuda(stream).wait_event(ready) if is_cuda(stream) else ready.synchronize()
        return parcel._replace(tensors=[x if x is None else _move(x, device) for x in parcel.tensors])

    @contextmanager
    def own_random_numbers(self, i: int, s: int, device: torch.device) -> Iterator[None]:
        """Let this thread draw the numbers of (micro-batch, stage)."""
        with self.seeds.own(i, s):
            if device.type != "cuda":
                yield
                return
            generator = torch.cuda.default_generators[device.index]
            with self.generators[device]:  # the ranks on a GPU share its generator: one launches at a time
                before = generator.get_state()
                generator.manual_seed(self.seeds[i, s])
                try:
                    yield
                finally:
                    generator.set_state(before)

    def back_to_inputs(self, batches: Sequence[Batch]) -> None:
        """Add the gradients of the inputs to what the caller made these of."""
        pairs = [
            (x, g.to(x.device))
            for i, batch in enumerate(batches)
            for x, g in zip(batch, self.made["B", -1, i].tensors, strict=True)
            if x.requires_grad and g is not None
        ]
        if pairs:
            torch.autograd.backward([x for x, _ in pairs], [g for _, g in pairs])


def _event(device: torch.device) -> Any:
    """Mark what is queued now on this thread's stream of a CUDA device; None for a CPU."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _move(x: Tensor, device: torch.device) -> Tensor:
    """Return x for use on the current stream of `device`; its memory isn't given away before."""
    if x.is_cuda:  # of another device: this stream of it is where the copy runs
        x.record_stream(torch.cuda.current_stream(x.device))
    return x.to(device, non_blocking=device.type == "cuda")
