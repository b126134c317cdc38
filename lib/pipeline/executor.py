"""Run any schedule: a thread for each rank does its actions in order; queues hand over what a stage makes.

    rank 0   0F0  0F1   .   0B0  0F2  0B1        each rank: a thread, and on CUDA a stream
              │    ▲         ▲ gradient          in between: a queue for each activation and each gradient
              │ activation   │
    rank 1    .   1F0  1B0 ──┘ 1F1  1B1          an action begins when what it needs is there

What a stage gets is cut off from the graph of the stage before (see Stage), so that every backward is a call of its own
in the thread of its rank. On a CPU autograd works in the thread that calls it: stages overlap in both directions. The
threads live as long as a run; to start them takes some 0.1 ms. A legal schedule can't hang, others are refused first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lib.pipeline.microbatch import Batch, TensorOrTensors, check, scatter
from lib.pipeline.ranks import LossFunction, Ranks
from lib.pipeline.schedule import validate
from lib.pipeline.schedule.action import Schedule
from lib.pipeline.stream import new_stream
from lib.timeline import Trace


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
        self,
        schedule: Schedule,
        stages: Sequence[nn.Module],
        *,
        devices: Sequence[torch.device | str] | None = None,
    ) -> None:
        validate(schedule)
        self.schedule, self.stages = schedule, list(stages)
        ranks, found = len(schedule.ranks), len(self.stages)
        if found != schedule.stages:
            raise ValueError(
                f"schedule {schedule.name!r} has {schedule.stages} stages; {found} modules were given"
            )
        if devices is not None and len(devices) != ranks:
            raise ValueError(
                f"schedule {schedule.name!r} has {ranks} ranks; {len(devices)} devices were given"
            )
        owners: dict[Tensor, int] = {}
        for s, stage in enumerate(self.stages):
            if not isinstance(stage, nn.Module):
                raise TypeError(f"a stage must be an nn.Module; stage {s} is a {type(stage).__name__}")
            for name, parameter in stage.named_parameters():
                pair = owners.setdefault(parameter, schedule.rank_of[s]), schedule.rank_of[s]
                if pair[0] != pair[1]:
                    raise ValueError(
                        f"parameter {name!r} of stage {s} is on ranks {pair[0]} and {pair[1]}: share none"
                    )
        self.devices = [self._home(r) if devices is None else _device(devices[r]) for r in range(ranks)]
        for s, stage in enumerate(self.stages):
            stage.to(self.devices[schedule.rank_of[s]])
        self.streams = [new_stream(device) for device in self.devices]
        self.live = [0] * ranks

    def _home(self, rank: int) -> torch.device:
        mine = (stage for s, stage in enumerate(self.stages) if self.schedule.rank_of[s] == rank)
        return next((p.device for stage in mine for p in stage.parameters()), torch.device("cpu"))

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
        ranks = Ranks(self.schedule, self.stages, self.devices, self.streams, loss_fn)
        shares = [count / total if total else 1.0 for count in rows]
        result = ranks.run(batches, wanted, shares)
        self.live = ranks.live
        return result

    def cut(self, name: str, value: Any) -> list[Any]:
        """Return the schedule's micro-batches of `inputs` or `targets`; ValueError if it is another number."""
        m = self.schedule.micro_batches
        parts = value if isinstance(value, list) else [batch.value for batch in scatter(value, m)]
        if len(parts) != m:
            raise ValueError(
                f"schedule {self.schedule.name!r} has {m} micro-batches; {name} make {len(parts)}"
            )
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
    """Run a schedule once; see Executor and its `run`."""
    return Executor(schedule, stages, devices=devices).run(inputs, targets, loss_fn, reduction=reduction)


def _device(name: torch.device | str) -> torch.device:
    device = torch.device(name)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
