"""Files read in turns, and what a shuffle buffer makes of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.n02 import streams as n02
from support.n02.solved import buffered


def test_files_are_read_in_turns_in_groups_and_short_ones_end_first():
    assert list(n02.in_turns(["abc", "d", "ef"], 2)) == ["a", "d", "b", "c", "e", "f"]
    assert list(n02.in_turns(["abc", "d", "ef"], 1)) == [*"abcdef"]
    with pytest.raises(ValueError, match="together must be at least 1"):
        list(n02.in_turns(["a"], 0))


@given(st.integers(0, 40), st.integers(1, 12), st.integers(0, 3))
def test_through_a_buffer_everything_comes_once_and_nothing_more_than_its_size_early(count, size, seed):
    order = list(buffered(range(count), size, np.random.default_rng(seed)))
    assert sorted(order) == list(range(count))
    assert all(place - turn < size for turn, place in enumerate(order))


def test_a_small_buffer_shows_few_classes_a_large_one_or_files_in_turns_show_nearly_all():
    few, many, turns = (
        n02.classes_in_batches(n02.through_buffer(*setting)) for setting in ((100, 1), (1000, 1), (1, 10))
    )
    assert few < 5 < 8 < many <= turns == 10
    assert n02.classes_in_batches([0, 1, 100, 101], batch=2) == 1
    assert n02.classes_in_batches([0, 100, 1, 101], batch=2) == 2


def test_files_of_made_up_sizes_hold_everything_and_no_two_seeds_are_alike():
    sizes = n02.file_sizes(64, 1_000_000)
    assert sum(sizes) == 1_000_000
    assert min(sizes) > 0
    assert sizes != n02.file_sizes(64, 1_000_000, seed=1)
    with pytest.raises(ValueError, match="count must be at least 1"):
        n02.file_sizes(0, 10)


def test_digits_are_sorted_by_class_for_training_and_left_alone_for_testing():
    images, labels, test_images, test_labels = n02.sorted_digits()
    assert images.shape == (1437, 64)
    assert test_images.shape == (360, 64)
    assert labels.tolist() == sorted(labels.tolist())
    assert test_labels.tolist() != sorted(test_labels.tolist())
