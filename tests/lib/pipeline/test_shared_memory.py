"""Tensors that share memory across a cut: equal to the plain model, or refused; never another number without a word."""

import copy

import pytest
import torch
from torch import nn

from lib import schedules
from lib.pipeline import GPipe, pop, skippable, stash
from lib.runtime.microbatch import Batch
from lib.runtime.sharing import Lending, sharing
from lib.schedules.executor import Executor
from tests.lib.models import Function
from tests.lib.refusal import refuses

every_mode = pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
every_maker = pytest.mark.parametrize("make", [schedules.gpipe, schedules.one_f_one_b, schedules.zero_bubble_h1])
ROWS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "views, found",
    [
        (lambda h: [h], []),
        (lambda h: [h, h], [0, 1]),
        (lambda h: [h, h.clone(), h[:, :2]], [0, 2]),
        (lambda h: [h[:, :2], h[:, 2:]], []),
        (lambda h: [h[:, ::2], h[:, 1::2], h.t()], [0, 1, 2]),
        (lambda h: [h[:3], h[3:], h[2:4]], [0, 1, 2]),
        (lambda h: [h.detach(), h.to_sparse(), h.view(-1)], [0, 2]),
        (lambda h: [h[:0], h], []),
    ],
)
def test_tensors_share_memory_if_they_have_a_byte_in_common(views, found):
    assert sharing(views(torch.zeros(6, 4))) == found


WRITERS = {
    "the first": lambda pair: pair[0].mul_(3)[:, :2] + pair[1][:, :2] * 5,
    "the second": lambda pair: pair[1].mul_(3)[:, :2] + pair[0][:, :2] * 5,
    "nobody": lambda pair: (pair[0] * 3)[:, :2] + pair[1][:, :2] * 5,
}
PAIRS = {
    "one tensor twice": lambda h: (h, h),
    "a tensor and a part of it": lambda h: (h, h[:, :2]),
    "two parts that overlap": lambda h: (h[:, :3], h[:, 1:]),
    "two parts that do not": lambda h: (h[:, :2], h[:, 2:]),
}


def model(pair, writer):
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 4), Function(PAIRS[pair]))
    return nn.Sequential(first, nn.Sequential(Function(WRITERS[writer]), nn.Linear(2, 1)))


def gradients(module, backward):
    module.zero_grad()
    backward()
    return [parameter.grad.clone() for parameter in module.parameters()]


def plain_gradients(module):
    return gradients(module, lambda: module(ROWS).sum().backward())


def is_refused(pair, writer):
    return writer != "nobody" and pair != "two parts that do not"


@every_mode
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_partition_may_write_what_nobody_else_has_and_else_is_refused(pair, writer, checkpoint):
    plain = model(pair, writer)
    piped = GPipe(copy.deepcopy(plain), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
    if is_refused(pair, writer):
        refuses(RuntimeError, "was changed in place, and has memory in common", piped, ROWS)
        assert all(parameter.grad is None for parameter in piped.parameters())
        return
    found = gradients(piped, lambda: piped(ROWS).sum().backward())
    torch.testing.assert_close(found, plain_gradients(plain))


@every_maker
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_stage_may_write_what_nobody_else_has_and_else_is_refused(pair, writer, make):
    plain = model(pair, writer)
    stages = copy.deepcopy(plain)
    executor = Executor(make(2, 2), list(stages))

    def step():
        executor.run(ROWS, torch.zeros(6), lambda y, _: y.sum(), reduction="sum")

    if is_refused(pair, writer):
        refuses(RuntimeError, "was changed in place, and has memory in common", step)
        return
    torch.testing.assert_close(gradients(stages, step), plain_gradients(plain))


def third_and_a_pair(inputs):
    pair, part, third = inputs
    return third.mul_(3)[:, :2] + pair[:, :2] + part * 5


@every_mode
def test_beside_two_that_are_one_a_third_may_be_written_by_the_first_partition_and_stage(checkpoint):
    torch.manual_seed(0)
    plain = nn.Sequential(Function(third_and_a_pair), nn.Linear(2, 1))
    piped = GPipe(copy.deepcopy(plain), [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
    stages = copy.deepcopy(plain)
    executor = Executor(schedules.one_f_one_b(2, 2), list(stages))

    def given():
        return ROWS, ROWS[:, :2], ROWS + 1

    def step():
        executor.run(given(), torch.zeros(6), lambda y, _: y.sum(), reduction="sum")

    expected = gradients(plain, lambda: plain(given()).sum().backward())
    torch.testing.assert_close(gradients(piped, lambda: piped(given()).sum().backward()), expected)
    torch.testing.assert_close(gradients(stages, step), expected)


@every_maker
def test_the_first_stage_may_begin_in_place_on_the_models_input(make):
    plain = nn.Sequential(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4), nn.Tanh()), nn.Linear(4, 1))
    stages = copy.deepcopy(plain)
    expected = gradients(plain, lambda: plain(ROWS.clone()).sum().backward())
    executor = Executor(make(3, 2), list(stages))
    x = ROWS.clone()
    found = gradients(stages, lambda: executor.run(x, torch.zeros(6), lambda y, _: y.sum(), reduction="sum"))
    torch.testing.assert_close(found, expected)


@skippable(stash=["h"])
class Stash(nn.Module):
    def forward(self, x):
        yield stash("h", x)
        return x


@skippable(pop=["h"])
class Pop(nn.Module):
    """Add what was stashed to what comes; `write` may change either in place before."""

    def __init__(self, write=lambda x, h: None):
        super().__init__()
        self.write = write

    def forward(self, x):
        h = yield pop("h")
        self.write(x, h)
        return x * 2 + h * 5


def with_skip(*between, write=lambda x, h: None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), Stash(), *between, Pop(write), nn.Linear(4, 1))


def triple(x):
    return x.mul_(3)


@every_mode
def test_what_is_written_after_the_stash_in_its_own_partition_is_what_is_popped(checkpoint):
    plain = with_skip(Function(triple), Function(lambda x: x.add_(1)), nn.Tanh())
    piped = GPipe(copy.deepcopy(plain), [4, 3], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
    torch.testing.assert_close(piped(ROWS), plain(ROWS))
    found = gradients(piped, lambda: piped(ROWS).sum().backward())
    torch.testing.assert_close(found, plain_gradients(plain))


@every_mode
@pytest.mark.parametrize(
    "layers, balance",
    [
        ([Function(triple), nn.Identity()], [2, 4]),
        ([Function(triple), nn.Identity()], [2, 1, 3]),
        ([nn.Identity(), Function(triple)], [2, 1, 3]),
    ],
)
def test_what_is_written_behind_the_cut_and_was_stashed_before_it_is_refused(layers, balance, checkpoint):
    piped = GPipe(with_skip(*layers), balance, devices=["cpu"] * len(balance), chunks=2, checkpoint=checkpoint)
    refuses(RuntimeError, "was changed in place, and has memory in common", piped, ROWS)


@every_mode
@pytest.mark.parametrize("write", [lambda x, h: h.mul_(3), lambda x, h: x.mul_(3)], ids=["popped", "input"])
def test_who_pops_may_not_write_one_of_two_that_are_one(write, checkpoint):
    piped = GPipe(with_skip(write=write), [2, 2], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
    refuses(RuntimeError, "was changed in place, and has memory in common", piped, ROWS)


@every_mode
def test_who_pops_may_write_what_is_nobody_elses_and_not_computed_again(checkpoint):
    def write(x, h):
        h.mul_(3)
        x.add_(1)

    plain = with_skip(nn.Tanh(), Function(lambda x: x + 1), write=write)
    piped = GPipe(copy.deepcopy(plain), [3, 3], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
    if checkpoint != "never":
        refuses(RuntimeError, "'h' was changed in place: a recomputation would begin with the changed one", piped, ROWS)
        return
    found = gradients(piped, lambda: piped(ROWS).sum().backward())
    torch.testing.assert_close(found, plain_gradients(plain))


HANDED_ON = {
    "a tensor and a view of it": [Function(lambda x: (x, x[:]))],
    "a view of it twice": [Function(lambda x: (x[:], x[:]))],
    "a view, then what it is of": [nn.Identity(), Function(lambda x: (x[:, :], x))],
}


@every_mode
@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("first", HANDED_ON)
def test_what_a_partition_hands_on_of_its_own_input_shares_memory_also_where_it_was_lent_a_copy(
    first, chunks, checkpoint
):
    module = nn.Sequential(*HANDED_ON[first], Function(WRITERS["the first"]))
    piped = GPipe(module, [len(module) - 1, 1], devices=["cpu"] * 2, chunks=chunks, checkpoint=checkpoint)
    refuses(RuntimeError, "was changed in place, and has memory in common", piped, ROWS.clone())


@every_mode
@pytest.mark.parametrize("chunks", [1, 3])
def test_a_skip_tensor_that_is_a_partitions_own_input_shares_memory_with_what_it_hands_on(chunks, checkpoint):
    for writer in (lambda x, h: x.mul_(3), lambda x, h: h.mul_(3)):
        module = nn.Sequential(Stash(), nn.Identity(), Pop(writer))
        for balance in ([1, 2], [1, 1, 1]):
            piped = GPipe(module, balance, devices=["cpu"] * 3, chunks=chunks, checkpoint=checkpoint)
            refuses(RuntimeError, "was changed in place, and has memory in common", piped, ROWS.clone())


@every_mode
def test_disjoint_parts_of_a_partitions_own_input_may_be_written(checkpoint):
    plain = nn.Sequential(Function(PAIRS["two parts that do not"]), Function(WRITERS["the first"]), nn.Linear(2, 1))
    piped = GPipe(copy.deepcopy(plain), [1, 2], devices=["cpu"] * 2, chunks=1, checkpoint=checkpoint)
    torch.testing.assert_close(piped(ROWS.clone()), plain(ROWS.clone()))


def test_who_has_written_once_gets_a_copy_for_good_though_he_does_not_write_each_time():
    lending = Lending()
    for factor in (3, 1, 3):
        batch = Batch(torch.ones(2))
        output = lending.call(lambda x, factor=factor: x.mul_(factor) if factor > 1 else x * 1, batch)
        assert (output[0].tolist(), batch[0].tolist()) == ([factor] * 2, [1.0] * 2)
