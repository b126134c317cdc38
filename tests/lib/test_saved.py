"""SavedTensors counts what autograd keeps, once each, until the graph lets go; LiveTensors counts storages."""

import pytest
import torch
from torch import nn

from lib.saved import LiveTensors, SavedTensors


def test_hooks_are_gone_after_an_error():
    with pytest.raises(ZeroDivisionError), SavedTensors() as saved:
        raise ZeroDivisionError
    torch.ones(4, requires_grad=True).exp().sum().backward()
    assert saved.history == [0]


def test_a_tensor_that_two_nodes_keep_counts_once():
    x = torch.ones(4, requires_grad=True)
    with SavedTensors() as saved:
        y = x * x
        assert saved.bytes == x.nbytes
        y.sum().backward()
    assert saved.bytes == 0


def test_saved_tensors_count_each_tensor_once_and_no_parameters():
    layer = nn.Linear(4, 4)
    x = torch.ones(3, 4)
    with SavedTensors(layer.parameters()) as saved:
        y = layer(x).tanh()
        assert (saved.count, saved.bytes) == (2, 2 * 3 * 4 * 4)  # x and y
        z = y.exp() * y  # exp's output, and y again
        assert saved.count == 3
        z.sum().backward()
        assert saved.count == saved.bytes == 0
    assert (saved.peak, saved.peak_bytes) == (3, 3 * 48)
    with SavedTensors() as all_of_them:
        nn.Sequential(layer, layer)(x)
        assert all_of_them.peak == 3  # x, the first output, the weight
    assert all_of_them.count == 0
    with SavedTensors() as saved:
        y = x.requires_grad_().exp()
        assert saved.count == 1
        del y
        assert saved.count == 0, "a graph that is dropped without backward"


def test_saved_tensors_count_storages_as_their_memory_stays():
    a = torch.ones(8, 6, requires_grad=True)
    row = torch.ones(1, 64, requires_grad=True)
    many = torch.ones(16, 64, requires_grad=True)
    batch = torch.ones(8, 6)
    with SavedTensors([a]) as saved:
        y = (a @ a.T)[:1].sin()
        assert (saved.count, saved.bytes) == (1, 8 * 8 * 4), "a slice keeps all that it was cut from"
        del y
    with SavedTensors([row, many]) as saved:
        y = row.exp().expand(16, 64) * many
        assert (saved.count, saved.bytes) == (1, 64 * 4), "expanded, and the result of exp"
        del y
    with SavedTensors() as saved:
        h = a.exp()
        y = h[:4] * h[4:]
        assert (saved.count, saved.bytes) == (1, a.nbytes), "two halves of one memory, and all of it"
        y.sum().backward()
        assert (saved.count, saved.bytes) == (0, 0)
    with SavedTensors([a, batch]) as saved:
        y = batch[2:4] @ a[:6]
        assert saved.count == 0, "views of what is there"
        del y


def test_what_is_not_counted_is_told_by_memory_that_lives():
    a = torch.ones(64, 64, requires_grad=True)
    with SavedTensors([torch.ones(64, 64)]) as saved:  # which is gone at once
        kept = [a.exp() for _ in range(20)]  # the first of them lies where it lay
        assert saved.count == len(kept)


def test_live_tensors_count_storages_until_they_die():
    x = torch.ones(3, 4)
    with LiveTensors() as live:
        y = x + 1
        y.add_(1)
        view = y[1:]
        x.mul_(2)
        assert live.now == 48
        del y
        assert live.now == 48  # the view holds it
        del view
        assert live.now == 0
    assert live.peak == 48
    with LiveTensors(block=512) as live:
        kept = [torch.ones(3, 4), torch.ones(129)]
    assert live.now == 512 + 2 * 512, f"blocks of an allocator, for {len(kept)} tensors"
