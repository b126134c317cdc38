"""The order of backward: the same in any thread, whatever autograd has counted there before."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from lib.pipeline import GPipe
from lib.pipeline.backward_order import _below_all_nodes_to_come
from lib.timeline import Recorder


def order(m, n, checkpoint, steps=2):
    """Return the order of backward of some steps, each as "R21 B21 …": R recomputes, B goes back, by i and j."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[nn.Linear(2, 2) for _ in range(n)])
    model = GPipe(layers, [1] * n, devices=["cpu"] * n, chunks=m, checkpoint=checkpoint)
    found = []
    for _ in range(steps):
        recorder = Recorder()
        with recorder:
            model(torch.ones(m, 2)).sum().backward()
        spans = [span for span in recorder.trace() if span.kind in ("recompute", "backward")]
        found.append(" ".join(f"{span.label}{span.lane[-1]}" for span in spans))
    return found


def in_a_young_thread(function, *args):
    with ThreadPoolExecutor(1) as new:
        return new.submit(function, *args).result()


@pytest.mark.parametrize("m, n", [(4, 2), (8, 4), (5, 3), (1, 3)])
def test_with_all_checkpointed_it_is_the_same_in_a_young_thread_as_in_an_old_one_step_after_step(m, n):
    old = [torch.ones(1, requires_grad=True) * k for k in range(1000)]  # autograd has counted them
    expected = order(m, n, "always")
    assert len(set(expected)) == 1
    assert in_a_young_thread(order, m, n, "always") == expected
    del old


@pytest.mark.parametrize("checkpoint", ["always", "except_last"])
@pytest.mark.parametrize("m, n", [(4, 2), (8, 4), (5, 3)])
def test_in_each_partition_the_last_micro_batch_goes_back_first(m, n, checkpoint):
    plain = {"always": [], "except_last": [m - 1]}[checkpoint]
    for here in (order(m, n, checkpoint), in_a_young_thread(order, m, n, checkpoint)):
        for step in here:
            for j in range(n):
                of_partition = [span for span in step.split() if span.endswith(str(j))]
                assert [span for span in of_partition if span[0] == "B"] == [f"B{i}{j}" for i in reversed(range(m))]
                again = [i for i in reversed(range(m)) if i not in plain]
                assert [span for span in of_partition if span[0] == "R"] == [f"R{i}{j}" for i in again]


@pytest.mark.parametrize("nodes", [0, 1, 7, 600])
def test_numbers_set_aside_lie_below_every_node_to_come_and_are_as_many_as_asked_for(nodes):
    def numbers():
        first = _below_all_nodes_to_come(nodes)
        node = (torch.ones(1, requires_grad=True) * 2).grad_fn
        return first, node._sequence_nr()

    for first, next_node in (in_a_young_thread(numbers), numbers()):
        assert first >= 0
        assert first + nodes <= next_node
