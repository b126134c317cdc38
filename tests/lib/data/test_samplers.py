"""The samplers say who gets which index; torch's own samplers are the oracle."""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from lib.data import DistributedSampler, RandomSampler, SequentialSampler


def shares(size, world_size, **arguments):
    return [list(DistributedSampler(range(size), world_size, rank, **arguments)) for rank in range(world_size)]


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


# --- the goldens of the course: N = 10, W = 3, seed 0


@pytest.mark.parametrize(
    "size, world_size, arguments, dealt",
    [
        (10, 3, dict(shuffle=False), [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]),  # every third; the head pads
        (10, 3, dict(), [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]),  # the head of the shuffled order
        (10, 3, dict(drop_last=True), [[4, 5, 0], [1, 3, 8], [7, 9, 6]]),  # the tail is cut
        (2, 4, dict(shuffle=False), [[0], [1], [0], [1]]),  # more ranks than samples: the head more than once
        (2, 5, dict(shuffle=False), [[0], [1], [0], [1], [0]]),
        (2, 4, dict(drop_last=True), [[], [], [], []]),
        (10, 3, dict(shuffle=False, pad=False), [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]),  # each exactly once
        (2, 4, dict(shuffle=False, pad=False), [[0], [1], [], []]),
    ],
)
def test_who_gets_what(size, world_size, arguments, dealt):
    assert shares(size, world_size, **arguments) == dealt


# --- index for index the same as torch


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_small_case_equals_torch(shuffle, drop_last):
    for size in range(26):
        for world_size in range(1, 10):
            for rank in range(world_size):
                arguments = dict(num_replicas=world_size, rank=rank, shuffle=shuffle, seed=3, drop_last=drop_last)
                ours = DistributedSampler(range(size), **arguments)
                theirs = TorchDistributedSampler(range(size), **arguments)
                assert (len(ours), ours.num_samples, ours.total_size) == (
                    len(theirs),
                    theirs.num_samples,
                    theirs.total_size,
                )
                for epoch in (0, 7):
                    ours.set_epoch(epoch)
                    theirs.set_epoch(epoch)
                    assert list(ours) == list(theirs), (size, world_size, rank, epoch)


def test_a_hundred_thousand_samples_equal_torch():
    ours, theirs = (kind(range(100_003), 8, 5, seed=11) for kind in (DistributedSampler, TorchDistributedSampler))
    assert list(ours) == list(theirs)


def test_the_order_is_fixed_when_the_pass_begins_as_in_torch():
    ours, theirs = (kind(range(20), 2, 0) for kind in (DistributedSampler, TorchDistributedSampler))
    passes = iter(ours), iter(theirs)
    ours.set_epoch(1), theirs.set_epoch(1)
    assert list(passes[0]) == list(passes[1])
    assert list(ours) == list(theirs)


def test_seed_and_epoch_are_added_so_their_sum_decides():
    by_seed = DistributedSampler(range(30), 2, 0, seed=5)
    by_epoch = DistributedSampler(range(30), 2, 0, seed=0)
    by_epoch.set_epoch(5)
    assert list(by_seed) == list(by_epoch)


# --- order="feistel"


def test_feistel_tells_seed_and_epoch_apart():
    by_seed = DistributedSampler(range(1000), 2, 0, seed=5, order="feistel")
    by_epoch = DistributedSampler(range(1000), 2, 0, seed=0, order="feistel")
    by_epoch.set_epoch(5)
    assert list(by_seed) != list(by_epoch)


@pytest.mark.parametrize("size, world_size", [(1, 1), (2, 5), (10, 3), (1000, 7), (40_000, 2)])
def test_feistel_covers_the_data_and_pads_with_the_head_of_its_order(size, world_size):
    exact = shares(size, world_size, order="feistel", pad=False)
    assert sorted(sum(exact, [])) == list(range(size))
    order = [exact[p % world_size][p // world_size] for p in range(size)]
    for rank, share in enumerate(shares(size, world_size, order="feistel")):
        assert share == [order[(rank + turn * world_size) % size] for turn in range(len(share))]


# --- resuming


def rest(size, world_size, state, **arguments):
    samplers = [DistributedSampler(range(size), world_size, rank, **arguments) for rank in range(world_size)]
    for sampler in samplers:
        sampler.load_state_dict(state)
    return samplers


def test_the_rest_of_an_epoch_is_dealt_over_another_world_size():
    before = shares(12, 2)  # two ranks, of which each has used two samples when the run stops
    used = {index for share in before for index in share[:2]}
    state = DistributedSampler(range(12), 2, 0).state_dict(consumed=4)
    after = [list(sampler) for sampler in rest(12, 4, state)]
    assert [len(share) for share in after] == [2, 2, 2, 2]
    assert sorted(sum(after, [])) == sorted(set(range(12)) - used)


def test_a_run_can_be_interrupted_twice():
    first = DistributedSampler(range(20), 4, 0, seed=1)
    second = rest(20, 2, first.state_dict(consumed=8), seed=1)
    third = rest(20, 5, second[0].state_dict(consumed=8 + 2 * 3), seed=1)
    used = [index for share in shares(20, 4, seed=1) for index in share[:2]]
    used += [index for sampler in second for index in list(sampler)[:3]]
    used += [index for sampler in third for index in sampler]
    assert sorted(set(used)) == list(range(20))
    assert len(used) - 20 == 4, "six samples were left for five ranks, so four are padding"


def test_the_pass_after_the_rest_is_a_whole_epoch_again():
    sampler = rest(10, 1, DistributedSampler(range(10), 2, 0).state_dict(consumed=6))[0]
    assert len(sampler) == 4
    assert len(list(sampler)) == 4
    assert sorted(sampler) == list(range(10)), "also for those who never call set_epoch"
    assert len(sampler) == 10


def test_set_epoch_keeps_the_place_in_the_same_epoch_and_leaves_it_in_another():
    state = DistributedSampler(range(10), 2, 0).state_dict(consumed=6)
    (sampler,) = rest(10, 1, state)
    sampler.set_epoch(0)
    assert (len(sampler), sampler.consumed) == (4, 6)
    sampler.set_epoch(1)
    assert (len(sampler), sampler.consumed) == (10, 0)


def test_a_pass_that_is_broken_off_does_not_count_as_dealt():
    (sampler,) = rest(10, 1, DistributedSampler(range(10), 2, 0).state_dict(consumed=6))
    next(iter(sampler))
    assert len(list(sampler)) == 4


def test_a_finished_epoch_has_no_rest_and_no_padding():
    state = DistributedSampler(range(10), 3, 0).state_dict(consumed=12)
    assert [list(sampler) for sampler in rest(10, 3, state)] == [[], [], []]


def test_a_state_is_the_same_on_every_rank():
    states = [DistributedSampler(range(10), 3, rank).state_dict(consumed=3) for rank in range(3)]
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize(
    "other, says",
    [
        (dict(size=11), "size=10"),
        (dict(seed=1), "seed=0"),
        (dict(shuffle=False), "shuffle=True"),
        (dict(order="feistel"), "order='torch'"),
    ],
)
def test_a_state_of_another_run_is_refused_and_nothing_changes(other, says):
    state = DistributedSampler(range(10), 2, 0).state_dict(consumed=4)
    sampler = DistributedSampler(range(other.pop("size", 10)), 2, 0, **other)
    before = list(sampler)
    with pytest.raises(ValueError, match=says):
        sampler.load_state_dict(state)
    assert list(sampler) == before


@pytest.mark.parametrize("consumed", [-1, 13, 4.0, None, True])
def test_an_impossible_count_is_refused(consumed):
    with pytest.raises(ValueError, match="consumed"):
        DistributedSampler(range(10), 3, 0).state_dict(consumed)


def test_a_mapping_that_is_no_state_is_refused():
    sampler = DistributedSampler(range(10), 3, 0)
    with pytest.raises(ValueError, match="epoch, consumed missing|missing"):
        sampler.load_state_dict({"epoch": 1})
    with pytest.raises(TypeError, match="mapping"):
        sampler.load_state_dict([1, 2])
    broken = {**sampler.state_dict(3), "consumed": 99}
    with pytest.raises(ValueError, match="consumed"):
        sampler.load_state_dict(broken)


# --- with a DataLoader, DDP's process group, pickle


@pytest.mark.parametrize("workers", [dict(), dict(num_workers=2), dict(num_workers=2, persistent_workers=True)])
def test_a_dataloader_follows_it_through_the_epochs(workers):
    samplers = [DistributedSampler(range(23), 2, rank) for rank in range(2)]
    loaders = [DataLoader(range(23), batch_size=4, sampler=sampler, **workers) for sampler in samplers]
    orders = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        seen = [torch.cat(list(loader)).tolist() for loader in loaders]
        assert seen == [list(sampler) for sampler in samplers]
        assert set(sum(seen, [])) == set(range(23))
        orders.append(seen)
    assert orders[0] != orders[1]


def test_rank_and_world_size_come_from_the_process_group_and_without_one_it_fails_as_torch_does():
    with pytest.raises(Exception) as theirs:
        TorchDistributedSampler(range(5))
    with pytest.raises(type(theirs.value)):
        DistributedSampler(range(5))
    dist.init_process_group("gloo", store=dist.HashStore(), world_size=1, rank=0)
    try:
        sampler = DistributedSampler(range(5))
        assert (sampler.num_replicas, sampler.rank) == (1, 0)
    finally:
        dist.destroy_process_group()


def test_a_sampler_survives_pickle():
    sampler = DistributedSampler(range(10), 3, 1, seed=4)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


# --- bad arguments


@pytest.mark.parametrize(
    "arguments, says",
    [
        (dict(num_replicas=8, rank=8), "Invalid rank.*rank 8 is out of range for num_replicas 8; ranks are 0..7"),
        (dict(num_replicas=8, rank=-1), "ranks are 0..7"),
        (dict(num_replicas=0, rank=0), "num_replicas must be at least 1, not 0"),
        (dict(num_replicas=2.0, rank=0), "num_replicas must be an integer"),
        (dict(num_replicas=2, rank=0.0), "rank must be an integer"),
        (dict(num_replicas=2, rank=True), "rank must be an integer"),
        (dict(num_replicas=2, rank=0, seed=1.5), "seed must be an integer"),
        (dict(num_replicas=2, rank=0, order="sorted"), "'torch' or 'feistel', not 'sorted'"),
        (dict(num_replicas=2, rank=0, drop_last=True, pad=False), "choose one"),
    ],
)
def test_bad_arguments_raise_at_once_with_the_way_out(arguments, says):
    with pytest.raises(ValueError, match=says):
        DistributedSampler(range(10), **arguments)


@pytest.mark.parametrize("epoch", [-1, 1.5, None, "1"])
def test_a_bad_epoch_raises_at_once(epoch):
    with pytest.raises(ValueError, match="epoch must be"):
        DistributedSampler(range(10), 2, 0).set_epoch(epoch)


@pytest.mark.parametrize("make", [SequentialSampler, RandomSampler, lambda data: DistributedSampler(data, 2, 0)])
def test_data_without_length_is_refused_at_once(make):
    for data in (Endless(), iter([1, 2])):
        with pytest.raises(TypeError, match="no len"):
            make(data)


# --- the two simple ones


def test_sequential_is_range():
    assert list(SequentialSampler("abc")) == [0, 1, 2]
    assert len(SequentialSampler("abc")) == 3


def test_random_under_the_global_seed_equals_torch():
    passes = []
    for kind in (RandomSampler, TorchRandomSampler):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            sampler = kind(range(50))
            passes.append([list(sampler), list(sampler)])
    assert passes[0] == passes[1]
    assert passes[0][0] != passes[0][1]


def test_random_with_a_seed_equals_torch_with_that_generator_pass_after_pass():
    ours = RandomSampler(range(50), seed=3)
    theirs = TorchRandomSampler(range(50), generator=torch.Generator().manual_seed(3))
    assert [list(ours) for _ in range(3)] == [list(theirs) for _ in range(3)]


def test_random_with_a_seed_leaves_the_global_generator_alone():
    before = torch.random.get_rng_state()
    list(RandomSampler(range(50), seed=3))
    list(DistributedSampler(range(50), 2, 0))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 0.5, True])
def test_random_refuses_a_bad_seed(seed):
    with pytest.raises(ValueError, match="seed"):
        RandomSampler(range(5), seed=seed)
