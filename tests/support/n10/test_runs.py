"""What autograd holds in every step is what was predicted, and a checkpoint frees it."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lib.pipeline.checkpoint import checkpoint
from lib.saved import LiveTensors
from support.n10.runs import CASES, HOWS, MODES, Count, measure, outcome, peak, predict, segments_of


@settings(deadline=None, max_examples=40)
@given(layers=st.integers(1, 9), cut=st.integers(1, 9), micro_batches=st.integers(1, 4), mode=st.sampled_from(MODES))
def test_every_step_holds_what_was_predicted(layers, cut, micro_batches, mode):
    segments = min(cut, layers)
    steps = predict(layers, segments, micro_batches, mode)
    assert measure(layers, segments, micro_batches, mode) == [
        (step.kind, step.micro_batch, step.layer, len(step.held)) for step in steps
    ]


def test_the_peak_is_segments_plus_layers_over_segments_and_except_last_of_one_segment_that_of_always():
    for layers in range(1, 40):
        for segments in range(1, layers + 1):
            assert peak(predict(layers, segments)) == segments + layers // segments
    for layers, micro_batches in itertools.product(range(1, 9), range(1, 6)):
        last, always, never = (
            peak(predict(layers, 1, micro_batches, mode)) for mode in ("except_last", "always", "never")
        )
        assert last == always == micro_batches + layers and never == micro_batches * (layers + 1)


def test_segments_are_as_even_as_can_be_and_impossible_cuts_are_refused():
    for layers in range(1, 20):
        for segments in range(1, layers + 1):
            parts = segments_of(layers, segments)
            assert [k for part in parts for k in part] == list(range(1, layers + 1))
            lengths = list(map(len, parts))
            assert lengths == sorted(lengths, reverse=True) and lengths[0] - lengths[-1] <= 1
    for arguments in ((0, 1), (3, 4), (3, 0)):
        with pytest.raises(ValueError):
            segments_of(*arguments)
    with pytest.raises(ValueError, match="never, except_last, always, not 'sometimes'"):
        predict(4, 2, 2, "sometimes")


def test_a_checkpoint_frees_live_tensors_and_not_only_saved_ones():
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)]

    def most(segments):
        with LiveTensors() as live:
            x = torch.ones(64, 8)
            for part in segments_of(16, segments) if segments else ():
                x = checkpoint(nn.Sequential(*layers[part[0] - 1 : part[-1]]), x)
            x = x if segments else nn.Sequential(*layers)(x)
            loss = x.sum()
            del x
            loss.backward()
        return live.peak

    assert most(4) < 0.7 * most(0) < most(1)


@pytest.mark.parametrize("name", HOWS)
@pytest.mark.parametrize(
    "case, ends",
    [
        ("dropout", {"same"}),
        ("in place, inside", {"same"}),
        ("other random numbers: values", {"wrong"}),
        ("other random numbers: a branch", {"wrong", "error"}),
        ("in place, on its input", {"error"}),
    ],
)
def test_torchs_random_numbers_and_writes_inside_are_fine_others_never_right_a_write_to_an_input_refused(
    name, case, ends
):
    assert outcome(case, HOWS[name]) in ends


def test_a_missing_gradient_is_seen_and_no_case_is_right_by_having_none():
    found = {name: outcome("input without grad", how) for name, how in HOWS.items()}
    assert found == {"ours": "same", "torch reentrant": "no gradient", "torch not reentrant": "same"}
    assert all(outcome(case, lambda f, x: f(x)) in ("same", "wrong") for case in CASES)


@pytest.mark.parametrize("careful, calls", [(False, 2), (True, 1)])
def test_a_careful_module_counts_a_checkpointed_forward_once(careful, calls):
    count = Count(careful)
    checkpoint(torch.nn.Sequential(torch.nn.Linear(2, 2), count), torch.ones(1, 2)).sum().backward()
    assert count.calls == calls
