"""Right answers of notebook 02 that are made otherwise than its solutions."""

import hashlib
import random
import re
from itertools import count, islice

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import checks as n02
from support.n02 import solved
from support.n02.runs import sentence_lengths
from tools.hygiene import StoredNotebook
from tools.project import ROOT


def drawn_again(self):
    """Draw the orders of all epochs up to this one from one generator."""
    orders = np.tile(np.arange(self.size), (self.epoch + 1, 1))
    yield from np.random.default_rng(self.seed).permuted(orders, axis=1)[-1].tolist()


def by_digest(self):
    def digest(index):
        return hashlib.sha256(f"{self.seed} {self.epoch} {index}".encode()).digest()

    return iter(sorted(range(self.size), key=digest))


def as_tensors(self):
    return iter(torch.randperm(self.size, generator=torch.Generator().manual_seed(self.seed * 10**6 + self.epoch)))


def seeded_by_a_pair(self):
    return iter(np.random.default_rng((self.seed, self.epoch)).permutation(self.size).tolist())


def swapping_with_one_behind(self):
    """Shuffle as Fisher and Yates do."""
    draws = random.Random(f"{self.seed} {self.epoch}")
    order = [*range(self.size)]
    for place in range(self.size - 1):
        other = draws.randrange(place, self.size)
        order[place], order[other] = order[other], order[place]
    return iter(order)


def by_torchs_own_sampler(self):
    """Let RandomSampler shuffle, which takes no empty dataset."""
    generator = torch.Generator().manual_seed(self.seed * 1000 + self.epoch)
    yield from RandomSampler(range(self.size), generator=generator)


RIGHT_ORDERS = [
    drawn_again,
    by_digest,
    as_tensors,
    seeded_by_a_pair,
    swapping_with_one_behind,
    by_torchs_own_sampler,
]


@pytest.mark.parametrize("iterate", RIGHT_ORDERS)
def test_an_order_may_come_from_anything_that_seed_and_epoch_decide(iterate):
    assert n02.check_shuffled(with_methods(solved.Shuffled, __iter__=iterate))


def from_long_to_short(self):
    order = [*self.sampler]
    size = self.pool * self.batch_size
    for start in range(0, len(order), size):
        part = sorted(order[start : start + size], key=lambda i: -self.lengths[i])
        yield from (part[k : k + self.batch_size] for k in range(0, len(part), self.batch_size))


def cleared_and_filled_again(self):
    batch = []
    for index in [index for batch in solved.PooledBatches.__iter__(self) for index in batch]:
        batch.append(index)
        if len(batch) == self.batch_size:
            yield list(batch)
            batch.clear()
    if batch:
        yield batch


def in_random_order(self):
    batches = [tuple(batch) for batch in solved.PooledBatches.__iter__(self)]
    random.Random(0).shuffle(batches)
    return iter(batches)


@pytest.mark.parametrize("iterate", [from_long_to_short, in_random_order, cleared_and_filled_again])
def test_a_pool_may_be_cut_into_its_batches_in_any_order(iterate):
    assert n02.check_pooled(with_methods(solved.PooledBatches, __iter__=iterate))


class Shuffling(solved.PooledBatches):
    """Batches leave in another order at each pass."""

    def __iter__(self):
        batches = list(super().__iter__())
        random.shuffle(batches)
        return iter(batches)


def test_the_ranks_of_the_encore_wait_little_for_pools_whose_batches_leave_in_any_order(capsys):
    page = StoredNotebook.read(ROOT / "notebooks" / "02_samplers.ipynb")
    source = next(source for _, _, source in page.cells("code") if "def share_of" in source)
    lengths = sentence_lengths(2000)
    given = {
        "np": np,
        "lengths": lengths,
        "sentences": lengths,
        "MyBatches": Shuffling,
        "rows_by_longest": lambda batch: len(batch) * max(lengths[i] for i in batch),
        "seeded": lambda data: random.Random(0).sample(range(len(data)), len(data)),
    }
    exec(source, given)
    plain, pooled, shuffled = map(int, re.findall(r"(\d+)% is waiting", capsys.readouterr().out))
    assert pooled < plain < shuffled


def the_other_way_round(self):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    turn = count()
    for place, item in enumerate(self.read()):
        if place % self.world_size == self.world_size - 1 - self.rank and next(turn) % workers == workers - 1 - worker:
            yield item


def one_deal_inside_the_other(self):
    info = get_worker_info()
    share = islice(self.read(), self.rank, None, self.world_size)
    return islice(share, info.id, None, info.num_workers) if info else share


@pytest.mark.parametrize("iterate", [the_other_way_round, one_deal_inside_the_other])
def test_ranks_and_workers_may_take_their_turns_in_any_order(iterate):
    assert n02.check_dealt(with_methods(solved.Dealt, __iter__=iterate))


def refilled_first(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(int(generator.integers(size)))
    while waiting:
        yield waiting.pop(int(generator.integers(len(waiting))))


def swapped_to_the_end(items, size, generator):
    items = iter(items)
    waiting = list(islice(items, size))
    while waiting:
        place = int(generator.integers(len(waiting)))
        waiting[place], waiting[-1] = waiting[-1], waiting[place]
        yield waiting.pop()
        waiting += islice(items, 1)


def in_an_array_of_objects(items, size, generator):
    waiting = np.empty(size, dtype=object)
    filled = 0
    for item in items:
        place = filled if filled < size else int(generator.random() * size)
        if filled == size:
            yield waiting[place]
        filled = min(size, filled + 1)
        waiting[place] = item
    yield from (waiting[place] for place in generator.permutation(filled))


def shuffled_before_and_not_behind(items, size, generator):
    """Shuffle the first ones: what comes later takes places by chance, so that the end is in random order, too."""
    items = iter(items)
    waiting = list(islice(items, size))
    generator.shuffle(waiting)
    for item in items:
        place = generator.integers(size)
        leaving = waiting[place]
        waiting[place] = item
        yield leaving
    yield from waiting


def refilled_by_next(items, size, generator):
    """Make an iterator of a list and of nothing else, since the exercise gives lists and iterators."""
    given = iter(items) if isinstance(items, list) else items
    end = object()
    waiting = []
    while (item := next(given, end)) is not end:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(generator.integers(size))
    generator.shuffle(waiting)
    yield from waiting


RIGHT_BUFFERS = [
    refilled_first,
    refilled_by_next,
    swapped_to_the_end,
    in_an_array_of_objects,
    shuffled_before_and_not_behind,
]


@pytest.mark.costly
@pytest.mark.parametrize("buffered", RIGHT_BUFFERS)
def test_a_buffer_may_be_refilled_before_or_after_an_item_leaves(buffered):
    assert n02.check_buffered(buffered)


def numbers(indices, epoch):
    return (epoch * 10**9 + index for index in indices)


def item_of_number(key, seed):
    epoch, index = divmod(key, 10**9)
    draws = random.Random(f"{seed} {epoch} {index}")
    return index, draws.randrange(100), draws.randrange(2)


def item_of_texts(key, seed):
    generator = torch.Generator().manual_seed(abs(hash((seed, *map(int, key.split())))))
    crop, flip = (int(torch.randint(n, (), generator=generator)) for n in (100, 2))
    return int(key.split()[1]), crop, flip


def texts(indices, epoch):
    return [f"{epoch} {index}" for index in indices]


def one_half_of_a_draw_each(key, seed):
    """Take the crop from one half of a draw below 200, and the flip from the other half of the neighbour's."""
    epoch, index = key
    mine, neighbours = (np.random.default_rng((seed, epoch, index + far)).integers(200) for far in (0, 1))
    return index, int(mine // 2), int(neighbours % 2)


def with_room_for_all_indices(key, seed):
    epoch, index = key
    generator = np.random.default_rng((seed, epoch * 10**8 + index))
    return np.int64(index), generator.integers(100), generator.choice([False, True])


def one_number_for_all(key, seed):
    """Seed with one number in which each of the three has room: it may fill as many words as it needs."""
    epoch, index = key
    generator = np.random.default_rng(seed * 10**14 + epoch * 10**8 + index)
    return index, int(generator.integers(100)), int(generator.integers(2))


def dictionaries(indices, epoch):
    return ({"epoch": epoch, "index": index} for index in indices)


def item_of_dictionary(key, seed):
    digest = hashlib.sha256(f"{seed} {key['epoch']} {key['index']}".encode()).digest()
    return key["index"], int.from_bytes(digest[:8]) % 100, digest[9] % 2


@pytest.mark.parametrize(
    "answers",
    [
        (solved.keys_of, one_number_for_all),
        (dictionaries, item_of_dictionary),
        (numbers, item_of_number),
        (texts, item_of_texts),
        (solved.keys_of, one_half_of_a_draw_each),
        (solved.keys_of, with_room_for_all_indices),
    ],
)
def test_a_key_may_be_anything_that_tells_epoch_and_index(answers):
    assert n02.check_noise(*answers)
