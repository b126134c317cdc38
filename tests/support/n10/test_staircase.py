"""What autograd holds in every step is what was predicted, and a checkpoint frees it."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from support.n10.solved import peak_bytes
from support.n10.staircase import MODES, measure_held, peak, predict, segments_of


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


def test_after_forward_the_inputs_of_all_segments_are_held_the_last_ones_among_them():
    last_forward = [step for step in predict(16, 4) if step.kind == "forward"][-1]
    assert {k for _, k in last_forward.held} == {0, 4, 8, 12}


def test_the_reference_peak_is_what_a_run_holds():
    for layers in (5, 9, 12):
        for segments in range(1, layers + 1):
            starts = [part[0] - 1 for part in segments_of(layers, segments)]
            counted = max(count for *_, count in measure_held(layers, segments))
            assert peak_bytes([1] * (layers + 1), starts) == counted
