"""Items that are their index, and the log of who asked whom."""

import pickle

import pytest
import torch
from support.n02.runs import (
    MAIN,
    IndexDataset,
    LoggedSampler,
    Message,
    NoisyDataset,
    WitnessDataset,
    joined,
    record_epoch,
)
from torch.utils.data import BatchSampler, DataLoader, Sampler, Subset

from lib.data.samplers import RandomSampler, SequentialSampler


def told(messages):
    return [(message.name, message.payload) for message in messages]


def test_an_item_is_its_index():
    assert [IndexDataset(3)[i] for i in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_is_refused_so_that_plain_iteration_ends(index):
    with pytest.raises(IndexError, match=f"index {index} is out of range for 3 items"):
        IndexDataset(3)[index]
    assert list(IndexDataset(3)) == [0, 1, 2]


def test_a_negative_size_is_refused():
    with pytest.raises(ValueError, match="size must be at least 0"):
        IndexDataset(-1)


def test_the_messages_of_an_epoch_come_in_the_order_length_indices_load_batch():
    assert told(record_epoch(SequentialSampler, size=3, batch_size=2)) == [
        ("length", (3,)),
        ("indices", (0, 1)),
        ("load", (0, 1)),
        ("batch", (0, 1)),
        ("indices", (2,)),
        ("load", (2,)),
        ("batch", (2,)),
    ]


def test_dropped_indices_are_named_and_never_loaded():
    messages = record_epoch(SequentialSampler, size=3, batch_size=2, drop_last=True)
    assert told(messages)[-2:] == [("batch", (0, 1)), ("indices", (2,))]


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
    messages = record_epoch(make, size=4, batch_size=2)
    assert {(m.name, m.sender, m.receiver) for m in messages} == {
        ("length", "Dataset", "Sampler"),
        ("indices", "Sampler", "DataLoader"),
        ("load", "DataLoader", "Dataset"),
        ("batch", "DataLoader", "training loop"),
    }


def test_whoever_asks_without_sampler_or_loader_is_the_training_loop():
    log = []
    dataset = IndexDataset(2, log)
    len(dataset)
    dataset[1]
    assert log == [
        Message("length", "Dataset", "training loop", (2,)),
        Message("load", "training loop", "Dataset", (1,)),
    ]


def test_a_wrapped_dataset_still_finds_the_dataloader():
    log = []
    loader = DataLoader(Subset(IndexDataset(4, log), [3, 1]), batch_size=2)
    assert [batch.tolist() for batch in loader] == [[3, 1]]
    assert {message.sender for message in log if message.name == "load"} == {"DataLoader"}


def test_a_batch_sampler_belongs_to_the_dataloader_and_a_sampler_over_a_sampler_is_a_sampler():
    class Twice(Sampler):
        def __init__(self, sampler):
            self.sampler = sampler

        def __iter__(self):
            yield from self.sampler
            yield from self.sampler

    log = []
    list(BatchSampler(LoggedSampler([0], log), 1, False))
    list(Twice(LoggedSampler([0], log)))
    list(LoggedSampler([0], log))
    assert [m.receiver for m in log] == ["DataLoader", "Sampler", "Sampler", "training loop"]


def test_neighbours_of_one_kind_are_joined_and_a_repeated_length_stays_one_length():
    length, index = Message("length", "a", "b", (5,)), Message("indices", "a", "b", (1,))
    other = Message("indices", "a", "c", (1,))
    assert joined([length, length, index, index, other]) == [length, Message("indices", "a", "b", (1, 1)), other]
    assert joined([]) == []


def test_a_witness_reports_the_main_process_when_there_are_no_workers():
    witness = WitnessDataset(2)
    witness.epoch = 7
    assert [witness[1], witness[0]] == [(1, MAIN, 1, 7), (0, MAIN, 2, 7)]


def test_workers_load_from_their_own_copies():
    witness = WitnessDataset(4)
    reports = list(DataLoader(witness, num_workers=2))
    assert [[int(part) for part in report[:3]] for report in reports] == [[0, 0, 1], [1, 1, 1], [2, 0, 2], [3, 1, 2]]
    assert witness.loads == 0


def noise(dataset, epoch):
    dataset.epoch = epoch
    return [batch[2].tolist() for batch in DataLoader(dataset, batch_size=5, num_workers=2)]


def test_a_generator_of_the_dataset_gives_all_workers_and_epochs_the_same_numbers():
    dataset = NoisyDataset(10, per_item=False)
    first, second = noise(dataset, 0)
    assert first == second
    assert noise(dataset, 1) == [first, second]


def test_a_generator_for_each_item_depends_on_item_and_epoch_only():
    dataset = NoisyDataset(10, per_item=True)
    first, second = noise(dataset, 0)
    assert first != second
    assert noise(dataset, 1) != [first, second]
    assert noise(dataset, 0) == [first, second]
    assert [dataset[i][2] for i in range(10)] == first + second  # without workers, too


@pytest.mark.parametrize("dataset", [IndexDataset(3), WitnessDataset(3), NoisyDataset(3, per_item=False)])
def test_spawned_workers_can_unpickle_the_datasets(dataset):
    assert len(pickle.loads(pickle.dumps(dataset))) == 3
