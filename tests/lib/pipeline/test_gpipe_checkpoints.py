"""Which micro-batches of a GPipe are checkpointed, and that what is recomputed is what ran."""

import copy

import pytest
import torch
from torch import nn

from lib.pipeline import pop, skippable, stash
from lib.pipeline.checkpoint import is_checkpointing
from tests.lib.models import Function
from tests.lib.pipeline.small_gpipes import MODES, gpipe, mlp, of
from tests.lib.refusal import refuses


# --- checkpoint modes
@pytest.mark.parametrize("rows", [8, 3, 1])
@pytest.mark.parametrize("mode", MODES)
def test_which_micro_batches_are_checkpointed(mode, rows):
    """Fault 2: with fewer rows than chunks, "except_last" still leaves out the last."""
    seen = []
    m = min(rows, 4)
    model = of(lambda x: seen.append(is_checkpointing()) or x * 1, chunks=4, checkpoint=mode)
    model(torch.ones(rows, 1, requires_grad=True))
    assert seen == {"always": [True] * m, "except_last": [True] * (m - 1) + [False], "never": [False] * m}[mode]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_without_backward_nothing_is_checkpointed(how):
    seen = []
    note = lambda x: seen.append((is_checkpointing(), torch.is_grad_enabled())) or x  # noqa: E731
    model = of(note, chunks=2, checkpoint="always").train(how != "eval")
    with torch.enable_grad() if how == "eval" else getattr(torch, how)():
        y = model(torch.ones(2, 1))
    assert seen == [(False, how == "eval")] * 2
    assert y.is_inference() == (how == "inference_mode")


class InPlace(nn.Module):
    """SiLU in place: to do it twice is something else. when: at which calls (all)."""

    def __init__(self, when=None):
        super().__init__()
        self.when = when
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return nn.functional.silu(x, inplace=self.when is None or self.calls in self.when)


@pytest.mark.parametrize("checkpoint", MODES)
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("balance", [[3, 2], [1, 4], [2, 3]], ids=["begins", "first of the next", "behind a view"])
def test_a_partition_may_begin_in_place(balance, needs_grad, checkpoint):
    """The input is needed again: by the recomputation; by other micro-batches, which are views of the same tensor."""
    first = [InPlace()] if balance[0] == 3 else [nn.Linear(3, 3)]
    plain = nn.Sequential(*first, nn.Flatten(), InPlace(), nn.Linear(3, 3), nn.Tanh())
    model = gpipe(copy.deepcopy(plain), balance, chunks=3, checkpoint=checkpoint)
    leaves = [torch.linspace(-3, 3, 21).reshape(7, 3).requires_grad_(needs_grad) for _ in range(2)]
    for module, leaf in zip((plain, model), leaves, strict=True):
        y = module(leaf * 1)
        for _ in range(2):  # the second time from what is still there
            y.square().sum().backward(retain_graph=True)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_a_partition_wrote_into_has_its_gradient_but_not_into_a_later_micro_batch_only():
    scale = nn.Linear(1, 1)
    model = of(lambda x: x.mul_(scale.weight), scale, chunks=2, checkpoint="always")
    x = torch.ones(4, 1)
    model(x)[:2].sum().backward()
    assert scale.weight.grad.item() == 2 * 2 * scale.weight.item()
    assert x.tolist() == [[1]] * 4
    model = of(InPlace(when=[2]), nn.Linear(3, 3), chunks=2, checkpoint="always")
    refuses(RuntimeError, "tensor 0 of the input was changed in place.* inplace=False", model, torch.ones(4, 3))


@pytest.mark.parametrize("checkpoint", MODES)
def test_a_parameter_that_the_loss_does_not_depend_on_has_no_gradient_not_zeros(checkpoint):
    """Zeros would let AdamW's weight decay move it."""

    @skippable(stash=["side"])
    class Put(nn.ModuleDict):
        def forward(self, x):
            yield stash("side", self["side"](x))
            return self["main"](x)

    @skippable(pop=["side"])
    class Get(nn.Module):
        def forward(self, x):
            return (yield pop("side")) * 2

    model = gpipe(nn.Sequential(nn.Linear(2, 2), Function(torch.detach), nn.Linear(2, 2)), checkpoint=checkpoint)
    model(torch.ones(2, 2)).sum().backward()
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False]
    model = gpipe(
        nn.Sequential(Put({"main": nn.Linear(2, 2), "side": nn.Linear(2, 2)}), nn.Linear(2, 2), Get()),
        chunks=2,
        checkpoint=checkpoint,
    )
    model(torch.ones(4, 2)).sum().backward()
    assert model[0]["main"].weight.grad is None
    assert model[1].weight.grad is None
    assert model[0]["side"].bias.grad.tolist() == [8, 8], "what the last layer popped, though it ignored its input"


# --- what is recomputed is what ran
@pytest.mark.parametrize(
    "change, named",
    [
        (lambda model: model.eval(), "Sequential.training, Linear.training"),
        (lambda model: model[1].eval(), "Dropout.training"),
        (lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(3, 3))), "Linear.weight"),
        (lambda model: setattr(model[0], "bias", None), "Linear.bias"),
        (lambda model: nn.init.ones_(model[0].weight), "Linear.weight"),
        (lambda model: setattr(model[0].weight, "data", torch.ones(3, 3)), "Linear.weight"),
    ],
)
def test_a_module_that_changed_since_forward_is_not_recomputed(change, named):
    model = of(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3), chunks=2, checkpoint="always")
    model(torch.ones(4, 3)).sum().backward()
    y = model(torch.ones(4, 3))
    change(model)
    refuses(RuntimeError, f"{named} changed between forward and backward", y.sum().backward)


def test_to_eval_and_back_and_a_lazy_layer_are_no_change():
    model = of(nn.LazyLinear(3), nn.Dropout(0.5), chunks=2, checkpoint="always")
    y = model(torch.ones(4, 3))
    model.eval()(torch.ones(4, 3))
    model.train()
    y.sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("checkpoint", MODES)
def test_functional_call_works_with_never_and_is_refused_where_something_is_recomputed(checkpoint):
    model = gpipe(mlp(2), chunks=2, checkpoint=checkpoint)
    given = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    y = torch.func.functional_call(model, given, torch.ones(4, 3))
    if checkpoint == "never":
        y.sum().backward()
        assert all(p.grad is not None for p in given.values())
        assert all(p.grad is None for p in model.parameters())
    else:
        refuses(RuntimeError, "Linear.weight, Linear.bias changed", y.sum().backward)


@pytest.mark.parametrize("checkpoint, calls", [("always", 4), ("except_last", 4), ("never", 1)])
def test_a_hook_of_a_parameter_sees_the_gradient_in_parts(checkpoint, calls):
    model = gpipe(mlp(1), chunks=4, checkpoint=checkpoint)
    seen = []
    after = []
    model[0].bias.register_hook(lambda grad: seen.append(grad.clone()))
    model[0].bias.register_post_accumulate_grad_hook(after.append)
    y = model(torch.ones(8, 3))
    y.sum().backward()
    assert len(seen) == len(after) == calls
    assert sum(seen).tolist() == model[0].bias.grad.tolist() == [8, 8, 8]
    if checkpoint == "always":
        refuses(RuntimeError, "not have been used", torch.autograd.grad, model(torch.ones(8, 3)).sum(), [model[0].bias])


def test_the_hook_of_a_tensor_that_the_loss_ignores_is_called_with_none_and_no_gradient_is_made_of_it():
    seen = []

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(3, 3)
            self.ignored = nn.Linear(3, 3)

        def forward(self, x):
            used = self.used(x)
            ignored = self.ignored(x)
            for name, tensor in (("used", used), ("ignored", ignored)):
                if tensor.requires_grad:
                    tensor.register_hook(lambda grad, name=name: seen.append((name, grad is None)))
            return used, ignored

    after = Function(lambda pair: (pair[0] * 2, pair[1] * 3))
    model = gpipe(nn.Sequential(Both(), after), chunks=2, checkpoint="never")
    model(torch.ones(4, 3))[0].sum().backward()
    assert sorted(seen) == [("ignored", True), ("ignored", True), ("used", False), ("used", False)]
    assert [parameter.grad is None for parameter in model.parameters()] == [False, False, True, True]


@pytest.mark.parametrize("checkpoint", MODES)
def test_what_follows_a_frozen_checkpoint_in_place_is_refused_by_torch_or_right(checkpoint):
    """Behind a checkpoint tanh saves what it returns, for a gradient that nobody needs; in one model it saves none."""
    plain = nn.Sequential(nn.Linear(3, 3).requires_grad_(False), nn.Tanh(), nn.ReLU(inplace=True), nn.Linear(3, 3))
    for write in (True, False):
        plain[2].inplace = write
        model = gpipe(copy.deepcopy(plain), [1, 2, 1], chunks=2, checkpoint=checkpoint)
        x = torch.linspace(-1, 1, 12).reshape(4, 3)
        y = model(x).square().sum()
        if write and checkpoint != "never":
            refuses(RuntimeError, "modified by an inplace operation", y.backward)
            continue
        y.backward()
        plain.zero_grad()
        plain(x).square().sum().backward()
        torch.testing.assert_close(model[3].weight.grad, plain[3].weight.grad)
        assert model[0].weight.grad is None
