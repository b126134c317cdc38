"""What is particular about the check of notebook 15's exercise on memory."""

import pytest

from support.kit.mistakes import edited
from support.n15 import checks as n15
from support.n15.solved import memory_of_rank


def test_less_than_one_micro_batch_may_be_held():
    at_least_one = edited(memory_of_rank, ("held * kept", "max(1, held) * kept"))
    verdict = n15.check_memory(at_least_one)
    assert verdict.status == "wrong"
    assert "`held` may be less than 1" in verdict.message


def test_a_single_stage_may_be_recomputed_too():
    verdict = n15.check_memory(lambda n, recompute, **case: memory_of_rank(n=n, recompute=recompute and n > 1, **case))
    assert verdict.status == "wrong"
    assert "n = 1" in verdict.message


@pytest.mark.parametrize(
    "old, new, says",
    [
        ("(18, 6, 2, 0)", "(18, 6, 14, 16)", "A level deals what the levels before it deal, too."),
        ("(18, 6, 2, 0)", "(18, 14, 2, 0)", "ZeRO-1 deals master weights and moments, no gradients."),
        ("held * kept", "round(held) * kept", "`held` may be a fraction, and stays one."),
    ],
)
def test_a_reason_is_told_with_the_bytes(old, new, says):
    assert n15.check_memory(edited(memory_of_rank, (old, new))).message.endswith(says)


def test_half_a_byte_is_told_to_who_has_cut_it_off():
    cut_off = n15.check_memory(lambda **case: int(memory_of_rank(**case)))
    assert "expected 497.5 bytes, got 497 bytes" in cut_off.message
