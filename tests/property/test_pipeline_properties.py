"""For any model, balance, number of chunks, mode and batch: what GPipe gives is what the nn.Sequential gives."""

import copy
import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lib.pipeline import GPipe, pop, skippable, stash
from lib.pipeline.pipeline import clock_cycles
from lib.runtime.microbatch import gather, scatter

MODES = ["always", "except_last", "never"]


@skippable(stash=["skip"])
class Stash(nn.Module):
    def forward(self, x):
        yield stash("skip", x.cos())
        return x


@skippable(pop=["skip"])
class Pop(nn.Module):
    def forward(self, x):
        skip = yield pop("skip")
        return x + skip


class Pair(nn.Module):
    """Make a tuple with an index and a mask in it."""

    def forward(self, x):
        return torch.arange(len(x)) % 2, x, x > 0, x.sin()


class Use(nn.Module):
    """Use all that a Pair made, and stay a tuple."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, inputs):
        index, x, mask, y = inputs
        return (index, self.linear(x * mask), mask, y)  # continuous where the mask changes: rounding may flip it


class Unpair(nn.Module):
    def forward(self, inputs):
        _, x, mask, y = inputs
        return x + mask * y


LAYERS = {
    "linear": lambda: nn.Linear(4, 4),
    "tanh": nn.Tanh,
    "relu_": lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True)),
    "norm": lambda: nn.LayerNorm(4, eps=0.1),  # the usual 1e-5 makes rounding 300 times larger, layer by layer
}


def tensors():
    names = st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=4)
    return names.map(lambda chosen: [LAYERS[name]() for name in chosen])


@st.composite
def models(draw):
    """A Sequential of plain layers, perhaps with a skip over some of them, perhaps with tuples in between."""
    layers = draw(tensors())
    if draw(st.booleans()):
        layers = [*draw(tensors()), Stash(), *layers, Pop(), *draw(tensors())]
    if draw(st.booleans()):
        layers += [Pair(), *(Use() for _ in range(draw(st.integers(0, 2)))), Unpair()]
    module = nn.Sequential(*layers).double()
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    cuts = draw(st.lists(st.integers(1, max(1, len(layers) - 1)), unique=True, max_size=3))
    ends = [0, *sorted(cut for cut in cuts if cut < len(layers)), len(layers)]
    return module, [end - begin for begin, end in itertools.pairwise(ends)]


@given(models(), st.integers(1, 9), st.integers(1, 6), st.sampled_from(MODES), st.booleans())
def test_outputs_gradients_and_input_gradients_are_equal(model, rows, chunks, mode, input_requires_grad):
    plain, balance = model
    piped = GPipe(copy.deepcopy(plain), balance, devices=["cpu"] * len(balance), chunks=chunks, checkpoint=mode)
    x = torch.linspace(-2, 2, rows * 4, dtype=torch.float64).reshape(rows, 4)
    inputs = [x.clone().requires_grad_(input_requires_grad) for _ in range(2)]
    outputs = [piped(inputs[0]), plain(inputs[1])]
    torch.testing.assert_close(*outputs)
    if outputs[1].requires_grad:
        for output in outputs:
            output.square().sum().backward()
    for ours, theirs in zip(piped.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-6, atol=1e-8)
    if input_requires_grad:
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-6, atol=1e-8)


@given(models(), st.integers(1, 9), st.integers(1, 6))
def test_in_eval_mode_outputs_are_equal_too(model, rows, chunks):
    plain, balance = model
    piped = GPipe(copy.deepcopy(plain), balance, devices=["cpu"] * len(balance), chunks=chunks).eval()
    x = torch.linspace(-2, 2, rows * 4, dtype=torch.float64).reshape(rows, 4)
    with torch.inference_mode():
        torch.testing.assert_close(piped(x), plain.eval()(x))


@given(st.integers(0, 40), st.integers(1, 12))
def test_scatter_is_even_and_gather_undoes_it(rows, chunks):
    x = torch.arange(rows)
    batches = scatter((x, x[:, None] * 2), chunks)
    sizes = [len(batch[0]) for batch in batches]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert len(batches) == max(1, min(rows, chunks))
    assert all(map(torch.equal, gather(batches), (x, x[:, None] * 2)))


@given(st.integers(1, 12), st.integers(1, 8))
def test_the_clock_runs_every_task_once_and_after_its_input(m, n):
    clocks = list(clock_cycles(m, n))
    assert len(clocks) == m + n - 1
    at = {pair: k for k, pairs in enumerate(clocks) for pair in pairs}
    assert set(at) == {(i, j) for i in range(m) for j in range(n)}
    assert all(k == i + j for (i, j), k in at.items())
    assert all(len({j for _, j in pairs}) == len(pairs) for pairs in clocks), "a partition does one thing at a time"
