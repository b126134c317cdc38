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


def linear_at_any_depth(replica):
    return linear(replica.modules())


def in_totals(key):
    """Make a step that adds gradients up in a dictionary by key(name, weight)."""

    def step(replicas, batches, lr):
        totals = {}
        for replica, (rows, labels) in zip(replicas, batches, strict=True):
            replica.zero_grad()
            F.cross_entropy(replica(rows), labels).backward()
            for name, weight in replica.named_parameters():
                totals[key(name, weight)] = totals.get(key(name, weight), 0) + weight.grad
        for replica in replicas:
            for name, weight in replica.named_parameters():
                weight.data -= lr * totals[key(name, weight)] / len(replicas)

    return step


def test_gradients_may_be_kept_by_the_name_of_their_weight():
    verdict = check_step(in_totals(lambda name, weight: name))
    assert verdict, verdict


@pytest.mark.parametrize(
    "step",
    [
        of_layers(linear),
        of_layers(linear_at_any_depth),
        in_totals(lambda name, weight: (name.split(".")[-1], weight.shape)),
    ],
)
def test_layers_in_a_row_known_names_and_unequal_shapes_are_not_every_model(step):
    verdict = check_step(step)
    assert verdict.status == "wrong"
    assert "after step 1 weight" in verdict.message
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
