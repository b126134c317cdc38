"""Micro-batches: sizes as even as can be, no row lost, and errors where rows can't be told."""

import pytest
import torch

from lib.runtime.microbatch import Batch, check, gather, scatter
from tests.lib.refusal import refuses


def test_micro_batches_are_views_a_single_one_is_not_copied_and_check_takes_tensors_and_tuples():
    x = torch.zeros(4, 2)
    assert all(batch.tensor.untyped_storage() is not None for batch in scatter(x, 2))
    scatter(x, 2)[1].tensor.fill_(1)
    assert x.tolist() == [[0, 0], [0, 0], [1, 1], [1, 1]]
    assert gather([Batch(x)]) is x
    check(torch.tensor(42))
    check((torch.tensor(4), torch.tensor(2)))
    for bad in (42, "str", (torch.tensor(4), 2), [torch.tensor(4)], None):
        refuses(TypeError, "expected a Tensor or a tuple of Tensors", check, bad)


@pytest.mark.parametrize(
    "input, chunks, error, message",
    [
        ((torch.zeros(4), torch.zeros(6)), 2, ValueError, r"same number of rows, not \[4, 6\]"),
        (torch.tensor(1.0), 2, ValueError, r"number of rows, not \['none'\]: dimension 0 is the batch"),
        ((), 2, ValueError, r"number of rows, not \[\]"),
        (torch.zeros(4), 0, ValueError, "chunks must be at least 1, not 0"),
        (torch.zeros(4), 1.5, TypeError, "1.5"),
        ([torch.zeros(4)], 2, TypeError, "got list"),
        ((torch.zeros(4), None), 2, TypeError, "got NoneType"),
        ((torch.zeros(4), (torch.zeros(4),)), 2, TypeError, "got tuple"),
    ],
)
def test_what_cannot_be_scattered_says_why(input, chunks, error, message):
    refuses(error, message, scatter, input, chunks)


@pytest.mark.parametrize(
    "outputs, message",
    [
        ([torch.zeros(2), (torch.zeros(2),)], "a tensor, a tuple of 1"),
        ([(torch.zeros(2),), (torch.zeros(2), torch.zeros(2))], "a tuple of 1, a tuple of 2"),
        ([torch.tensor(1.0), torch.tensor(2.0)], "without dimensions"),
        ([], "none"),
    ],
)
def test_what_cannot_be_gathered_says_why(outputs, message):
    refuses(ValueError, message, gather, [Batch(output) for output in outputs])


def test_an_atomic_batch_is_like_a_tuple_of_one_and_a_tuple_is_assigned_by_index_or_whole():
    x = torch.tensor(1)
    y = torch.tensor(2)
    batch = Batch(x)
    assert batch.atomic
    assert batch.tensor is batch.value is batch[0] is x
    assert len(batch) == 1
    assert list(batch) == [x]
    batch[0] = y
    assert batch.tensor is y
    batch[:] = (x,)
    assert batch.tensor is x
    assert batch.call(lambda t: (t, t)).value == (x, x)
    assert repr(batch) == "Batch[atomic=True](tensor(1))"
    x = torch.tensor(1)
    y = torch.tensor(2)
    batch = Batch((x, y))
    assert not batch.atomic
    assert batch.value == (x, y)
    assert len(batch) == 2
    assert batch[1] is batch[-1] is y
    batch[0] = y
    batch[-1] = x
    assert batch.value == (y, x)
    batch[:] = [x]
    assert batch.value == (x,)
    assert not batch.atomic
    refuses(AttributeError, "", getattr, batch, "tensor")


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (lambda batch: batch[1], IndexError, ""),
        (lambda batch: batch.__setitem__(1, torch.zeros(1)), IndexError, ""),
        (lambda batch: batch.__setitem__(slice(None), (torch.zeros(1),) * 2), IndexError, "takes one tensor, not 2"),
        (lambda batch: batch.__setitem__(slice(0, 1), (torch.zeros(1),)), NotImplementedError, ""),
    ],
)
def test_what_an_atomic_batch_has_not(wrong, error, words):
    refuses(error, words, wrong, Batch(torch.tensor(1)))
