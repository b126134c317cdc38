"""Permutation, for arguments that nobody chose."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.data.permutation import Permutation
from tests.sizes import size

KEYS = st.integers(0, 2**80)
ROUNDS = st.integers(1, 16)


@settings(max_examples=size(suite=60, prove=600))
@given(n=st.integers(1, 5000), seed=KEYS, epoch=KEYS, rounds=ROUNDS)
def test_every_permutation_is_a_bijection_with_its_inverse(n: int, seed: int, epoch: int, rounds: int) -> None:
    p = Permutation(n, seed, epoch, rounds)
    ids = p[np.arange(n)]
    assert sorted(ids.tolist()) == list(range(n))
    assert (p.inverse(ids) == np.arange(n)).all()


@settings(max_examples=size(suite=60, prove=600))
@given(st.data(), st.integers(1, 2**48), KEYS, ROUNDS)
def test_ints_arrays_and_inverses_agree_at_any_position(data: st.DataObject, n: int, seed: int, rounds: int) -> None:
    p = Permutation(n, seed, rounds=rounds)
    positions = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20))
    ids = p[positions].tolist()
    assert ids == [p[i] for i in positions]
    assert all(0 <= i < n for i in ids)
    assert p.inverse(ids).tolist() == [p.inverse(i) for i in ids] == positions
    assert len(set(ids)) == len(set(positions))
