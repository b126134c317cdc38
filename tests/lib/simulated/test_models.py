"""Real torch code runs on it unchanged, and gives what the CPU gives."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


def convolution():
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


MODELS = {
    "linear": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), (6, 8)),
    "convolution": (convolution, (5, 3, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), (2, 4, 5, 5)),
    "transformer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), (2, 5, 16)),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.AdaptiveAvgPool1d(3)), (2, 4, 9)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_three_steps_of_training_are_those_of_the_cpu(device, name, optimizer):
    make, shape = MODELS[name]
    plain = make()
    moved = copy.deepcopy(plain).to("simgpu")
    steps = [getattr(torch.optim, optimizer)(m.parameters(), lr=0.01) for m in (plain, moved)]
    for _ in range(3):
        x = torch.randn(shape)
        losses = []
        for model, step, data in zip((plain, moved), steps, (x, x.to("simgpu")), strict=True):
            step.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            step.step()
            losses.append(loss.item())
        assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    if optimizer == "SGD":  # AdamW divides by the gradient's size, and some of the transformer's are only rounding
        for mine, theirs in zip(moved.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-5)


def test_an_embedding_with_cross_entropy_trains(device):
    plain = nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(32, 5))
    moved = copy.deepcopy(plain).to("simgpu")
    x = torch.randint(11, (6, 4))
    target = torch.randint(5, (6,))
    for model, data, wanted in ((plain, x, target), (moved, x.to("simgpu"), target.to("simgpu"))):
        F.cross_entropy(model(data), wanted).backward()
    for mine, theirs in zip(moved.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.cpu(), theirs.grad)


def test_random_numbers_come_from_the_devices_generator(device):
    torch.manual_seed(3)
    first = [torch.rand(4, device=f"simgpu:{k}").tolist() for k in range(2)]
    torch.manual_seed(3)
    assert [torch.rand(4, device=f"simgpu:{k}").tolist() for k in range(2)] == first
    state = torch.simgpu.get_rng_state(0)
    drawn = torch.randn(4, device="simgpu").tolist()
    torch.simgpu.set_rng_state(state, 0)
    assert torch.randn(4, device="simgpu").tolist() == drawn


def test_a_generator_of_ones_own_leaves_the_devices_alone(device):
    before = torch.simgpu.get_rng_state(0)
    generator = torch.Generator("simgpu").manual_seed(5)
    first = torch.rand(3, device="simgpu", generator=generator)
    assert torch.equal(torch.rand(3, device="simgpu", generator=generator.manual_seed(5)), first)
    assert torch.equal(torch.simgpu.get_rng_state(0), before)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_draws_the_same_dropout_again(device, use_reentrant):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).to("simgpu")
    x = torch.randn(16, 8, device="simgpu", requires_grad=True)
    torch.manual_seed(1)
    layer(x).sum().backward()
    expected = x.grad
    x.grad = None
    torch.manual_seed(1)
    checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
    torch.testing.assert_close(x.grad, expected)


def test_dropout_keeps_the_share_that_it_says_and_scales_it(device):
    y = F.dropout(torch.ones(10_000, device="simgpu"), 0.25)
    assert y.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.03)


def test_autocast_computes_products_in_the_lower_precision_and_losses_in_full(device):
    layer = nn.Linear(4, 4).to("simgpu")
    x = torch.randn(3, 4, device="simgpu")
    with torch.autocast("simgpu", torch.bfloat16):
        y = layer(x)
        assert y.dtype == torch.bfloat16
        assert F.mse_loss(y, torch.zeros_like(y)).dtype == torch.float32
    assert layer(x).dtype == torch.float32


def test_shapes_that_depend_on_data_wait_for_it(device):
    x = torch.tensor([0.0, 3.0, 0.0, 5.0], device="simgpu")
    assert x.nonzero().flatten().tolist() == [1, 3]
    assert x[x > 0].tolist() == [3.0, 5.0]
    assert torch.unique(x).tolist() == [0.0, 3.0, 5.0]


def test_out_and_in_place_write_where_they_should(device):
    x = torch.arange(6.0, device="simgpu")
    out = torch.empty(0, device="simgpu")
    torch.add(x, 1, out=out)
    assert out.tolist() == [1, 2, 3, 4, 5, 6]
    x[1:3].mul_(10)
    x[::2] = -1
    assert x.tolist() == [-1, 10, -1, 3, -1, 5]
    torch._foreach_add_([x, out], 1)
    assert out.tolist() == [2, 3, 4, 5, 6, 7]


def test_shapes_that_are_remembered_keep_dtypes_and_numbers_apart(device):
    x = torch.ones(3, dtype=torch.int32, device="simgpu")
    assert (x * 2).dtype == torch.int32
    assert (x * 2.5).dtype == torch.float32
    assert (x.float() * torch.tensor(2.5, dtype=torch.float64)).dtype == torch.float32
    assert (x * torch.tensor([2.5] * 3, dtype=torch.float64, device="simgpu")).dtype == torch.float64
    assert (x / 2).dtype == torch.float32
    assert x.reshape(3, 1).expand(3, 4).sum(1).shape == (3,)
    assert x.sum().shape == ()


def test_a_state_dict_travels_through_a_file_and_to_the_cpu(device, tmp_path):
    layer = nn.Linear(3, 2).to("simgpu")
    torch.save(layer.state_dict(), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True, map_location="cpu")
    assert torch.equal(loaded["weight"], layer.weight.detach().cpu())
    assert torch.load(tmp_path / "state.pt", weights_only=True)["weight"].device == torch.device("simgpu:0")


def test_tensors_of_the_host_that_an_operator_takes_may_be_changed_at_once(device):
    x = torch.zeros(4, device="simgpu")
    torch.simgpu.sleep(0.05)
    one = torch.tensor(1.0)
    x.add_(one)
    one.fill_(100)
    assert x.tolist() == [1, 1, 1, 1]
