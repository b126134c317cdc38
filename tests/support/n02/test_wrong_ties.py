"""Wrong answers of notebook 02 in which something hangs together: passes, draws, digits, or a number and a rank."""

import os
import random
import time
from itertools import count

import numpy as np
import pytest
import torch.distributed
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, meetings, noise, orders, pools, solved
from support.n02 import checks as n02
from support.n02.runs import sentence_lengths
from tests.support.n02.told import is_told

LENGTHS = sentence_lengths(2000)  # a global name, as in the notebook


def sorted_by_the_notebooks_lengths(self):
    order = list(self.sampler)
    size = self.pool * self.batch_size
    for start in range(0, len(order), size):
        part = sorted(order[start : start + size], key=lambda i: LENGTHS[i])
        for first in range(0, len(part), self.batch_size):
            yield part[first : first + self.batch_size]


def test_lengths_are_those_that_the_object_was_given():
    is_told(
        n02.check_pooled,
        [with_methods(solved.PooledBatches, __iter__=sorted_by_the_notebooks_lengths)],
        pools.PADDING,
    )


def test_a_sampler_that_is_not_asked_is_not_quoted():
    answer = with_methods(solved.PooledBatches, __iter__=lambda self: iter([[*range(len(self.lengths))]]))
    assert "It was not even asked; your batches are" in n02.check_pooled(answer).message


def rank_of_the_job():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def rank_of_the_launcher():
    return int(os.environ.get("RANK", "0"))


def hour_of_the_clock():
    return int(time.time()) // 3600


def hour_of_the_fine_clock():
    return time.time_ns() // (3600 * 10**9)


@pytest.mark.parametrize("asks", [rank_of_the_job, rank_of_the_launcher, hour_of_the_clock, hour_of_the_fine_clock])
def test_neither_an_order_nor_a_crop_depends_on_the_rank_that_asks_or_on_the_hour(asks):
    def iterate(self):
        return iter(np.random.default_rng((self.seed, self.epoch, asks())).permutation(self.size).tolist())

    def item_of(key, seed):
        generator = np.random.default_rng((seed, *key, asks()))
        return key[1], int(generator.integers(100)), int(generator.integers(2))

    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], orders.PROCESS)
    is_told(n02.check_noise, [solved.keys_of, item_of], noise.PROCESS)


@pytest.mark.parametrize("text", ["{0}{1:02d}", "{0:02d}{1:02d}", "{1}{0:02d}"])
def test_seed_and_epoch_run_together_behind_a_pad_that_is_too_short(text):
    def iterate(self):
        generator = random.Random(text.format(self.seed, self.epoch))
        return iter(generator.sample(range(self.size), self.size))

    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], orders.MEET)


@pytest.mark.parametrize("text", ["{0}-{1:03d}{2:06d}", "{0:05d}{1:05d}-{2}", "{2:08d}{1:03d}{0}"])
def test_digits_of_two_numbers_run_together_behind_a_pad_that_is_too_short(text):
    def item_of(key, seed):
        generator = random.Random(text.format(seed, *key))
        return key[1], generator.randrange(100), generator.randrange(2)

    is_told(n02.check_noise, [solved.keys_of, item_of], meetings.MIXED)


def items_kept(self):
    """Ask in each pass who it is, and hand on what the first pass kept."""
    get_worker_info()
    return iter(self.__dict__.setdefault("kept", [*solved.Dealt.__iter__(self)]))


def test_whoever_keeps_items_and_asks_who_it_is_is_not_told_to_ask():
    answer = with_methods(solved.Dealt, __iter__=items_kept)
    is_told(n02.check_dealt, [answer], dealing.NOTED)
    assert "ask get_worker_info()" not in n02.check_dealt(answer).message


def list_that_is_emptied_at_the_beginning(items, size, generator, waiting=[]):  # noqa: B006 the mistake
    waiting.clear()
    for item in items:
        if len(waiting) == size:
            yield waiting.pop(generator.integers(size))
        waiting.append(item)
    generator.shuffle(waiting)
    yield from waiting


def test_a_buffer_belongs_to_its_pass():
    is_told(n02.check_buffered, [list_that_is_emptied_at_the_beginning], buffering.TOGETHER)


def places_used_up_before_one_comes_again(generator, size):
    while True:
        yield from generator.permutation(size).tolist()


def each_place_twice(generator, size):
    while True:
        yield from [int(generator.integers(size))] * 2


def place_after_place(generator, size):
    first = generator.integers(size)
    return ((first + turn) % size for turn in count())


@pytest.mark.parametrize("drawn", [places_used_up_before_one_comes_again, each_place_twice, place_after_place])
def test_what_was_drawn_before_tells_nothing_of_the_next_draw(drawn):
    def buffered(items, size, generator):
        waiting = []
        places = drawn(generator, size)
        for item in items:
            if len(waiting) == size:
                yield waiting.pop(next(places))
            waiting.append(item)
        generator.shuffle(waiting)
        yield from waiting

    is_told(n02.check_buffered, [buffered], buffering.CHANCE)


@pytest.mark.parametrize("mixed", [lambda s, e: 997 * s + 991 * e, lambda s, e: 1009 * s ^ e])
def test_two_runs_that_share_one_far_epoch_are_found(mixed):
    def iterate(self):
        return iter(np.random.default_rng(mixed(self.seed, self.epoch)).permutation(self.size).tolist())

    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], orders.MEET)


def item_drawn(crop_and_flip):
    def item_of(key, seed):
        epoch, index = key
        return index, *crop_and_flip(seed, epoch, index)

    return item_of


@pytest.mark.parametrize(
    "crop_of, flip_of, said",
    [
        (lambda s, e, i: (s, 8191 * e ^ i), lambda *three: three, "crops, by (seed, epoch, index), (0, 1, 0) has"),
        (lambda *three: three, lambda s, e, i: 2_654_435_761 * s ^ 1009 * e ^ i, "flips, by (seed, epoch, index), ("),
    ],
)
def test_items_meet_by_an_exclusive_or_that_turns_their_order(crop_of, flip_of, said):
    def crop_and_flip(*three):
        crop = np.random.default_rng(crop_of(*three)).integers(100)
        return int(crop), int(np.random.default_rng(flip_of(*three)).bytes(8)[7] % 2)

    answers = [solved.keys_of, item_drawn(crop_and_flip)]
    is_told(n02.check_noise, answers, meetings.MIXED)
    assert f"{meetings.MIXED} Of the {said}" in n02.check_noise(*answers).message


def of_a_byte(seed, epoch, index):
    generator = np.random.default_rng((seed, epoch, index))
    flip = generator.bytes(1)[0] % 2
    return generator.bytes(1)[0] % 100, flip


def in_steps_of_five(seed, epoch, index):
    generator = np.random.default_rng((seed, epoch, index))
    return int(generator.choice(range(0, 100, 5))), int(generator.integers(2))


@pytest.mark.parametrize("crop_and_flip", [of_a_byte, in_steps_of_five])
def test_each_single_crop_is_as_likely_as_any_other(crop_and_flip):
    is_told(n02.check_noise, [solved.keys_of, item_drawn(crop_and_flip)], noise.UNEVEN)


def each_batch_a_set(self):
    return ([*{*batch}] for batch in solved.PooledBatches.__iter__(self))


def up_to_false(items, size, generator):
    items = iter(items)
    named = iter(lambda: next(items, False), False)
    return solved.buffered(named, size, generator)


def each_item_twice(self):
    return (item for item in solved.Dealt.__iter__(self) for _ in range(2))


@pytest.mark.parametrize(
    "check, answer, said",
    [
        (n02.check_pooled, with_methods(solved.PooledBatches, __iter__=each_batch_a_set), pools.LOST),
        (n02.check_buffered, up_to_false, buffering.FALSE),
        (n02.check_dealt, with_methods(solved.Dealt, __iter__=each_item_twice), dealing.ONCE),
    ],
)
def test_each_comes_once_whatever_it_is_equal_to(check, answer, said):
    is_told(check, [answer], said)


def the_order_three_times(self):
    return iter([*solved.Shuffled.__iter__(self)] * 3)


def drawn_and_not_taken_out(items, size, generator):
    waiting = [*items]
    while waiting:
        yield waiting[generator.integers(len(waiting))]


@pytest.mark.parametrize(
    "check, answer",
    [
        (n02.check_shuffled, with_methods(solved.Shuffled, __iter__=the_order_three_times)),
        (n02.check_buffered, drawn_and_not_taken_out),
    ],
)
def test_a_pass_that_is_cut_is_not_told_as_a_whole(check, answer):
    assert "items or more]" in check(answer).message


def test_items_meet_by_an_exclusive_or_that_is_cut_off_at_a_word():
    def crop_and_flip(seed, epoch, index):
        mixed = seed * 73_856_093 ^ epoch * 19_349_663 ^ index * 83_492_791
        generator = np.random.default_rng(mixed % 2**32)
        return int(generator.integers(100)), int(generator.integers(2))

    is_told(n02.check_noise, [solved.keys_of, item_drawn(crop_and_flip)], meetings.MIXED)


@pytest.mark.parametrize(
    "flip_of",
    [lambda s, e, i, crop: (crop + e) % 2, lambda s, e, i, crop: np.random.default_rng((s, e, crop)).integers(2)],
)
def test_a_crop_tells_no_flip_to_those_who_know_the_epoch(flip_of):
    def crop_and_flip(seed, epoch, index):
        crop = int(np.random.default_rng((seed, epoch, index)).integers(100))
        return crop, int(flip_of(seed, epoch, index, crop))

    is_told(n02.check_noise, [solved.keys_of, item_drawn(crop_and_flip)], noise.TWINS)
