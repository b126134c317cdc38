"""What becomes of layers that recompute can trip over: who repeats, who refuses, who says nothing."""

import pytest

from support.n10.faults import CASES, HOWS, outcome, verdicts


@pytest.mark.parametrize("name", HOWS)
@pytest.mark.parametrize("case, ends", [
    ("dropout", {"same"}), ("in place, inside", {"same"}), ("in place, input with gradient", {"error", "wrong"}),
    ("BatchNorm", {"counted twice"}), ("Python's random: values", {"wrong"}),
    ("Python's random: a branch", {"wrong", "error"}),
])  # fmt: skip
def test_what_becomes_of_a_case_whatever_the_checkpoint(name, case, ends):
    assert outcome(case, HOWS[name]) in ends


def test_a_repair_is_seen_a_warning_is_no_silence_and_no_case_is_right_by_having_no_gradient():
    found = verdicts(HOWS)
    assert [*found["input without gradient"].values()] == ["no gradient", "same", "same", "warned", "same"]
    assert [*found["in place, input with gradient"].values()] == ["error", "error", "wrong", "error", "error"]
    assert [*found["in place, a second input"].values()] == ["wrong", "error", "wrong", "wrong", "error"]
    assert [*found["Python's random: a branch"].values()] == ["wrong", "wrong", "error", "wrong", "error"]
    assert all(outcome(case, lambda f, *x: f(*x)) in ("same", "wrong") for case in CASES)
