"""What actions cost is measured stage by stage, and measuring leaves no trace."""

import copy
import time

import torch
from torch import nn
from torch.nn import functional as F

from lib import schedules
from lib.schedules.executor import run
from support.n14.costs import measure_costs
from tests.lib.schedules.test_executor import Function, data, mlp, split_or_not


@split_or_not
def test_costs_are_measured_per_stage_and_predict_which_rank_waits(make):
    schedule = make(6, 2)
    slow = nn.Sequential(*mlp(1), Function(lambda x: time.sleep(0.02) or x))
    stages = [slow, *mlp(1)]
    costs = measure_costs(schedule, stages, *data(12), F.mse_loss, repeats=3)
    assert [len(each) for each in costs if each] == [2] * (2 if costs.weight is None else 3)
    assert costs.forward[0] > 0.02 > costs.forward[1]
    predicted = schedules.simulate(schedule, *costs)
    _, measured = run(schedule, stages, *data(12), F.mse_loss)
    assert measured.busy("rank 0") > measured.busy("rank 1") and predicted.busy("rank 0") > predicted.busy("rank 1")


def test_measuring_costs_leaves_no_trace_and_the_graph_and_gradient_of_the_inputs_alone():
    stages, (x, target) = [nn.Sequential(layer, nn.BatchNorm1d(4).double()) for layer in mlp(2)], data(8)
    run(schedules.gpipe(2, 2), stages, x, target, F.mse_loss)
    grads = [parameter.grad for stage in stages for parameter in stage.parameters()]
    values = [grad.clone() for grad in grads]
    state, norms = torch.get_rng_state(), copy.deepcopy([stage.state_dict() for stage in stages])
    measure_costs(schedules.one_f_one_b(2, 2), stages, x, target, F.mse_loss, repeats=1)
    assert all(p.grad is g for p, g in zip(nn.Sequential(*stages).parameters(), grads, strict=True))
    torch.testing.assert_close(grads, values)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close([stage.state_dict() for stage in stages], norms)
    schedule, inputs = schedules.zero_bubble_h1(2, 2), x.requires_grad_().tanh()
    measure_costs(schedule, stages, inputs, target, F.mse_loss, repeats=1)
    assert x.grad is None
    run(schedule, stages, inputs, target, F.mse_loss)
    assert x.grad is not None
