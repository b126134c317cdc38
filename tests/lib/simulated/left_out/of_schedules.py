"""Programs on lib.schedules: ranks wait for the caller, for each other, and the caller for them."""

import copy

import torch
from torch.nn import functional as F

from lib import schedules
from lib.runtime.device import new_stream
from lib.schedules.executor import Executor
from lib.simulated import Link
from tests.lib.simulated.left_out.scenario import WHERE, assert_same, busy, costs, late, layers, plain, rows, scenario

TWO = WHERE[:2]


def executor(model, devices):
    return Executor(schedules.one_f_one_b(3, len(model)), copy.deepcopy(list(model)), devices=devices)


def gradients(run):
    return [parameter.grad for stage in run.stages for parameter in stage.parameters()]


def expected_of(model, number=6):
    x = rows(number)
    target = rows(number + 1)[1:]
    return x, target, *plain(model, x, target)


@scenario
def ranks_compute_late(delay):
    costs()
    model = layers(2, delay)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, TWO)
    for _ in range(2):
        for stage in run.stages:
            stage.zero_grad()
        run.run(x, target, F.mse_loss)
        assert_same(gradients(run), expected)


@scenario
def what_ranks_hand_over_arrives_late(delay):
    costs(peer_link=Link(latency=delay))
    model = layers(3, 0)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, WHERE)
    run.run(x, target, F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def ranks_of_one_device_hand_over_what_nobody_holds(delay):
    costs()
    model = layers(2, delay)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, WHERE[:1] * 2)
    run.run(x, target, F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def a_rank_of_the_host_follows_one_of_a_device(delay):
    costs()
    model = layers(2, delay)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, [WHERE[0], "cpu"])
    run.run(x, target, F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def inputs_are_still_being_written(delay):
    costs()
    model = layers(2, 0)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, TWO)
    run.run(late(x, TWO[0], delay), target, F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def inputs_are_still_being_written_on_another_device(delay):
    costs()
    model = layers(2, 0)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, TWO)
    run.run(late(x, WHERE[2], delay), target, F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def targets_are_still_being_written(delay):
    costs()
    model = layers(2, 0)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, TWO)
    run.run(x, late(target, TWO[1], delay), F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def the_optimizer_is_still_at_work_when_the_next_step_begins(delay):
    costs()
    model = layers(2, 0)
    run = executor(model, TWO)
    optimizers = []
    for parameters in model.parameters(), [p for stage in run.stages for p in stage.parameters()]:
        optimizers.append(torch.optim.SGD(list(parameters), lr=0.5))
    x = rows(6)
    target = rows(7)[1:]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = F.mse_loss(model(x), target)
        expected.backward()
        losses, _ = run.run(x, target, F.mse_loss)
        assert_same(sum(loss.cpu() for loss in losses), expected.detach())
        for place in TWO:
            busy(torch.device(place), delay)
        for optimizer in optimizers:
            optimizer.step()


@scenario
def the_caller_reads_the_gradient_of_its_inputs(delay):
    costs()
    model = layers(2, delay)
    x, target, _, _, expected = expected_of(model)
    run = executor(model, TWO)
    given = x.to(TWO[0]).requires_grad_()
    run.run(given, target, F.mse_loss)
    assert_same(given.grad, expected)


@scenario
def the_caller_reads_the_gradient_of_its_inputs_on_another_device(delay):
    costs()
    model = layers(2, delay)
    x, target, _, _, expected = expected_of(model)
    run = executor(model, TWO)
    given = x.to(WHERE[2]).requires_grad_()
    run.run(given, target, F.mse_loss)
    assert_same(given.grad, expected)


@scenario
def targets_of_a_device_without_a_rank_are_still_being_written(delay):
    # a copy between devices runs on a stream of the one that it comes from: here not the caller's
    costs()
    model = layers(2, 0)
    x, target, _, expected, _ = expected_of(model)
    run = executor(model, TWO)
    with new_stream(torch.device(WHERE[2])):
        run.run(x, late(target, WHERE[2], delay), F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def inputs_of_several_devices_are_still_being_written(delay):
    class Add(torch.nn.Module):
        def forward(self, both):
            return both[0] + both[1]

    costs()
    model = layers(2, 0)
    x, target, _, expected, _ = expected_of(model)
    stages = [torch.nn.Sequential(Add(), model[0]), model[1]]
    run = Executor(schedules.one_f_one_b(3, 2), copy.deepcopy(stages), devices=TWO)
    with new_stream(torch.device(WHERE[2])):
        given = (torch.zeros_like(x).to(TWO[0]), late(x, WHERE[2], delay))
        run.run(given, target, F.mse_loss)
    assert_same(gradients(run), expected)


@scenario
def the_caller_drops_losses_before_it_has_read_them(delay):
    costs()
    model = layers(2, 0)
    x, target, _, _, _ = expected_of(model)
    run = executor(model, TWO)
    totals = []
    for _ in range(3):
        losses, _ = run.run(x, target, F.mse_loss)
        busy(torch.device(TWO[1]), delay)
        totals.append(sum(losses))
        del losses
    expected = F.mse_loss(model(x), target).detach()
    assert_same(totals, [expected] * 3)
