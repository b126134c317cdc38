"""Any legal table, not only the famous ones: it runs, gives the plain model's gradients, holds what was predicted."""

import copy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from lib import schedules
from lib.schedules.executor import Executor
from lib.schedules.makers import MAKERS
from tests.lib.schedules.random_tables import legal_table
from tests.sizes import size


def layer(kind, generator):
    made = {
        "linear": lambda: nn.Linear(3, 3),
        "deep": lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3), nn.LayerNorm(3)),
        "none": lambda: nn.Softplus(),
        "frozen": lambda: nn.Linear(3, 3).requires_grad_(False),
    }[kind]().double()
    for parameter in made.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return made


def check(schedule, kinds, rows, seed, reduction):
    generator = torch.Generator().manual_seed(seed)
    stages = [layer(kind, generator) for kind in kinds[: schedule.stages - 1]] + [layer("linear", generator)]
    x, target = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for _ in range(2))

    def loss_fn(y, t):
        return F.smooth_l1_loss(y, t, reduction=reduction)

    plain = nn.Sequential(*copy.deepcopy(stages))
    loss = loss_fn(plain(x), target)
    loss.backward()
    executor = Executor(schedule, stages)
    losses, trace = executor.run(x, target, loss_fn, reduction=reduction)
    torch.testing.assert_close(sum(losses), loss.detach())
    assert len(losses) == schedule.micro_batches
    assert not any(part.requires_grad for part in losses)
    for ours, theirs in zip(nn.Sequential(*stages).parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    assert executor.live == schedules.live_activations(schedule)
    assert len(trace) == len(list(schedule))


KINDS = st.lists(st.sampled_from(["linear", "deep", "none", "frozen"]), min_size=16, max_size=16)
more_rows = st.integers(0, 9)
seeds = st.integers(0, 2**16)
reductions = st.sampled_from(["mean", "sum"])


legal_tables = st.builds(legal_table, st.randoms(use_true_random=False), st.integers(1, 3))


@settings(max_examples=size(suite=40, prove=400))
@given(legal_tables, KINDS, more_rows, seeds, reductions)
def test_any_legal_table_equals_the_plain_model(schedule, kinds, more, seed, reduction):
    check(schedule, kinds, schedule.micro_batches + more, seed, reduction)


@st.composite
def famous_tables(draw):
    maker, n, third = draw(st.tuples(st.sampled_from([*MAKERS.values()]), st.integers(1, 4), st.integers(1, 2)))
    m = maker.fewest(n) + draw(st.integers(0, 11))
    if maker.ahead:
        return maker.make(m, n, ahead=third)
    return maker.table(m, n, stages_per_rank=third)


@settings(max_examples=size(suite=40, prove=400))
@given(famous_tables(), KINDS, more_rows, seeds, reductions)
def test_every_maker_equals_the_plain_model(schedule, kinds, more, seed, reduction):
    check(schedule, kinds, schedule.micro_batches + more, seed, reduction)
