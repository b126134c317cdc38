"""The libtorch twins against the real ones: tests/goldens/libtorch.json is what the C++ samplers yielded."""

import hashlib
import json
import pathlib
import pickle
import time
from typing import TypeAlias

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from lib.data.libtorch import DistributedRandomSampler, DistributedSequentialSampler, _mt19937
from tests.lib.refusal import refuses

GOLDENS = json.loads((pathlib.Path(__file__).parents[2] / "goldens" / "libtorch.json").read_text())
Sampler: TypeAlias = DistributedRandomSampler | DistributedSequentialSampler
KINDS: dict[str, type[Sampler]] = {"random": DistributedRandomSampler, "sequential": DistributedSequentialSampler}
BOTH = pytest.mark.parametrize("kind", list(KINDS.values()), ids=list(KINDS))


def whole(sampler):
    return sampler.next(10**9) or []


def deal(kind, size, num_replicas, allow_duplicates, epoch):
    ranks = []
    for rank in range(num_replicas):
        sampler = KINDS[kind](size, num_replicas, rank, allow_duplicates)
        sampler.set_epoch(epoch)
        sampler.reset()
        ranks.append(whole(sampler))
    return ranks


def differs(key, stored):
    kind, size, num_replicas, duplicates, epoch = key.split()
    ranks = deal(kind, int(size), int(num_replicas), duplicates == "1", int(epoch))
    if isinstance(stored, list):  # an index that does not exist is the fault that ours repairs: see below
        return ranks != [[index % int(size) for index in rank] for rank in stored]
    everything = np.array([index for rank in ranks for index in rank], dtype="<i8")
    sha256 = hashlib.sha256(everything.tobytes()).hexdigest()
    return stored != {"lengths": [len(rank) for rank in ranks], "first": everything[:8].tolist(), "sha256": sha256}


# ---- the same sequences as libtorch
SIZES = sorted({int(key.split()[1]) for key in GOLDENS["deals"]})
LARGE = 1_000_000  # seconds each; 999,983 takes three


def how_large(size):
    if size >= LARGE:
        return [pytest.mark.prove]
    return [pytest.mark.costly] if size > LARGE // 20 else []


@pytest.mark.parametrize("size", [pytest.param(size, marks=how_large(size)) for size in SIZES])
def test_every_size_is_dealt_as_libtorch_deals_it(size):
    of_this_size = {key: stored for key, stored in GOLDENS["deals"].items() if int(key.split()[1]) == size}
    assert size > 1000 or len(of_this_size) >= 48
    assert [key for key, stored in of_this_size.items() if differs(key, stored)] == []


@pytest.mark.parametrize("walk", GOLDENS["walks"])
def test_next_index_reset_epoch_and_state_answer_as_libtorch_does(walk):
    kind, size, num_replicas, rank, duplicates, *script = walk.split()

    sampler: Sampler

    def fresh():
        return KINDS[kind](int(size), int(num_replicas), int(rank), duplicates == "1")

    def answer(command):
        nonlocal sampler
        name = command[0]
        number = int(command[1:] or 0)
        if name == "n":
            indices = sampler.next(number)
            return "none" if indices is None else ",".join(map(str, indices))
        if name == "i":
            return str(sampler.index())
        if name == "e":
            return str(sampler.epoch())
        if name == "E":
            sampler.set_epoch(number)
        elif name == "s":
            state = json.loads(json.dumps(sampler.state_dict()))
            sampler = fresh()
            sampler.load_state_dict(state)
        else:
            sampler.reset(*[number] * (name == "R"))
        return "-"

    sampler = fresh()
    assert [answer(command) for command in script] == GOLDENS["walks"][walk]


def test_where_ours_differs_and_what_no_deal_shows():
    assert GOLDENS["deals"]["random 2 5 1 0"] == [[0], [2], [1], [0], [1]], "more padding than data: 2 does not exist"
    assert deal("random", 2, 5, True, epoch=0) == [[0], [0], [1], [0], [1]]
    assert deal("sequential", 2, 5, True, epoch=0) == [[0], [1], [0], [1], [0]]
    low, high = (deal("random", 50, 1, True, epoch) for epoch in (3, 2**32 + 3))
    assert low == high, "only the low 32 bits of the epoch count"


def test_the_generator_is_the_mt19937_of_the_cpp_standard():
    words = _mt19937(5489)  # the standard: the 10000th number of the default seed is 4123659995
    assert [next(words) for _ in range(10_000)][-1] == 4123659995


def test_a_million_indices_are_shuffled_once_an_epoch():
    start = time.perf_counter()
    sampler = DistributedRandomSampler(1_000_000)
    made = time.perf_counter()
    next(iter(sampler))
    first_pass = time.perf_counter()
    next(iter(sampler))  # the same epoch again
    second_pass = time.perf_counter()
    assert made - start < (first_pass - made) / 10
    assert second_pass - first_pass < (first_pass - made) / 10


# ---- a sampler for a DataLoader
class Numbers(Dataset[int]):
    def __getitem__(self, index):
        return index


@BOTH
def test_a_dataloader_gets_a_whole_shard_in_every_epoch_and_a_copy_goes_on_where_it_was(kind):
    sampler = kind(10, 3, 2)
    loader: DataLoader[int] = DataLoader(Numbers(), batch_size=3, sampler=sampler)
    assert len(loader) == 2
    for epoch in (0, 1, 1, 5):
        sampler.set_epoch(epoch)
        twin = kind(10, 3, 2)
        twin.set_epoch(epoch)
        twin.reset()
        assert [batch.tolist() for batch in loader] == [twin.next(3), twin.next(3)]
        next(iter(sampler))  # a pass that is left early does not shorten the next
    twin.reset()
    twin.next(2)
    copy = pickle.loads(pickle.dumps(twin))
    assert copy.next(9) == twin.next(9)


@BOTH
@pytest.mark.parametrize("used", [0, 7, 10])
def test_after_loading_the_first_pass_is_the_rest_and_the_second_is_whole(kind, used):
    sampler = kind(20, 2, 1)
    resumed = kind(7, 2, 1)
    resumed.reset(20)  # after a reset to its size a state fits
    everything = list(sampler)
    sampler.reset()
    for _ in range(used):
        sampler.next(1)
    resumed.load_state_dict(sampler.state_dict())
    assert used < 10 or resumed.next(1) is None
    assert list(resumed) == (everything[used:] or everything)  # of a finished shard, a whole pass begins
    assert list(resumed) == everything


def test_resuming_in_the_loop_over_epochs_sees_the_rest_of_one_and_all_of_the_next():
    sampler, resumed, skipping = (DistributedRandomSampler(20) for _ in range(3))
    sampler.set_epoch(3)
    sampler.reset()
    used = sampler.next(5) or []
    whole_epochs = [deal("random", 20, 1, True, epoch)[0] for epoch in (3, 4)]
    for each in (resumed, skipping):
        each.load_state_dict(sampler.state_dict())
    assert (resumed.epoch(), used + list(resumed)) == (3, whole_epochs[0])
    for each in (resumed, skipping):  # another epoch after loading is a whole pass, whatever is left of the one before
        each.set_epoch(4)
        assert list(each) == whole_epochs[1]


# ---- states and arguments that don't fit
def test_the_state_is_the_index_and_for_random_the_epoch():
    sequential = DistributedSequentialSampler(10, 3, 1)
    random = DistributedRandomSampler(10, 3, 1)
    for sampler in (sequential, random):
        sampler.set_epoch(6)
        sampler.next(2)
    shard = {"size": 10, "num_replicas": 3, "rank": 1, "allow_duplicates": True}
    assert sequential.state_dict() == {"index": 6, **shard}
    assert random.state_dict() == {"index": 6, "epoch": 6, **shard}


@BOTH
@pytest.mark.parametrize("other, message", [
    ((30, 2, 1), "size=30, this sampler has size=20; reset"), ((20, 4, 1), "num_replicas=4"), ((20, 2, 0), "rank=0"),
    ((20, 2, 1, False), "allow_duplicates=False"),
])  # fmt: skip
def test_a_state_from_elsewhere_is_refused_and_changes_nothing(kind, other, message):
    sampler = kind(20, 2, 1)
    sampler.next(3)
    before = sampler.state_dict()
    state = kind(*other).state_dict()
    refuses(ValueError, message, sampler.load_state_dict, state)
    assert sampler.state_dict() == before


@BOTH
@pytest.mark.parametrize("arguments, message", [
    ((-1,), "size must be at least 0"), ((2.5,), "size must be an integer"), ((None,), "size must be an integer"),
    ((10, 0), "num_replicas must be at least 1"),
    ((10, 2, 2), "rank 2 is out of range for num_replicas 2; ranks are 0..1"),
    ((10, 2, -1), "rank -1 is out of range"), ((10, 2, 0.0), "rank must be an integer"),
])  # fmt: skip
def test_bad_arguments_raise_at_once(kind, arguments, message):
    refuses(ValueError, message, kind, *arguments)


@BOTH
def test_bad_calls_raise_and_leave_the_sampler_as_it_was(kind):
    sampler = kind(10)
    sampler.next(4)
    before = sampler.state_dict()
    for wrong in (0, -1, 1.5):
        refuses(ValueError, "batch_size must be", sampler.next, wrong)
    for wrong in (-1, 2**64, 0.5):
        refuses(ValueError, "epoch must be", sampler.set_epoch, wrong)
    for wrong in (-1, 0.5):
        refuses(ValueError, "size must be", sampler.reset, wrong)
    refuses(TypeError, "allow_duplicates must be True or False", kind, 10, 1, 0, 3)
    refuses(
        TypeError, r"^size .* not \[0, 1, 2, 3, 4, 5, \.\.\.\] of type list.*len\(dataset\)$", kind, list(range(10**6))
    )
    refuses(ValueError, "the state has no index", sampler.load_state_dict, {})
    refuses(TypeError, "a state is a mapping", sampler.load_state_dict, [5])
    for index in (9, 21, -1, 10.5, None):  # outside this shard
        refuses(ValueError, "the state's index must be", kind(20, 2, 1).load_state_dict, {"index": index, "epoch": 0})
    assert sampler.state_dict() == before


def test_what_only_the_random_one_refuses():
    sampler = DistributedRandomSampler(10)
    sampler.next(4)
    for epoch in (-1, 0.5, 2**64):
        refuses(ValueError, "epoch must be", sampler.load_state_dict, {"index": 5, "epoch": epoch})
    sequential = DistributedSequentialSampler(10).state_dict()
    refuses(ValueError, "the state has no epoch", sampler.load_state_dict, sequential)
    refuses(ValueError, r"size 4294967296 is too large", sampler.reset, 2**32)
    assert sampler.next(2) == [9, 8], "as if nothing had been asked"
    assert DistributedSequentialSampler(2**40, 2, 1).next(1) == [2**39]
