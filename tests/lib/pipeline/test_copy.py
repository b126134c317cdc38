"""Copy and Wait between CPU partitions: values and gradients pass; streams are for tests/gpu."""

import contextlib

import pytest
import torch
from torch import nn

from lib.pipeline import GPipe
from lib.pipeline.copy import Copy, Wait
from lib.runtime.device import CPUStream
from lib.timeline import Recorder
from tests.lib.models import Function


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


@pytest.mark.parametrize("function", [Copy, Wait])
def test_where_no_gradient_arrives_none_goes_on(function):
    """Not zeros: an optimizer passes over None, but its weight decay moves a weight whose .grad is 0."""
    used, unused = (torch.ones(2, requires_grad=True) for _ in range(2))
    first, _ = function.apply(CPUStream, CPUStream, used, unused)
    first.sum().backward()
    assert used.grad.tolist() == [1, 1]
    assert unused.grad is None


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
def test_whether_it_is_recorded_or_not_a_layer_that_the_loss_ignores_gets_no_gradient(checkpoint):
    """With a recorder Copy and Wait are in the graph between two CPU partitions, too."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.used = nn.Linear(2, 2)
            self.unused = nn.Linear(2, 2)

        def forward(self, x):
            return self.used(x), self.unused(x)

    for recorder in (contextlib.nullcontext(), Recorder()):
        layers = nn.Sequential(Two(), Function(lambda pair: pair[0]))
        model = GPipe(layers, [1, 1], devices=["cpu"] * 2, chunks=2, checkpoint=checkpoint)
        with recorder:
            model(torch.ones(4, 2)).sum().backward()
        assert layers[0].used.weight.grad is not None
        assert layers[0].unused.weight.grad is None
