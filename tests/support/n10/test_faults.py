"""Which layers a checkpoint gets wrong, and which of the three checkpoints notices."""

from __future__ import annotations

import pytest
from support.n10.runs import CASES, HOWS, Count, outcome

from lib.pipeline.checkpoint import checkpoint


@pytest.mark.parametrize("name", HOWS)
def test_dropout_and_writes_inside_the_segment_are_fine(name):
    assert outcome("dropout", HOWS[name]) == outcome("in place, inside", HOWS[name]) == "same"


@pytest.mark.parametrize("name", HOWS)
def test_random_numbers_that_are_not_torchs_are_never_right(name):
    assert outcome("other random numbers: values", HOWS[name]) == "wrong"
    assert outcome("other random numbers: a branch", HOWS[name]) in ("wrong", "error")


@pytest.mark.parametrize("name", HOWS)
def test_a_write_to_an_input_with_gradient_is_refused(name):
    assert outcome("in place, on its input", HOWS[name]) == "error"


def test_without_a_gradient_in_the_input_only_torchs_reentrant_checkpoint_gives_none():
    found = {name: outcome("input without grad", how) for name, how in HOWS.items()}
    assert found == {"ours": "same", "torch reentrant": "no gradient", "torch not reentrant": "same"}


def test_no_case_is_right_by_having_no_gradient():
    assert all(outcome(case, lambda f, x: f(x)) in ("same", "wrong") for case in CASES)


@pytest.mark.parametrize("careful, calls", [(False, 2), (True, 1)])
def test_a_careful_module_counts_a_checkpointed_forward_once(careful, calls):
    import torch

    count = Count(careful)
    checkpoint(torch.nn.Sequential(torch.nn.Linear(2, 2), count), torch.ones(1, 2)).sum().backward()
    assert count.calls == calls
