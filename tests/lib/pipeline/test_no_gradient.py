"""A layer that the loss ignores has no gradient, also where it holds a function that makes zeros of None.

Backward comes to it all the same: Fork and Join lead there, to keep the order of the micro-batches. A parameter with a
gradient of zeros is not left alone: weight decay and momentum move it.
"""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from lib.pipeline import pop, skippable, stash
from lib.runtime import no_gradient
from lib.schedules import one_f_one_b, zero_bubble_h1
from lib.schedules.executor import run
from tests.lib.models import Function
from tests.lib.pipeline.small_gpipes import MODES, gpipe
from tests.lib.refusal import refuses


class Twice(torch.autograd.Function):
    """A function as most people write one: without ctx.set_materialize_grads(False), it is given zeros for None."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def twice(linear):
    return nn.Sequential(linear, Function(Twice.apply))


def twice_in_the_midst(linear):
    return nn.Sequential(linear, Function(Twice.apply), nn.Tanh())


def compiled(linear):
    torch._dynamo.reset()  # else those of earlier tests would count: from the ninth on torch leaves it as it is
    return torch.compile(linear, backend="aot_eager")


class Both(nn.Module):
    """Two outputs, of which the second one is made by a layer that is wrapped in something."""

    def __init__(self, wrap):
        super().__init__()
        self.used = nn.Linear(3, 3)
        self.ignored = nn.Linear(3, 3)
        self.wrapped = wrap(self.ignored)

    def forward(self, x):
        return self.used(x), self.wrapped(x)


FIRST = Function(lambda pair: pair[0])
WRAPPERS = [twice, twice_in_the_midst, compiled]


def there(module):
    return [name for name, parameter in module.named_parameters() if parameter.grad is not None]


@pytest.mark.parametrize("checkpoint", MODES)
@pytest.mark.parametrize("wanted", [False, True], ids=["input", "input with gradient"])
@pytest.mark.parametrize("wrap", WRAPPERS)
def test_who_makes_zeros_of_none_makes_none_of_what_the_loss_ignores(wrap, wanted, checkpoint):
    model = gpipe(nn.Sequential(Both(wrap), FIRST), chunks=2, checkpoint=checkpoint)
    x = torch.ones(4, 3, requires_grad=wanted)
    model(x).sum().backward()
    both = model[0]
    assert both.ignored.weight.grad is None
    torch.testing.assert_close(both.used.weight.grad, torch.full((3, 3), 4.0))
    if wanted:
        torch.testing.assert_close(x.grad, both.used.weight.detach().sum(0).expand(4, 3))


@pytest.mark.parametrize("checkpoint", MODES)
@pytest.mark.parametrize("chunks", [1, 3])
def test_the_same_where_the_model_itself_returns_two_and_the_loss_takes_one(chunks, checkpoint):
    model = gpipe(nn.Sequential(Both(twice)), chunks=chunks, checkpoint=checkpoint)
    model(torch.ones(6, 3))[0].sum().backward()
    assert model[0].ignored.weight.grad is None


@pytest.mark.parametrize("checkpoint", MODES)
def test_what_one_backward_ignored_has_its_gradient_from_the_next_through_the_same_forward(checkpoint):
    model = gpipe(nn.Sequential(Both(twice), Function(lambda pair: (pair[0], pair[1] * 3))), chunks=2)
    model.checkpoint = checkpoint
    y, z = model(torch.ones(4, 3))
    y.sum().backward(retain_graph=True)
    assert model[0].ignored.weight.grad is None
    z.sum().backward(retain_graph=True)
    torch.testing.assert_close(model[0].ignored.weight.grad, torch.full((3, 3), 24.0))
    y.sum().backward()
    torch.testing.assert_close(model[0].ignored.weight.grad, torch.full((3, 3), 24.0), msg="changed by a second y")


@pytest.mark.parametrize("checkpoint", MODES)
def test_a_way_back_of_two_partitions_and_a_model_before_the_pipeline_make_no_zeros_either(checkpoint):
    """The ignored tensor comes from far: through a partition that hands it on, out of a layer before the pipeline."""
    before = Both(twice)
    hand_on = Function(lambda pair: (pair[0] * 2, Twice.apply(pair[1])))
    model = gpipe(nn.Sequential(hand_on, copy.deepcopy(hand_on), FIRST), chunks=2, checkpoint=checkpoint)
    model(before(torch.ones(4, 3))).sum().backward()
    assert there(before) == ["used.weight", "used.bias"]


@pytest.mark.parametrize("checkpoint", ["except_last", "never"])
def test_torchs_reentrant_checkpoint_would_add_zeros_by_itself_and_is_refused_with_the_way_out(checkpoint):
    """It goes backward as a whole inside of its own node: what it hands on is not all that it does."""

    def around(use_reentrant):
        def wrap(linear):
            return Function(lambda x: torchs_checkpoint(linear, x * 1, use_reentrant=use_reentrant))

        return gpipe(nn.Sequential(Both(wrap), FIRST), chunks=2, checkpoint=checkpoint)

    x = torch.ones(4, 3, requires_grad=True)
    refuses(RuntimeError, "the loss makes no use of .* take use_reentrant=False", around(True)(x).sum().backward)
    model = around(False)
    model(x).sum().backward()
    assert there(model[0]) == ["used.weight", "used.bias"]


@skippable(stash=["early"])
class Put(nn.Module):
    """Stashes what a function made that fills in zeros."""

    def __init__(self, of_side):
        super().__init__()
        self.main = nn.Linear(3, 3)
        self.side = nn.Linear(3, 3)
        self.of_side = of_side

    def forward(self, x):
        yield stash("early", self.of_side(self.side(x)))
        return self.main(x)


@skippable(pop=["early"])
class Drop(nn.Module):
    """Pops it, and makes no use of it."""

    def forward(self, x):
        yield pop("early")
        return x


@pytest.mark.parametrize("checkpoint", MODES)
def test_a_skip_tensor_that_nobody_used_makes_none_of_it(checkpoint):
    model = gpipe(nn.Sequential(Put(Twice.apply), nn.Tanh(), Drop()), chunks=2, checkpoint=checkpoint)
    model(torch.ones(4, 3)).sum().backward()
    assert there(model[0]) == ["main.weight", "main.bias"]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_does_not_even_begin_with_a_skip_tensor_that_nobody_used():
    """So what stands before that tensor need not know what to do without a gradient."""
    model = gpipe(nn.Sequential(Put(reentrant), nn.Tanh(), Drop()), chunks=2, checkpoint="always")
    model(torch.ones(4, 3)).sum().backward()
    assert there(model[0]) == ["main.weight", "main.bias"]


def reentrant(y):
    return torchs_checkpoint(torch.tanh, y, use_reentrant=True)


def seen_without_a_graph(y):
    """Return a view of which torch says that it requires grad, as y does, and from which it can't go back."""
    with torch.no_grad():
        return y.view(-1).view(y.shape)


@pytest.mark.parametrize("checkpoint", MODES)
def test_backward_does_not_begin_at_a_view_that_was_taken_without_a_graph(checkpoint):
    model = gpipe(nn.Sequential(nn.Linear(3, 3), Function(seen_without_a_graph)), chunks=2, checkpoint=checkpoint)
    model(torch.ones(4, 3)).sum().backward()
    assert there(model) == []


def test_nor_in_an_executor_where_the_stages_behind_it_learn_all_the_same():
    stages = [nn.Sequential(nn.Linear(3, 3), Function(seen_without_a_graph)), nn.Linear(3, 3)]
    for make in (one_f_one_b, zero_bubble_h1):
        run(make(2, 2), stages, torch.ones(4, 3), torch.zeros(4, 3), mse_loss)
        assert [there(stage) for stage in stages] == [[], ["weight", "bias"]]


class Stops(torch.autograd.Function):
    """A function that says itself: my input has no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return None


@pytest.mark.parametrize("checkpoint", MODES)
def test_before_a_function_that_returns_none_parameters_keep_none_where_the_plain_model_has_zeros(checkpoint):
    plain = nn.Sequential(twice(nn.Linear(3, 3)), Function(Stops.apply))
    model = gpipe(copy.deepcopy(plain), chunks=2, checkpoint=checkpoint)
    x = torch.ones(4, 3, requires_grad=True)
    plain(x).sum().backward()
    model(x).sum().backward()
    assert [parameter.grad.abs().sum() for parameter in plain.parameters()] == [0, 0]
    assert there(model) == []


def test_a_node_that_many_ways_lead_to_is_told_once(monkeypatch):
    def doubled(x):
        for _ in range(10):
            x = x + x  # two ways back each time: 1,024 in all
        return x

    told = []
    monkeypatch.setattr(no_gradient, "_nothing_of_nothing", lambda *_: told.append(1))
    both = Both(lambda linear: nn.Sequential(linear, Function(doubled)))
    gpipe(nn.Sequential(both, FIRST), chunks=2, checkpoint="never")(torch.ones(4, 3)).sum().backward()
    assert 10 <= len(told) < 30


class TwoAtOnce(torch.autograd.Function):
    """A function with two outputs: of the one that the loss ignores it is given zeros."""

    @staticmethod
    def forward(ctx, x):
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return first * 2 + second * 3


TWO_OUTPUTS = {
    "a function": TwoAtOnce.apply,
    "torch's checkpoint": lambda x: torchs_checkpoint(lambda x: (x.sin(), x.cos()), x, use_reentrant=True),
}


@pytest.mark.parametrize("checkpoint", MODES)
@pytest.mark.parametrize("used", [0, 1])
@pytest.mark.parametrize("function", TWO_OUTPUTS)
def test_who_makes_two_and_has_the_gradient_of_one_hands_it_on(function, used, checkpoint):
    plain = nn.Sequential(nn.Linear(3, 3), Function(TWO_OUTPUTS[function]), Function(lambda pair: pair[used]))
    model = gpipe(copy.deepcopy(plain), chunks=2, checkpoint=checkpoint)
    for each in (plain, model):
        each(torch.ones(4, 3)).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    for one, its in zip(plain.parameters(), found, strict=True):
        torch.testing.assert_close(its, one.grad)
