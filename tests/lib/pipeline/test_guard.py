"""What is recomputed is what ran: what the guard of a GPipe refuses, and what it leaves to the layers."""

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from lib.pipeline import is_recomputing
from lib.pipeline.watch import ModuleWatch
from tests.lib.pipeline.small_gpipes import every_recomputing_mode, gpipe, loss, one_partition
from tests.lib.refusal import refuses

OPTIMIZERS = {
    "SGD": torch.optim.SGD,
    "momentum": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "Adagrad": torch.optim.Adagrad,
}


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Dropout(0.5), nn.Sequential(nn.Tanh(), nn.Linear(3, 3)))


def step(make):
    """A step of an optimizer, as a change of a model."""
    return lambda model: make(model.parameters(), lr=0.1).step()


def nothing(*_):
    pass


def exchange(model):
    model[1]._forward_hooks.clear()
    model[1].register_forward_hook(nothing)


def rename(model):
    vars(model[2])["sort"] = vars(model[2]).pop("kind")


def freeze(model):
    model[0].requires_grad_(False)


CHANGES = {
    **{f"fused {name}": (step(partial(make, fused=True)), "Linear.weight") for name, make in OPTIMIZERS.items()},
    **{f"foreach {name}": (step(partial(make, foreach=True)), "Linear.weight") for name, make in OPTIMIZERS.items()},
    "layer replaced": (lambda model: setattr(model[3], "0", nn.ReLU()), "Sequential.0"),
    "layer added": (lambda model: model[3].append(nn.ReLU()), "Sequential.2"),
    "layer removed": (lambda model: model[3].pop(0), "Sequential.0"),
    "forward hook": (lambda model: model[2].register_forward_hook(nothing), "Dropout._forward_hooks"),
    "forward pre-hook": (lambda model: model[2].register_forward_pre_hook(nothing), "Dropout._forward_pre_hooks"),
    "backward hook": (lambda model: model[0].register_full_backward_hook(nothing), "Linear._backward_hooks"),
    "backward pre-hook": (lambda model: model[0].register_full_backward_pre_hook(nothing), "_backward_pre_hooks"),
    "hook removed": (lambda model: model[1]._forward_hooks.clear(), "LayerNorm._forward_hooks"),
    "hook exchanged": (exchange, "LayerNorm._forward_hooks"),
    "float": (lambda model: setattr(model[2], "p", 0.25), "Dropout.p"),
    "bool": (lambda model: setattr(model[2], "inplace", True), "Dropout.inplace"),
    "string": (lambda model: setattr(model[2], "kind", "thin"), "Dropout.kind"),
    "number for None": (lambda model: setattr(model[2], "limit", 1), "Dropout.limit"),
    "tuple": (lambda model: setattr(model[2], "shape", (3, 2)), "Dropout.shape"),
    "new setting": (lambda model: setattr(model[2], "scale", 2), "Dropout.scale"),
    "setting gone": (lambda model: delattr(model[2], "kind"), "Dropout.kind"),
    "setting renamed": (
        lambda model: vars(model[2]).update(sort=vars(model[2]).pop("kind")),
        "Dropout.kind, Dropout.so",
    ),
    "None for a tensor": (lambda model: setattr(model[2], "given", None), "Dropout.given"),
    "another forward": (lambda model: setattr(model[2], "forward", nn.functional.relu), "Dropout.forward"),
    "frozen": (freeze, "Linear.weight.requires_grad, Linear.bias.requires_grad"),
    "unfrozen": (lambda model: model[1].requires_grad_(True), "LayerNorm.weight.requires_grad"),
}


def with_settings():
    made = layers()
    made[1].register_forward_hook(nothing)
    made[1].requires_grad_(False)
    vars(made[2]).update(kind="dense", limit=None, shape=(3, 3), given=torch.ones(3))
    return made


@every_recomputing_mode
@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_since_forward_is_refused_by_its_name_before_it_is_recomputed(change, mode):
    make, named = CHANGES[change]
    model = one_partition(with_settings(), mode)
    before = [*model.parameters()]
    y = loss(model)
    make(model)
    written = []
    for parameter in before:
        if parameter.requires_grad:
            parameter.register_hook(lambda _: written.append(1))
    says = rf"{named}.* changed between forward and backward.*checkpoint='never'"
    if mode == "except_last" and change.startswith("foreach"):
        says = "modified by an inplace operation"  # torch's own words: the last micro-batch has saved the parameter
    refuses(RuntimeError, says, y.backward)
    times = {"always": 0, "except_last": 1}[mode]  # the last micro-batch has its graph and needs no recomputation
    assert len(written) <= times * len(before)


@every_recomputing_mode
@pytest.mark.parametrize("change", CHANGES)
def test_the_same_before_forward_or_after_backward_is_sound(change, mode):
    make, _ = CHANGES[change]
    model = one_partition(with_settings(), mode)
    for _ in range(2):
        loss(model).backward()
        make(model)
        if change in ("layer removed", "setting gone", "setting renamed"):
            make = nothing  # it can't go twice
    loss(model).backward()


@every_recomputing_mode
def test_an_optimizer_of_others_or_of_parameters_without_gradient_may_step_meanwhile(mode):
    model = one_partition(layers(), mode)
    other = nn.Linear(1, 1)
    other(torch.ones(1)).backward()
    everything = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1, fused=True)
    everything.step()
    model.zero_grad()
    y = loss(model)
    everything.step()
    y.backward()
    assert model[0].weight.grad is not None


@every_recomputing_mode
def test_an_optimizer_in_a_hook_is_seen_by_the_next_recomputation_of_the_same_backward(mode):
    model = one_partition(nn.Sequential(nn.Linear(3, 3)), mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model[0].weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    refuses(RuntimeError, "Linear.weight, Linear.bias changed", loss(model).backward)


@every_recomputing_mode
def test_between_two_backward_passes_through_one_forward_it_is_seen_too(mode):
    model = one_partition(layers(), mode)
    y = model(torch.ones(6, 3))
    y[4:].sum().backward(retain_graph=True)
    y[2:4].sum().backward(retain_graph=True)
    model[2].p = 0.25
    refuses(RuntimeError, "Dropout.p changed", y[:2].sum().backward)


def test_the_memory_of_a_parameter_is_held_so_that_no_other_can_come_at_its_address():
    model = gpipe(nn.Sequential(nn.Linear(64, 64)), checkpoint="always")
    weight = model[0].weight
    y = model(torch.ones(6, 64)).sum()
    address = weight.data_ptr()
    weight.data = torch.empty(0)
    others = [torch.zeros(16, 64) for _ in range(1000)]  # what was free would be given to some of them
    assert address not in {other.data_ptr() for other in others}
    weight.data = others[-1]
    refuses(RuntimeError, "Linear.weight changed", y.backward)


@every_recomputing_mode
@pytest.mark.parametrize("forwards", [1, 2])
def test_a_backward_that_recomputes_nothing_takes_no_change_for_the_work_of_its_hooks(forwards, mode):
    model = one_partition(layers(), mode)
    ys = [loss(model) for _ in range(forwards)]
    model[2].p = 0.25
    # Only a graph that was there leads to the parameter: that of the last micro-batch.
    torch.autograd.grad(sum(ys), model[0].weight, retain_graph=True, allow_unused=True)
    for y in ys:
        refuses(RuntimeError, "Dropout.p changed", y.backward)


@every_recomputing_mode
@pytest.mark.parametrize("change", ["float", "forward hook", "layer replaced"])
def test_of_two_forwards_in_one_backward_neither_takes_a_change_for_the_others_doing(change, mode):
    make, named = CHANGES[change]
    for sign in (1, -1):  # whichever goes backward first
        model = one_partition(with_settings(), mode)
        ys = [loss(model), loss(model)][::sign]
        make(model)
        model.zero_grad()
        refuses(RuntimeError, f"{named} changed", sum(ys).backward)
        if mode == "always":
            assert all(parameter.grad is None for parameter in model.parameters()), "refused before a recomputation"


# --- what layers do themselves


class Counts(nn.Module):
    """Changes attributes of its own; when: in which passes."""

    def __init__(self, when):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.when = when
        self.calls = 0
        self.longest = 0
        self.cache = None
        self.history = ()
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x):
        if self.when():
            self.calls += 1
            self.history = (*self.history, len(x))
            self.cache = None if self.calls % 2 else x.detach()
        self.total += x.detach().sum()
        return self.linear(x)


class Made(nn.Module):
    """Makes its inside when it first knows the width."""

    def __init__(self):
        super().__init__()
        self.inside = None
        self.scale = None

    def forward(self, x):
        if self.inside is None:
            self.inside = nn.Linear(x.shape[1], 3)
            self.scale = nn.Parameter(torch.ones(3))
        return self.inside(x) * self.scale


class Wrapper(nn.Module):
    """As a DDP: counts gradients as they come, in hooks of the parameters; hooks its inside up in each forward."""

    def __init__(self, inside):
        super().__init__()
        self.inside = inside
        self.ready = 0
        self.rounds = 0
        for parameter in inside.parameters():
            parameter.register_post_accumulate_grad_hook(self.count)

    def count(self, _):
        self.ready += 1
        if self.ready == 2:
            self.ready = 0
            self.rounds += 1

    def forward(self, x):
        handle = self.inside.register_forward_hook(nothing)
        try:
            return self.inside(x)
        finally:
            handle.remove()


class Freezes(nn.Linear):
    """Keeps its own weight as it is, from its first forward on."""

    def forward(self, x):
        self.weight.requires_grad_(False)
        return super().forward(x)


def hooked_once():
    """A layer with a hook that goes away in backward."""
    layer = nn.Linear(3, 3)
    handle = layer.register_full_backward_hook(lambda *_: handle.remove())
    return layer


def attention():
    return nn.TransformerEncoderLayer(3, 1, 4, dropout=0.0, batch_first=True)


OWN = {
    "always": lambda: Counts(lambda: True),
    "in forward": lambda: Counts(lambda: not is_recomputing()),
    "in the recomputation": lambda: Counts(is_recomputing),
    "BatchNorm": lambda: nn.BatchNorm1d(3),
    "lazy": lambda: nn.LazyLinear(3),
    "lazy BatchNorm": nn.LazyBatchNorm1d,
    "made in forward": Made,
    "weight_norm": lambda: parametrizations.weight_norm(nn.Linear(3, 3)),
    "spectral_norm": lambda: parametrizations.spectral_norm(nn.Linear(3, 3)),
    "old spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(3, 3)),
    "compiled": lambda: torch.compile(nn.Linear(3, 3), backend="eager"),
    "scripted": lambda: torch.jit.script(nn.Linear(3, 3)),
    "wrapper": lambda: Wrapper(nn.Linear(3, 3)),
    "freezes": lambda: Freezes(3, 3),
    "hooked once": hooked_once,
    "attention": attention,
}


@every_recomputing_mode
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("own", OWN)
def test_what_a_layer_changes_by_itself_is_its_own_affair(own, check, mode):
    torch.manual_seed(0)
    model = gpipe(nn.Sequential(nn.Linear(3, 3), OWN[own](), nn.Tanh()), [3], chunks=3, checkpoint=mode, check=check)
    for _ in range(2):
        both = loss(model) + loss(model)  # two forwards, then backward through both
        both.backward()
    y = model(torch.ones(6, 3))
    for rows in (slice(4, 6), slice(2, 4), slice(0, 2)):
        y[rows].square().sum().backward(retain_graph=True)
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)


@every_recomputing_mode
def test_what_hooks_change_in_one_backward_is_no_change_for_the_next_through_the_same_forward(mode):
    model = gpipe(nn.Sequential(Wrapper(nn.Linear(3, 3))), [1], chunks=3, checkpoint=mode)
    y = model(torch.ones(6, 3))
    for rows in (slice(4, 6), slice(2, 4), slice(0, 2)):
        y[rows].sum().backward(retain_graph=True)
    assert model[0].rounds == 9  # a slice sends zeros through the other micro-batches
    assert model[0].inside.bias.grad.tolist() == [6, 6, 6]


@every_recomputing_mode
def test_what_a_layer_made_or_took_away_in_its_first_forward_is_looked_at_from_then_on(mode):
    model = one_partition(nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3), Made()), mode)
    y = loss(model)
    model[2].inside = nn.Linear(3, 3)
    refuses(RuntimeError, "Made.inside changed", y.backward)
    y = loss(model)
    model[1].register_forward_pre_hook(nothing)
    refuses(RuntimeError, "Linear._forward_pre_hooks changed", y.backward)


class Shrinks(nn.Linear):
    """Writes its weight in each forward."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5)
        return super().forward(x)


@every_recomputing_mode
@pytest.mark.parametrize("beside", [nn.Tanh, Made, partial(nn.LazyLinear, 3)])
def test_a_layer_that_writes_a_parameter_is_refused_whatever_is_made_beside_it(beside, mode):
    chunks = {"always": 1, "except_last": 2}[mode]  # one recomputation: a second one would see what the first wrote
    model = gpipe(nn.Sequential(nn.Linear(3, 3), Shrinks(3, 3), beside()), [3], chunks=chunks, checkpoint=mode)
    says = "Shrinks.weight changed between forward and backward"
    if mode == "except_last":  # torch's own words: the last micro-batch has saved the parameter
        says += "|modified by an inplace operation"
    refuses(RuntimeError, says, loss(model).backward)


@every_recomputing_mode
def test_what_a_lazy_layer_made_in_its_first_forward_may_not_be_written_before_backward(mode):
    model = gpipe(nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3)), [2], chunks=3, checkpoint=mode)
    y = loss(model)
    model[1].weight.data = torch.ones(3, 3)
    refuses(RuntimeError, "Linear.weight changed", y.backward)


def test_an_error_in_a_layer_or_a_refusal_leaves_no_trace_in_the_next_step():
    model = one_partition(layers(), "always")
    y = loss(model)
    model[2].p = 0.25
    for _ in range(2):
        refuses(RuntimeError, "Dropout.p changed", y.backward, retain_graph=True)
    loss(model).backward()


@every_recomputing_mode
def test_a_layer_that_keeps_its_last_output_keeps_only_the_last_graph(mode):
    class Keeps(nn.Linear):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    model = one_partition(nn.Sequential(nn.Linear(3, 3), Keeps(3, 3)), mode)
    for _ in range(4):
        loss(model).backward()
    gc.collect()
    assert sum(isinstance(x, ModuleWatch) and x.module is model.partitions[0] for x in gc.get_objects()) <= 1


def test_what_a_hook_changed_in_a_backward_that_failed_is_no_change_for_the_next_one():
    """Two forwards in one backward: the hooks of the second count, before the first is looked at, which then fails."""
    layer = nn.Linear(3, 3)
    layer.count = 0

    def count(*_):
        layer.count += 1

    class Fails(nn.Module):
        def forward(self, x):
            if fails and is_recomputing() and x.sum() < 0:
                raise ValueError("in the recomputation")
            return x * 1

    fails = []
    layer.register_full_backward_hook(count)
    model = gpipe(nn.Sequential(Fails(), layer), [2], checkpoint="always")
    first = model(torch.full((2, 3), -1.0, requires_grad=True)).sum()
    second = model(torch.full((2, 3), 1.0, requires_grad=True)).sum()
    fails.append(True)
    with pytest.raises(ValueError, match="in the recomputation"):
        (first + second).backward(retain_graph=True)
    fails.clear()
    layer.zero_grad()
    first.backward()
    assert layer.weight.grad.tolist() == [[-2.0] * 3] * 3
