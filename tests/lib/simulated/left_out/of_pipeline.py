"""Programs on lib.pipeline: what a partition reads has arrived, and its memory is nobody else's until it was read."""

import contextlib
import copy

import torch
from torch import nn

from lib.pipeline import GPipe, pop, skippable, stash
from lib.pipeline.copy import Copy
from lib.runtime.device import CPUStream, new_stream, use_stream, wait_stream
from lib.simulated import Link
from tests.lib.simulated.left_out.scenario import (
    WHERE,
    Late,
    assert_same,
    busy,
    costs,
    late,
    layers,
    plain,
    rows,
    scenario,
    synchronize,
)

HERE, THERE = (torch.device(place) for place in WHERE[:2])


def steps(model, delay, devices, checkpoint="never", number=2):
    """Train nothing, but go forward and back through the same streams and memory, and compare each time."""
    x = rows(6)
    output, gradients, of_x = plain(model, x)
    piped = GPipe(copy.deepcopy(model), [1] * len(model), devices=devices, chunks=3, checkpoint=checkpoint)
    for _ in range(number):
        piped.zero_grad()
        given = late(x, devices[0], delay).requires_grad_()
        found = piped(given)
        found.square().sum().backward()
        assert_same(found.detach(), output)
        assert_same(given.grad, of_x)
        assert_same([parameter.grad for parameter in piped.parameters()], gradients)


@scenario
def partitions_compute_late(delay):
    costs()
    steps(layers(3, delay), delay, WHERE)


@scenario
def partitions_recompute_late(delay):
    costs()
    steps(layers(2, delay), delay, WHERE[:2], checkpoint="always", number=1)


@scenario
def activations_and_gradients_arrive_late(delay):
    costs(peer_link=Link(latency=delay))
    steps(layers(3, 0), 0, WHERE)


@scenario
def without_gradients_nobody_holds_an_activation(delay):
    costs()
    model = layers(3, delay)
    x = rows(6)
    piped = GPipe(copy.deepcopy(model), [1] * 3, devices=WHERE, chunks=3, checkpoint="never")
    with torch.no_grad():
        found = [piped(x.to(HERE)) for _ in range(2)]
        expected = model(x)
    assert_same(found, [expected] * 2)


@scenario
def without_gradients_activations_arrive_late(delay):
    costs(peer_link=Link(latency=delay))
    model = layers(3, 0)
    x = rows(6)
    piped = GPipe(copy.deepcopy(model), [1] * 3, devices=WHERE, chunks=3, checkpoint="never")
    with torch.no_grad():
        found = [piped(x.to(HERE)) for _ in range(2)]
        expected = model(x)
    assert_same(found, [expected] * 2)


@scenario
def the_caller_computes_on_streams_of_its_own(delay):
    costs()
    with contextlib.ExitStack() as stack:
        for place in WHERE:
            stack.enter_context(use_stream(new_stream(torch.device(place))))
        steps(layers(3, delay), delay, WHERE, number=1)


@skippable(stash=["skip"])
class First(nn.Module):
    def forward(self, x):
        yield stash("skip", x.tanh())
        return x * 2


@skippable(pop=["skip"])
class Last(nn.Module):
    def forward(self, x):
        skip = yield pop("skip")
        return x * skip


@scenario
def a_skip_tensor_arrives_late(delay):
    costs(peer_link=Link(latency=delay))
    steps(nn.Sequential(First(), nn.Tanh(), Last()), 0, WHERE)


@skippable(pop=["skip"])
class LastWithout(nn.Module):
    """Has a gradient for what was skipped, late, and none for what comes along the way."""

    def __init__(self, delay):
        super().__init__()
        self.late = Late(delay)

    def forward(self, x):
        skip = yield pop("skip")
        return x.detach() * self.late(skip)


@scenario
def the_gradient_of_a_skip_tensor_is_late_and_comes_alone(delay):
    costs()
    steps(nn.Sequential(First(), nn.Tanh(), LastWithout(delay)), 0, WHERE)


@scenario
def the_copy_of_what_nobody_holds_any_more_is_read_late(delay):
    # y is allocated on the copy stream, which is idle, and read on the caller's stream, which is not
    costs()
    here = new_stream(HERE)
    there = new_stream(THERE)
    x = torch.ones(1000, device=HERE)
    synchronize()
    with torch.no_grad():
        (y,) = Copy.apply(here, there, x)
        wait_stream(torch.accelerator.current_stream(THERE), there)
        busy(THERE, delay)
        total = y.sum()
        del y
        Copy.apply(here, there, x * 5)  # takes the memory of y, if it is to be had
    assert_same(total, torch.tensor(1000.0))


@scenario
def what_is_copied_late_is_held_by_nobody(delay):
    # x belongs to the caller's stream, which is idle, and is read on the copy stream, which is not
    costs()
    here = new_stream(HERE)
    there = new_stream(THERE)
    x = torch.ones(1000, device=HERE)
    synchronize()
    with here:
        busy(HERE, delay)
    with torch.no_grad():
        (y,) = Copy.apply(here, there, x)
    del x
    torch.full((1000,), 5.0, device=HERE)
    wait_stream(torch.accelerator.current_stream(THERE), there)
    assert_same(y.sum(), torch.tensor(1000.0))


@scenario
def the_host_waits_for_a_stream(delay):
    costs(host_link=Link(latency=delay))
    stream = new_stream(HERE)
    target = torch.zeros(1000).pin_memory()
    with stream:
        target.copy_(torch.ones(1000, device=HERE), non_blocking=True)
    wait_stream(CPUStream, stream)
    assert_same(target.sum(), torch.tensor(1000.0))
