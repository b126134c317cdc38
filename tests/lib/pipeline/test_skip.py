"""Skip connections: straight from the partition that stashes to the one that pops, gradients as in a plain model."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lib.pipeline import (
    GPipe,
    Namespace,
    SkipLayout,
    SkipTrackerThroughPortals,
    SkipTrackerThroughPotals,
    current_skip_tracker,
    inspect_skip_layout,
    is_recomputing,
    pop,
    skippable,
    stash,
    verify_skippables,
)
from lib.pipeline.copy import Copy
from lib.runtime.microbatch import Batch
from tests.lib.models import Function
from tests.lib.refusal import refuses

every_mode = pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])


@skippable(stash=["early"])
class Encode(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        h = torch.tanh(self.linear(x))
        yield stash("early", h * 2)
        return h


@skippable(pop=["early"])
class Decode(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        early = yield pop("early")
        return torch.tanh(self.linear(x)) * early


def layer(*, stashes=(), pops=(), forward):
    """A skippable layer made from a generator function (module, input)."""
    body = type("Layer", (nn.Module,), {"forward": forward})
    return skippable(stash=stashes, pop=pops)(body)()


def passed_on(*layers):
    """A gradient must also flow into the first and out of the last layer."""
    return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 4))


def same_as_plain(model, balance, **arguments):
    """Run the model plain and in a GPipe; outputs and all gradients must agree. Returns the plain gradients."""
    plain = copy.deepcopy(model)
    parts = GPipe(copy.deepcopy(model), balance, devices=["cpu"] * len(balance), **arguments)
    input = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    outputs = [net(input) for net in (plain, parts)]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[1], outputs[0])
    grads = [[parameter.grad for parameter in net.parameters()] for net in (plain, parts)]
    for theirs, ours in zip(*grads, strict=True):
        if theirs is None:  # a recomputation may give zeros where plain autograd gives none
            assert ours is None or not ours.any()
        else:
            torch.testing.assert_close(ours, theirs)
    return grads[0]


# --- layers
def test_a_plain_sequential_needs_no_pipeline_and_in_one_the_uses_of_a_portal_are_counted():
    output = nn.Sequential(Encode(), nn.Tanh(), Decode())(torch.randn(2, 4))
    assert output.shape == (2, 4)
    assert not current_skip_tracker().tensors, "what was popped is gone"
    assert SkipTrackerThroughPotals is SkipTrackerThroughPortals, "as torchgpipe spells it"
    tracker = SkipTrackerThroughPortals(SkipLayout(2, {(None, "far"): (0, 1), (None, "near"): (1, 1)}))
    batch = Batch(torch.ones(1))
    tracker.save(batch, None, "far", torch.ones(1))
    tracker.save(batch, None, "near", torch.ones(1))
    assert set(tracker.portals) == {(None, "far")}
    assert set(tracker.tensors) == {(None, "near")}
    assert tracker.portals[(None, "far")].tensor_life == 1
    assert tracker.load(batch, None, "far") == 1
    refuses(RuntimeError, "tensor in portal has been removed", tracker.load, batch, None, "far")


@pytest.mark.parametrize(
    "module, error, message",
    [
        (layer(stashes=["a"], forward=lambda self, x: x), RuntimeError, "'a' must be stashed but have not"),
        (layer(pops=["early"], forward=lambda self, x: x), RuntimeError, "'early' must be popped but have not"),
        (layer(pops=["b"], forward=lambda self, x: x), RuntimeError, "'b' has not been stashed"),
        (layer(forward=lambda self, x: (yield stash("a", x))), RuntimeError, "'a' has not been declared as stashable"),
        (
            layer(pops=["early"], forward=lambda self, x: ((yield pop("early")), (yield pop("early")))),
            RuntimeError,
            "'early' has been popped already",
        ),
        (layer(forward=lambda self, x: (yield 5)), TypeError, "5 is not a command"),
    ],
)
def test_what_is_declared_must_be_done_once_and_what_is_done_be_declared(module, error, message):
    Encode()(torch.zeros(1, 4))  # something to pop
    refuses(error, message, module, torch.zeros(1, 4))


def test_names_are_a_list_and_known_and_the_layer_shows_itself():
    refuses(TypeError, r"stash takes a list of names: stash=\['early'\]", skippable, stash="early")
    with pytest.raises(ValueError, match="'late' not declared by this layer, which has 'early'"):
        Encode().isolate(Namespace(), only=["late"])
    assert repr(Encode()) == "@skippable(Encode(\n  (linear): Linear(in_features=4, out_features=4, bias=True)\n))"


class Plain(nn.Module):
    def forward(self, x):
        yield stash("plain", x)
        return x * (yield pop("other"))


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copied_model_keeps_weights_and_pairs_also_of_a_layer_made_skippable_by_a_call(clone):
    # torchgpipe's classes can't be pickled: the decorator leaves two classes of one name.
    ns = Namespace()
    model = nn.Sequential(Encode().isolate(ns), Decode().isolate(ns))
    again = clone(model)
    x = torch.randn(2, 4)
    assert torch.equal(again(x), model(x))
    assert list(again.state_dict()) == list(model.state_dict())
    verify_skippables(again)
    # The name `Plain` stays with the plain class, so pickle can't find the skippable one by it.
    kind = skippable(stash=["plain"], pop=["other"])(Plain)
    called = clone(kind().isolate(ns, only=["other"]))
    assert type(called) is kind
    assert type(Plain()) is Plain
    assert [*called.stashable(), *called.poppable()] == [(None, "plain"), (ns, "other")]


# --- layout
def test_verify_tells_all_that_does_not_match():
    with pytest.raises(TypeError) as error:
        verify_skippables(nn.Sequential(Decode(), Encode(), Encode(), Decode(), Decode()))
    assert str(error.value).splitlines()[2:] == [
        "* '0' declared 'early' as poppable but it was not stashed",
        "* '2' redeclared 'early' as stashable but not isolated by namespace",
        "* '4' redeclared 'early' as poppable but not isolated by namespace",
    ]
    refuses(TypeError, "no module declared 'early' as poppable", GPipe, nn.Sequential(Encode()), [1], devices=["cpu"])


def test_one_name_is_used_twice_in_two_namespaces_or_in_one_and_none_or_inside_a_layer():
    a = Namespace()
    b = Namespace()
    layers = [Encode().isolate(a), Encode().isolate(b), nn.Tanh(), Decode().isolate(a), Decode().isolate(b)]
    verify_skippables(nn.Sequential(*layers))
    same_as_plain(passed_on(*layers), [2, 1, 1, 1, 2], chunks=3)
    # torchgpipe sorts by namespace here: AttributeError, None has no id.
    ns = Namespace()
    layers = [Encode().isolate(ns), Encode(), Decode(), Decode().isolate(ns)]
    layout = inspect_skip_layout([nn.Sequential(*layers[:2]), nn.Sequential(*layers[2:])])
    assert {(source, name) for source, _, name in layout.copy_policy(1)} == {(0, "early")}
    same_as_plain(passed_on(*layers), [3, 3], chunks=2)
    # torchgpipe looks at the layers only: under checkpointing the inner Decode then finds nothing stashed.
    inside = passed_on(nn.Sequential(Encode(), nn.Tanh()), nn.Sequential(Decode()))
    same_as_plain(inside, [2, 2], chunks=2, checkpoint="always")


# --- in a pipeline
@every_mode
def test_a_skip_tensor_goes_straight_to_the_partition_that_pops_it(checkpoint, monkeypatch):
    # 5 partitions, stashed in 0 and popped in 4: one copy of the skip tensor for each micro-batch, not four.
    shapes = []
    forward = Copy.forward
    note = staticmethod(lambda ctx, *args: shapes.append(args[2].shape) or forward(ctx, *args))
    monkeypatch.setattr(Copy, "forward", note)

    def wide(self, x):
        yield stash("wide", x.repeat(1, 5))
        return x

    narrow = layer(pops=["wide"], forward=lambda self, x: x + (yield pop("wide"))[:, :4])
    layers = [layer(stashes=["wide"], forward=wide), *(nn.Tanh() for _ in range(3)), narrow]
    model = GPipe(nn.Sequential(*layers), [1] * 5, devices=["cpu"] * 5, chunks=2, checkpoint=checkpoint)
    output = model(torch.randn(6, 4, requires_grad=True))
    assert shapes.count((3, 20)) == 2
    output.sum().backward()
    assert shapes.count((3, 20)) == 2 * 2, "and one copy of its gradient"


@every_mode
def test_a_portal_is_empty_after_backward(checkpoint):
    trackers = set()

    class Note(nn.Module):
        def forward(self, x):
            trackers.add(current_skip_tracker())
            return x

    model = nn.Sequential(nn.Linear(4, 4), Note(), Encode(), Decode())
    GPipe(model, [3, 1], devices=["cpu"] * 2, chunks=3, checkpoint=checkpoint)(torch.randn(6, 4)).sum().backward()
    portals = [portal for tracker in trackers for portal in tracker.portals.values()]
    assert len(portals) == 3
    assert all(portal.tensor is None and portal.grad is None for portal in portals)


class Written(nn.Module):
    """Write, in the partition that stashes, what has been stashed."""

    def forward(self, x):
        return x.mul_(2)


@every_mode
@pytest.mark.parametrize("between", [nn.Identity, Written])
def test_a_second_and_a_third_backward_through_one_forward_are_right_and_the_last_lets_go(between, checkpoint):
    def itself_and_none(self, x):
        yield stash("early", x)
        yield stash("none", None)
        return x

    def nothing_there(self, x):
        assert (yield pop("none")) is None
        return x

    torch.manual_seed(0)
    partitions = [
        [nn.Linear(4, 4), layer(stashes=["early", "none"], forward=itself_and_none), between(), nn.Linear(4, 4)],
        [nn.Tanh(), nn.Linear(4, 4)],
        [layer(pops=["none"], forward=nothing_there), Decode(), nn.Linear(4, 4)],
    ]
    plain = nn.Sequential(*sum(partitions, []))
    trackers = set()
    plain[0].register_forward_hook(lambda *_: trackers.add(current_skip_tracker()))
    devices = ["cpu"] * 3
    pipeline = GPipe(copy.deepcopy(plain), [4, 2, 3], devices=devices, chunks=3, checkpoint=checkpoint)
    trackers.clear()
    x = torch.randn(6, 4)
    for model in (plain, pipeline):
        y = model(x)
        y[4:].sum().backward(retain_graph=True)
        y.square().sum().backward(retain_graph=True)
        y[:3].exp().sum().backward()
    expected = [parameter.grad for parameter in plain.parameters()]
    torch.testing.assert_close([parameter.grad for parameter in pipeline.parameters()], expected)
    portals = [portal for tracker in trackers for portal in getattr(tracker, "portals", {}).values()]
    assert len(portals) == 2 * 3
    assert all(portal.tensor is None and portal.grad is None for portal in portals)


def test_a_recomputation_that_failed_leaves_nothing_to_the_next():
    broken = []

    def fail_once(x):
        if is_recomputing() and not broken:
            broken.append(True)
            raise ZeroDivisionError
        return x

    plain = passed_on(Encode(), Function(fail_once), Decode())
    pipeline = GPipe(copy.deepcopy(plain), [3, 2], devices=["cpu"] * 2, chunks=2, checkpoint="always")
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    loss = pipeline(inputs[0]).square().sum()
    with pytest.raises(ZeroDivisionError):
        loss.backward(retain_graph=True)
    pipeline.zero_grad()
    inputs[0].grad = None
    loss.backward()
    plain(inputs[1]).square().sum().backward()
    found = [inputs[0].grad, *(parameter.grad for parameter in pipeline.parameters())]
    expected = [inputs[1].grad, *(parameter.grad for parameter in plain.parameters())]
    torch.testing.assert_close(found, expected)


@every_mode
def test_none_and_masks_go_through_and_an_integer_first_in_the_tuple_does_not_cut_the_gradient(checkpoint):
    # A mask has no gradient; torchgpipe's PortalCopy fails on it in backward (assert portal.grad is not None).
    def put(self, x):
        yield stash("none", None)
        yield stash("mask", x.detach() > 0)
        return torch.tanh(x)

    def get(self, x):
        assert (yield pop("none")) is None
        mask = yield pop("mask")
        assert mask.dtype == torch.bool
        assert not mask.requires_grad
        return torch.where(mask, x, 2 * x)

    layers = (layer(stashes=["none", "mask"], forward=put), nn.Tanh(), layer(pops=["none", "mask"], forward=get))
    same_as_plain(passed_on(*layers), [2, 1, 2], chunks=2, checkpoint=checkpoint)

    # torchgpipe ties the portal to the first tensor only: an index can't carry the gradient back, which is lost.
    def put(self, x):
        h = torch.tanh(x)
        yield stash("h", h)
        return torch.arange(len(x)), h * 2

    def get(self, pair):
        h = yield pop("h")
        return pair[1] * h

    layers = layer(stashes=["h"], forward=put), nn.Identity(), layer(pops=["h"], forward=get)
    same_as_plain(passed_on(*layers), [2, 1, 2], chunks=2, checkpoint=checkpoint)


@every_mode
def test_a_layer_may_ignore_its_input_or_what_it_pops(checkpoint):
    def only_input(self, x):
        yield pop("early")
        return x * 3

    only_popped = layer(pops=["early"], forward=lambda self, x: (yield pop("early")) * 3)
    model = nn.Sequential(nn.Linear(4, 4), Encode(), nn.Tanh(), only_popped)
    grads = same_as_plain(model, [2, 1, 1], chunks=2, checkpoint=checkpoint)
    assert grads[0].abs().sum() > 0
    model = passed_on(Encode(), nn.Tanh(), layer(pops=["early"], forward=only_input))
    same_as_plain(model, [2, 1, 2], chunks=2, checkpoint=checkpoint)


class LetsGo(nn.Module):
    """Return what has nothing to do with the input's graph any more."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        if self.how == "detach":
            return x.detach()
        if self.how == "no_grad":
            with torch.no_grad():
                return x * 2
        return x.argmax(1)


class OneHot(nn.Module):
    def forward(self, x):
        return x if x.is_floating_point() else F.one_hot(x, 4).float()


@every_mode
@pytest.mark.parametrize("balance", [[2, 5], [3, 4], [4, 3], [5, 2], [6, 1], [2, 1, 4], [1, 1, 1, 1, 1, 1, 1]])
@pytest.mark.parametrize("how", ["detach", "no_grad", "argmax"])
def test_a_skip_tensor_keeps_its_gradient_round_a_layer_that_lets_go_of_it(how, balance, checkpoint):
    """However the model is cut: the layer that lets go stands beside the stash, in between, or beside the pop."""
    layers = [nn.Linear(4, 4), Encode(), LetsGo(how), OneHot(), nn.Linear(4, 4), nn.Tanh(), Decode()]
    if how == "argmax" and balance == [3, 4] and checkpoint != "never":  # what is checkpointed returns only integers
        pipeline = GPipe(nn.Sequential(*layers), balance, devices=["cpu"] * 2, chunks=3, checkpoint=checkpoint)
        refuses(RuntimeError, "the gradient of skip tensor 'early' has no way back", pipeline, torch.randn(6, 4))
        return
    grads = same_as_plain(nn.Sequential(*layers), balance, chunks=3, checkpoint=checkpoint)
    assert grads[0].abs().sum() > 0


@skippable(stash=["early"])
class OnlyStashed(nn.Module):
    """Has a weight that nobody needs but who pops."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        yield stash("early", self.linear(x))
        return x


@every_mode
@pytest.mark.parametrize("used", [0, 1])
def test_what_the_loss_ignores_has_no_gradient_and_not_zeros(used, checkpoint):
    def beside(self, x):
        early = yield pop("early")
        return x, early * 2

    model = nn.Sequential(nn.Linear(4, 4), OnlyStashed(), nn.Linear(4, 4), layer(pops=["early"], forward=beside))
    pipeline = GPipe(copy.deepcopy(model), [2, 1, 1], devices=["cpu"] * 3, chunks=2, checkpoint=checkpoint)
    x = torch.randn(6, 4)
    for both in (model, pipeline):
        both(x)[used].sum().backward()
    there = [parameter.grad is not None for parameter in model.parameters()]
    assert [parameter.grad is not None for parameter in pipeline.parameters()] == there
    assert set(there) == {True, False}


def test_a_skip_tensors_way_back_calls_no_hook_of_a_layer_that_has_no_gradient():
    """With None, or zeros made of it: a hook of a module makes zeros, and parameters before it would have them."""
    seen = []

    def put(self, x):
        yield stash("early", x)
        y = self.linear(x)
        y.register_hook(seen.append)
        return y

    stashing = layer(stashes=["early"], forward=put)
    stashing.linear = nn.Linear(4, 4)
    hooked = nn.Sequential(nn.Tanh())
    hooked.register_full_backward_hook(lambda *_: None)
    popping = layer(pops=["early"], forward=lambda self, _: (yield pop("early")))
    model = GPipe(nn.Sequential(stashing, hooked, popping), [2, 1], devices=["cpu"] * 2, checkpoint="never")
    model(torch.randn(4, 4, requires_grad=True)).sum().backward()
    assert seen == []
    assert stashing.linear.weight.grad is None


def test_a_gradient_without_a_way_back_is_told_and_eval_and_no_grad_leave_nothing_behind():
    def put(self, x):
        yield stash("h", x * 2)
        return x.argmax(1)

    get = layer(pops=["h"], forward=lambda self, index: (yield pop("h"))[index])
    model = nn.Sequential(nn.Linear(4, 4), layer(stashes=["h"], forward=put), get)
    with pytest.raises(RuntimeError, match="the gradient of skip tensor 'h' has no way back: .* stashes it"):
        GPipe(model, [2, 1], devices=["cpu"] * 2, checkpoint="always")(torch.randn(4, 4))
    GPipe(model, [2, 1], devices=["cpu"] * 2, checkpoint="never")(torch.randn(4, 4)).sum().backward()
    assert model[0].weight.grad is not None
    with torch.no_grad():
        assert GPipe(model, [2, 1], devices=["cpu"] * 2)(torch.randn(4, 4)).shape == (4, 4)
    model = GPipe(passed_on(Encode(), Decode()), [2, 2], devices=["cpu"] * 2, chunks=2).eval()
    x = torch.randn(6, 4)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(model(x), model.to_sequential()(x))
