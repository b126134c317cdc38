"""What is particular about the checks of notebook 02; what all exercises have in common is in test_detectors."""

import os
import random
from itertools import count, islice

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, meetings, noise, orders, pools, solved
from support.n02 import checks as n02
from support.n02.generators import another_process, put_back, states


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


def seeds_all_generators(self):
    torch.manual_seed(1000 * self.seed + self.epoch)
    return iter(torch.randperm(self.size).tolist())


def test_whoever_seeds_the_global_generator_is_found_out_after_a_pass_of_the_readers_own():
    answer = with_methods(solved.Shuffled, __iter__=seeds_all_generators)
    with put_back():
        list(answer(orders.SIZE))
        assert orders.GLOBAL in n02.check_shuffled(answer).message


class MixedOn(solved.Shuffled):
    def __init__(self, size, seed=0):
        super().__init__(size, seed)
        self.set_epoch(0)

    def set_epoch(self, epoch):
        order = getattr(self, "order", range(self.size))
        self.order = random.Random(f"{self.seed}, {epoch}").sample(order, self.size)

    def __iter__(self):
        return iter(self.order)


def test_a_restart_knows_nothing_of_the_epochs_before_it():
    assert orders.RESTART in n02.check_shuffled(MixedOn).message


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


def stops_before_the_last_index(self):
    order = list(self.sampler)
    size = self.pool * self.batch_size
    for start in range(0, len(order) - 1, size):
        yield from solved.PooledBatches(order[start : start + size], self.lengths, self.batch_size, self.pool)


def sorted_by_the_first_pool_that_names_it(self):
    order = list(self.sampler)
    size = self.pool * self.batch_size
    ranked = sorted(order, key=lambda i: (order.index(i) // size, self.lengths[i]))
    return (ranked[start : start + self.batch_size] for start in range(0, len(ranked), self.batch_size))


@pytest.mark.parametrize(
    "iterate, said",
    [(stops_before_the_last_index, pools.LOST), (sorted_by_the_first_pool_that_names_it, pools.POOL)],
)
def test_a_pool_may_hold_one_index_and_name_what_another_pool_has_named(iterate, said):
    assert said in n02.check_pooled(with_methods(solved.PooledBatches, __iter__=iterate)).message


@pytest.mark.parametrize("left", [dict.fromkeys, lambda items: filter(None, items)])
def test_places_of_a_stream_count_though_equal_or_zero_items_stand_there(left):
    def iterate(self):
        return iter(left(solved.Dealt.__iter__(self)))

    assert dealing.VALUES in n02.check_dealt(with_methods(solved.Dealt, __iter__=iterate)).message


def takes_all_from_the_list(self):
    items = self.read()
    if isinstance(items, list):
        given = items
        items = [*given]
        given.clear()
    return solved.Dealt.__iter__(solved.Dealt(lambda: items, self.rank, self.world_size))


def test_a_list_that_is_read_stays_as_it_is_for_the_next_pass():
    answer = with_methods(solved.Dealt, __iter__=takes_all_from_the_list)
    assert dealing.AGAIN in n02.check_dealt(answer).message


def hands_on_the_one_just_read(items, size, generator):
    waiting = []
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            yield item
    generator.shuffle(waiting)
    yield from waiting


def test_whoever_draws_nothing_is_not_told_of_a_draw():
    said = n02.check_buffered(hands_on_the_one_just_read).message
    assert buffering.EARLY in said
    assert "drawn" not in said


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


def with_an_end(end):
    """Draw as it should be, and let `end` yield what waits."""

    def buffered(items, size, generator):
        waiting = []
        for item in items:
            if len(waiting) < size:
                waiting.append(item)
            else:
                place = generator.integers(size)
                yield waiting[place]
                waiting[place] = item
        yield from end(waiting, generator)

    return buffered


def removed_by_value(waiting, generator):
    while waiting:
        chosen = waiting[generator.integers(len(waiting))]
        waiting.remove(chosen)
        yield chosen


def sorted_by_few_numbers(waiting, generator):
    return sorted(waiting, key=lambda _: generator.integers(1000))


@pytest.mark.parametrize(
    "buffered, said",
    [
        (every_second_in_turn, buffering.CHANCE),
        (with_the_one_just_read, buffering.EARLY),
        (two_of_the_tail_swapped, (buffering.CHANCE, buffering.TAIL)),
        (with_an_end(removed_by_value), buffering.EQUAL),
        (with_an_end(sorted_by_few_numbers), buffering.TAIL),
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


@pytest.mark.costly
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
    assert meetings.MIXED in n02.check_noise(solved.keys_of, wrong_source(source)).message


@pytest.mark.costly
def test_runs_whose_seed_moves_on_by_a_thousand_epochs_are_told_that_epochs_meet():
    said = n02.check_noise(solved.keys_of, wrong_source(lambda seed, epoch, i: (seed * 1000 + epoch, i))).message
    ends = ("seed 0, epoch 1000, index 0", "seed 1, epoch 0, index 0")
    assert any(f"Here {one} meets {other}, and so do the next ones." in said for one, other in (ends, ends[::-1]))


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
@pytest.mark.costly
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

    assert meetings.SHAPE in n02.check_noise(solved.keys_of, item_of).message


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
        (n02.check_pooled, pools.TWICE, "Here it was read 2 times. (24 of 48 indices, batch_size = 3, pool = 6)"),
        (n02.check_pooled, "len() rounds up", "says 3, and there are 4. (11 of 22 indices, batch_size = 3, pool = 2)"),
        (n02.check_dealt, "You number the processes", "W = 2, 2 workers in each rank, a stream of 14: "),
        (n02.check_dealt, "You number the processes", "They get 8, 6 items."),
        (n02.check_dealt, dealing.AHEAD, "Place 0 left when place 1 had been read."),
        (n02.check_buffered, buffering.NOT_FULL, "With size = 4, item number 1 to leave was one of 3."),
        (n02.check_buffered, buffering.QUEUE, "3200 of 3200 items left just 3 turns after their first chance."),
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
    assert f"{dealing.ONCE} Place 8 comes 0 times. rank 0: [0, 4] and [2, 6]; " in said


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
