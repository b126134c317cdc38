"""What must hold for every dataset size, world size and place of interruption."""

from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from lib.data import DistributedSampler
from tests.sizes import size

sizes = st.integers(0, 300)
worlds = st.integers(1, 20)
seeds = st.integers(0, 2**31)
orders = st.sampled_from(["torch", "feistel"])


flags = st.booleans()
ranks = st.integers(0, 19)
few_or_many = st.integers(0, 25) | st.integers(0, 3000)


@given(few_or_many, worlds, ranks, st.integers(-(2**40), 2**40), st.integers(0, 10_000), flags, flags)
@example(100_003, 7, 6, 11, 0, True, False)
@example(100_003, 30, 29, 11, 0, True, True)
def test_it_is_torch_index_for_index(size, world_size, rank, seed, epoch, shuffle, drop_last):
    arguments = dict(shuffle=shuffle, seed=seed, drop_last=drop_last)
    kinds = DistributedSampler, TorchDistributedSampler
    both = [kind(range(size), world_size, rank % world_size, **arguments) for kind in kinds]
    for sampler in both:
        sampler.set_epoch(epoch)
    ours, theirs = ([len(s), s.num_samples, s.total_size, list(s)] for s in both)
    assert ours == theirs


@given(sizes, worlds, seeds, orders, st.booleans())
def test_without_padding_every_index_comes_once_and_shares_differ_by_one(size, world_size, seed, order, shuffle):
    shares = [
        list(DistributedSampler(range(size), world_size, rank, shuffle=shuffle, seed=seed, order=order, pad=False))
        for rank in range(world_size)
    ]
    assert sorted(sum(shares, [])) == list(range(size))
    assert [len(share) for share in shares] == [-(-(size - rank) // world_size) for rank in range(world_size)]


modes = st.sampled_from(["pad", "drop", "exact"])


@settings(max_examples=size(suite=60, prove=600))
@given(st.integers(1, 200), worlds, worlds, seeds, orders, flags, modes, st.data())
def test_interrupted_anywhere_nothing_comes_twice_or_is_lost(size, before, after, seed, order, shuffle, mode, data):
    arguments = dict(shuffle=shuffle, seed=seed, order=order)
    first = [DistributedSampler(range(size), before, rank, **arguments) for rank in range(before)]
    steps = data.draw(st.integers(0, size // before))
    used = [index for sampler in first for index in list(sampler)[:steps]]
    state = first[-1].state_dict(consumed=steps * before)

    dealing = dict(pad=mode != "exact", drop_last=mode == "drop")
    second = [DistributedSampler(range(size), after, rank, **arguments, **dealing) for rank in range(after)]
    for sampler in second:
        sampler.load_state_dict(state)
    lengths = [len(sampler) for sampler in second]
    shares = [list(sampler) for sampler in second]
    dealt = sum(shares, [])
    left = size - len(used)

    assert lengths == [len(share) for share in shares]
    assert not set(dealt) & set(used), "nothing that was used comes again"
    if mode == "drop":
        assert len(dealt) == len(set(dealt)) == left - left % after
    else:
        assert set(dealt) | set(used) == set(range(size)), "nothing is lost"
        assert len(dealt) - left == (0 if mode == "exact" else -left % after)
