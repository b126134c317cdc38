"""Copy and Wait between CPU partitions: values and gradients pass; streams are for tests/gpu."""

import pytest
import torch

from lib.pipeline.copy import Copy, Wait
from lib.runtime.device import CPUStream


def test_copy_and_wait_hand_on_values_and_gradients():
    a = torch.ones(3, requires_grad=True)
    b = torch.full((3,), 2.0, requires_grad=True)
    x, y = Wait.apply(CPUStream, CPUStream, *Copy.apply(CPUStream, CPUStream, a, b))
    assert x.grad_fn is y.grad_fn
    (x * 3 + y).sum().backward()
    assert a.grad.tolist() == [3, 3, 3]
    assert b.grad.tolist() == [1, 1, 1]


@pytest.mark.parametrize("function", [Copy, Wait])
def test_what_has_no_gradient_gets_none_on_the_way(function):
    x = torch.ones(2, requires_grad=True)
    fixed = torch.ones(2)
    ids = torch.arange(2)
    mask = torch.ones(2) > 0
    outputs = function.apply(CPUStream, CPUStream, x, fixed, ids, mask)
    assert [y.requires_grad for y in outputs] == [True, False, False, False]
    (outputs[0] * outputs[1] * outputs[3]).sum().backward()
    assert x.grad.tolist() == [1, 1]
