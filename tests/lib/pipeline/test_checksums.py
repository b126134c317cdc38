"""Writes that leave no version: with check=True the guard of a GPipe reads all values, and finds them."""

import copy
from itertools import combinations

import pytest
import torch
from torch import nn

from lib.pipeline import GPipe, checksums
from lib.pipeline.checksums import checksum
from tests.lib.pipeline.small_gpipes import every_recomputing_mode, loss, one_partition
from tests.lib.refusal import refuses


def swap_rows(model):
    model[0].weight.data.copy_(model[0].weight.data.flip(0))


WRITES = {
    "clamp_": (lambda model: model[0].weight.data.mul_(0.9).clamp_(-0.1, 0.1), "Linear.weight"),
    "nn.init": (lambda model: nn.init.normal_(model[0].bias.data), "Linear.bias"),
    "foreach": (lambda model: torch._foreach_mul_([p.data for p in model[1].parameters()], 2), "LayerNorm.weight"),
    "other order": (swap_rows, "Linear.weight"),
    "one bit": (lambda model: model[0].weight.data.view(torch.int32)[2, 2].bitwise_xor_(1), "Linear.weight"),
    "buffer": (lambda model: model[2].scale.data.mul_(2), "Scaled.scale"),
    "statistics in use": (lambda model: model[3].running_mean.data.add_(1), "BatchNorm1d.running_mean"),
}


class Scaled(nn.Module):
    """Multiplies by a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
        return x * self.scale


def with_buffers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), Scaled(), nn.BatchNorm1d(3))


@every_recomputing_mode
@pytest.mark.parametrize("write", WRITES)
def test_a_write_that_leaves_no_version_is_found_by_check(write, mode):
    make, named = WRITES[write]
    model = one_partition(with_buffers(), mode, check=True)
    model[3].eval()  # reads its statistics
    loss(model).backward()
    make(model)
    y = loss(model)
    y.backward()
    y = loss(model)
    make(model)
    refuses(RuntimeError, f"{named}.* changed between forward and backward", y.backward)


@every_recomputing_mode
def test_check_leaves_the_statistics_of_norms_to_them(mode):
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    for deferred in (False, True):
        model = one_partition(copy.deepcopy(module), mode, check=True, deferred_batch_norm=deferred)
        y = loss(model)
        model[1].running_mean.data.zero_()  # not read in training
        y.backward()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32, torch.complex128])
def test_a_checksum_tells_apart_every_single_change_and_every_order(dtype):
    x = (torch.arange(12) % 5 > 1).to(dtype).reshape(3, 4)
    others = [x.flip(0), x.flip(1), x.roll(1), x.roll(2)]
    for place in range(12):
        others.append(x.clone())
        others[-1].view(-1)[place] = x.view(-1)[place] == 0
    for other in others:
        assert not torch.equal(other, x)
        assert checksum(other) != checksum(x)
    assert checksum(x.t()) == checksum(x.t().contiguous())
    large = torch.zeros(3, 200_000, dtype=dtype)
    large[1, -1] = 1
    large[2, -1 - (1 << 16)] = 1
    assert len({checksum(row).item() for row in large}) == 3


TYPES = [torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.float64, torch.complex128]


@pytest.mark.parametrize("dtype", TYPES)
def test_no_change_of_signs_is_lost(dtype):
    """Where a sign is the highest of the 64 bits that are summed, two changes of sign are no change."""
    x = torch.arange(1, 101).to(dtype)
    others = [x, -x]
    for places in [*combinations(range(100), 1), *combinations(range(100), 2)]:
        others.append(x.clone())
        others[-1][list(places)] *= -1
    assert len({checksum(other).item() for other in others}) == len(others)


@pytest.mark.parametrize("bit", [0, 31, 32, 51, 62, 63])
def test_no_bit_of_a_wide_number_is_lost_at_any_place(bit):
    x = torch.arange(1.0, 101.0, dtype=torch.float64)
    others = [x]
    for place in range(100):
        others.append(x.clone())
        others[-1].view(torch.int64)[place] ^= torch.tensor(1) << bit
    assert len({checksum(other).item() for other in others}) == 101


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
@pytest.mark.parametrize("asked", [{}, {"check": False}, {"check": True}])
def test_they_are_made_only_where_they_are_asked_for(monkeypatch, checkpoint, asked):
    made = []

    def noted(tensor):
        made.append(tensor)
        return checksum(tensor)

    monkeypatch.setattr(checksums, "checksum", noted)
    model = GPipe(
        nn.Sequential(nn.Linear(2, 2, bias=False)), [1], devices=["cpu"], chunks=2, checkpoint=checkpoint, **asked
    )
    model(torch.ones(2, 2)).sum().backward()
    assert bool(made) == (asked.get("check", False) and checkpoint != "never"), "never: nothing is computed again"
