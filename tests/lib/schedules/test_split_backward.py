"""Backward in two halves: together they make a whole, nothing is computed twice, nothing is shared by accident."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.pipeline import GPipe
from lib.schedules.split_backward import backward_input
from tests.lib.models import Function
from tests.lib.refusal import refuses
from tests.lib.schedules.small_stages import mlp


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4, dtype=torch.float64) / 2)
        self.other = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x):
        y = (x @ self.weight).tanh() @ self.weight + self.other
        return y * self.weight.sum() + self.other.exp()


class Attention(nn.MultiheadAttention):
    def forward(self, x):
        return super().forward(x, x, x)[0]


LAYERS = {
    "mlp": lambda: mlp(3),
    "shared": lambda: [Shared(), *mlp(1), Shared()],
    "weight norm": lambda: [nn.utils.parametrizations.weight_norm(nn.Linear(4, 4).double()) for _ in range(2)],
    "attention": lambda: [Attention(4, 2, batch_first=True).double(), Function(lambda y: y)],
    "convolution": lambda: [nn.Conv1d(3, 3, 1).double(), nn.BatchNorm1d(3).double()],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_the_two_halves_make_a_whole(layers):
    torch.manual_seed(0)
    module = nn.Sequential(*layers())
    x, grad = torch.randn(2, 5, 3, 4, dtype=torch.float64)
    whole, leaf = (x.clone().requires_grad_() for _ in range(2))
    module(whole).backward(grad)
    by_weight = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    (found,), later = backward_input([module(leaf)], [grad], [leaf])
    assert all(parameter.grad is None for parameter in module.parameters()), "I leaves the weights alone"
    torch.testing.assert_close(found, whole.grad)
    later()
    torch.testing.assert_close([parameter.grad for parameter in module.parameters()], by_weight)


def test_no_matrix_product_is_done_twice():
    def flops(work):
        with FlopCounterMode(display=False) as counter:
            work()
        return counter.get_total_flops()

    x = torch.ones(4, 8, requires_grad=True)
    y = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])(x)
    whole = flops(lambda: y.sum().backward(retain_graph=True))
    halves = []
    assert flops(lambda: halves.extend(backward_input([y], [torch.ones_like(y)], [x]))) == whole / 2
    _, later = halves
    assert flops(later) == whole / 2


def test_outputs_that_lead_to_weights_only_share_their_graph_with_those_that_lead_to_the_input():
    def gradients(backward):
        weight = nn.Parameter(torch.ones(3))
        x = torch.ones(3, requires_grad=True)
        shared = weight.exp()
        backward([x * shared, shared.sin()], [torch.ones(3), torch.ones(3)], x)
        return x.grad, weight.grad

    def whole(outputs, grads, x):
        torch.autograd.backward(outputs, grads)

    def in_halves(outputs, grads, x):
        (x.grad,), later = backward_input(outputs, grads, [x])
        later()

    torch.testing.assert_close(gradients(in_halves), gradients(whole))


def test_where_the_input_needs_no_gradient_all_is_left_to_the_weights():
    module = nn.Linear(4, 4)
    x = torch.ones(2, 4)
    found, later = backward_input([module(x)], [torch.ones(2, 4)], [x])
    assert found == [None]
    assert module.weight.grad is None
    later()
    assert module.weight.grad is not None


def test_a_gradient_that_passes_unchanged_is_not_shared():
    bias = nn.Parameter(torch.zeros(3))
    x = torch.zeros(3, requires_grad=True)
    (found,), later = backward_input([x + bias], [torch.ones(3)], [x])
    later()
    bias.grad.zero_()
    assert found.tolist() == [1, 1, 1]


def test_a_stage_may_return_what_it_was_given_and_leave_an_input_unused():
    same = torch.zeros(3, requires_grad=True)
    unused = torch.zeros(3, requires_grad=True)
    found, later = backward_input([same], [torch.ones(3)], [same, unused])
    later()
    assert found[0].tolist() == [1, 1, 1]
    assert found[1] is None
    assert same.grad is None, "it belongs to whoever made it"


def test_each_of_several_inputs_gets_its_gradient():
    one = torch.zeros(3, requires_grad=True)
    two = torch.zeros(3, requires_grad=True)
    found, _ = backward_input([one.cos(), two.exp()], [torch.ones(3), torch.ones(3)], [one, two])
    assert [x.tolist() for x in found] == [[0] * 3, [1] * 3]


def test_a_custom_function_may_give_a_weight_no_gradient_and_its_output_be_gone():
    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, *unused):
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad * weight, grad * x, *[None] * 5

    weight, *unused = (nn.Parameter(torch.full((3,), 5.0)) for _ in range(6))
    x = torch.full((3,), 7.0, requires_grad=True)
    (found,), later = backward_input([Times.apply(x, weight, *unused)], [torch.ones(3)], [x])
    gc.collect()
    later()
    assert found.tolist() == [5, 5, 5]
    assert weight.grad.tolist() == [7, 7, 7]
    assert [other.grad for other in unused] == [None] * 5


def test_an_operator_with_several_outputs_may_join_a_weight_and_have_some_of_them_ignored():
    class SumAndProduct(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x + weight, x * weight

        @staticmethod
        def backward(ctx, of_sum, of_product):
            x, weight = ctx.saved_tensors
            return of_sum + of_product * weight, of_sum + of_product * x

    for chosen, of_x, of_weight in ((0, 1, 1), (1, 5, 7)):
        weight = nn.Parameter(torch.full((3,), 5.0))
        x = torch.full((3,), 7.0, requires_grad=True)
        y = SumAndProduct.apply(x, weight)[chosen]
        (found,), later = backward_input([y], [torch.ones(3)], [x])
        later()
        assert found.tolist() == [of_x] * 3
        assert weight.grad.tolist() == [of_weight] * 3


class Hooked(nn.Module):
    """Layers with a hook between them, of one kind; what the hook notes is in `seen`."""

    def __init__(self, kind, shared=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 4).double() for _ in range(3))
        if shared:
            self.layers[2] = self.layers[0]
        self.kind = kind
        self.between = []

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            HOOKS[self.kind](x)
            self.between.append(x)
            x = x.tanh()
        return x


def through_a_function(h):
    h.grad_fn.register_prehook(lambda grads: (grads[0] * 0.5,))


def doubled(grads, _):
    return tuple(None if grad is None else 2 * grad for grad in grads)


HOOKS = {
    "halves": lambda h: h.register_hook(lambda g: g * 0.5),
    "clips": lambda h: h.register_hook(lambda g: g.clamp(-0.1, 0.1)),
    "adds": lambda h: h.register_hook(lambda g: g + 1),
    "before a function": through_a_function,
    "after a function": lambda h: h.grad_fn.register_hook(
        lambda grads, _: tuple(g if g is None else 2 * g for g in grads)
    ),
    "keeps": lambda h: h.retain_grad(),
    "two": lambda h: (h.register_hook(lambda g: g * 3), h.retain_grad(), through_a_function(h)),
}


@pytest.mark.parametrize("shared", [False, True], ids=["own weights", "a shared weight"])
@pytest.mark.parametrize("kind", HOOKS)
def test_what_hooks_make_of_a_gradient_counts_once(kind, shared):
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    whole = Hooked(kind, shared)
    halves = Hooked(kind, shared)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    whole(a).sum().backward()
    y = halves(b)
    (b.grad,), later = backward_input([y], [torch.ones_like(y)], [b])
    later()
    torch.testing.assert_close(b.grad, a.grad)
    for name, parameter in whole.named_parameters():
        torch.testing.assert_close(dict(halves.named_parameters())[name].grad, parameter.grad, msg=name)
    if kind in ("keeps", "two"):
        for h, its in zip(halves.between, whole.between, strict=True):
            torch.testing.assert_close(h.grad, its.grad)


def test_a_hook_of_a_weight_sees_its_whole_gradient_once():
    """Clipped parts are not the clipped sum: here the weight has a part on the trunk, and one that leads to it only."""

    def gradients(backward):
        weight = nn.Parameter(torch.full((3,), 2.0))
        seen = []
        weight.register_hook(lambda g: (seen.append(g.tolist()), g.clamp(max=4.0))[1])
        x = torch.ones(3, requires_grad=True)
        backward([x * weight, weight * 3, (weight * x).cos()], [torch.ones(3)] * 3, x)
        return x.grad, weight.grad, seen

    def whole(outputs, grads, x):
        torch.autograd.backward(outputs, grads)

    def in_halves(outputs, grads, x):
        (x.grad,), later = backward_input(outputs, grads, [x])
        later()

    torch.testing.assert_close(gradients(in_halves), gradients(whole))


@pytest.mark.parametrize("mode", ["always", "never"])
def test_a_pipeline_inside_that_computes_again_is_refused_before_any_gradient_is_there(mode):
    """Its Checkpoint adds to the weights each time it is walked: twice, where a weight behind it is used twice."""
    inside = GPipe(nn.Sequential(nn.Linear(4, 4).double()), [1], devices=["cpu"], checkpoint=mode)
    module = nn.Sequential(inside, Shared())
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    module(x.clone().requires_grad_()).sum().backward()
    whole = [parameter.grad.clone() for parameter in module.parameters()]
    module.zero_grad()
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    if mode == "always":
        refuses(RuntimeError, "as a whole, not in halves.*checkpoint='never'", backward_input, [y], [y], [leaf])
        assert all(parameter.grad is None for parameter in module.parameters())
        return
    _, later = backward_input([y], [torch.ones_like(y)], [leaf])
    later()
    torch.testing.assert_close([parameter.grad for parameter in module.parameters()], whole)
