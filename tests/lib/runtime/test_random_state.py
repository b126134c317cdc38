"""Random numbers belong to (micro-batch, partition): equal in forward and recomputation, equal from run to run."""

import random
import time

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.pipeline import GPipe
from lib.runtime.random_state import _DRAWS, Seeds

CPU = ["cpu"] * 4


class Masks(nn.Module):
    """Multiply by a random mask; sleep a little before, so that the threads meet in another order each time."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.seen = []

    def forward(self, x):
        time.sleep(random.random() / 1000)
        mask = self.draw(torch.ones_like(x))
        self.seen.append(mask.detach().clone())
        return x * mask


def attention(x):
    query = x.reshape(1, 1, -1, 1).expand(1, 1, -1, 8)
    return F.scaled_dot_product_attention(query, query, query, dropout_p=0.5)[0, 0, :, 0].reshape(x.shape)


DRAWS = {
    "F.dropout": lambda x: F.dropout(x, 0.5),
    "nn.Dropout": nn.Dropout(0.5),
    "rand_like": torch.rand_like,
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.5, training=True),
    "attention": attention,
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "randn": lambda x: torch.randn(x.shape),
    "bernoulli_": lambda x: x.clone().bernoulli_(0.5),
    "rrelu": lambda x: F.rrelu(-x, training=True),
    "randperm": lambda x: torch.randperm(x.numel()).reshape(x.shape).float(),
    "multinomial": lambda x: torch.multinomial(x, 20, replacement=True)[:, :3].float(),
    "normal": lambda x: torch.normal(x, 1.0),
    "distribution": lambda x: torch.distributions.Gamma(x, x).sample(),
    "empty_like": lambda x: nn.init.xavier_uniform_(torch.empty_like(x)),
}


def run(model, x):
    for layer in model.modules():
        if isinstance(layer, Masks):
            layer.seen.clear()
    y = model(x)
    y.sum().backward()
    return y.detach()


def masks_of(model):
    return [layer.seen for layer in model.modules() if isinstance(layer, Masks)]


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_masks_are_equal_in_forward_and_recomputation_and_from_run_to_run(draw):
    layers = nn.Sequential(*[Masks(draw) for _ in range(3)])
    model = GPipe(layers, [1, 1, 1], devices=CPU, chunks=4, checkpoint="always")
    x = torch.ones(40, 3, requires_grad=True)
    runs = []
    for _ in range(8):  # times 14 ways: a hundred runs
        torch.manual_seed(5)
        runs.append(run(model, x))
        for seen in masks_of(model):
            forward = seen[:4]
            again = seen[:3:-1]  # backward comes to the last micro-batch first
            assert all(map(torch.equal, forward, again))
            assert not torch.equal(forward[0], forward[1]), "each micro-batch has numbers of its own"
    assert all(torch.equal(runs[0], other) for other in runs)
    first, second = (layer[0] for layer in masks_of(model)[:2])
    assert not torch.equal(first, second), "and each partition"


def test_another_seed_draws_other_numbers_and_backward_or_a_layer_without_leaves_the_callers_alone():
    model = GPipe(nn.Sequential(nn.Dropout(0.5)), [1], devices=CPU, chunks=2)
    x = torch.ones(4, 32)
    torch.manual_seed(0)
    first = model(x)
    second = model(x)
    torch.manual_seed(1)
    assert not torch.equal(first, second)
    assert not torch.equal(first, model(x))
    model = GPipe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], devices=CPU, chunks=2)
    before = torch.get_rng_state()
    model(torch.ones(4, 2)).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)
    model = GPipe(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), [1, 1], devices=CPU, chunks=2, checkpoint="always")
    y = model(torch.ones(4, 4, requires_grad=True))
    before = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_that_a_layer_names_is_used_and_outside_of_a_pipeline_nothing_changes():
    mine = torch.Generator()
    model = GPipe(nn.Sequential(Masks(lambda x: torch.rand(x.shape, generator=mine))), [1], devices=CPU, chunks=1)
    mine.manual_seed(3)
    expected = torch.rand(2, 2, generator=mine)
    mine.manual_seed(3)
    assert torch.equal(model(torch.ones(2, 2)), expected)
    torch.manual_seed(0)
    before = F.dropout(torch.ones(50), 0.5)
    with Seeds(1, 1).own(0, 0):
        F.dropout(torch.ones(50), 0.5)
    torch.manual_seed(0)
    assert torch.equal(F.dropout(torch.ones(50), 0.5), before)


def test_a_pipeline_inside_a_partition_repeats_as_well():
    inner = GPipe(nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5)), [1, 1], devices=CPU, chunks=2)
    model = GPipe(nn.Sequential(inner, nn.Dropout(0.5)), [1, 1], devices=CPU, chunks=2, checkpoint="always")
    outputs = set()
    for _ in range(5):
        torch.manual_seed(0)
        x = torch.ones(8, 8, requires_grad=True)
        y = model(x)
        y.sum().backward()
        assert torch.equal(y.bool(), x.grad.bool())
        outputs.add(tuple(y.flatten().tolist()))
    assert len(outputs) == 1


def operations_that_draw():
    """All of aten's that can be called with the arguments below, by their tag or their generator."""
    found = {}
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        if space != "aten":
            continue
        operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
        takes_generator = any(argument.name == "generator" for argument in operation._schema.arguments)
        if takes_generator or torch.Tag.nondeterministic_seeded in operation.tags:
            found[rest] = operation
    return found


def arguments_of(operation):
    """Make up arguments: halves for tensors and numbers, which suit nearly every distribution."""
    halves = torch.full((4,), 0.5)
    made = {}
    by_name = {"high": 4, "n": 4, "num_samples": 4, "to": 4, "from": 0, "low": 0, "train": True}
    by_kind = {"bool": True, "Tensor": halves, "float": 0.5, "Optional[float]": 0.5, "number": 0.5, "int": 4}
    for argument in operation._schema.arguments:
        kind = str(argument.type)
        name = argument.name
        if name == "generator" or argument.has_default_value():
            continue
        made[name] = by_name.get(name, [4] if "SymInt]" in kind or "List[int]" in kind else by_kind.get(kind))
    return None if None in [value for value in made.values() if not isinstance(value, torch.Tensor)] else made


def test_no_operation_of_torch_draws_past_the_owner():
    """Try all that draw: the generator of the process must not move while a thread owns its numbers."""
    tried = []
    missed = []
    unlike = []
    for name, operation in operations_that_draw().items():
        arguments = arguments_of(operation)
        if arguments is None:
            continue
        seeds = Seeds(1, 1)
        _ = seeds[0, 0]  # drawn now, so that what follows draws nothing from outside

        def call(operation=operation, arguments=arguments):
            return operation(**{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()})

        before = torch.get_rng_state()
        try:
            call()
        except (RuntimeError, TypeError, IndexError, ValueError):
            continue  # for another device, or not these arguments
        if torch.equal(torch.get_rng_state(), before):
            continue
        tried.append(name)
        before = torch.get_rng_state()
        results = []
        for _ in range(2):
            with seeds.own(0, 0):
                results.append(call())
        if not torch.equal(torch.get_rng_state(), before):
            missed.append(name)
        pairs = [r if isinstance(r, tuple) else (r,) for r in results]
        if not all(torch.equal(a, b) for a, b in zip(*pairs, strict=True)):
            unlike.append(name)
    assert missed == []
    assert unlike == []
    drawn, known = ({name.partition(".")[0] for name in names} for names in (tried, _DRAWS))
    assert len(tried) > 40
    assert known - drawn <= {"rrelu_with_noise", "rrelu_with_noise_"}
