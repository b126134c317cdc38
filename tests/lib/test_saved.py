"""SavedTensors counts what autograd keeps, once each, and until the graph lets go."""

import pytest
import torch
from torch import nn

from lib.saved import SavedTensors
from support.n07.runs import step_in_parts


def model(layers=3):
    return nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(8, 8), nn.ReLU())))


X = torch.ones(16, 8)


def test_the_input_and_every_relu_are_kept_and_weights_are_not():
    saved = step_in_parts(model(3), [X])
    assert saved.peak_bytes == 4 * X.nbytes  # the input of the first Linear, and each ReLU's output, once
    assert saved.bytes == 0 and saved.history == [k * X.nbytes for k in (0, 1, 2, 3, 4, 3, 2, 1, 0)]


def test_a_tensor_that_two_nodes_keep_counts_once():
    x = torch.ones(4, requires_grad=True)
    with pytest.raises(ZeroDivisionError), SavedTensors() as gone:
        raise ZeroDivisionError
    (x * x).sum().backward()
    with SavedTensors() as saved:
        y = x * x
        assert saved.bytes == x.nbytes
        y.sum().backward()
    assert saved.bytes == 0
    assert gone.history == [0], "hooks are gone after an error"
    net = model(2)
    with SavedTensors() as saved:  # and without ignore, the weights count too
        net(X.requires_grad_(False)).sum().backward()
    assert saved.peak_bytes > step_in_parts(net, [X]).peak_bytes


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_one_part_at_a_time_needs_its_share_and_all_forwards_first_need_all(parts):
    whole = step_in_parts(model(), [X]).peak_bytes
    assert step_in_parts(model(), X.tensor_split(parts)).peak_bytes == whole / parts
    assert step_in_parts(model(), X.tensor_split(parts), "all forwards first").peak_bytes == whole


def test_gradients_do_not_change_under_the_counter():
    first, second = model(), model()
    second.load_state_dict(first.state_dict())
    first(X).sum().backward()
    step_in_parts(second, [X])
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_an_unknown_order_is_refused():
    with pytest.raises(ValueError, match="order must be one of one at a time, all forwards first, not 'random'"):
        step_in_parts(model(), [X], "random")
