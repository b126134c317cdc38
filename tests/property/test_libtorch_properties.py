"""What holds for the libtorch twins at any size, world, epoch and batch size."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.libtorch import DistributedRandomSampler, DistributedSequentialSampler
from tests.sizes import size

KINDS = st.sampled_from([DistributedRandomSampler, DistributedSequentialSampler])
SIZES = st.integers(0, 200)
WORLDS = st.integers(1, 12)
EPOCHS = st.integers(0, 2**64 - 1)


def in_epoch(kind, size, world, rank, duplicates, epoch):
    sampler = kind(size, world, rank, duplicates)
    sampler.set_epoch(epoch)
    sampler.reset()
    return sampler


@settings(max_examples=size(suite=150, prove=1_500))
@given(KINDS, SIZES, WORLDS, st.booleans(), EPOCHS)
def test_together_the_ranks_deal_every_position_once(kind, size, world, duplicates, epoch):
    ranks = [list(in_epoch(kind, size, world, rank, duplicates, epoch)) for rank in range(world)]
    local = -(-size // world) if duplicates else size // world
    assert [len(rank) for rank in ranks] == [local] * world
    assert sorted(sum(ranks, [])) == sorted(position % size for position in range(local * world))


@settings(max_examples=size(suite=150, prove=1_500))
@given(st.data(), KINDS, SIZES, WORLDS, st.booleans(), EPOCHS)
def test_batches_of_any_sizes_and_restarts_between_them_give_the_pass(data, kind, size, world, duplicates, epoch):
    rank = data.draw(st.integers(0, world - 1))
    one_pass = list(in_epoch(kind, size, world, rank, duplicates, epoch))
    sampler = in_epoch(kind, size, world, rank, duplicates, epoch)
    pieces = []
    while (batch := sampler.next(data.draw(st.integers(1, 50)))) is not None:
        assert batch
        pieces += batch
        assert sampler.index() == rank * len(sampler) + len(pieces)
        if data.draw(st.booleans()):
            state = sampler.state_dict()
            sampler = kind(size, world, rank, duplicates)
            sampler.load_state_dict(state)
    assert pieces == one_pass
