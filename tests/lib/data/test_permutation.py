"""Permutation: an exact bijection, in an order that looks drawn at random, computed index by index."""

import collections
import itertools
import math
import pickle
import tracemalloc
import warnings

import numpy as np
import pytest
import torch

from lib.data.permutation import Permutation
from tests.lib.refusal import refuses


def order_of(p):
    return p[np.arange(len(p))]


def is_bijection(p):
    ids = order_of(p)
    return bool((np.bincount(ids, minlength=p.n) == 1).all() and (p.inverse(ids) == np.arange(p.n)).all())


def surprise(observed, expected):
    """Chi-square as a z-score: about -2..2 for chance, beyond 5 for a pattern."""
    freedom = len(observed) - 1
    return float((((observed - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


# ---- a bijection
def test_every_small_n_and_powers_of_two_and_their_neighbours_are_permuted_exactly():
    assert [n for n in range(1, 1400) if not is_bijection(Permutation(n, seed=n, epoch=3))] == []
    neighbours = {2**k + d for k in range(1, 21) for d in (-1, 0, 1)}  # 1 .. 1048577
    assert [n for n in sorted(neighbours) if not is_bijection(Permutation(n))] == []


@pytest.mark.parametrize("n", [2**31, 2**32 + 1, 2**47 + 1, 2**48 - 1, 2**48])
def test_huge_n_goes_there_and_back_without_a_collision(n):
    p = Permutation(n, seed=1)
    positions = np.concatenate([np.arange(5000), np.arange(n - 5000, n), np.arange(5000) * (n // 5001)])
    positions = np.unique(positions)
    ids = p[positions]
    assert len(np.unique(ids)) == len(ids)
    assert ids.min() >= 0
    assert n // 2 < ids.max() < n
    assert (p.inverse(ids) == positions).all()


@pytest.mark.parametrize("n, rounds", [(1, 8), (7, 8), (1024, 8), (2048, 1), (3000, 2), (4097, 64), (70_000, 8)])
def test_iterating_yields_every_id_as_an_int_in_order_without_a_warning_about_overflow(n, rounds):
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        p = Permutation(n, seed=2**70, epoch=2**70, rounds=rounds)
        ids = list(p)
        assert is_bijection(p)
        assert ids == order_of(p).tolist()
        assert len(p) == len(ids) == n
        assert {type(ids[0]), type(p[0]), type(p.inverse(0))} == {int}


def test_the_order_never_changes_between_versions_and_machines():
    """A change here changes every reader's saved runs."""
    assert list(Permutation(10)) == [9, 5, 6, 2, 7, 0, 4, 3, 8, 1]
    assert list(Permutation(10, seed=1, epoch=2)) == [2, 4, 7, 1, 6, 9, 5, 8, 3, 0]
    assert Permutation(1_000_003)[:5].tolist() == [920640, 474716, 410289, 625513, 909769]
    huge = Permutation(2**48, seed=2**100, epoch=7)[[0, 1, 2**48 - 1]].tolist()
    assert huge == [232510664989195, 248260910358718, 116030108157016]


# ---- well mixed
def lag_surprise(n, rounds, seed):
    """How far the low and high bits of p[i] ^ p[i + 2^(bits/2)] are from uniform: the worst z-score."""
    ids = order_of(Permutation(n, seed=seed, rounds=rounds))
    half = (n - 1).bit_length() // 2
    changed = [ids[step:] ^ ids[:-step] for step in (2**half, 2 ** (half + n.bit_length() % 2), n // 2)]
    parts = [pair for c in changed for pair in ((c & 63, 64), (c >> half & 31, 32))]
    return max(surprise(np.bincount(part, minlength=size), len(part) / size) for part, size in parts)


@pytest.mark.parametrize("n", [2**11, 2**12, 2**16, 2**17, 2**20])
def test_no_pattern_at_half_the_bits_with_eight_rounds_but_one_with_four(n):
    assert max(lag_surprise(n, rounds=8, seed=seed) for seed in range(5)) < 5
    assert max(lag_surprise(n, rounds=4, seed=seed) for seed in range(5)) > 10


@pytest.mark.parametrize("n", [1500, 65537, 1_000_003])
def test_neighbours_in_the_order_are_unrelated(n):
    ids = order_of(Permutation(n, seed=4)).astype(float)
    half = 2 ** ((n - 1).bit_length() // 2)
    for lag in (1, 2, half - 1, half, half + 1, 2 * half, n // 2):
        assert abs(np.corrcoef(ids[lag:], ids[:-lag])[0, 1]) * math.sqrt(n - lag) < 4
        distance = np.abs(ids[lag:] - ids[:-lag])  # of a random pair: mean n/3, variance n²/18
        assert abs(distance.mean() - n / 3) / (n / math.sqrt(18 * (n - lag))) < 4


@pytest.mark.parametrize("n, limit", [(3, 20.5), (4, 49.7)])  # chi-square beyond these: one chance in a thousand
def test_all_orders_of_a_tiny_n_are_equally_likely(n, limit):
    seen = collections.Counter(tuple(Permutation(n, seed, epoch)) for seed in range(60) for epoch in range(60))
    expected = 3600 / math.factorial(n)
    assert set(seen) == set(itertools.permutations(range(n)))
    assert sum((count - expected) ** 2 / expected for count in seen.values()) < limit


@pytest.mark.parametrize("n", [20, 1000, 1040, 3000])
@pytest.mark.parametrize("key", ["seed", "epoch"])
def test_every_id_is_equally_often_first(n, key):
    first = np.array([Permutation(n, **{key: k})[0] for k in range(6000)])
    assert abs(surprise(np.bincount(first * 20 // n, minlength=20), 300)) < 4


@pytest.mark.parametrize("n", [1000, 5000, 2**16])
@pytest.mark.parametrize("other", [{"epoch": 1}, {"seed": 1}, {"seed": 1, "epoch": 1}, {"seed": 2**64}])
def test_another_seed_or_epoch_is_an_unrelated_order(n, other):
    a = order_of(Permutation(n))
    b = order_of(Permutation(n, **other))
    assert (a == b).sum() < 10  # chance: one on average
    assert abs(np.corrcoef(a, b)[0, 1]) * math.sqrt(n) < 4


@pytest.mark.parametrize("n", [10, 2000])
def test_seed_and_epoch_are_two_keys_and_not_a_sum(n):
    orders = [tuple(Permutation(n, seed=seed, epoch=epoch)) for seed in range(6) for epoch in range(6)]
    assert len(set(orders)) == 36


# ---- a sequence of ids
def test_arrays_lists_tensors_and_slices_give_int64_arrays_of_their_shape():
    p = Permutation(5000)
    expected = np.array([[p[0], p[7]], [p[4999], p[7]]])
    given = [[0, 7], [4999, 7]]
    for positions in (*(np.array(given, dtype) for dtype in ("i8", "u2", ">i4")), given, torch.tensor(given)):
        ids = p[positions]
        assert isinstance(ids, np.ndarray)
        assert ids.dtype == np.int64
        assert (ids == expected).all()
        assert np.array_equal(np.asarray(positions), [[0, 7], [4999, 7]]), "what was given is left alone"
    assert p[[]].tolist() == []
    assert p[1::1000].tolist() == [p[1], p[1001], p[2001], p[3001], p[4001]]
    assert p[-2:].tolist() == [p[4998], p[4999]]
    assert p[np.array([3])].shape == (1,)
    assert p[np.int64(3)] == p[torch.tensor(3)] == p[3]


def test_memory_does_not_grow_with_n():
    def peak(n):
        tracemalloc.start()
        for _ in itertools.islice(Permutation(n), 200_000):
            pass
        high = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return high

    peak(2**18)
    assert peak(2**48) < 1.5 * peak(2**18)


def test_equal_arguments_are_equal_survive_pickling_and_do_not_change():
    p = Permutation(5000, seed=3, epoch=4)
    p[0]
    copy = pickle.loads(pickle.dumps(p))
    assert copy == p == Permutation(5000, 3, 4, 8)
    assert hash(copy) == hash(p)
    assert copy[:9].tolist() == p[:9].tolist()
    assert p != Permutation(5000, seed=4, epoch=3)
    with pytest.raises(AttributeError):
        p.n = 6
    assert repr(p) == "Permutation(n=5000, seed=3, epoch=4, rounds=8)"


# ---- bad arguments
@pytest.mark.parametrize("n", [5, 5000])
def test_positions_outside_the_range_and_what_is_no_integer_are_refused(n):
    p = Permutation(n)
    for wrong in (-1, n, 2**64, np.array([0, -1]), np.array([0, n]), np.array([2**64 - 1], dtype=np.uint64)):
        refuses(IndexError, f"out of range for n {n}; they are 0..{n - 1}", p.__getitem__, wrong)
        refuses(IndexError, "out of range", p.inverse, wrong)
    for wrong in (0.0, "0", None, True, [0.5], np.array([True]), np.array(["0"])):
        refuses(TypeError, "integer", p.__getitem__, wrong)


@pytest.mark.parametrize("arguments, message", [
    ({"n": 0}, "n must be at least 1, not 0"), ({"n": -3}, "n must be at least 1, not -3"),
    ({"n": 2.5}, "n must be an integer"), ({"n": 2**48 + 1}, "n must be below"),
    ({"n": 5, "seed": -1}, "seed must be at least 0"), ({"n": 5, "seed": None}, "seed must be an integer"),
    ({"n": 5, "epoch": -1}, "epoch must be at least 0"), ({"n": 5, "epoch": 1.0}, "epoch must be an integer"),
    ({"n": 5, "rounds": 0}, "rounds must be at least 1"), ({"n": 5, "rounds": 65}, "rounds must be below 65"),
])  # fmt: skip
def test_bad_arguments_raise_at_once(arguments, message):
    refuses(ValueError, message, Permutation, **arguments)
    assert sorted(Permutation(9, seed=10**5000)) == list(range(9)), "a seed of thousands of digits is none of these"
