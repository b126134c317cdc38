"""Wrong orders and wrong batches that once passed exercises 1 and 2 of notebook 02, and what they are told now."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from support.kit.mistakes import with_methods
from support.n02 import checks as n02
from support.n02 import orders, pools, solved
from tests.support.n02.told import is_told


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
        (seeded_by(lambda seed, epoch: int(1000 * (seed + epoch / 1000))), orders.EPOCH),
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


def seeded_by_digits_run_together(self):
    order = [*range(self.size)]
    random.Random(str(self.seed) + str(self.epoch)).shuffle(order)
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
        (seeded_by(lambda seed, epoch: 777 * seed + epoch), orders.MEET),
        (seeded_by(lambda seed, epoch: seed + 365 * epoch), orders.MEET),
        (seeded_by(lambda seed, epoch: seed ^ epoch), orders.MEET),
        (seeded_by_digits_run_together, orders.MEET),
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


def skips_a_number_for_each_epoch(self):
    generator = torch.Generator().manual_seed(self.seed)
    torch.rand(self.epoch, generator=generator)
    return iter(torch.randperm(self.size, generator=generator).tolist())


def odd_seeds_backwards(self):
    even = [*seeded_by(lambda seed, epoch: 1000 * (seed - seed % 2) + epoch)(self)]
    return iter(even[::-1] if self.seed % 2 else even)


def moved_by_the_last_digit_of_the_seed(self):
    order = [*seeded_by(lambda seed, epoch: 1000 * (seed // 10) + epoch)(self)]
    far = self.seed % 10
    return iter(order[far:] + order[:far])


@pytest.mark.parametrize(
    "iterate", [skips_a_number_for_each_epoch, odd_seeds_backwards, moved_by_the_last_digit_of_the_seed]
)
def test_an_order_tells_nothing_about_that_of_another_epoch_or_seed(iterate):
    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], orders.NEXT)


def keeps_the_global_generator_while_it_passes(self):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1000 * self.seed + self.epoch)
        yield from torch.randperm(self.size).tolist()


def test_a_pass_that_gives_the_global_generator_back_has_it_until_then():
    answer = with_methods(solved.Shuffled, __iter__=keeps_the_global_generator_while_it_passes)
    is_told(n02.check_shuffled, [answer], orders.GLOBAL)


@pytest.mark.parametrize("numbers", [256, 1000])
def test_items_that_draw_the_same_number_do_not_stay_in_order(numbers):
    def iterate(self):
        drawn_numbers = drawn(self).integers(numbers, size=self.size)
        return iter(drawn_numbers.argsort(kind="stable").tolist())

    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=iterate)], orders.UNEVEN)


def of_the_worker(self):
    info = get_worker_info()
    worker = info.id if info else 0
    return iter(np.random.default_rng((self.seed, self.epoch, worker)).permutation(self.size).tolist())


def test_an_order_does_not_depend_on_the_worker_that_asks():
    is_told(n02.check_shuffled, [with_methods(solved.Shuffled, __iter__=of_the_worker)], orders.WORKER)


def drawn_anew(self):
    return iter(np.random.default_rng().permutation(self.size).tolist())


def blocks_of_one_base(self):
    base = np.random.default_rng(self.seed).permutation(self.size).tolist()
    blocks = [base[start : start + 3] for start in range(0, self.size, 3)]
    return iter([index for block in drawn(self).permutation(len(blocks)) for index in blocks[block]])


def emptied_once(self):
    self.__dict__.setdefault("left", [*solved.Shuffled.__iter__(self)])
    while self.left:
        yield self.left.pop()


@pytest.mark.parametrize(
    "iterate, said, not_so",
    [
        (drawn_anew, orders.TIMES, "how often"),
        (whole_blocks_of(3), orders.UNSHUFFLED, "Nothing"),
        (blocks_of_one_base, orders.TURNED, "moved on"),
        (emptied_once, orders.USED_UP, "iterator"),
    ],
)
def test_an_order_is_told_what_shows_and_no_cause_of_another(iterate, said, not_so):
    answer = with_methods(solved.Shuffled, __iter__=iterate)
    is_told(n02.check_shuffled, [answer], said)
    assert not_so not in n02.check_shuffled(answer).message


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


def one_array_for_all(self):
    array = np.zeros(self.batch_size, dtype=int)
    for batch in solved.PooledBatches.__iter__(self):
        array[: len(batch)] = batch
        yield array[: len(batch)]


def test_an_array_that_is_filled_again_is_told_so():
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __iter__=one_array_for_all)], pools.REUSED)


def unsorted_tensors(self):
    order = list(torch.tensor(list(self.sampler), dtype=torch.long))
    return (order[start : start + self.batch_size] for start in range(0, len(order), self.batch_size))


def cut_and_then_sorted(self):
    order = [*self.sampler]
    for start in range(0, len(order), self.batch_size):  # it divides a pool
        yield sorted(order[start : start + self.batch_size], key=lambda i: self.lengths[i])


def what_sort_returns(self):
    return (batch.sort() for batch in solved.PooledBatches.__iter__(self))


@pytest.mark.parametrize(
    "iterate, said, not_so",
    [
        (unsorted_tensors, pools.PADDING, "tensor"),
        (cut_and_then_sorted, pools.PADDING, "Your pools hold"),
        (what_sort_returns, pools.BATCHES, "`return`"),
    ],
)
def test_batches_of_any_kind_are_judged_and_told_what_shows(iterate, said, not_so):
    said_of = n02.check_pooled(with_methods(solved.PooledBatches, __iter__=iterate)).message
    assert said in said_of
    assert not_so not in said_of


def test_a_batch_that_is_emptied_later_was_full_when_it_came():
    answer = with_methods(solved.PooledBatches, __iter__=one_list_for_all)
    is_told(n02.check_pooled, [answer], pools.REUSED)
    assert "Yours gives []" not in n02.check_pooled(answer).message


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


def sorted_pools(self):
    order = [*self.sampler]
    size = self.pool * self.batch_size
    return [sorted(order[k : k + size], key=lambda i: self.lengths[i]) for k in range(0, len(order), size)]


def cut_evenly(self):
    for part in sorted_pools(self):
        for batch in np.array_split(part, -(-len(part) // self.batch_size)):
            yield batch.tolist()


def test_a_last_pool_that_is_cut_evenly_has_two_short_batches():
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __iter__=cut_evenly)], pools.SIZE)


def test_a_length_that_python_rounds_to_the_even_number_is_one_too_many():
    rounded = lambda self: round(len(self.sampler) / self.batch_size + 0.5) if len(self.sampler) else 0  # noqa: E731
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __len__=rounded)], pools.LEN)


def each_index_once(self):
    once = list(dict.fromkeys(self.sampler))
    return iter(solved.PooledBatches(once, self.lengths, self.batch_size, self.pool))


def each_index_once_in_a_pool(self):
    for part in sorted_pools(self):
        yield from solved.PooledBatches([*{*part}], self.lengths, self.batch_size, self.pool)


@pytest.mark.parametrize("iterate", [each_index_once, each_index_once_in_a_pool])
def test_what_the_sampler_names_twice_is_loaded_twice(iterate):
    is_told(n02.check_pooled, [with_methods(solved.PooledBatches, __iter__=iterate)], pools.LOST)


def with_an_empty_batch_at_the_end(self):
    yield from solved.PooledBatches.__iter__(self)
    yield []


def test_a_batch_without_indices_is_told_to_hold_one():
    verdict = n02.check_pooled(with_methods(solved.PooledBatches, __iter__=with_an_empty_batch_at_the_end))
    assert "A batch is a list of at least one index. Yours gives []." in verdict.message


def short_batch_in_the_middle(self):
    for part in sorted_pools(self):
        middle = len(part) // self.batch_size // 2 * self.batch_size
        rest = len(part) % self.batch_size
        if rest:
            yield part[middle : middle + rest]
            del part[middle : middle + rest]
        for first in range(0, len(part), self.batch_size):
            yield part[first : first + self.batch_size]


def test_a_short_batch_holds_the_shortest_sentences_or_the_longest():
    answer = with_methods(solved.PooledBatches, __iter__=short_batch_in_the_middle)
    is_told(n02.check_pooled, [answer], pools.PADDING)


def test_whoever_takes_the_items_for_the_batches_is_not_told_to_count_what_is_named():
    answer = with_methods(solved.PooledBatches, __len__=lambda self: len(self.sampler))
    is_told(n02.check_pooled, [answer], pools.LEN)


def joins_a_rest_to_the_pool_before(self):
    size = self.pool * self.batch_size
    joined = size < len(self.sampler) < size + self.batch_size
    return iter(solved.PooledBatches(self.sampler, self.lengths, self.batch_size, self.pool + joined))


def test_a_rest_of_less_than_a_batch_is_a_pool_of_its_own():
    answer = with_methods(solved.PooledBatches, __iter__=joins_a_rest_to_the_pool_before)
    is_told(n02.check_pooled, [answer], pools.POOL)
