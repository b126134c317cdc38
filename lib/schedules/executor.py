"""Run any schedule: a thread for each rank does its actions in order; queues hand over what a stage makes.

    rank 0   0F0  0F1   .   0B0  0F2  0B1        each rank: a thread, and on a GPU a stream
              │    ▲         ▲ gradient          in between: a queue for each activation and each gradient
              │ activation   │
    rank 1    .   1F0  1B0 ──┘ 1F1  1B1          an action begins when what it needs is there

What a stage gets is cut off from the graph of the stage before (see Stage), so that every backward is a call of its own
in the thread of its rank. On a CPU autograd works in the thread that calls it: stages overlap in both directions. For
GPUs it has one thread for each device: ranks that share a GPU launch their backwards one after the other, into streams
of their own. The ranks' threads live as long as a run; to start them takes some 0.1 ms. They share the GIL, but send
nothing: a step costs fewer CPU seconds than torch.distributed.pipelining's on processes, half as many in a tiny model,
a tenth less in a larger one (tests/bench/bench_engine.py). A legal schedule can't hang, others are refused first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lib.runtime.dependency import get_phony, join
from lib.runtime.device import (
    current_stream,
    default_generator,
    has_streams,
    new_stream,
    on_accelerator,
    record_stream,
    use_device,
    use_stream,
    wait_stream,
    with_index,
)
from lib.runtime.microbatch import Batch, TensorOrTensors, check, scatter
from lib.runtime.queues import next_answer
from lib.runtime.random_state import Seeds, listening
from lib.runtime.recording import device_span, read
from lib.runtime.thread_state import Modes
from lib.schedules.simulate import KINDS
from lib.schedules.split_backward import Grads, backward_input
from lib.schedules.table import Action, Schedule, validate
from lib.timeline import Recorder, Trace

# ---- a stage
#
# activation ── detach ──> input ── module ──> output ── detach ──> activation of the next stage
# gradient  <───────────── input.grad <─────── output <──────────── gradient from the next stage


class Parcel(NamedTuple):
    """What one stage hands to another: activations or gradients, without graph.

    wanted: of which activations a gradient is wanted back. atomic: one tensor, not a tuple. Of the gradients, None
    stands for one that there is not.
    """

    tensors: Sequence[Tensor | None]
    wanted: Sequence[bool] = ()
    atomic: bool = True

    @classmethod
    def of(cls, batch: Batch) -> Parcel:
        """Pack activations."""
        return cls([x.detach() for x in batch], [x.requires_grad for x in batch], batch.atomic)


class Stage:
    """Run a module forward and back, micro-batch by micro-batch, in any order; one thread at a time.

    loss: what the last stage makes of its output, loss(output, i): there backward begins.
    """

    def __init__(self, module: nn.Module, loss: Callable[[Any, int], Tensor] | None = None) -> None:
        self.module, self.loss = module, loss
        self._graphs: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # micro-batch: inputs, outputs
        self._later: dict[int, Callable[[], None]] = {}

    @property
    def live(self) -> int:
        """How many micro-batches are held: forward is done, and not yet all of backward."""
        return len(self._graphs) + len(self._later)

    def forward(self, i: int, parcel: Parcel) -> Parcel:
        """Compute micro-batch i; return its activation, or the loss."""
        inputs = []
        for x, wanted in zip(parcel.tensors, parcel.wanted, strict=True):
            assert x is not None
            inputs.append(x.detach().requires_grad_(wanted))
        # a leaf may not be changed in place (nn.ReLU(inplace=True)); what comes out of a function may
        given = tuple(join(x, get_phony(x.device, requires_grad=False)) for x in inputs)
        value = self.module(given[0] if parcel.atomic else given)
        if self.loss is not None:
            value = self.loss(value, i)
        check(value)
        batch = Batch(value)
        self._graphs[i] = inputs, list(batch)
        return Parcel.of(batch)

    def backward(self, i: int, grads: Sequence[Tensor | None]) -> Parcel:
        """Walk the whole graph of micro-batch i: B. Weights get their share, the inputs' gradients are returned."""
        inputs, outputs = self._graphs.pop(i)
        if used := self._used(outputs, grads):
            torch.autograd.backward([y for y, _ in used], [g for _, g in used])
        return Parcel([x.grad for x in inputs])

    def backward_input(self, i: int, grads: Sequence[Tensor | None]) -> Parcel:
        """Do the part that the stage before waits for: I."""
        inputs, outputs = self._graphs.pop(i)
        used = self._used(outputs, grads)
        found, self._later[i] = backward_input([y for y, _ in used], [g for _, g in used], inputs)
        return Parcel(found)

    def backward_weight(self, i: int) -> None:
        """Do the rest: W."""
        self._later.pop(i)()

    def _used(self, outputs: Sequence[Tensor], grads: Grads) -> list[tuple[Tensor, Tensor | None]]:
        # none, where a stage needs no gradients or nothing of its output is used: then it has nothing to do
        if self.loss is not None:
            return [(outputs[0], None)]
        return [(y, g) for y, g in zip(outputs, grads, strict=True) if y.requires_grad and g is not None]


# ---- the ranks of one run

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]
Queue: TypeAlias = "SimpleQueue[tuple[Parcel, Any] | None]"  # with the event after which the parcel is ready


class _StoppedError(Exception):
    """Another rank has failed: end without a word."""


def _part_of_loss(
    function: LossFunction, targets: Sequence[Any], shares: Sequence[float], device: torch.device
) -> Callable[[Any, int], Tensor]:
    """Return what the last stage makes of its output: what micro-batch i adds to the loss of the batch."""

    def loss_of(output: Any, i: int) -> Tensor:
        target, move = targets[i], partial(_move, device=device)  # a walk through a tree takes as long as a layer
        loss = function(output, move(target) if isinstance(target, Tensor) else tree_map_only(Tensor, move, target))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn must return a tensor with one number, not {found}")
        return loss * shares[i]

    return loss_of


class Ranks:
    """The threads of one run, and what they share. `live`: the most micro-batches x stages that each rank held."""

    def __init__(self, executor: Executor, stages: list[Stage]) -> None:
        self.schedule, self.stages, self.recorder = executor.schedule, stages, executor.recorder
        self.devices, self.streams, self.live = executor.devices, executor.streams, [0] * len(executor.devices)
        self.modes, m, n = Modes.current(), self.schedule.micro_batches, self.schedule.stages
        self.seeds = Seeds(m, n)
        self.generators = {device: Lock() for device in self.devices}
        self.queues: dict[tuple[str, int, int], Queue] = {  # by who needs it: F or B, stage, micro-batch
            (op, s, i): SimpleQueue() for op in "FB" for s in range(n) for i in range(m)
        }
        self.made: dict[tuple[str, int, int], Parcel] = {}  # what no stage needs: losses, gradients of inputs
        self.ended: SimpleQueue[BaseException | None] = SimpleQueue()
        self.stopped = False

    def run(self, batches: Sequence[Batch]) -> tuple[list[Tensor], Trace]:
        """Start a thread for each rank, wait for all; once only."""
        n, ranks = len(self.stages), range(len(self.devices))
        for i, batch in enumerate(batches):
            self.queues["F", 0, i].put((Parcel.of(batch), _event(batch[0].device)))
            self.queues["B", n - 1, i].put((Parcel([]), None))  # the loss waits for nobody's gradient
        for device, stream in zip(self.devices, self.streams, strict=True):
            wait_stream(stream, current_stream(device))  # inputs may still be on their way
        threads = [Thread(target=self.rank, args=(r,), name=f"rank {r}", daemon=True) for r in ranks]
        error: BaseException | None = None
        try:
            for thread in threads:
                thread.start()
            for _ in threads:
                if (error := next_answer(self.ended)) is not None:
                    raise error
        finally:  # also when this thread is interrupted: no rank may go on, or wait for one that has ended
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
        modes = self.modes._replace(autocast=())
        try:
            device, stream = use_device(self.devices[rank]), use_stream(self.streams[rank])
            with device, stream, modes.use(), listening():
                for action in self.schedule.actions(rank):
                    try:
                        self.act(rank, action)
                    except BaseException as inner:
                        inner.add_note(f"while doing {action} on rank {rank}")
                        raise
            self.ended.put(None)
        except BaseException as error:  # into no variable that stays: its traceback holds this frame
            self.ended.put(None if isinstance(error, _StoppedError) else error)

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
        if op == "F":  # only now it holds one more
            mine = (stage for t, stage in enumerate(self.stages) if self.schedule.rank_of[t] == rank)
            self.live[rank] = max(self.live[rank], sum(stage.live for stage in mine))
        if op != "W":
            if needed_by in self.queues:
                self.queues[needed_by].put((made, _event(device)))
            else:
                self.made[needed_by] = made

    def receive(self, op: str, s: int, i: int, device: torch.device) -> Parcel:
        """Take what this action waits for, to its device; on a GPU its stream waits, not the thread."""
        item = None if self.stopped else self.queues[op, s, i].get()
        if item is None:
            raise _StoppedError
        parcel, ready = item
        if ready is not None:
            stream = current_stream(device)
            if on_accelerator(stream):
                stream.wait_event(ready)
            else:
                ready.synchronize()
        return parcel._replace(tensors=[x if x is None else _move(x, device) for x in parcel.tensors])

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
    """Mark what is queued now on this thread's stream of a GPU; None for a CPU."""
    stream = current_stream(device)
    return stream.record_event() if on_accelerator(stream) else None


def _move(x: Tensor, device: torch.device) -> Tensor:
    """Return x for use on the current stream of `device`; its memory isn't given away before."""
    record_stream(x, current_stream(x.device))  # of another device: this stream of it is where the copy runs
    return x.to(device, non_blocking=has_streams(device))


# ---- the executor


class Executor:
    """Run `schedule` on `stages`, as often as you like.

    stages: a module for each stage, in order; called as stage(x), or stage((x, y)) if the one before returns a tuple.
    devices: one for each rank, to which its stages are moved; by default where their parameters are. Ranks that share
    a GPU get a stream each. `live`: the most micro-batches x stages that each rank held at once in the last run; it
    is counted, `live_activations(schedule)` predicts it.

    Raises ScheduleError (a ValueError) if the schedule can't run, ValueError for a wrong number of stages or devices or
    a parameter that two ranks use, TypeError for a stage that is no module.
    """

    def __init__(
        self, schedule: Schedule, stages: Sequence[nn.Module], *, devices: Sequence[torch.device | str] | None = None
    ) -> None:
        validate(schedule)
        self.schedule, self.stages = schedule, list(stages)
        ranks, found = len(schedule.ranks), len(self.stages)
        if found != schedule.stages:
            raise ValueError(f"schedule {schedule.name!r} has {schedule.stages} stages; {found} modules were given")
        if devices is not None and len(devices) != ranks:
            raise ValueError(f"schedule {schedule.name!r} has {ranks} ranks; {len(devices)} devices were given")
        owners: dict[Tensor, int] = {}
        for s, stage in enumerate(self.stages):
            if not isinstance(stage, nn.Module):
                raise TypeError(f"a stage must be an nn.Module; stage {s} is a {type(stage).__name__}")
            rank = schedule.rank_of[s]
            for name, parameter in stage.named_parameters():
                owner = owners.setdefault(parameter, rank)
                if owner != rank:
                    raise ValueError(f"parameter {name!r} of stage {s} is on ranks {owner} and {rank}: share none")
        wanted = [self._home(r) for r in range(ranks)] if devices is None else map(torch.device, devices)
        self.devices = [with_index(device) for device in wanted]
        for s, stage in enumerate(self.stages):
            stage.to(self.devices[schedule.rank_of[s]])
        self.streams = [new_stream(device) for device in self.devices]
        self.live, self.recorder = [0] * ranks, Recorder()  # one for all runs: it makes a folder

    def _home(self, rank: int) -> torch.device:
        mine = (stage for s, stage in enumerate(self.stages) if self.schedule.rank_of[s] == rank)
        return next((p.device for stage in mine for p in stage.parameters()), torch.device("cpu"))

    def run(
        self, inputs: TensorOrTensors | list[TensorOrTensors], targets: Any, loss_fn: LossFunction, *,
        reduction: str = "mean",
    ) -> tuple[list[Tensor], Trace]:  # fmt: skip
        """Do all actions. Return what each micro-batch adds to the loss (it is their sum), and what ran when.

        inputs, targets: whole batches, to be scattered into the schedule's micro-batches, or lists of micro-batches.
        loss_fn(output, target) gives a micro-batch's loss. reduction: how they make up that of the batch. "mean": by
        their rows, so that uneven micro-batches, too, give the gradients of the plain model; "sum". Gradients are added
        to `.grad`, that of an input as well if it requires one.

        The caller's autocast (forward) and number of threads hold in all ranks. Random numbers belong to (micro-batch,
        stage): a seeded run repeats, whatever the threads do. Raises ValueError for what can't be cut into that many
        micro-batches, targets scattered to other rows than the inputs, or an unknown reduction; RuntimeError under
        no_grad. If a stage raises, all ranks end and the same exception is raised here, with a note that names the
        action; some gradients have been added by then.
        """
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise RuntimeError("a schedule goes backward: run it outside of no_grad and inference_mode")
        batches = [Batch(value) for value in self.cut("inputs", inputs)]
        wanted = self.cut("targets", targets)
        for batch in batches:
            check(batch.value)
        rows = [len(batch[0]) for batch in batches]
        if not isinstance(targets, list):
            found = [len(target[0] if isinstance(target, tuple) else target) for target in wanted]
            if found != rows:
                raise ValueError(f"the micro-batches have {rows} rows of inputs, but {found} of targets")
        total = sum(rows) if reduction == "mean" else 0
        shares = [count / total if total else 1.0 for count in rows]
        stages = [Stage(module) for module in self.stages]
        stages[-1].loss = _part_of_loss(loss_fn, wanted, shares, self.devices[self.schedule.rank_of[len(stages) - 1]])
        read(self.recorder)  # what is left of a run that failed
        self.recorder.clear()
        ranks = Ranks(self, stages)
        self.live = ranks.live
        return ranks.run(batches)

    def cut(self, name: str, value: Any) -> list[Any]:
        """Return the schedule's micro-batches of `inputs` or `targets`; ValueError if it is another number."""
        m = self.schedule.micro_batches
        parts = value if isinstance(value, list) else [batch.value for batch in scatter(value, m)]
        if len(parts) != m:
            raise ValueError(f"schedule {self.schedule.name!r} has {m} micro-batches; {name} make {len(parts)}")
        return parts


def run(
    schedule: Schedule, stages: Sequence[nn.Module], inputs: TensorOrTensors | list[TensorOrTensors], targets: Any,
    loss_fn: LossFunction, *, devices: Sequence[torch.device | str] | None = None, reduction: str = "mean",
) -> tuple[list[Tensor], Trace]:  # fmt: skip
    """Run a schedule once; see Executor and its `run`."""
    return Executor(schedule, stages, devices=devices).run(inputs, targets, loss_fn, reduction=reduction)
