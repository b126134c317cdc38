"""On a GPU: a stream for each rank, gradients of the plain model, spans from CUDA events, seeded dropout."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib import schedules
from lib.schedules.costs import measure_costs
from lib.schedules.executor import Executor, run
from lib.schedules.makers import MAKERS
from tests.gpu.common import GPU, KIND, Slow, assert_equal_gradients, gpu

LONG = 0.01  # seconds


def places(ranks):
    yield [KIND] * ranks
    yield [f"{KIND}:0", "cpu"] * (ranks // 2)
    if gpu.device_count() > 1:
        yield [f"{KIND}:0", f"{KIND}:1"] * (ranks // 2)


@pytest.mark.parametrize("maker", MAKERS.values(), ids=MAKERS)
def test_gradients_are_those_of_the_plain_model_again_and_again(maker):
    schedule = maker.table(6, 2, 2)
    stages = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()).double() for _ in range(schedule.stages)]
    plain = nn.Sequential(*copy.deepcopy(stages))
    x, target = torch.randn(2, 101, 64, dtype=torch.float64)
    F.mse_loss(plain(x), target).backward()
    for devices in places(2):
        executor = Executor(schedule, stages, devices=devices)
        for _ in range(5):  # memory is used again, which shows a stream that was not waited for
            for inputs in (x, x.to(GPU)):
                nn.Sequential(*stages).zero_grad()
                executor.run(inputs, target, F.mse_loss)
                assert_equal_gradients(nn.Sequential(*stages), plain)


def test_the_ranks_on_one_gpu_overlap_and_their_spans_are_the_times_of_their_streams():
    stages = [nn.Sequential(nn.Linear(8, 8), Slow(LONG)).to(GPU) for _ in range(2)]
    x, target = torch.randn(2, 4, 8, device=GPU)
    schedule = schedules.one_f_one_b(4, 2)
    executor = Executor(schedule, stages)
    executor.run(x, target, F.mse_loss)
    _, trace = executor.run(x, target, F.mse_loss)
    assert trace.lanes == ("rank 0", "rank 1") and len(trace) == 16
    busy = sum(trace.busy(lane) for lane in trace.lanes)
    assert trace.makespan < 0.95 * busy, "two streams at the same time"
    ends = {span.label: span.end for span in trace}
    for span in trace:
        if span.label.startswith("1F"):
            assert ends["0" + span.label[1:]] <= span.start + 1e-5, "the stream waits for the activation"


def test_dropout_repeats_for_ranks_that_share_a_gpu():
    stages = [nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).to(GPU) for _ in range(2)]
    x, target = torch.randn(2, 64, 64, device=GPU)
    found = []
    for make in (schedules.gpipe, schedules.one_f_one_b, schedules.gpipe):
        torch.manual_seed(0)
        before = gpu.get_rng_state()
        losses, _ = run(make(8, 2), stages, x, target, F.mse_loss)
        assert torch.equal(gpu.get_rng_state(), before)
        found.append(torch.stack(losses))
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_costs_are_those_of_the_device():
    stages = [nn.Sequential(nn.Linear(8, 8), Slow(LONG)).to(GPU), nn.Linear(8, 8).to(GPU)]
    x, target = torch.randn(2, 4, 8, device=GPU)
    costs = measure_costs(schedules.one_f_one_b(4, 2), stages, x, target, F.mse_loss, repeats=2)
    assert costs.forward[0] > 2 * costs.forward[1] and costs.backward[0] > 2 * costs.backward[1]
