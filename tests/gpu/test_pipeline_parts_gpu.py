"""Batch norm, skip connections and balance on a GPU: its kernels, streams and generator."""

import copy

import pytest
import torch
from torch import nn

from lib.pipeline import GPipe, balance_by_size, balance_by_time, convert_deferred_batch_norm
from lib.pipeline.balance import profile_sizes
from lib.pipeline.portal import Portal
from lib.runtime.device import default_stream
from tests.gpu.common import GPU, KIND, MODES, First, Last, assert_equal_gradients, gpu, sized

MEANS = [
    *((dtype, mean) for dtype in (torch.float32, torch.float16, torch.bfloat16) for mean in (0.0, 10.0)),
    (torch.float32, 1e4),  # 1e4 + 1 does not fit into 16 bits
]


@pytest.mark.parametrize("dtype, mean", MEANS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_statistics_are_those_of_the_whole_batch(dtype, layout, mean):
    norm = nn.BatchNorm2d(3, momentum=1.0).to(GPU)
    deferred = convert_deferred_batch_norm(copy.deepcopy(norm), 3)
    batch = (torch.randn(16, 3, 8, 8, device=GPU) + mean).to(dtype, memory_format=layout)
    norm(batch)
    for part in batch.split([6, 6, 4]):
        deferred(part)
    for name, value in norm.state_dict().items():
        torch.testing.assert_close(deferred.state_dict()[name], value, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("checkpoint", MODES)
@pytest.mark.parametrize("devices", ["gpu gpu gpu gpu", "cpu gpu gpu cpu", "gpu cpu cpu gpu"])
def test_skips_between_devices_equal_the_plain_model(devices, checkpoint):
    one, two, three = (nn.Conv2d(3, 3, 1) for _ in range(3))
    plain = nn.Sequential(one, First(3, 3), two, nn.Tanh(), Last(3, 3), three).double()
    model = GPipe(
        copy.deepcopy(plain),
        [2, 1, 1, 2],
        devices=devices.replace("gpu", KIND).split(),
        chunks=4,
        checkpoint=checkpoint,
    )
    x = torch.randn(8, 3, 5, 5, dtype=torch.float64)
    expected = plain(x)
    output = model(x.to(model.devices[0]))
    expected.square().sum().backward()
    output.square().sum().backward()
    torch.testing.assert_close(output.cpu(), expected)
    assert_equal_gradients(model, plain)


def test_a_copied_portal_has_its_phony_on_the_next_device():
    portal = Portal(torch.rand(1), tensor_life=1)
    phony = portal.copy(default_stream(torch.device("cpu")), default_stream(GPU), torch.zeros(0))
    assert phony.device.type == portal.tensor.device.type == KIND


SIDE = sized(cuda=2048, simulated=256)


class Repeat(nn.Module):
    def __init__(self, what, times):
        super().__init__()
        self.what = what
        self.times = times

    def forward(self, x):
        for _ in range(self.times):
            x = self.what(x)
        return x


def test_by_time_the_kernels_count_not_their_launch_and_the_generator_stays_as_it_is():
    layers = [Repeat(lambda x: torch.tanh(x @ x), times) for times in (1, 1, 1, 1, 8)]
    assert balance_by_time(2, nn.Sequential(*layers), torch.randn(SIDE, SIDE), timeout=0.5) == [4, 1]
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4))
    before = gpu.get_rng_state()
    for balance in (balance_by_time, balance_by_size):
        balance(2, model, torch.randn(8, 4))
    assert torch.equal(gpu.get_rng_state(), before)
    assert next(model.parameters()).device.type == "cpu"


def test_by_size_the_bytes_are_those_of_the_allocator():
    def expand(times):
        return Repeat(lambda x: x + torch.rand_like(x, requires_grad=True), times)

    x = torch.rand(10, 100, 100)
    sizes = profile_sizes(nn.Sequential(expand(3)), x, 1, 0.0, torch.device(KIND))
    given = x.to(GPU)
    before = gpu.memory_allocated()
    output = expand(3).to(GPU)(given)
    assert sizes == [gpu.memory_allocated() - before]
    del output
    assert balance_by_size(2, nn.Sequential(*map(expand, [1, 2, 3, 4, 5, 6])), x) == [4, 2]
    assert balance_by_size(2, nn.Sequential(*map(expand, [6, 5, 4, 3, 2, 1])), x) == [2, 4]
