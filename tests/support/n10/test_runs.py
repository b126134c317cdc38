"""What autograd holds in every step is what was predicted, and a checkpoint frees it."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.n10.runs import CASES, HOWS, MODES, measure_held, outcome, peak, predict, segments_of, verdicts


@settings(deadline=None, max_examples=25)
@given(layers=st.integers(1, 9), cut=st.integers(1, 9), micro_batches=st.integers(1, 4), mode=st.sampled_from(MODES))
def test_every_step_holds_what_was_predicted(layers, cut, micro_batches, mode):
    segments = min(cut, layers)
    steps = predict(layers, segments, micro_batches, mode)
    found = [(step.kind, step.micro_batch, step.layer, len(step.held)) for step in steps]
    assert measure_held(layers, segments, micro_batches, mode) == found


def test_segments_are_even_and_the_peak_is_segments_plus_layers_over_segments():
    for layers in range(1, 40):
        for segments in range(1, layers + 1):
            assert peak(predict(layers, segments)) == segments + layers // segments
    for layers, micro_batches in itertools.product(range(1, 9), range(1, 6)):
        modes = "except_last", "always", "never"
        last, always, never = (peak(predict(layers, 1, micro_batches, mode)) for mode in modes)
        assert last == always == micro_batches + layers
        assert never == micro_batches * (layers + 1)
    for layers in range(1, 20):
        for segments in range(1, layers + 1):
            parts = segments_of(layers, segments)
            assert [k for part in parts for k in part] == list(range(1, layers + 1))
            lengths = list(map(len, parts))
            assert lengths == sorted(lengths, reverse=True)
            assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("name", HOWS)
@pytest.mark.parametrize("case, ends", [
    ("dropout", {"same"}), ("in place, inside", {"same"}), ("in place, input with gradient", {"error"}),
    ("BatchNorm", {"counted twice"}), ("Python's random: values", {"wrong"}),
    ("Python's random: a branch", {"wrong", "error"}),
])  # fmt: skip
def test_what_becomes_of_a_case_whatever_the_checkpoint(name, case, ends):
    assert outcome(case, HOWS[name]) in ends


def test_a_repair_is_seen_a_warning_is_no_silence_and_no_case_is_right_by_having_no_gradient():
    found = verdicts(HOWS)
    assert [*found["input without gradient"].values()] == ["no gradient", "same", "warned", "same"]
    assert [*found["in place, input without"].values()] == ["no gradient", "error", "warned", "error"]
    assert [*found["in place, a second input"].values()] == ["wrong", "error", "wrong", "error"]
    assert all(outcome(case, lambda f, *x: f(*x)) in ("same", "wrong") for case in CASES)
