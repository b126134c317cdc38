"""Items that are their index, and the log of who asked whom."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Sampler, Subset, get_worker_info

from lib.data.samplers import RandomSampler, SequentialSampler
from support.n02 import runs as n02


def told(messages):
    return [(message.name, message.payload) for message in messages]


def test_an_item_is_its_index_and_messages_of_an_epoch_come_in_order_and_the_dropped_are_never_loaded():
    assert list(n02.IndexDataset(3)) == [n02.IndexDataset(3)[i] for i in range(3)] == [0, 1, 2]
    for index in (-1, 3):
        with pytest.raises(IndexError, match=f"index {index} is out of range for 3 items"):
            n02.IndexDataset(3)[index]
    with pytest.raises(ValueError, match="size must be at least 0"):
        n02.IndexDataset(-1)
    first = [("length", (3,)), ("indices", (0, 1)), ("load", (0, 1)), ("batch", (0, 1)), ("indices", (2,))]
    assert told(n02.record_epoch(SequentialSampler, size=3, batch_size=2)) == [*first, ("load", (2,)), ("batch", (2,))]
    assert told(n02.record_epoch(SequentialSampler, size=3, batch_size=2, drop_last=True)) == first


@pytest.mark.parametrize(
    "make",
    [
        SequentialSampler,
        lambda d: RandomSampler(d, seed=0),
        torch.utils.data.SequentialSampler,
        torch.utils.data.RandomSampler,
    ],
)
def test_the_call_stack_says_who_asked_for_ours_and_for_torchs_samplers(make):
    messages = n02.record_epoch(make, size=4, batch_size=2)
    assert {(m.name, m.sender, m.receiver) for m in messages} == {("length", "Dataset", "Sampler"),
        ("indices", "Sampler", "DataLoader"), ("load", "Dataset", "DataLoader"),
        ("batch", "DataLoader", "training loop")}  # fmt: skip


def test_whoever_asks_without_a_loader_is_the_training_loop_and_a_wrapped_dataset_finds_its_loader():
    log = []
    dataset = n02.IndexDataset(2, log)
    len(dataset)
    dataset[1]
    assert log == [n02.Message("length", "Dataset", "training loop", (2,)),
        n02.Message("load", "Dataset", "training loop", (1,))]  # fmt: skip
    log = []
    loader = DataLoader(Subset(n02.IndexDataset(4, log), [3, 1]), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[3, 1]]
    assert {message.receiver for message in log if message.name == "load"} == {"DataLoader"}


def test_a_batch_sampler_belongs_to_the_dataloader_and_a_sampler_over_a_sampler_is_a_sampler():
    class Twice(Sampler):
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            yield from self.sampler
            yield from self.sampler

    log = []
    list(BatchSampler(n02.LoggedSampler([0], log), 1, False))
    list(Twice(n02.LoggedSampler([0], log)))
    list(n02.LoggedSampler([0], log))
    assert [m.receiver for m in log] == ["DataLoader", "Sampler", "Sampler", "training loop"]


def test_neighbours_of_one_kind_are_joined_and_a_repeated_length_is_counted():
    length = n02.Message("length", "a", "b", (5,))
    index = n02.Message("indices", "a", "b", (1,))
    other = n02.Message("indices", "a", "c", (1,))
    twice = n02.Message("length", "a", "b", (5,), times=2)
    both = n02.Message("indices", "a", "b", (1, 1))
    assert n02.joined_messages([length, length, index, index, other]) == [twice, both, other]
    assert n02.joined_messages([]) == []


def test_pooled_batches_are_those_of_the_docstring_and_larger_pools_pad_less():
    lengths = {3: 9, 9: 1, 0: 2, 5: 8, 8: 5, 1: 3, 7: 4, 2: 9}
    pools = n02.pooled_batches([lengths.get(i, 0) for i in range(10)], [3, 9, 0, 5, 8, 1, 7, 2], 2, 2)
    assert pools == [[9, 0], [5, 3], [1, 7], [8, 2]]
    for batch_size, pool in ((0, 1), (1, 0), (2, -1)):
        with pytest.raises(ValueError, match="must be at least 1"):
            n02.pooled_batches([1], [0], batch_size, pool)
    assert n02.padding_share([3, 1, 2, 2], [[0, 1], [2, 3]]) == pytest.approx(2 / 10)
    assert n02.padding_share([3, 1, 2, 2], [[0], [1], [2, 3]]) == n02.padding_share([], []) == 0
    lengths = n02.sentence_lengths(2000)
    assert all(1 <= length <= 64 for length in lengths)
    assert n02.sentence_lengths(50, seed=3) == n02.sentence_lengths(50, seed=3) != n02.sentence_lengths(50, seed=4)
    order = list(RandomSampler(lengths, seed=0))
    shares = [n02.padding_share(lengths, n02.pooled_batches(lengths, order, 32, pool)) for pool in (1, 4, 16, 63)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 3 * shares[2]


@given(st.lists(st.integers(1, 50)), st.integers(1, 5), st.integers(1, 5))
def test_every_index_comes_once_and_every_pool_is_sorted(lengths, batch_size, pool):
    order = list(range(len(lengths)))[::-1]
    batches = n02.pooled_batches(lengths, order, batch_size, pool)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    size = batch_size * pool
    for start in range(0, len(flat), size):
        part = flat[start : start + size]
        assert set(part) == set(order[start : start + size])
        assert part == sorted(part, key=lambda i: (lengths[i], -i))  # equal lengths keep the order they had


def test_whoever_waits_for_items_gets_them_counted_and_is_told_how_many_came():
    watched = n02.Watched([7, 8])
    assert [watched[1], watched[0]] == [8, 7]
    watched.wait_for(2)
    with pytest.raises(TimeoutError, match="0 of 1 items were loaded"):
        watched.wait_for(1, seconds=0)


def test_who_plays_a_worker_is_one_only_inside_and_with_no_workers_not_even_there():
    with n02.as_worker(1, 3, dataset="copy") as info:
        assert get_worker_info() is info
        assert (info.id, info.num_workers, info.dataset) == (1, 3, "copy")
        with n02.as_worker(0, 0):
            assert get_worker_info() is None
        assert get_worker_info() is info
    assert get_worker_info() is None
