"""Batches of equally long samples."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.n02.runs import padding_share, pooled_batches, sentence_lengths

from lib.data.samplers import RandomSampler


def test_the_example_of_the_docstring():
    lengths = {3: 9, 9: 1, 0: 2, 5: 8, 8: 5, 1: 3, 7: 4, 2: 9}
    order = [3, 9, 0, 5, 8, 1, 7, 2]
    assert pooled_batches([lengths.get(i, 0) for i in range(10)], order, 2, 2) == [[9, 0], [5, 3], [1, 7], [8, 2]]


@given(st.lists(st.integers(1, 50)), st.integers(1, 5), st.integers(1, 5))
def test_every_index_comes_once_and_every_pool_is_sorted(lengths, batch_size, pool):
    order = list(range(len(lengths)))[::-1]
    batches = pooled_batches(lengths, order, batch_size, pool)
    flat = [index for batch in batches for index in batch]
    assert sorted(flat) == list(range(len(lengths)))
    assert all(len(batch) == batch_size for batch in batches[:-1])
    size = batch_size * pool
    for start in range(0, len(flat), size):
        part = flat[start : start + size]
        assert set(part) == set(order[start : start + size])
        assert part == sorted(part, key=lambda i: (lengths[i], -i))  # equal lengths keep the order they had


@pytest.mark.parametrize(("batch_size", "pool"), [(0, 1), (1, 0), (2, -1)])
def test_sizes_below_one_are_refused(batch_size, pool):
    with pytest.raises(ValueError, match="must be at least 1"):
        pooled_batches([1], [0], batch_size, pool)


def test_padding_is_what_the_longest_of_a_batch_adds_to_the_others():
    assert padding_share([3, 1, 2, 2], [[0, 1], [2, 3]]) == pytest.approx(2 / 10)
    assert padding_share([3, 1, 2, 2], [[0], [1], [2, 3]]) == 0
    assert padding_share([], []) == 0


def test_larger_pools_pad_less():
    lengths = sentence_lengths(2000)
    order = list(RandomSampler(lengths, seed=0))
    shares = [padding_share(lengths, pooled_batches(lengths, order, 32, pool)) for pool in (1, 4, 16, 63)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 3 * shares[2]


def test_sentence_lengths_are_the_same_for_the_same_seed_and_within_bounds():
    assert sentence_lengths(50, seed=3) == sentence_lengths(50, seed=3) != sentence_lengths(50, seed=4)
    assert all(1 <= length <= 64 for length in sentence_lengths(2000))
