"""What the actions of a schedule cost here, stage by stage, so that `simulate` predicts what `run` will take."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lib.arguments import integer
from lib.runtime.microbatch import Batch, TensorOrTensors
from lib.schedules.executor import Executor, LossFunction
from lib.schedules.simulate import Costs
from lib.schedules.table import Action, Op, Schedule


def measure_costs(
    schedule: Schedule, stages: Sequence[nn.Module], inputs: TensorOrTensors | list[TensorOrTensors], targets: Any,
    loss_fn: LossFunction, *, devices: Sequence[torch.device | str] | None = None, repeats: int = 5,
) -> Costs:  # fmt: skip
    """Run the first micro-batch through all stages, one action at a time; return the medians. Arguments as for `run`.

    On a device nothing else runs meanwhile: what ranks take from each other (caches, memory bandwidth) is in no cost.
    A schedule that splits the backward is measured with I and W, any other with B (weight: None). Gradients, buffers
    and the state of the CPU's random generator are afterwards as they were. Raises what Executor raises.
    """
    executor = Executor(schedule, stages, devices=devices)
    runs = integer("repeats", repeats, at_least=1) + 1  # the first warms up
    first, target = Batch(executor.cut("inputs", inputs)[0]), executor.cut("targets", targets)[0]
    first[:] = tuple(x.detach().requires_grad_(x.requires_grad) for x in first)  # off the caller's graph
    split = any(action.op == "I" for _, action in schedule)
    every = range(schedule.stages)
    backward: tuple[Op, ...] = ("I", "W") if split else ("B",)
    order = []  # of all actions, whatever rank they are on
    for i in range(runs):
        order += [Action("F", s, i) for s in every]
        order += [Action(op, s, i) for s in reversed(every) for op in backward]
    home = [executor.devices[schedule.rank_of[s]] for s in every]
    homes = list(dict.fromkeys(home))  # a rank for each device, so that its actions run one by one
    alone = Schedule("costs", [[a for a in order if home[a.stage] == device] for device in homes])
    with _unchanged(stages):
        _, trace = Executor(alone, stages, devices=homes).run([first.value] * runs, [target] * runs, loss_fn)

    seconds = {span.label: span.duration for span in trace}

    def median(op: Op) -> list[float]:
        return [statistics.median(seconds[str(Action(op, s, i))] for i in range(1, runs)) for s in every]

    if not split:
        return Costs(median("F"), median("B"), None)
    weight = median("W")
    return Costs(median("F"), [i + w for i, w in zip(median("I"), weight, strict=True)], weight)


@contextmanager
def _unchanged(stages: Sequence[nn.Module]) -> Iterator[None]:
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    grads = [parameter.grad for parameter in parameters]
    buffers = [(buffer, buffer.clone()) for stage in stages for buffer in stage.buffers()]
    for parameter in parameters:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
