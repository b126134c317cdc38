"""Dropout that torch draws again, or in code that it has made: gradients are those of the masks that were used."""

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from lib import schedules
from lib.pipeline import GPipe
from lib.schedules.executor import Executor
from tests.lib.refusal import refuses

every_mode = pytest.mark.parametrize("mode", ["always", "except_last", "never"])
ROWS = 6
WIDTH = 8


class Scaled(nn.Module):
    """Multiply by weights of one, then drop half: their gradient is the sum over rows of y, if masks agree."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return F.dropout(x * self.weight, 0.5)


class Again(Scaled):
    """A block that torch computes again in backward, between numbers that are drawn once."""

    def __init__(self, use_reentrant):
        super().__init__()
        self.use_reentrant = use_reentrant

    def forward(self, x):
        noise = torch.rand(1)
        y = torchs_checkpoint(super().forward, x, use_reentrant=self.use_reentrant)
        return y * (1 + 0 * (noise + torch.rand(1)))


def assert_gradients_are_of_the_masks_used(layers, run):
    """A weight's gradient is what its rows came out with: nothing else multiplies."""
    x = torch.ones(ROWS, WIDTH, requires_grad=True)
    for _ in range(2):
        for layer in layers:
            layer.weight.grad = None
        y = run(x)
        for layer in layers:
            torch.testing.assert_close(layer.weight.grad, y.sum(0))


def in_gpipe(layers, checkpoint):
    model = GPipe(nn.Sequential(*layers), [1] * len(layers), devices=["cpu"] * len(layers), chunks=3)
    model.checkpoint = checkpoint

    def run(x):
        y = model(x)
        y.sum().backward()
        return y.detach()

    return run


def in_executor(layers, make):
    executor = Executor(make(3, len(layers)), layers)

    def run(x):
        seen = []

        def loss(y, _):
            seen.append(y.detach())
            return y.sum()

        executor.run(x, torch.zeros(ROWS), loss, reduction="sum")
        return torch.cat(seen)

    return run


@every_mode
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_torchs_checkpoint_inside_a_partition_draws_the_masks_of_forward_again(mode, use_reentrant):
    layers = [Again(use_reentrant) for _ in range(2)]
    assert_gradients_are_of_the_masks_used(layers, in_gpipe(layers, mode))


@pytest.mark.parametrize("make", [schedules.one_f_one_b, schedules.gpipe, schedules.zero_bubble_h1])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_torchs_checkpoint_inside_a_stage_draws_the_masks_of_forward_again_whatever_other_ranks_draw(
    make, use_reentrant
):
    layers = [Again(use_reentrant) for _ in range(3)]
    run = in_executor(layers, make)
    if use_reentrant and make is schedules.zero_bubble_h1:
        refuses(RuntimeError, "use_reentrant=False", run, torch.ones(ROWS, WIDTH, requires_grad=True))  # says torch
        return
    for _ in range(5):
        assert_gradients_are_of_the_masks_used(layers, run)


def test_the_state_that_a_layer_sees_is_that_of_its_own_numbers_and_outside_nothing_changes():
    seen = []

    class Forks(nn.Module):
        def forward(self, x):
            state = torch.get_rng_state()
            first = torch.rand(3)
            torch.set_rng_state(state)
            seen.append((first, torch.rand(3)))
            with torch.random.fork_rng(devices=[]):
                torch.rand(5)
            return x

    GPipe(nn.Sequential(Forks(), Forks()), [1, 1], devices=["cpu"] * 2, chunks=2)(torch.ones(4, 1))
    assert all(torch.equal(first, again) for first, again in seen)
    assert not torch.equal(seen[0][0], seen[1][0])
    torch.manual_seed(3)
    state = torch.get_rng_state()
    number = torch.rand(1)
    torch.set_rng_state(state)
    assert torch.rand(1) == number
    assert torch.equal(torch.default_generator.get_state(), torch.get_rng_state())


@every_mode
@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_a_compiled_layer_drops_the_same_again_also_in_its_first_run(mode, backend):
    torch._dynamo.reset()
    layers = [Scaled() for _ in range(2)]
    compiled = [torch.compile(layer, backend=backend) for layer in layers]
    assert_gradients_are_of_the_masks_used(layers, in_gpipe(compiled, mode))


@every_mode
def test_a_compiled_layer_draws_what_it_would_draw_uncompiled_also_in_its_first_run(mode):
    torch._dynamo.reset()
    x = torch.ones(ROWS, WIDTH)
    outputs = []
    for layer in (Scaled(), torch.compile(Scaled(), backend="aot_eager")):
        torch.manual_seed(0)
        outputs.append(GPipe(nn.Sequential(layer), [1], devices=["cpu"], chunks=1, checkpoint=mode)(x))
    torch.testing.assert_close(*outputs)


@pytest.mark.parametrize("mode", ["always", "except_last"])
def test_a_compiled_layer_for_which_torch_has_no_code_in_the_recomputation_is_refused(mode):
    """torch compiles it once for forward, and may not again for the recomputation, which wants gradients.

    So forward runs code that drops by uniform numbers, and the recomputation the layer as it stands: by Bernoulli's.
    """
    torch._dynamo.reset()
    layer = Scaled()
    model = GPipe(nn.Sequential(torch.compile(layer, backend="aot_eager_decomp_partition")), [1], devices=["cpu"])
    model.checkpoint = mode
    model.chunks = 2
    with torch._dynamo.config.patch(recompile_limit=1):
        y = model(torch.ones(ROWS, WIDTH)).sum()
        refuses(RuntimeError, "partition 0 draws its random numbers in another way .*recompile_limit", y.backward)
    torch._dynamo.reset()
    assert mode == "except_last" or layer.weight.grad is None, "nothing was added before the refusal"


def test_a_compiled_layer_that_draws_past_us_is_refused_where_it_would_be_drawn_again():
    class Past(nn.Module):
        def forward(self, x):
            return x * torch.rand(1, generator=torch.default_generator)

    model = nn.Sequential(nn.Linear(2, 2), torch.compile(Past(), backend="eager"))
    x = torch.ones(4, 2)
    pipeline = GPipe(model, [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    says = "a compiled layer of partition 1 drew random numbers .* compile the whole GPipe, or use checkpoint='never'"
    refuses(RuntimeError, says, pipeline, x)
    pipeline.checkpoint = "never"
    pipeline(x).sum().backward()
