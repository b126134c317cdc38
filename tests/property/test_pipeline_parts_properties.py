"""What must hold for every cost, every cut of a mini-batch, and every place of a skip connection."""

import copy
from itertools import combinations, pairwise

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from lib.pipeline import DeferredBatchNorm, GPipe, Namespace, partition, pop, skippable, stash
from lib.pipeline.batchnorm import mini_batch
from tests.sizes import size

cuts = st.lists(st.integers(0, 50), min_size=1, max_size=9).flatmap(
    lambda costs: st.tuples(st.just(costs), st.integers(1, len(costs)))
)


@given(cuts)
@example(([7, 1, 1, 1, 1, 1, 7, 1], 3))  # the dearest block: 8, of torchgpipe's cut 9
@example(([2, 2, 2, 5, 5], 4))  # 5, and 11
def test_no_cut_is_better_than_ours(drawn):
    costs, n = drawn
    sums = lambda cuts: [sum(costs[a:b]) for a, b in pairwise([0, *cuts, len(costs)])]  # noqa: E731
    price = lambda blocks: (max(blocks), sum(block**2 for block in blocks))  # noqa: E731
    lengths = partition(costs, n)
    assert len(lengths) == n
    assert min(lengths) >= 1
    assert sum(lengths) == len(costs)
    ours = [sum(lengths[: k + 1]) for k in range(n - 1)]
    assert price(sums(ours)) == min(price(sums(cuts)) for cuts in combinations(range(1, len(costs)), n - 1))


@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=6),
    mean=st.sampled_from([0.0, -3.0, 1e4]),  # of 1e4, E[x²] - E[x]² in float32 leaves torchgpipe a variance of -8
    std=st.sampled_from([0.1, 1.0, 1e3]),
    momentum=st.sampled_from([None, 0.1, 1.0]),
    spare=st.integers(-2, 2),  # torchgpipe waits for micro-batch number `chunks`, be it the next mini-batch's
    seed=st.integers(0, 99),
)
def test_statistics_are_those_of_the_whole_batch(sizes, mean, std, momentum, spare, seed):
    batch = torch.randn(sum(sizes), 2, generator=torch.Generator().manual_seed(seed)) * std + mean
    whole = nn.BatchNorm1d(2, momentum=momentum)
    parts = DeferredBatchNorm(2, momentum=momentum, chunks=max(1, len(sizes) + spare))
    for _ in range(2):
        whole(batch)
        with mini_batch(parts):
            for part in batch.split(sizes):
                parts(part)
    assert parts.num_batches_tracked == 2
    torch.testing.assert_close(parts.running_mean, whole.running_mean, rtol=1e-5, atol=1e-5 * std)
    # a float32 near 1e4 has a grain of 0.001, in the input and in the means: times std, the variance can know no better
    grain = torch.finfo(torch.float32).eps * abs(mean)
    torch.testing.assert_close(parts.running_var, whole.running_var, rtol=1e-3, atol=1e-6 + grain * std)


class Block(nn.Module):
    """A layer that pops what is due and stashes what is to come."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        for name in self.pops:
            x = x * (yield pop(name))
        h = torch.tanh(self.linear(x))
        for k, name in enumerate(self.stashes):
            yield stash(name, h + k)
        return h


def block(stashes, pops, namespace):
    kind = type("Block", (Block,), {"stashes": sorted(stashes), "pops": sorted(pops)})
    return skippable(stash=stashes, pop=pops)(kind)().isolate(namespace)


@given(st.data(), st.sampled_from(["always", "except_last", "never"]), st.integers(1, 4), st.integers(1, 7))
@settings(max_examples=size(suite=60, prove=600))
def test_any_skips_in_any_balance_equal_the_plain_model(data, checkpoint, chunks, rows):
    layers = data.draw(st.integers(2, 5), label="layers")
    ends = st.lists(st.integers(0, layers - 1), min_size=2, max_size=2, unique=True).map(sorted)
    skips = data.draw(st.lists(ends, max_size=4), label="skips")
    cuts = data.draw(st.sets(st.integers(1, layers - 1)), label="cuts")
    balance = [b - a for a, b in pairwise([0, *sorted(cuts), layers])]
    at = lambda place, side: [str(k) for k, skip in enumerate(skips) if skip[side] == place]  # noqa: E731
    namespace = Namespace()
    plain = nn.Sequential(*(block(at(place, 0), at(place, 1), namespace) for place in range(layers)))
    model = GPipe(copy.deepcopy(plain), balance, devices=["cpu"] * len(balance), chunks=chunks, checkpoint=checkpoint)
    inputs = [torch.linspace(-1, 1, rows * 3).view(rows, 3).requires_grad_() for _ in range(2)]
    outputs = [net(x) for net, x in zip((plain, model), inputs, strict=True)]
    for output in outputs:
        output.square().sum().backward()
    torch.testing.assert_close(outputs[1], outputs[0])
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
