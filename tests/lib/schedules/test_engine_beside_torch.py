"""The executor and torch's engine on real ranks: what the benchmark times of both is what the plain model computes."""

import pytest

from lib.schedules import gpipe, one_f_one_b
from tests.bench.bench_engine import MICRO_BATCHES, TABLES, Found, Pair, differs, plain

SIZE = (8, 64)


@pytest.mark.costly
def test_both_engines_give_the_plain_models_losses_and_gradients_and_run_each_stage_as_often():
    assert TABLES["GPipe"].ranks == gpipe(MICRO_BATCHES, 2).ranks
    assert TABLES["1F1B"].ranks == one_f_one_b(MICRO_BATCHES, 2).ranks
    right = plain(SIZE)
    with Pair(SIZE) as pair:
        for name in TABLES:
            pair.once_theirs(name)  # torch's first step finds out shapes, by a forward more
            for found in (pair.once_ours(name), pair.once_theirs(name)):
                assert differs(found, right) == ""
                assert found.forwards == [MICRO_BATCHES] * 2


def test_a_step_that_is_not_the_plain_models_is_told_apart():
    right = plain(SIZE)
    longer = [*right.gradients[:-1], 1.01 * right.gradients[-1]]
    assert differs(Found(right.losses, longer, right.forwards), right).startswith("gradient 15 is 1.0e-02")
    assert "losses" in differs(Found(right.losses[::-1], right.gradients, right.forwards), right)
    assert "forwards [9, 8]" in differs(Found(right.losses, right.gradients, [9, 8]), right)
    assert "15 gradients, not 16" in differs(Found(right.losses, right.gradients[1:], right.forwards), right)
