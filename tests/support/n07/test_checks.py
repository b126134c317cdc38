"""What is particular about the checks of notebook 07; what all exercises have in common is in test_exercises."""

import pytest
import torch
import torch.nn.functional as F

from lib.pipeline.microbatch import Batch, gather, scatter
from support.n07 import checks as n07


def test_lib_and_another_right_way_to_cut_pass():
    assert n07.check_scatter_by_hand(scatter)
    assert n07.check_gather_by_hand(lambda parts: gather([Batch(tuple(part)) for part in parts]))

    def with_divmod(tensors, chunks):
        rows = len(tensors[0])
        m = min(rows, chunks)
        size, longer = divmod(rows, m)
        sizes = [size + (i < longer) for i in range(m)]
        return list(zip(*(x.split(sizes) for x in tensors), strict=True))

    assert n07.check_scatter_by_hand(with_divmod)


def doubled(tensors, chunks):
    return [tuple(2 * x for x in part) for part in n07.check_scatter_by_hand.reference(tensors, chunks)]


@pytest.mark.parametrize(
    "check, wrong, says",
    [
        (n07.check_scatter_by_hand, lambda tensors, chunks: [tensors], "got x 0 1 2 3 4 5"),
        (n07.check_scatter_by_hand, doubled, "changed"),
        (n07.check_gather_by_hand, lambda parts: gather([Batch(p) for p in parts[::-1]]), "x 6 4 5 2 3 0 1"),
        (n07.check_backward_in_parts, lambda model, parts: 1, "was backward() called"),
    ],
)
def test_any_other_wrong_answer_is_shown_by_its_rows(check, wrong, says):
    verdict = check(wrong)
    assert verdict.status == "wrong" and says in verdict.message


def test_the_first_counterexample_of_a_wrong_cut():
    (chunk,) = [cut for why, cut in n07.check_scatter_by_hand.mistakes.items() if "torch.chunk" in why]
    message = n07.check_scatter_by_hand(chunk).message
    assert message.startswith("scatter_by_hand: for rows = 6, ") and "chunks = 4" in message
    assert "position 2: expected x 4, mask 4, y 4, got x 4 5, mask 4 5, y 4 5" in message


def test_the_reference_gradient_is_that_of_one_batch():
    model = torch.nn.Linear(2, 3).double()
    x = torch.randn(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, -100, -100, 2, 0, 1, -100])
    (whole,) = torch.autograd.grad(F.cross_entropy(model(x), y, ignore_index=-100), [model.weight])
    n07.check_backward_in_parts.reference(model, list(zip(x.tensor_split(3), y.tensor_split(3), strict=True)))
    torch.testing.assert_close(model.weight.grad, whole)
