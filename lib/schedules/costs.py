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
    schedule: Schedule,
    stages: Sequence[nn.Module],
    inputs: TensorOrTensors | list[TensorOrTensors],
    targets: Any,
    loss_fn: LossFunction,
    *,
    devices: Sequence[torch.device | str] | None = None,
    repeats: int = 5,
) -> Costs:
    """Run the first micro-batch through all stages, one action at a time; return the medians. Arguments as for `run`.

    On a device nothing else runs meanwhile: what ranks take from each other (caches, memory bandwidth) is in no cost.
    A schedule that splits the backward is measured with I and W, any other with B (weight: None). Gradients, buffers
    and the state of the CPU's random generator are afterwards as they were. Raises what Executor raises.
    """
    executor = Executor(schedule, stages, devices=devices)
    runs = integer("repeats", repeats, at_least=1) + 1  # the first warms up
    first = Batch(executor.cut("inputs", inputs)[0])
    first[:] = tuple(x.detach().requires_grad_(x.requires_grad) for x in first)  # off the caller's graph
    target = executor.cut("targets", targets)[0]

    split = any(action.op == "I" for _, action in schedule)
    halves: tuple[Op, ...] = ("I", "W")
    backward: tuple[Op, ...] = halves if split else ("B",)
    forth = range(schedule.stages)
    order: list[Action] = []  # of all actions, whatever rank they are on
    for i in range(runs):
        order += [Action("F", s, i) for s in forth]
        order += [Action(op, s, i) for s in reversed(forth) for op in backward]

    # A table with a rank for each device, so that its actions run one by one.
    home = [executor.devices[schedule.rank_of[s]] for s in forth]
    homes = list(dict.fromkeys(home))
    rows = [[action for action in order if home[action.stage] == device] for device in homes]
    alone = Executor(Schedule("costs", rows), stages, devices=homes)
    with _unchanged(stages):
        _, trace = alone.run([first.value] * runs, [target] * runs, loss_fn)

    seconds = {span.label: span.duration for span in trace}

    def median(op: Op) -> list[float]:
        labels = ([str(Action(op, s, i)) for i in range(1, runs)] for s in forth)
        return [statistics.median(seconds[label] for label in each) for each in labels]

    if not split:
        return Costs(median("F"), median("B"), None)
    weight = median("W")
    whole = [i + w for i, w in zip(median("I"), weight, strict=True)]
    return Costs(median("F"), whole, weight)


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
