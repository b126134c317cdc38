"""Answers of notebook 02 that note something beside the key, count who else is named, or know the end by a mark."""

import numpy as np
import pytest

from support.kit.mistakes import with_methods
from support.n02 import buffering, dealing, noise, solved
from support.n02 import checks as n02
from tests.support.n02.told import is_told


def drawn(seed, *source):
    generator = np.random.default_rng((seed, *source))
    return int(generator.integers(100)), int(generator.integers(2))


def notes_each_epoch():
    """Note something of each epoch in the main process, where no worker sees it."""
    seeds = {}

    def keys_of(indices, epoch):
        seeds[epoch] = epoch + 17
        return [(epoch, index) for index in indices]

    def item_of(key, seed):
        return key[1], *drawn(seed, seeds[key[0]], key[1])

    return keys_of, item_of


def test_what_is_noted_of_each_epoch_does_not_reach_the_worker():
    is_told(n02.check_noise, notes_each_epoch(), noise.KEPT)


def counts_repeats(indices, epoch):
    seen = {}
    for index in indices:
        seen[index] = seen.get(index, 0) + 1
        yield epoch, index, seen[index]


def counts_all(indices, epoch):
    indices = list(indices)
    return [(epoch, index, len(indices)) for index in indices]


def item_of_three(key, seed):
    epoch, index, beside = key
    return index, *drawn(seed, epoch, index, beside)


@pytest.mark.parametrize("keys_of", [counts_repeats, counts_all])
def test_who_else_is_named_decides_nothing(keys_of):
    is_told(n02.check_noise, [keys_of, item_of_three], noise.PLACE)


def dealt_until(mark):
    def iterate(self):
        items = solved.Dealt.__iter__(self)
        while (item := next(items, mark)) is not mark:
            yield item

    return with_methods(solved.Dealt, __iter__=iterate)


@pytest.mark.parametrize("mark", ["end", ...])
def test_a_mark_of_the_end_may_be_an_item_of_a_dealt_stream(mark):
    is_told(n02.check_dealt, [dealt_until(mark)], dealing.VALUES)


def buffered_until(mark):
    def buffered(items, size, generator):
        items = iter(items)

        def to_the_end():
            while (item := next(items, mark)) is not mark:
                yield item

        yield from solved.buffered(to_the_end(), size, generator)

    return buffered


@pytest.mark.parametrize("mark", ["end", ...])
def test_a_mark_of_the_end_may_be_an_item_of_a_buffered_stream(mark):
    is_told(n02.check_buffered, [buffered_until(mark)], buffering.THING)
