"""Balance: the best cut there is, from costs that are measured without touching the module."""

import copy
import time
from functools import partial

import pytest
import torch
from torch import nn

from lib.pipeline import balance_by_size, balance_by_time, partition
from lib.pipeline.balance import layerwise_sandbox, profile_sizes, profile_times
from lib.pipeline.skip import pop, skippable, stash
from tests.lib.models import Function, hooked
from tests.lib.refusal import refuses

CPU = torch.device("cpu")
KB = 1024


def sleeps(milliseconds):
    """Cost a known time, however busy the machine is."""
    return Function(lambda x: time.sleep(milliseconds / 1000) or x)


def keeps(kilobytes):
    """Leave this for backward, besides an output of 1 kB for each row of 256 numbers."""

    def layer(x):
        for _ in range(kilobytes // len(x)):
            x = x + torch.zeros_like(x, requires_grad=True)  # kept: its gradient will be wanted
        return x + 1

    return Function(layer)


class Shared(list):
    """A list that the sandbox's copy of a layer shares with the layer."""

    def __deepcopy__(self, memo):
        return self


class Call(Function):
    """Note how many rows each call has."""

    def __init__(self, function):
        super().__init__(function)
        self.rows = Shared()

    def forward(self, x):
        self.rows.append(len(x))
        return super().forward(x)


# --- the cut


def test_costs_may_be_seconds_or_many_bytes():
    assert partition([0.1, 0.2, 0.3], 2) == [2, 1]
    assert partition([3 * 10**15, 10**15, 10**15 + 1], 2) == [1, 2]


@pytest.mark.parametrize(
    "costs, n, message",
    [
        ([1, 2], 3, "2 layers can't fill 3 partitions; give at most 2"),
        ([], 1, "0 layers can't fill 1 partitions"),
        ([1, 2], 0, "partitions must be at least 1, not 0"),
        ([1, -2], 1, r"finite and not negative, not \[1, -2\]"),
        ([1, float("nan")], 1, "finite"),
        ([1, 2], 1.5, "partitions must be an integer"),
    ],
)
def test_costs_that_can_not_be_cut_are_refused_and_say_why(costs, n, message):
    refuses(ValueError, message, partition, costs, n)


# --- by time
def test_the_balance_follows_measured_time_and_backward_counts():
    model = nn.Sequential(*(sleeps(ms) for ms in (1, 1, 1, 1, 60)))  # far apart: a busy machine wakes sleepers late
    assert balance_by_time(2, model, torch.zeros(1), timeout=0.2, device="cpu") == [4, 1]
    slow = Function(lambda x: hooked(x, lambda _: time.sleep(0.02)))
    times = profile_times(nn.Sequential(nn.Linear(1, 1), slow), torch.zeros(1), 0.0, CPU)
    assert times[1] > 0.02


def test_a_slow_first_call_and_one_slow_moment_do_not_count():
    # Warm-up (lazy initialisation) and noise: torchgpipe adds up all calls, the first one too.
    hiccup = Call(lambda x: time.sleep(0.3 if len(hiccup.rows) in (1, 4) else 0.001) or x)
    times = profile_times(nn.Sequential(hiccup, sleeps(20)), torch.zeros(1), 0.6, CPU)
    assert len(hiccup.rows) > 4
    assert times[0] < times[1]


def test_the_timeout_ends_it_and_gradients_must_be_gone():
    count = Call(lambda x: x)
    balance_by_time(1, nn.Sequential(count, sleeps(30)), torch.zeros(1), timeout=0.0, device="cpu")
    assert len(count.rows) == 2, "one to warm up, one measured"
    model = nn.Sequential(nn.Linear(1, 1))
    model(torch.zeros(1)).backward()
    with pytest.raises(ValueError, match="some parameter already has gradient; call zero_grad"):
        balance_by_time(1, model, torch.zeros(1), device="cpu")


# --- by size
def test_a_balance_by_size_follows_what_is_kept_for_backward():
    x = torch.zeros(1, 256)
    assert balance_by_size(2, nn.Sequential(*map(keeps, [1, 2, 3, 4, 5, 6])), x, device="cpu") == [4, 2]
    assert balance_by_size(2, nn.Sequential(*map(keeps, [6, 5, 4, 3, 2, 1])), x, device="cpu") == [2, 4]


def test_sizes_are_the_bytes_of_one_micro_batch_and_views_and_changes_in_place_need_none():
    sizes = profile_sizes(nn.Sequential(keeps(4), keeps(0), nn.ReLU()), torch.zeros(1, 256), 1, 2.0, CPU)
    assert sizes == [5 * KB, 1 * KB, 1 * KB]
    double = Call(lambda x: x * 2)
    assert profile_sizes(nn.Sequential(double), torch.zeros(7, 256), 3, 0.0, CPU) == [3 * KB]
    assert double.rows == [3]
    layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(inplace=True), nn.Unflatten(1, (16, 16)), nn.Flatten())
    assert profile_sizes(layers, torch.zeros(4, 256), 1, 0.0, CPU) == [4 * KB, 0, 0, 0]


def test_parameters_count_param_scale_times_and_buffers_once():
    layers = nn.Sequential(nn.Linear(256, 256, bias=False), nn.BatchNorm1d(256))
    without, with_four = (profile_sizes(layers, torch.zeros(2, 256), 1, scale, CPU) for scale in (0.0, 4.0))
    assert with_four[0] - without[0] == 4 * 256 * KB
    assert with_four[1] - without[1] == 4 * 2 * KB
    buffers = 2 * KB + 8
    assert without[1] == buffers + 2 * KB + 2 * KB, "the output, and the mean and variance that backward needs"


# --- both leave the module alone, and take what GPipe takes
by = pytest.mark.parametrize("balance", [
    partial(balance_by_time, timeout=0.0, device="cpu"), partial(balance_by_size, device="cpu"),
], ids=["time", "size"])  # fmt: skip


@by
def test_the_module_and_the_random_numbers_stay_as_they_are(balance):
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.ReLU(inplace=True)).eval()
    sample = torch.randn(8, 4)
    before = copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    kept = sample.clone()
    with torch.no_grad():
        balance(2, model, sample)
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.equal(sample, kept)
    assert not any(module.training for module in model.modules())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in model.parameters())


@by
def test_a_layer_may_change_its_input_in_place_and_take_tuples_and_masks(balance):
    # torchgpipe feeds leaves: "a leaf Variable that requires grad is being used in an in-place operation".
    assert sum(balance(2, nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)), torch.randn(2, 4))) == 2
    first = nn.Sequential(nn.ReLU(inplace=True), nn.Identity())
    sample = -torch.ones(2, 4)
    balance(2, first, sample)
    assert sample.max() == -1
    layers = Call(lambda x: (x * 2, x.detach() > 0)), Call(lambda pair: pair[0] * pair[1])
    assert balance(2, nn.Sequential(*layers), torch.randn(4, 4, requires_grad=True)) == [1, 1]


@by
def test_skip_connections_are_measured_layer_by_layer(balance):
    # torchgpipe goes backward through the stashing layer a second time, and fails.
    @skippable(stash=["h"])
    class Put(nn.Module):
        def forward(self, x):
            h = x.square()
            yield stash("h", h)
            return h * h

    @skippable(pop=["h"])
    class Get(nn.Module):
        def forward(self, x):
            return x * (yield pop("h"))

    assert sum(balance(2, nn.Sequential(nn.Linear(4, 4), Put(), Get()), torch.randn(4, 4))) == 3


@by
def test_batch_norm_and_random_layers_run_and_more_partitions_than_layers_are_refused(balance):
    # torchgpipe profiles sizes with one row, and BatchNorm1d refuses that.
    assert sum(balance(2, nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), torch.randn(8, 4))) == 3
    refuses(ValueError, "1 layers can't fill 2 partitions", balance, 2, nn.Sequential(nn.Identity()), torch.zeros(1, 1))


def test_the_sandbox_has_copies_in_training_mode():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    for layer, original in zip(layerwise_sandbox(model, CPU), model, strict=True):
        assert layer.training
        assert not original.training
        assert layer.weight is not original.weight
