"""Costs that are measured: medians for each stage, which predict who waits, and leave no trace."""

import copy
import time
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib import schedules
from lib.schedules import Action, Costs
from lib.schedules.costs import measure_costs
from lib.schedules.executor import Executor, run
from lib.timeline import Trace
from tests.lib.models import Function
from tests.lib.schedules.small_stages import data, mlp

split_or_not = pytest.mark.parametrize("make", [schedules.one_f_one_b, schedules.zero_bubble_h1])


def least_of(tries):
    """Return the least of each cost: beside other work a stage that does nothing may take long, but hardly always."""
    by_kind = []
    for same_kind in zip(*tries, strict=True):  # forward, backward, weight
        if same_kind[0] is None:
            by_kind.append(None)
        else:
            by_kind.append([min(seconds) for seconds in zip(*same_kind, strict=True)])
    return Costs(*by_kind)


@split_or_not
def test_costs_are_measured_per_stage_and_predict_which_rank_waits(make):
    schedule = make(6, 2)
    slow = nn.Sequential(*mlp(1), Function(lambda x: time.sleep(0.05) or x))
    stages = [slow, *mlp(1)]
    costs = least_of([measure_costs(schedule, stages, *data(12), F.mse_loss, repeats=3) for _ in range(3)])
    assert (costs.weight is None) == (make is schedules.one_f_one_b), "W is measured where there is one"
    assert {len(each) for each in costs if each is not None} == {2}
    assert costs.forward[0] > max(0.05, costs.forward[1])
    predicted = schedules.simulate(schedule, *costs)
    assert predicted.busy("rank 0") > predicted.busy("rank 1")
    runs = [run(schedule, stages, *data(12), F.mse_loss)[1] for _ in range(3)]
    measured = min(runs, key=lambda trace: trace.busy("rank 1"))
    assert measured.busy("rank 0") > measured.busy("rank 1")


def test_costs_are_medians_without_the_run_that_warms_up(monkeypatch):
    class Clocked(Executor):
        def run(self, *arguments, **more):
            def span(measured):
                op, stage, i = Action.parse(measured.label)
                end = {"F": 1, "I": 2, "W": 4, "B": 8}[op] * (stage + 1) * (99, 1, 5, 3)[i]
                return replace(measured, start=0, end=end)

            losses, trace = super().run(*arguments, **more)
            return losses, Trace(map(span, trace))

    monkeypatch.setattr("lib.schedules.costs.Executor", Clocked)
    found = measure_costs(schedules.zero_bubble_h1(2, 2), mlp(2), *data(4), F.mse_loss, repeats=3)
    assert found == ([3, 6], [6 + 12, 12 + 24], [12, 24])
    found = measure_costs(schedules.one_f_one_b(2, 2), mlp(2), *data(4), F.mse_loss, repeats=3)
    assert found == ([3, 6], [24, 48], None)
    with pytest.raises(ValueError, match="repeats must be at least 1, not 0"):
        measure_costs(schedules.one_f_one_b(2, 2), mlp(2), *data(4), F.mse_loss, repeats=0)


def normed():
    return [nn.Sequential(layer, nn.BatchNorm1d(4).double()) for layer in mlp(2)]


def test_measuring_costs_leaves_gradients_buffers_and_random_numbers_as_they_were():
    stages = normed()
    x, target = data(8)
    run(schedules.gpipe(2, 2), stages, x, target, F.mse_loss)
    grads = [parameter.grad for stage in stages for parameter in stage.parameters()]
    values = [grad.clone() for grad in grads]
    state = torch.get_rng_state()
    norms = copy.deepcopy([stage.state_dict() for stage in stages])
    measure_costs(schedules.one_f_one_b(2, 2), stages, x, target, F.mse_loss, repeats=1)
    for parameter, grad in zip(nn.Sequential(*stages).parameters(), grads, strict=True):
        assert parameter.grad is grad
    torch.testing.assert_close(grads, values)
    torch.testing.assert_close([stage.state_dict() for stage in stages], norms)
    assert torch.equal(torch.get_rng_state(), state)


def test_measuring_costs_leaves_the_graph_and_the_gradient_of_the_inputs_alone():
    stages = normed()
    x, target = data(8)
    inputs = x.requires_grad_().tanh()
    schedule = schedules.zero_bubble_h1(2, 2)
    measure_costs(schedule, stages, inputs, target, F.mse_loss, repeats=1)
    assert x.grad is None
    run(schedule, stages, inputs, target, F.mse_loss)  # its graph is still there
    assert x.grad is not None
