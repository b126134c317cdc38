"""Run any schedule on real modules, in this process: checks what it is given, cuts the mini-batch, starts the ranks.

    losses, trace = run(one_f_one_b(8, 2), [first_half, second_half], inputs, targets, loss_fn)

What a stage gets is cut off from the graph of the stage before (stage.py), so that every backward is a call of its own
in the thread of its rank (rank_threads.py). On a CPU autograd works in the thread that calls it: stages overlap in both
directions. For GPUs it has one thread for each device: ranks that share a GPU launch their backwards one after the
other, into streams of their own.

The ranks' threads live as long as a run; to start them takes some 0.1 ms. They share the GIL, but send nothing: a step
costs fewer CPU seconds than torch.distributed.pipelining's on processes, half as many in a tiny model, a tenth less in
a larger one (tests/bench/bench_engine.py). A legal schedule can't hang, others are refused first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from lib.runtime.device import new_stream, with_index
from lib.runtime.microbatch import Batch, TensorOrTensors, check, scatter
from lib.runtime.recording import read
from lib.runtime.sharing import Lending
from lib.schedules.legal import validate
from lib.schedules.rank_threads import RankThreads, move_to
from lib.schedules.stage import Stage
from lib.schedules.table import Schedule
from lib.timeline import Recorder, Trace

LossFunction: TypeAlias = Callable[[Any, Any], Tensor]


class Executor:
    """Run `schedule` on `stages`, as often as you like.

    stages: a module for each stage, in order; called as stage(x), or stage((x, y)) if the one before returns a tuple.
    devices: one for each rank, to which its stages are moved; by default where their parameters are. Ranks that share
    a GPU get a stream each. `live`: the most micro-batches x stages that each rank held at once in the last run; it
    is counted, `live_activations(schedule)` predicts it.

    What the plain model computes, stages compute: a hook's work counts once, also where backward is split, the masks of
    torch.utils.checkpoint are those of forward, and layers see the caller's contextvars. Where a stage writes one of
    two tensors that share memory across a cut, `run` raises RuntimeError.

    Raises ScheduleError (a ValueError) if the schedule can't run, ValueError for a wrong number of stages or devices or
    a parameter that two ranks use, TypeError for a stage that is no module.
    """

    def __init__(
        self, schedule: Schedule, stages: Sequence[nn.Module], *, devices: Sequence[torch.device | str] | None = None
    ) -> None:
        validate(schedule)
        self.schedule = schedule
        self.stages = list(stages)
        ranks = len(schedule.ranks)
        found = len(self.stages)
        if found != schedule.stages:
            raise ValueError(f"schedule {schedule.name!r} has {schedule.stages} stages; {found} modules were given")
        if devices is not None and len(devices) != ranks:
            raise ValueError(f"schedule {schedule.name!r} has {ranks} ranks; {len(devices)} devices were given")
        _refuse_shared_parameters(schedule, self.stages)
        if devices is None:
            wanted = [self._home(rank) for rank in range(ranks)]
        else:
            wanted = [torch.device(device) for device in devices]
        self.devices = [with_index(device) for device in wanted]
        for s, stage in enumerate(self.stages):
            stage.to(self.devices[schedule.rank_of[s]])
        self.streams = [new_stream(device) for device in self.devices]
        self.live = [0] * ranks
        self.recorder = Recorder()  # one for all runs: it makes a folder

    def __repr__(self) -> str:
        devices = ", ".join(map(str, self.devices))
        return f"<Executor of {self.schedule.name!r}: {len(self.stages)} stages on {devices}>"

    def _home(self, rank: int) -> torch.device:
        """Return the device of the first parameter of a rank's stages; a CPU, if they have none."""
        for s, stage in enumerate(self.stages):
            if self.schedule.rank_of[s] == rank:
                for parameter in stage.parameters():
                    return parameter.device
        return torch.device("cpu")

    def run(
        self,
        inputs: TensorOrTensors | list[TensorOrTensors],
        targets: Any,
        loss_fn: LossFunction,
        *,
        reduction: str = "mean",
    ) -> tuple[list[Tensor], Trace]:
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
        if not callable(loss_fn):
            raise TypeError(f"loss_fn must be a function of output and target, such as F.mse_loss, not {loss_fn!r}")
        if reduction not in ("mean", "sum"):
            raise ValueError(f"reduction must be 'mean' or 'sum', not {reduction!r}")
        if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
            raise RuntimeError("a schedule goes backward: run it outside of no_grad and inference_mode")
        batches = [Batch(value) for value in self.cut("inputs", inputs)]
        if not isinstance(inputs, list) and len(batches) > 1:
            # Always copies, for a stage that did not write may do so in a later run: beside a step they cost little.
            batches = [Lending(writes=True).lend(batch) for batch in batches]
        wanted = self.cut("targets", targets)
        for batch in batches:
            check(batch.value)
        rows = [len(batch[0]) for batch in batches]
        if not isinstance(targets, list):
            found = [len(target[0] if isinstance(target, tuple) else target) for target in wanted]
            if found != rows:
                raise ValueError(f"the micro-batches have {rows} rows of inputs, but {found} of targets")
        shares = [1.0] * len(rows)
        if reduction == "mean" and sum(rows) > 0:
            shares = [count / sum(rows) for count in rows]
        stages = [Stage(module) for module in self.stages]
        last = len(stages) - 1
        stages[last].loss = _part_of_loss(loss_fn, wanted, shares, self.devices[self.schedule.rank_of[last]])
        read(self.recorder)  # what is left of a run that failed
        self.recorder.clear()
        ranks = RankThreads(self.schedule, stages, self.devices, self.streams, self.recorder)
        self.live = ranks.live
        return ranks.run(batches, _sources(batches, wanted))

    def cut(self, name: str, value: Any) -> list[Any]:
        """Return the schedule's micro-batches of `inputs` or `targets`; ValueError if it is another number."""
        m = self.schedule.micro_batches
        parts = value if isinstance(value, list) else [batch.value for batch in scatter(value, m)]
        if len(parts) != m:
            hint = ""
            if isinstance(value, tuple):
                hint = f"; a tuple is one input of {len(value)} tensors: give micro-batches as a list"
            raise ValueError(f"schedule {self.schedule.name!r} has {m} micro-batches; {name} make {len(parts)}{hint}")
        return parts


def run(
    schedule: Schedule,
    stages: Sequence[nn.Module],
    inputs: TensorOrTensors | list[TensorOrTensors],
    targets: Any,
    loss_fn: LossFunction,
    *,
    devices: Sequence[torch.device | str] | None = None,
    reduction: str = "mean",
) -> tuple[list[Tensor], Trace]:
    """Run a schedule once on these stages; return what each micro-batch adds to the loss, and what ran when.

    schedule: a table such as one_f_one_b(m, n). stages: a module for each of its stages, in order, called as stage(x).
    inputs, targets: a whole batch, cut here into m micro-batches, or a list of m. A tuple is one input of several
    tensors, never a list of micro-batches: write [*x.chunk(m)].
    loss_fn(output, target): the loss of a micro-batch, one number. devices: one for each rank; by default where the
    stages' parameters are. reduction: "mean" by rows, or "sum".

    The losses sum up to that of the batch; gradients are added to `.grad`. The trace has a lane for each rank. To run
    again and again, and for all that may raise, see Executor and its `run`.

    Example:
        stages = [nn.Linear(8, 8), nn.Linear(8, 2)]
        losses, trace = run(one_f_one_b(4, 2), stages, torch.randn(12, 8), torch.randn(12, 2), nn.functional.mse_loss)
        print(sum(losses).item(), trace.bubble)
    """
    return Executor(schedule, stages, devices=devices).run(inputs, targets, loss_fn, reduction=reduction)


def _refuse_shared_parameters(schedule: Schedule, stages: Sequence[nn.Module]) -> None:
    """Raise TypeError for a stage that is no module, ValueError for a parameter that two ranks would use."""
    owners: dict[Tensor, int] = {}
    for s, stage in enumerate(stages):
        if not isinstance(stage, nn.Module):
            raise TypeError(f"a stage must be an nn.Module; stage {s} is a {type(stage).__name__}")
        rank = schedule.rank_of[s]
        for name, parameter in stage.named_parameters():
            owner = owners.setdefault(parameter, rank)
            if owner != rank:
                raise ValueError(f"parameter {name!r} of stage {s} is on ranks {owner} and {rank}: share none")


def _part_of_loss(
    function: LossFunction, targets: Sequence[Any], shares: Sequence[float], device: torch.device
) -> Callable[[Any, int], Tensor]:
    """Return what the last stage makes of its output: what micro-batch i adds to the loss of the batch."""

    def loss_of(output: Any, i: int) -> Tensor:
        loss = function(output, _moved(targets[i], device))
        if not isinstance(loss, Tensor):
            raise TypeError(f"loss_fn must return a tensor with one number, not {type(loss).__name__}")
        if loss.numel() != 1:
            raise TypeError(f"loss_fn must return a tensor with one number, not shape {tuple(loss.shape)}")
        return loss * shares[i]

    return loss_of


def _sources(batches: Sequence[Batch], targets: Sequence[Any]) -> set[torch.device]:
    """Return the devices on which inputs and targets are."""
    tensors = [x for batch in batches for x in batch]
    for target in targets:
        # a walk through a tree takes as long as a layer
        leaves = [target] if isinstance(target, Tensor) else tree_leaves(target)
        tensors += [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    return {x.device for x in tensors}


def _moved(target: Any, device: torch.device) -> Any:
    """Return a target, a tensor or any tree of them, on the device."""
    if isinstance(target, Tensor):  # a walk through a tree takes as long as a layer
        return move_to(device, target)
    return tree_map_only(Tensor, partial(move_to, device), target)
