"""What is particular about the checks of notebook 02; what all exercises have in common is in test_detectors."""

import hashlib
import os
import random
from itertools import count, islice

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, noise, orders, pools, solved
from support.n02 import checks as n02
from support.n02.generators import another_process, states


# ---- right answers that are made otherwise
def drawn_again(self):
    """Draw the orders of all epochs up to this one from one generator."""
    draws = random.Random(self.seed)
    for _ in range(self.epoch + 1):
        order = draws.sample(range(self.size), self.size)
    yield from order


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


RIGHT_ORDERS = [drawn_again, by_digest, as_tensors, seeded_by_a_pair, swapping_with_one_behind]


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


@pytest.mark.parametrize("buffered", [refilled_first, swapped_to_the_end, in_an_array_of_objects])
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
    return index, int(generator.integers(100)), int(generator.integers(2))


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


# ---- wrong answers, beyond the famous ones
def seeded_by(source):
    def iterate(self):
        return iter(np.random.default_rng(abs(source(self))).permutation(self.size).tolist())

    return with_methods(solved.Shuffled, __iter__=iterate)


@pytest.mark.parametrize(
    "source, said",
    [
        (lambda self: max(self.seed, self.epoch), orders.EPOCH),
        (lambda self: self.epoch * (self.seed + 1), orders.SEED),
        (lambda self: torch.initial_seed() + 1000 * self.seed + self.epoch, orders.OTHERS),
        (lambda self: hash((id(self), self.seed, self.epoch)), orders.RESTART),
        (lambda self: hash(f"{self.seed} {self.epoch}"), orders.PROCESS),
        (lambda self: os.getpid() + 1000 * self.seed + self.epoch, orders.PROCESS),
    ],
)
def test_an_order_comes_from_seed_and_epoch_and_not_from_what_changes_with_the_process(source, said):
    message = n02.check_shuffled(seeded_by(source)).message
    assert said in message
    assert sum(sentence in message for sentence in n02.check_shuffled.mistakes) == 1


def test_another_process_has_its_own_number_and_hashes_of_texts_and_leaves_no_trace():
    def numbers_of_process():
        return os.getpid(), hash("text"), hash(("text", 1)), hash((1, 2))

    here = numbers_of_process()
    with another_process(numbers_of_process):
        there = numbers_of_process()
    assert [one == other for one, other in zip(here, there, strict=True)] == [False, False, False, True]
    assert numbers_of_process() == here
    assert "hash" not in numbers_of_process.__globals__


def test_a_batch_sampler_without_batches_is_not_told_that_its_length_is_wrong():
    said = n02.check_pooled(with_methods(solved.PooledBatches, __iter__=lambda self: iter([]))).message
    assert f"{pools.LOST} Yours gives no batch." in said
    assert pools.LEN not in said


@pytest.mark.parametrize("left", [dict.fromkeys, lambda items: filter(None, items)])
def test_places_of_a_stream_count_though_equal_or_zero_items_stand_there(left):
    def iterate(self):
        return iter(left(solved.Dealt.__iter__(self)))

    assert dealing.VALUES in n02.check_dealt(with_methods(solved.Dealt, __iter__=iterate)).message


def every_second_in_turn(items, size, generator):
    waiting = []
    turn = count()
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(0 if next(turn) % 2 else int(generator.integers(size)))
    generator.shuffle(waiting)
    yield from waiting


def with_the_one_just_read(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) > size:
            yield waiting.pop(int(generator.integers(size + 1)))
    generator.shuffle(waiting)
    yield from waiting


def two_of_the_tail_swapped(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(int(generator.integers(size)))
    if len(waiting) > 1:
        one, other = generator.choice(len(waiting), 2, replace=False)
        waiting[one], waiting[other] = waiting[other], waiting[one]
    yield from waiting


@pytest.mark.parametrize(
    "buffered, said",
    [
        (every_second_in_turn, buffering.CHANCE),
        (with_the_one_just_read, buffering.EARLY),
        (two_of_the_tail_swapped, (buffering.CHANCE, buffering.TAIL)),
    ],
)
def test_every_item_that_leaves_a_buffer_is_drawn_and_so_is_its_end(buffered, said):
    message = n02.check_buffered(buffered).message
    assert any(sentence in message for sentence in ([said] if isinstance(said, str) else said)), message


def wrong_source(source):
    def item_of(key, seed):
        epoch, index = key
        generator = np.random.default_rng(source(seed, epoch, index))
        return index, int(generator.integers(100)), int(generator.integers(2))

    return item_of


@pytest.mark.parametrize(
    "source",
    [
        lambda seed, epoch, index: seed ^ (epoch * 20 + index),
        lambda seed, epoch, index: seed + epoch * 20 + index,
        lambda seed, epoch, index: seed + 1000 * epoch + index,
        lambda seed, epoch, index: seed * 10**6 + 1000 * epoch + index,
        lambda seed, epoch, index: (seed ^ epoch, index),
        lambda seed, epoch, index: (epoch, seed + index),
        lambda seed, epoch, index: (seed, epoch, index % 65_536),
        lambda seed, epoch, index: (seed, epoch % 1000, index),
        lambda seed, epoch, index: (seed % 1024, epoch, index),
        lambda seed, epoch, index: (seed, index * 1000 + epoch),
        lambda seed, epoch, index: (seed, index * 10**5 + epoch),
        lambda seed, epoch, index: (seed, epoch * 10**7 + index),
    ],
)
def test_two_runs_share_no_items_however_seed_epoch_and_index_are_mixed(source):
    assert noise.MIXED in n02.check_noise(solved.keys_of, wrong_source(source)).message


def test_runs_whose_seed_moves_on_by_a_thousand_epochs_are_told_that_epochs_meet():
    said = n02.check_noise(solved.keys_of, wrong_source(lambda seed, epoch, i: (seed * 1000 + epoch, i))).message
    assert "Here items 0 to 9 of seed 0, epoch 1000 meet items 0 to 9 of seed 1, epoch 0." in said


def drawn_apart(crop_source, flip_source):
    def item_of(key, seed):
        epoch, index = key
        crop = np.random.default_rng((1, *crop_source(seed, epoch, index))).integers(100)
        return index, int(crop), int(np.random.default_rng((2, *flip_source(seed, epoch, index))).integers(2))

    return item_of


@pytest.mark.parametrize(
    "part, said",
    [
        (lambda seed, epoch, index: (seed, index), "of an item is the same in all epochs."),
        (lambda seed, epoch, index: (epoch, index), "is the same with seeds 0 and 1."),
        (lambda seed, epoch, index: (seed, epoch), "All items of an epoch have the same"),
    ],
)
@pytest.mark.parametrize("name", ["crop", "flip"])
def test_each_of_the_two_numbers_depends_on_seed_epoch_and_index(name, part, said):
    def whole(*three):
        return three

    item_of = drawn_apart(*((part, whole) if name == "crop" else (whole, part)))
    message = n02.check_noise(solved.keys_of, item_of).message
    assert noise.PART in message
    assert said in message
    assert name in message.split(noise.PART)[1]


@pytest.mark.parametrize("text", [lambda *three: str(three), lambda *three: f"{three}"])
def test_the_hash_of_a_text_is_another_one_in_another_process(text):
    item_of = wrong_source(lambda *three: abs(hash(text(*three))))
    assert noise.PROCESS in n02.check_noise(solved.keys_of, item_of).message


def test_a_crop_that_is_no_whole_number_is_told_the_shape():
    def item_of(key, seed):
        index, crop, flip = solved.item_of(key, seed)
        return index, crop + 0.5, flip

    assert noise.SHAPE in n02.check_noise(solved.keys_of, item_of).message


@pytest.mark.parametrize("flip", [lambda crop: 0, lambda crop: crop // 50, lambda crop: 1 - crop % 2])
def test_a_flip_that_follows_from_the_crop_is_found_out(flip):
    def item_of(key, seed):
        index, crop, _ = solved.item_of(key, seed)
        return index, crop, flip(crop)

    assert noise.TWINS in n02.check_noise(solved.keys_of, item_of).message


def test_a_key_that_has_room_for_a_thousand_items_only_loses_the_index_of_larger_ones():
    def item_of(key, seed):
        epoch, index = divmod(key, 1000)
        return solved.item_of((epoch, index), seed)

    said = n02.check_noise(lambda indices, epoch: [1000 * epoch + i for i in indices], item_of).message
    assert "For index 5000000 in epoch 0 yours is (0, " in said


@pytest.mark.parametrize(
    "exercise, mistake, said",
    [
        (n02.check_shuffled, orders.EPOCH, "Epochs 0 and 1 of seed 0 both begin "),
        (n02.check_shuffled, orders.TIMES, " First ["),
        (n02.check_pooled, pools.TWICE, "Here it was read 2 times. (12 indices, batch_size = 2, pool = 4)"),
        (n02.check_pooled, "len() rounds up", "Yours says 3, and there are 4. (11 indices, batch_size = 3, pool = 2)"),
        (n02.check_dealt, "You number the processes", "W = 2, 2 workers in each rank, a stream of 14: "),
        (n02.check_dealt, "You number the processes", "They get 8, 6 items."),
        (n02.check_dealt, dealing.AHEAD, "Place 0 left when place 1 had been read."),
        (n02.check_buffered, buffering.NOT_FULL, "With size = 4, item number 1 to leave was one of 3."),
        (n02.check_buffered, buffering.QUEUE, "3200 of 3200 items left just when 3 later ones were read."),
        (n02.check_noise, noise.ASKED, "Items 0 to 3 have [("),
    ],
)
def test_a_fault_is_told_where_it_shows(exercise, mistake, said):
    wrong = next(answer for sentence, answer in exercise.mistakes.items() if sentence.startswith(mistake))
    assert said in exercise(*(wrong if exercise.answers > 1 else [wrong])).message


def test_an_answer_that_stops_early_is_told_which_place_nobody_reads():
    def first_two(self):
        return islice(solved.Dealt.__iter__(self), 2)

    said = n02.check_dealt(with_methods(solved.Dealt, __iter__=first_two)).message
    assert f"{dealing.ONCE} Place 8 comes 0 times. rank 0 reads [0, 4] and [2, 6]; " in said


def test_whoever_forgets_that_there_may_be_no_workers_is_told_what_happened():
    def iterate(self):
        info = get_worker_info()
        return islice(self.read(), self.rank + self.world_size * info.id, None, self.world_size * info.num_workers)

    verdict = n02.check_dealt(with_methods(solved.Dealt, __iter__=iterate))
    assert "your code raised AttributeError: 'NoneType'" in verdict.message
    assert "get_worker_info() is None without workers" in verdict.message


def test_whoever_needs_a_full_buffer_first_is_told_of_the_stream_that_ends_before():
    def buffered(items, size, generator):
        items = iter(items)
        waiting = [next(items) for _ in range(size)]
        for item in items:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
        generator.shuffle(waiting)
        yield from waiting

    assert "With 3 items and size = 5: your code raised RuntimeError" in n02.check_buffered(buffered).message


def test_global_generators_are_where_they_were_after_an_answer_that_seeds_them():
    before = states()
    n02.check_shuffled(n02.check_shuffled.mistakes[orders.GLOBAL])
    n02.check_noise(*n02.check_noise.mistakes[noise.GLOBAL])
    assert states() == before
