"""The checks of notebook 07 pass the reference, leave the stub alone, and reject famous wrong answers by name."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lib.checks import n07
from lib.checks import n07_answers as answers
from lib.pipeline.microbatch import Batch, gather, scatter


def stub(*arguments): ...


@pytest.mark.parametrize(
    "check, reference",
    [
        (n07.check_scatter_by_hand, answers.true_cut),
        (n07.check_gather_by_hand, answers.true_join),
        (n07.check_backward_in_parts, answers.true_backward),
    ],
)
def test_the_reference_passes_and_the_stub_is_neutral(check, reference):
    assert check(reference).status == "right"
    assert check(stub).status == "open"


def test_scatter_and_gather_of_lib_pass_too():
    assert n07.check_scatter_by_hand(scatter)
    assert n07.check_gather_by_hand(lambda parts: gather([Batch(tuple(part)) for part in parts]))


def test_another_right_way_to_cut_passes():
    def with_divmod(tensors, chunks):
        rows = len(tensors[0])
        m = min(rows, chunks)
        size, longer = divmod(rows, m)
        sizes = [size + (i < longer) for i in range(m)]
        return list(zip(*(x.split(sizes) for x in tensors), strict=True))

    assert n07.check_scatter_by_hand(with_divmod)


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.chunk_cut, "torch.chunk's sizes"),
        (answers.floor_cut, "loses the rest"),
        (answers.rest_last, "The last part gets the whole rest"),
        (answers.ceil_cut, "short, even empty"),
        (answers.empty_cut, "cut into min(rows, chunks)"),
        (answers.longer_last, "the longer parts should come first"),
        (answers.stride_cut, "DistributedSampler's cut"),
        (answers.column_cut, "dimension 0"),
        (answers.by_tensor, "a tuple for each micro-batch"),
        (lambda tensors, chunks: [tensors], "got x 0 1 2 3 4 5"),
        (lambda tensors, chunks: [].sort(), "returned None"),
    ],
)
def test_wrong_cuts_are_named(wrong, says):
    verdict = n07.check_scatter_by_hand(wrong)
    assert verdict.status == "wrong"
    assert "for rows = " in verdict.message
    assert says in verdict.message


def test_a_wrong_cut_is_shown_by_its_rows():
    message = n07.check_scatter_by_hand(answers.chunk_cut).message
    assert "rows = 6" in message and "chunks = 4" in message
    assert "position 2: expected x 4, mask 4, y 4, got x 4 5, mask 4 5, y 4 5" in message


def test_a_cut_that_changes_values_is_noticed():
    def doubled(tensors, chunks):
        return [tuple(2 * x for x in part) for part in answers.true_cut(tensors, chunks)]

    assert "changed" in n07.check_scatter_by_hand(doubled).message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.stacked, "cat joins rows"),
        (answers.joined_columns, "below each other"),
        (answers.joined_across, "with each other"),
        (answers.first_only, "Only the first tensor"),
        (answers.not_a_tuple, "so a tuple comes back"),
        (lambda parts: [].sort(), "returned None"),
        (lambda parts: answers.true_join(parts[::-1]), "x 6 4 5 2 3 0 1"),
    ],
)
def test_wrong_joins_are_named(wrong, says):
    verdict = n07.check_gather_by_hand(wrong)
    assert verdict.status == "wrong"
    assert "for sizes = " in verdict.message
    assert says in verdict.message


@pytest.mark.parametrize(
    "wrong, says",
    [
        (answers.undivided, "about m times too long"),
        (answers.by_parts, "The mean of means"),
        (answers.by_rows, "Weighted by rows"),
        (answers.sum_over_rows, "padding is no token"),
        (answers.last_only, "only the last micro-batch"),
        (lambda model, parts: 1, "was backward() called"),
    ],
)
def test_wrong_gradients_are_named(wrong, says):
    verdict = n07.check_backward_in_parts(wrong)
    assert verdict.status == "wrong"
    assert "for tokens = " in verdict.message
    assert says in verdict.message


def test_the_reference_gradient_is_that_of_one_batch():
    model = torch.nn.Linear(2, 3).double()
    x = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, -100, -100, 2, 0, 1, -100])
    (whole,) = torch.autograd.grad(F.cross_entropy(model(x), y, ignore_index=-100), [model.weight])
    answers.true_backward(model, list(zip(x.tensor_split(3), y.tensor_split(3), strict=True)))
    torch.testing.assert_close(model.weight.grad, whole)


@pytest.mark.parametrize(
    "comment, right, wrong",
    [
        (n07.guess_chunks, 3, 4),
        (n07.guess_lost, 2, 0),
        (n07.guess_times, 8, 1),
        (n07.guess_way, 34, 10),
        (n07.guess_peak, 1, 0.125),
    ],
)
def test_a_guess_is_only_commented_on(comment, right, wrong):
    assert comment(None).status == comment(right).status == comment(wrong).status == "note"
    assert "No guess yet" in comment(None).message
    assert "that is it" in comment(right).message
    assert "that is it" not in comment(wrong).message
