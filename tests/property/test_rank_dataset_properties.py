"""Over ranks and mini-epochs every row exactly once, whatever N, W and E, and also across a restart."""

import math
from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.meta import Packed
from lib.data.rank_dataset import RankDataset
from lib.data.samplers import DistributedSampler
from tests.sizes import size


class Numbers:
    """A meta file whose row i is str(i), without a file."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def pack(self, count, blocks, progress=None):
        rows = [str(i).encode() for block in blocks for i in block]
        assert len(rows) == count
        offsets = np.cumsum([0, *map(len, rows)]).astype(np.uint32)
        return Packed(np.frombuffer(b"".join(rows), np.uint8), offsets)


def make(size, world_size, rank, **arguments):
    return RankDataset(Numbers(size), world_size, rank, **arguments)


def items(dataset):
    return [int(dataset[i]) for i in range(len(dataset))]


def whole(dataset):
    """All mini-epochs of a dataset that are left, one list each."""
    parts = []
    for mini_epoch in range(dataset.first_mini_epoch, dataset.mini_epochs):
        dataset.load(mini_epoch)
        parts.append(items(dataset))
    return parts


sizes = st.integers(0, 60)
worlds = st.integers(1, 9)
parts = st.integers(1, 9)
flags = st.booleans()
orders = st.sampled_from(["feistel", "torch"])


@given(sizes, worlds, parts, st.integers(-3, 3), st.integers(0, 3), flags, orders)
def test_every_row_is_dealt_once_as_the_distributed_sampler_does(size, world, parts, seed, epoch, drop_last, order):
    dealt = []
    arguments = dict(seed=seed, drop_last=drop_last, order=order)
    for rank in range(world):
        dataset = make(size, world, rank, mini_epochs=parts, **arguments)
        sampler = DistributedSampler(range(size), world, rank, **arguments)
        dataset.set_epoch(epoch)
        sampler.set_epoch(epoch)
        dealt.append(whole(dataset))
        assert sum(dealt[-1], []) == list(sampler), "mini-epochs together are a rank's share"
    lengths = {tuple(map(len, of_rank)) for of_rank in dealt}
    assert len(lengths) == 1, "ranks get equally many rows in each mini-epoch"
    assert max(*lengths) - min(*lengths) <= 1 if parts > 1 else True, "and mini-epochs are even"
    count = Counter(row for of_rank in dealt for part in of_rank for row in part)
    if drop_last:
        assert len(count) == size // world * world
        assert set(count.values()) <= {1}
    else:
        assert set(count) == set(range(size))
        assert count.total() - size <= world - 1


@given(
    size=sizes,
    worlds=st.lists(worlds, min_size=2, max_size=4),
    parts=st.lists(parts, min_size=4, max_size=4),
    steps=st.lists(st.floats(0, 1), min_size=3, max_size=3),
    seed=st.integers(0, 3),
    drop_last=flags,
    order=orders,
)
def test_a_stop_and_another_world_size_lose_and_double_nothing(size, worlds, parts, steps, seed, drop_last, order):
    used = []
    state = None
    consumed = 0
    for turn, (world_size, mini_epochs) in enumerate(zip(worlds, parts, strict=False)):
        datasets = []
        ranks = []
        for rank in range(world_size):
            dataset = make(size, world_size, rank, seed=seed, mini_epochs=mini_epochs, drop_last=drop_last, order=order)
            dataset.set_epoch(5)
            if state is not None:
                dataset.load_state_dict(state)
                assert dataset.epoch == 5
            for mini_epoch in range(dataset.first_mini_epoch, mini_epochs):
                most = math.ceil(math.ceil(size / world_size) / mini_epochs)
                assert len(dataset.turns(mini_epoch)) <= most, "no more memory than in a whole epoch"
            ranks.append(sum(whole(dataset), []))
            datasets.append(dataset)
        last = turn == len(worlds) - 1
        done = len(ranks[0]) if last else int(steps[turn] * len(ranks[0]))
        used += [row for of_rank in ranks for row in of_rank[:done]]
        consumed += done * world_size
        if not last:
            states = [dataset.state_dict(consumed) for dataset in datasets]
            assert all(other == states[0] for other in states), "every rank saves the same"
            state = states[0]
            consumed = states[0]["consumed"]
    count = Counter(used)
    if drop_last:
        assert len(used) == len(count), "nothing twice"
        assert size - len(count) < max(worlds), "what cannot be dealt evenly in the end"
    else:
        assert set(count) == set(range(size))
        assert len(used) - size < max(worlds)


@given(size=sizes, world_size=worlds, mini_epochs=parts, drop_last=st.booleans(), data=st.data())
def test_a_state_at_the_start_of_a_mini_epoch_resumes_with_it(size, world_size, mini_epochs, drop_last, data):
    dataset = make(size, world_size, 0, mini_epochs=mini_epochs, drop_last=drop_last)
    rest = whole(dataset)
    mini_epoch = data.draw(st.integers(0, mini_epochs - 1))
    dataset.load(mini_epoch)
    again = make(size, world_size, 0, mini_epochs=mini_epochs, drop_last=drop_last)
    again.load_state_dict(dataset.state_dict())
    assert sum(whole(again), []) == sum(rest[mini_epoch:], [])
    if rest[mini_epoch]:
        assert again.first_mini_epoch == mini_epoch


@settings(max_examples=size(suite=200, prove=2_000))
@given(
    size=st.integers(1, 60),
    world_size=worlds,
    mini_epochs=parts,
    drop_last=st.booleans(),
    part=st.floats(0, 1),
    change=st.dictionaries(
        st.sampled_from(["mini_epochs", "mini_epoch", "consumed", "epoch", "version", "size", "seed", "order"]),
        st.one_of(parts, st.integers(-2, 70), st.sampled_from([None, "4", 2.5, 4.0, True, [4], 2**62])),
        min_size=1,
        max_size=2,
    ),
)
def test_a_changed_state_is_refused_or_deals_what_it_says(size, world_size, mini_epochs, drop_last, part, change):
    first = make(size, world_size, 0, mini_epochs=mini_epochs, drop_last=drop_last)
    state = {**first.state_dict(int(part * first.num_samples * world_size)), **change}
    ranks = [make(size, world_size, rank, mini_epochs=mini_epochs, drop_last=drop_last) for rank in range(world_size)]
    for dataset in ranks:
        dataset.load(mini_epochs - 1)
        before = {**dataset.__dict__}
        try:
            dataset.load_state_dict(state)
        except ValueError:
            assert dataset.__dict__ == before, "as it was"
            return
    order = make(size, 1, 0)
    order.set_epoch(state["epoch"])
    left = items(order)[state["consumed"] :]
    found = Counter(row for dataset in ranks for row in sum(whole(dataset), []))
    if drop_last:
        assert found == Counter(left[: len(left) // world_size * world_size])
    else:
        assert set(found) >= set(left)
        assert found.total() - len(left) < world_size
