"""The samplers say who gets which index; torch's own samplers are the oracle."""

import pickle

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import RandomSampler as TorchRandomSampler
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from lib.data import DistributedSampler, RandomSampler, SequentialSampler
from tests.lib.refusal import refuses


def shares(size, world_size, **arguments):
    return [list(DistributedSampler(range(size), world_size, rank, **arguments)) for rank in range(world_size)]


# --- the goldens of the course: N = 10, W = 3, seed 0
@pytest.mark.parametrize("size, world_size, arguments, dealt", [
    (10, 3, dict(shuffle=False), [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]),  # every third; the head pads
    (10, 3, dict(), [[4, 5, 0, 2], [1, 3, 8, 4], [7, 9, 6, 1]]),  # the head of the shuffled order
    (10, 3, dict(drop_last=True), [[4, 5, 0], [1, 3, 8], [7, 9, 6]]),  # the tail is cut
    (2, 5, dict(shuffle=False), [[0], [1], [0], [1], [0]]),  # more ranks than samples: the head more than once
    (10, 3, dict(shuffle=False, pad=False), [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]),  # each exactly once
])  # fmt: skip
def test_who_gets_what(size, world_size, arguments, dealt):
    assert shares(size, world_size, **arguments) == dealt


# --- index for index the same as torch (see also tests/property)
def test_the_order_is_fixed_when_the_pass_begins_as_in_torch():
    ours, theirs = (kind(range(20), 2, 0) for kind in (DistributedSampler, TorchDistributedSampler))
    passes = iter(ours), iter(theirs)
    ours.set_epoch(1), theirs.set_epoch(1)
    assert list(passes[0]) == list(passes[1])
    assert list(ours) == list(theirs)


@pytest.mark.parametrize("order", ["torch", "feistel"])
def test_torch_adds_seed_and_epoch_so_their_sum_decides_and_feistel_tells_them_apart(order):
    by_seed, by_epoch = (DistributedSampler(range(1000), 2, 0, seed=seed, order=order) for seed in (5, 0))
    by_epoch.set_epoch(5)
    assert (list(by_seed) == list(by_epoch)) == (order == "torch")


# --- order="feistel"
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


def test_the_pass_after_the_rest_is_a_whole_epoch_again():
    state = DistributedSampler(range(10), 2, 0).state_dict(consumed=6)
    (sampler,) = rest(10, 1, state)
    assert len(sampler) == 4
    next(iter(sampler))  # a pass that is broken off does not count as dealt
    assert len(list(sampler)) == 4
    assert sorted(sampler) == list(range(10)), "also for those who never call set_epoch"
    assert len(sampler) == 10
    (sampler,) = rest(10, 1, state)
    for epoch, left in ((0, (4, 6)), (1, (10, 0))):
        sampler.set_epoch(epoch)  # the same one keeps the place, another leaves it
        assert (len(sampler), sampler.consumed) == left
    finished = DistributedSampler(range(10), 3, 0).state_dict(consumed=12)
    assert [list(sampler) for sampler in rest(10, 3, finished)] == [[], [], []], "no rest and no padding"
    states = [DistributedSampler(range(10), 3, rank).state_dict(consumed=3) for rank in range(3)]
    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("pad", [True, False])
@pytest.mark.parametrize("order", ["torch", "feistel"])
def test_len_is_always_what_the_next_pass_yields_before_and_after_the_rest(order, pad):
    state = DistributedSampler(range(100), 2, 0, order=order, pad=pad).state_dict(consumed=60)
    for sampler in rest(100, 4, state, order=order, pad=pad):
        for rows in (10, 25, 25):
            assert len(sampler) == rows
            assert sampler.total_size == 4 * rows
            assert len(list(sampler)) == rows


def test_who_goes_on_at_60_has_not_used_4():
    state = DistributedSampler(range(100), 2, 0).state_dict(consumed=60)
    sampler = rest(100, 4, state)[0]
    refuses(ValueError, "consumed is 4, but 60 samples of this epoch were used", sampler.state_dict, 4)
    assert sampler.state_dict(60) == state
    list(sampler)
    refuses(ValueError, "consumed is 101, but all ranks together use only 100", sampler.state_dict, 101)
    assert sampler.state_dict(100)["consumed"] == 100
    list(sampler)  # a whole pass: nothing of it was used before a restart
    assert sampler.state_dict(4)["consumed"] == 4


@pytest.mark.parametrize("other, says", [
    (dict(size=11), "size=10"), (dict(seed=1), "seed=0"), (dict(shuffle=False), "shuffle=True"),
    (dict(order="feistel"), "order='torch'"),
])  # fmt: skip
def test_a_state_of_another_run_is_refused_and_nothing_changes(other, says):
    state = DistributedSampler(range(10), 2, 0).state_dict(consumed=4)
    sampler = DistributedSampler(range(other.pop("size", 10)), 2, 0, **other)
    before = list(sampler)
    refuses(ValueError, says, sampler.load_state_dict, state)
    assert list(sampler) == before


def test_what_is_no_state_no_count_no_epoch_and_no_seed_is_refused():
    sampler = DistributedSampler(range(10), 3, 0)
    refuses(ValueError, "epoch, consumed missing|missing", sampler.load_state_dict, {"epoch": 1})
    refuses(TypeError, "mapping", sampler.load_state_dict, [1, 2])
    broken = {**sampler.state_dict(3), "consumed": 99}
    refuses(ValueError, "consumed", sampler.load_state_dict, broken)
    for wrong in (-1, 13, 4.0, None, True):
        refuses(ValueError, "consumed", sampler.state_dict, wrong)
    for wrong in (-1, 1.5, None, "1"):
        refuses(ValueError, "epoch must be", sampler.set_epoch, wrong)
    for wrong in (-1, 0.5, True):
        refuses(ValueError, "seed", RandomSampler, range(5), seed=wrong)


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
    for given in ({}, {"num_replicas": 1}, {"rank": 0}):
        refuses(type(theirs.value), "pass both num_replicas and rank", DistributedSampler, range(5), **given)
    dist.init_process_group("gloo", store=dist.HashStore(), world_size=1, rank=0)
    try:
        sampler = DistributedSampler(range(5))
        assert (sampler.num_replicas, sampler.rank) == (1, 0)
    finally:
        dist.destroy_process_group()


# --- bad arguments
@pytest.mark.parametrize("arguments, says", [
    (dict(num_replicas=8, rank=8), "Invalid rank.*rank 8 is out of range for num_replicas 8; ranks are 0..7"),
    (dict(num_replicas=8, rank=-1), "ranks are 0..7"),
    (dict(num_replicas=0, rank=0), "num_replicas must be at least 1, not 0"),
    (dict(num_replicas=2.0, rank=0), "num_replicas must be an integer"),
    (dict(num_replicas=2, rank=0.0), "rank must be an integer"),
    (dict(num_replicas=2, rank=True), "rank must be an integer"),
    (dict(num_replicas=2, rank=0, seed=1.5), "seed must be an integer"),
    (dict(num_replicas=2, rank=0, order="sorted"), "'torch' or 'feistel', not 'sorted'"),
    (dict(num_replicas=2, rank=0, drop_last=True, pad=False), "choose one"),
])  # fmt: skip
def test_bad_arguments_raise_at_once_with_the_way_out(arguments, says):
    refuses(ValueError, says, DistributedSampler, range(10), **arguments)


@pytest.mark.parametrize("make", [SequentialSampler, RandomSampler, lambda data: DistributedSampler(data, 2, 0)])
def test_data_without_length_is_refused_at_once(make):
    endless = type("Endless", (IterableDataset,), {"__iter__": lambda self: iter(int, 1)})
    for data in (endless(), iter([1, 2])):
        refuses(TypeError, "no len", make, data)


# --- the two simple ones
def test_sequential_is_range_and_a_sampler_survives_pickle():
    assert list(SequentialSampler("abc")) == [0, 1, 2]
    assert len(SequentialSampler("abc")) == 3
    sampler = DistributedSampler(range(10), 3, 1, seed=4)
    assert list(pickle.loads(pickle.dumps(sampler))) == list(sampler)


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
    before = torch.random.get_rng_state()
    ours = RandomSampler(range(50), seed=3)
    theirs = TorchRandomSampler(range(50), generator=torch.Generator().manual_seed(3))
    assert [list(ours) for _ in range(3)] == [list(theirs) for _ in range(3)]
    list(DistributedSampler(range(50), 2, 0))
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator is left alone"


@pytest.mark.parametrize("bound", [2**62])
def test_epochs_and_seeds_reach_as_far_as_torch_takes_their_sum_and_no_further(bound):
    sampler = DistributedSampler(range(10), 2, 0, seed=bound - 1)
    sampler.set_epoch(bound - 1)
    assert len(list(sampler)) == 5
    refuses(ValueError, "epoch", sampler.set_epoch, bound)
    refuses(ValueError, "seed", DistributedSampler, range(10), 2, 0, seed=bound)
    state = {**sampler.state_dict(0), "epoch": bound}
    refuses(ValueError, "epoch", sampler.load_state_dict, state)
