"""A step is that of any model, and of its copies: one that knows the notebook's row of layers only is refused."""

import copy

import pytest
from torch import nn
from torch.nn import functional as F

from support.built import my_step
from support.n00.checks import check_step


def of_layers(layers_of):
    """Make a step that moves the weights of some layers of each replica."""

    def step(replicas, batches, lr):
        for replica, (rows, labels) in zip(replicas, batches, strict=True):
            replica.zero_grad()
            F.cross_entropy(replica(rows), labels).backward()
        for same in zip(*map(layers_of, replicas), strict=True):
            for name in ("weight", "bias"):
                weights = [getattr(layer, name) for layer in same]
                mean = sum(weight.grad for weight in weights) / len(weights)
                for weight in weights:
                    weight.data -= lr * mean

    return step


def linear(layers):
    return [layer for layer in layers if isinstance(layer, nn.Linear)]


def test_a_layer_may_be_found_at_any_depth():
    verdict = check_step(of_layers(lambda replica: linear(replica.modules())))
    assert verdict, verdict


@pytest.mark.parametrize(
    "layers_of, told",
    [
        (linear, "after step 1 weight 0 of rank 0 is"),
        (lambda replica: (replica[0], replica[2]), "your code raised"),
    ],
)
def test_layers_in_a_row_are_not_every_model(layers_of, told):
    verdict = check_step(of_layers(layers_of))
    assert verdict.status == "wrong"
    assert told in verdict.message
    assert "No weight has moved" not in verdict.message


def on_copies(replicas, batches, lr):
    copies = copy.deepcopy(replicas)
    my_step(copies, batches, lr)
    for replica, own in zip(replicas, copies, strict=True):
        replica.load_state_dict(own.state_dict())


def test_a_rank_may_work_on_a_copy_of_its_replica():
    assert check_step(on_copies), check_step(on_copies)


def test_calling_the_layers_of_a_replica_is_not_called_doing_no_forward():
    def layer_by_layer(replicas, batches, lr):
        for replica, (rows, labels) in zip(replicas, batches, strict=True):
            first, second = replica.children()
            F.cross_entropy(second(first(rows)), labels).backward()

    assert "rank 0's replica was never called on its own rows" in check_step(layer_by_layer).message
