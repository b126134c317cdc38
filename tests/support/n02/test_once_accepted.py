"""Wrong answers that once passed a check of notebook 02, or were told what is not true of them, and what they hear."""

import copy
import hashlib
import random
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, noise, orders, pools, solved
from support.n02 import checks as n02


def is_told(check, answers, said):
    """Hold that an answer is refused with one sentence, and with no other of the exercise's famous ones."""
    verdict = check(*answers)
    assert verdict.status == "wrong"
    assert said in verdict.message, verdict
    others = [sentence for sentence in check.mistakes if sentence != said and sentence in verdict.message]
    assert not others


# ---- exercise 1
def seeded_by(source):
    def iterate(self):
        generator = torch.Generator().manual_seed(source(self.seed, self.epoch))
        return iter(torch.randperm(self.size, generator=generator).tolist())

    return iterate


def drawn(self, *more):
    return np.random.default_rng((self.seed, self.epoch, *more))


def first_half_alone(self):
    half = self.size // 2
    return iter([*drawn(self).permutation(half).tolist(), *range(half, self.size)])


def in_blocks_of_five(self):
    generator = drawn(self)
    return (
        start + place
        for start in range(0, self.size, 5)
        for place in generator.permutation(min(5, self.size - start)).tolist()
    )


def sorted_by_few_numbers(self):
    numbers = drawn(self).integers(4, size=self.size)
    return iter(sorted(range(self.size), key=lambda index: numbers[index]))


def sorted_by_hashes(self):
    """Sort by Python's hash of three numbers: near ones have hashes in the same order now and then."""
    return iter(sorted(range(self.size), key=lambda index: hash((self.seed, self.epoch, index))))


def odd_epochs_backwards(self):
    even = [*seeded_by(lambda seed, epoch: 1000 * seed + epoch - epoch % 2)(self)]
    return iter(even[::-1] if self.epoch % 2 else even)


def moved_by_the_epoch(self):
    return ((index + self.epoch * 37) % self.size for index in seeded_by(lambda seed, epoch: seed)(self))


def epoch_read_late(self):
    left = [*range(self.size)]
    while left:
        yield left.pop(int(drawn(self, len(left)).integers(len(left))))


@pytest.mark.parametrize(
    "iterate, said",
    [
        (seeded_by(lambda seed, epoch: abs(seed - epoch)), orders.EPOCH),
        (seeded_by(lambda seed, epoch: seed + epoch % 10), orders.EPOCH),
        (seeded_by(lambda seed, epoch: seed * 2000 + epoch % 512), orders.EPOCH),
        (seeded_by(lambda seed, epoch: seed % 10 * 2000 + epoch), orders.SEED),
        (sorted_by_hashes, orders.EPOCH),
        (moved_by_the_epoch, orders.EPOCH),
        (first_half_alone, orders.UNEVEN),
        (in_blocks_of_five, orders.UNEVEN),
        (sorted_by_few_numbers, orders.UNEVEN),
        (odd_epochs_backwards, orders.NEXT),
        (epoch_read_late, orders.MIDWAY),
    ],
)
def test_an_order_is_a_shuffle_of_its_own_in_each_epoch(iterate, said):
    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], said)


# ---- exercise 2
def sorts_the_lengths_first(self):
    self.lengths.sort()
    return solved.PooledBatches.__iter__(self)


def makes_all_lengths_one(self):
    self.lengths[:] = [1] * len(self.lengths)
    return solved.PooledBatches.__iter__(self)


@pytest.mark.parametrize("iterate", [sorts_the_lengths_first, makes_all_lengths_one])
def test_batches_are_judged_by_the_lengths_that_were_given_and_not_by_changed_ones(iterate):
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __iter__=iterate)], pools.CHANGED)


def reads_when_made(self, sampler, lengths, batch_size, pool):
    solved.PooledBatches.__init__(self, list(sampler), lengths, batch_size, pool)


def counts_when_made(self, sampler, lengths, batch_size, pool):
    solved.PooledBatches.__init__(self, sampler, lengths, batch_size, pool)
    self.count = -(-len(list(sampler)) // batch_size)


@pytest.mark.parametrize("made", [reads_when_made, counts_when_made])
def test_whoever_reads_the_sampler_when_made_is_not_told_that_len_does(made):
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __init__=made)], pools.MADE)


def one_list_for_all(self):
    one = []
    for batch in solved.PooledBatches.__iter__(self):
        one.extend(batch)
        yield one
        one.clear()


def test_a_batch_that_is_emptied_later_was_full_when_it_came():
    answer = with_methods(solved.PooledBatches, __iter__=one_list_for_all)
    is_told(n02.check_pooled, [answer], pools.REUSED)
    assert "Yours gives []" not in n02.check_pooled(answer).message


# ---- exercise 3
def place_kept_in_the_object(self):
    info = get_worker_info()
    worker, workers = (info.id, info.num_workers) if info else (0, 1)
    self.place = getattr(self, "place", 0)
    for item in self.read():
        mine = self.place % (self.world_size * workers) == self.rank + self.world_size * worker
        self.place += 1
        if mine:
            yield item
    self.place = 0


def ahead_but_in_the_first_process(self):
    info = get_worker_info()
    share = solved.Dealt.__iter__(self)
    if self.rank == 0 and (info is None or info.id == 0):
        yield from share
    while block := list(islice(share, 2)):
        yield from block


@pytest.mark.parametrize(
    "iterate, said",
    [(place_kept_in_the_object, dealing.BROKEN_OFF), (ahead_but_in_the_first_process, dealing.AHEAD)],
)
def test_a_pass_may_be_broken_off_and_all_processes_hand_on_at_once(iterate, said):
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=iterate)], said)


# ---- exercise 4
def with_waiting(items, size, generator, fill=None, draw=None):
    """Do it right, but for how many wait (`fill`) and of how many places one is drawn (`draw`)."""
    waiting = []
    for item in items:
        if len(waiting) < (fill or size):
            waiting.append(item)
        else:
            place = generator.integers(draw or size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def until_one_is_false(items, size, generator):
    items = iter(items)
    waiting = [*islice(items, size)]
    while item := next(items, None):
        place = generator.integers(size)
        yield waiting[place]
        waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def rest_by_permutation(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(int(generator.integers(size)))
    yield from generator.permutation(waiting)


def drawn_by_value(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            chosen = generator.choice(waiting)
            waiting.remove(chosen)
            yield chosen
    generator.shuffle(waiting)
    yield from waiting


def in_a_set(items, size, generator):
    waiting = set()
    for item in items:
        waiting.add(item)
        if len(waiting) == size:
            chosen = sorted(waiting)[generator.integers(size)]
            waiting.remove(chosen)
            yield chosen
    rest = sorted(waiting)
    generator.shuffle(rest)
    yield from rest


def in_an_array(items, size, generator):
    waiting = np.zeros(size, dtype=int)
    filled = 0
    for item in items:
        place = filled if filled < size else generator.integers(size)
        if filled == size:
            yield waiting[place]
        filled = min(size, filled + 1)
        waiting[place] = item
    yield from waiting[generator.permutation(filled)]


def with_a_copy_of_the_generator(items, size, generator):
    return solved.buffered(items, size, copy.deepcopy(generator))


def eight_at_most(items, size, generator):
    return with_waiting(items, size, generator, draw=min(size, 8))


def one_too_few(items, size, generator):
    few = max(1, size - 1)
    return with_waiting(items, size, generator, fill=few, draw=few)


def never_the_newest(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) == size:
            yield waiting.pop(int(generator.integers(max(1, size // 2))))
    generator.shuffle(waiting)
    yield from waiting


@pytest.mark.parametrize(
    "buffered, said",
    [
        (until_one_is_false, buffering.FALSE),
        (rest_by_permutation, buffering.THING),
        (drawn_by_value, buffering.THING),
        (in_an_array, buffering.THING),
        (in_a_set, buffering.EQUAL),
        (with_a_copy_of_the_generator, buffering.MOVES_ON),
        (eight_at_most, buffering.CHANCE),
        (one_too_few, buffering.NEWEST),
        (never_the_newest, buffering.NEWEST),
    ],
)
def test_a_buffer_of_any_size_hands_on_whatever_comes(buffered, said):
    is_told(n02.check_buffered, [buffered], said)


# ---- exercise 5
def item_with(crop_and_flip):
    def item_of(key, seed):
        epoch, index = key
        return index, *crop_and_flip(seed, epoch, index)

    return item_of


def crop_and_flip_of(generator):
    return int(generator.integers(100)), int(generator.integers(2))


def number(*source):
    return int(np.random.default_rng(source).integers(2**40))


def flip_of_crop(rule):
    def crop_and_flip(*three):
        crop = number(*three) % 100
        return crop, rule(crop)

    return crop_and_flip


def bits_of_one_digest(*three):
    bits = int(hashlib.sha256(str(three).encode()).hexdigest(), 16)
    return bits % 100, bits // 2 % 2


def told_by_half_the_crops(*three):
    crop, flip = crop_and_flip_of(np.random.default_rng(three))
    return crop, flip if crop < 50 else crop % 2


@pytest.mark.parametrize(
    "crop_and_flip",
    [
        bits_of_one_digest,
        told_by_half_the_crops,
        flip_of_crop(lambda crop: crop // 10 % 2),
        flip_of_crop(lambda crop: int(crop % 10 < 5)),
    ],
)
def test_no_crop_tells_its_flip(crop_and_flip):
    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.TWINS)


@pytest.mark.parametrize(
    "generator",
    [
        lambda seed, epoch, index: random.Random(f"{seed}{epoch}{index}"),
        lambda seed, epoch, index: random.Random(f"{seed}{epoch} {index}"),
        lambda seed, epoch, index: random.Random(f"{seed} {epoch}{index}"),
        lambda seed, epoch, index: random.Random(f"{seed} {(epoch << 26) + index}"),
        lambda seed, epoch, index: random.Random(f"{seed} {10 * epoch + index}"),
    ],
)
def test_no_two_triples_are_run_together_into_one(generator):
    def crop_and_flip(*three):
        draws = generator(*three)
        return draws.randrange(100), draws.randrange(2)

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.MIXED)


@pytest.mark.parametrize(
    "crop_and_flip, said",
    [
        (lambda s, e, i: (number(s, e, i // 2) % 100, number(s, e, i, 1) % 2), "Items 0 and 1 have the same crop"),
        (lambda s, e, i: (number(s, e, i) % 100, number(s, e, i // 2, 1) % 2), "Items 0 and 1 have the same flip"),
        (lambda s, e, i: (number(s, e // 2, i) % 100, number(s, e, i, 1) % 2), "Epochs 0 and 1 have the same crop"),
        (lambda s, e, i: (number(s, e, i) % 100, number(s, e // 2, i, 1) % 2), "Epochs 0 and 1 have the same flip"),
    ],
)
def test_neither_two_items_nor_two_epochs_share_a_crop_or_a_flip(crop_and_flip, said):
    answers = [solved.keys_of, item_with(crop_and_flip)]
    is_told(n02.check_noise, answers, noise.SHARED)
    assert said in n02.check_noise(*answers).message


# ---- what a third reader's wrong answers were, and their kin
def swapping_any_two(self):
    """Shuffle naively: each place is swapped with any other, so not all orders are equally likely."""
    draws = random.Random(1000 * self.seed + self.epoch)
    order = [*range(self.size)]
    for place in range(self.size):
        other = draws.randrange(self.size)
        order[place], order[other] = order[other], order[place]
    return iter(order)


def pairs_that_stay_together(self):
    generator = drawn(self)
    starts = generator.permutation(range(0, self.size, 2)).tolist()
    pairs = [[start, start + 1][:: int(generator.choice([-1, 1]))] for start in starts]
    return iter([index for pair in pairs for index in pair if index < self.size])


def in_blocks_of(count):
    def iterate(self):
        generator = drawn(self)
        blocks = [[*range(start, min(start + count, self.size))] for start in range(0, self.size, count)]
        for block in blocks:
            generator.shuffle(block)
        return iter([index for block in blocks for index in block])

    return iterate


def whole_blocks_of(count):
    def iterate(self):
        generator = drawn(self)
        blocks = [[*range(start, min(start + count, self.size))] for start in range(0, self.size, count)]
        if len(blocks) == 1:
            return iter(generator.permutation(self.size).tolist())
        return iter([index for block in generator.permutation(len(blocks)) for index in blocks[block]])

    return iterate


def by_swaps_of_pairs(self):
    draws = random.Random(1000 * self.seed + self.epoch)
    order = [*range(self.size)]
    for _ in range(self.size if self.size > 1 else 0):
        one, other = draws.sample(range(self.size), 2)
        order[one], order[other] = order[other], order[one]
    return iter(order)


def read_from_the_object(self):
    self.order = [*solved.Shuffled.__iter__(self)]
    for place in range(self.size):
        yield self.order[place]


@pytest.mark.parametrize(
    "iterate, said",
    [
        (seeded_by(lambda seed, epoch: seed + epoch), orders.MEET),
        (seeded_by(lambda seed, epoch: (seed + 1) * (epoch + 1)), orders.MEET),
        (seeded_by(lambda seed, epoch: 100 * seed + epoch), orders.MEET),
        (seeded_by(lambda seed, epoch: seed + 365 * epoch), orders.MEET),
        (seeded_by(lambda seed, epoch: seed ^ epoch), orders.MEET),
        (swapping_any_two, orders.UNEVEN),
        (by_swaps_of_pairs, orders.UNEVEN),
        (pairs_that_stay_together, orders.UNEVEN),
        (in_blocks_of(2), orders.EPOCH),
        (in_blocks_of(100), orders.UNEVEN),
        (whole_blocks_of(2), orders.UNEVEN),
        (whole_blocks_of(32), orders.UNEVEN),
        (read_from_the_object, orders.TOGETHER),
    ],
)
def test_all_orders_are_equally_likely_and_no_two_runs_share_one(iterate, said):
    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], said)


def order_kept_in_the_object(self):
    self.order = [*self.sampler]
    size = self.pool * self.batch_size
    for start in range(0, len(self.order), size):
        part = sorted(self.order[start : start + size], key=lambda i: self.lengths[i])
        for first in range(0, len(part), self.batch_size):
            yield part[first : first + self.batch_size]


def sorts_what_it_was_given(self):
    order = self.sampler if isinstance(self.sampler, list) else [*self.sampler]
    given = [*order]
    order.sort(key=lambda i: self.lengths[i])
    return iter(solved.PooledBatches(given, self.lengths, self.batch_size, self.pool))


def empties_what_it_was_given(self):
    order = self.sampler if isinstance(self.sampler, list) else [*self.sampler]
    given = [*order]
    order.clear()
    return iter(solved.PooledBatches(given, self.lengths, self.batch_size, self.pool))


@pytest.mark.parametrize(
    "iterate, said",
    [
        (order_kept_in_the_object, pools.TOGETHER),
        (sorts_what_it_was_given, pools.EMPTIED),
        (empties_what_it_was_given, pools.EMPTIED),
    ],
)
def test_passes_may_overlap_and_the_sampler_may_be_a_list_that_stays_as_it_is(iterate, said):
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __iter__=iterate)], said)


def worker_noted_once(self):
    if not hasattr(self, "worker"):
        info = get_worker_info()
        self.worker, self.workers = (info.id, info.num_workers) if info else (0, 1)
    first = self.rank + self.world_size * self.worker
    return islice(self.read(), first, None, self.world_size * self.workers)


def none_ends_it(self):
    for item in solved.Dealt.__iter__(self):
        if item is None:
            return
        yield item


def none_is_taken_for_the_end(self):
    share = solved.Dealt.__iter__(self)
    return iter(lambda: next(share, None), None)


def without_what_is_empty(self):
    return (item for item in solved.Dealt.__iter__(self) if not hasattr(item, "__len__") or len(item))


def one_iterator_for_all(self):
    self.share = solved.Dealt.__iter__(self)
    while True:
        try:
            yield next(self.share)
        except StopIteration:
            return


@pytest.mark.parametrize(
    "iterate, said",
    [
        (worker_noted_once, dealing.NOTED),
        (none_ends_it, dealing.VALUES),
        (none_is_taken_for_the_end, dealing.VALUES),
        (without_what_is_empty, dealing.VALUES),
        (one_iterator_for_all, dealing.TOGETHER),
    ],
)
def test_a_copy_asks_who_it_is_and_any_item_is_an_item(iterate, said):
    is_told(n02.check_dealt, [with_methods(solved.Dealt, __iter__=iterate)], said)


def front_of_a_list_twice(items, size, generator):
    waiting = [*islice(items, size)]
    for item in items:
        place = generator.integers(size)
        yield waiting[place]
        waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def as_it_came_if_just_full(items, size, generator):
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) > size:
            place = generator.integers(size)
            waiting[place], waiting[-1] = waiting[-1], waiting[place]
            yield waiting.pop()
    if len(waiting) != size:
        generator.shuffle(waiting)
    yield from waiting


def unshuffled_if_nothing_was_drawn(items, size, generator):
    waiting = []
    drawn_from = False
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            drawn_from = True
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    if drawn_from or len(waiting) < size:
        generator.shuffle(waiting)
    yield from waiting


def default_that_all_share(items, size, generator, waiting=[]):  # noqa: B006 the mistake
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    yield from waiting


def default_that_is_emptied_at_the_end(items, size, generator, waiting=[]):  # noqa: B006 the mistake
    for item in items:
        if len(waiting) < size:
            waiting.append(item)
        else:
            place = generator.integers(size)
            yield waiting[place]
            waiting[place] = item
    generator.shuffle(waiting)
    while waiting:
        yield waiting.pop()


@pytest.mark.parametrize(
    "buffered, said",
    [
        (front_of_a_list_twice, buffering.FRONT),
        (as_it_came_if_just_full, buffering.TAIL),
        (unshuffled_if_nothing_was_drawn, buffering.TAIL),
        (default_that_all_share, buffering.LEFT),
        (default_that_is_emptied_at_the_end, buffering.LEFT),
    ],
)
def test_a_buffer_takes_lists_shuffles_every_end_and_keeps_nothing(buffered, said):
    is_told(n02.check_buffered, [buffered], said)


EP = [0]
NOTES = {}


def keys_that_note_the_epoch(indices, epoch):
    EP[0] = epoch
    return list(indices)


def item_of_the_noted_epoch(key, seed):
    return solved.item_of((EP[0], key), seed)


def keys_that_are_numbers_of_notes(indices, epoch):
    for index in indices:
        NOTES[len(NOTES)] = epoch, index
        yield len(NOTES) - 1


def item_of_a_note(key, seed):
    return solved.item_of(NOTES[key], seed)


def keys_that_share_a_list(indices, epoch):
    EP[0] = epoch
    return [(EP, index) for index in indices]


def item_of_a_shared_list(key, seed):
    (epoch,), index = key
    return solved.item_of((epoch, index), seed)


@pytest.mark.parametrize(
    "answers",
    [
        (keys_that_note_the_epoch, item_of_the_noted_epoch),
        (keys_that_are_numbers_of_notes, item_of_a_note),
        (keys_that_share_a_list, item_of_a_shared_list),
    ],
)
def test_a_key_carries_the_epoch_to_a_worker_that_was_there_before(answers):
    is_told(n02.check_noise, answers, noise.KEPT)


@pytest.mark.parametrize(
    "source",
    [
        lambda seed, epoch, index: (epoch * 10**8 + index, seed),
        lambda seed, epoch, index: (seed * 10**6 + epoch, index),
        lambda seed, epoch, index: (seed * 10**9 + epoch, index),
        lambda seed, epoch, index: (index * 10**6 + epoch, seed),
        lambda seed, epoch, index: ((seed << 32) + epoch, index),
        lambda seed, epoch, index: ((seed << 27) + index, epoch),
        lambda seed, epoch, index: (seed, (epoch * 10**8 + index) % 2**32),
        lambda seed, epoch, index: (seed, epoch * 365 + index),
        lambda seed, epoch, index: (seed, epoch * 2999 + index),
        lambda seed, epoch, index: (seed * 211 + epoch, index),
        lambda seed, epoch, index: (seed + epoch * 211, index),
    ],
)
def test_words_of_32_bits_and_sums_of_any_kind_make_items_meet(source):
    def crop_and_flip(*three):
        return crop_and_flip_of(np.random.default_rng(source(*three)))

    is_told(n02.check_noise, [solved.keys_of, item_with(crop_and_flip)], noise.MIXED)


def test_a_generator_that_takes_no_seed_so_large_is_told_the_case():
    def crop_and_flip(seed, epoch, index):
        generator = torch.Generator().manual_seed(seed * 10**14 + epoch * 10**8 + index)
        return int(torch.randint(100, (), generator=generator)), int(torch.randint(2, (), generator=generator))

    said = n02.check_noise(solved.keys_of, item_with(crop_and_flip)).message
    assert "With seed 4294967295, epoch 0 and index 0: your code raised" in said
