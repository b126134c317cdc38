"""Phonies, Fork and Join: what comes before what in backward."""

import weakref

import pytest
import torch

from lib.runtime.dependency import Fork, Join, fork, fork_batch, get_phony, join, join_batch
from lib.runtime.microbatch import Batch
from tests.lib.models import hooked

CPU = torch.device("cpu")


def test_a_phony_is_made_once_and_serves_autograd_in_inference_mode_and_fork_keeps_no_node_alive():
    get_phony.cache_clear()
    with torch.inference_mode():
        with_grad, without = (get_phony(CPU, requires_grad=flag) for flag in (True, False))
    assert with_grad.shape == without.shape == (0,)
    assert with_grad.untyped_storage().nbytes() == 0
    assert without.untyped_storage().nbytes() == 0, "it holds no data"
    assert with_grad.requires_grad
    assert not without.requires_grad
    assert with_grad is get_phony(CPU, requires_grad=True)
    x = torch.ones(1, requires_grad=True)
    join(x, with_grad * 1).backward()
    assert x.grad.item() == 1

    class Kept(torch.autograd.Function):
        @staticmethod
        def forward(ctx, kept, x):
            ctx.kept = kept
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            ctx.kept.append(weakref.ref(ctx))
            return None, grad

    kept = []
    x, phony = Fork.apply(Kept.apply(kept, torch.ones(1, requires_grad=True)))
    x = Join.apply(x, phony)
    x.backward()
    del x, phony
    assert kept[0]() is None


@pytest.mark.parametrize("tied, expected", [(False, ["a", "b"]), (True, ["b", "a"])])
def test_backward_comes_to_what_is_before_a_fork_only_after_what_follows_its_join(tied, expected):
    log = []
    leaf = torch.ones(1, requires_grad=True)
    other = torch.ones(1, requires_grad=True)
    a = hooked(leaf, lambda _: log.append("a"))
    a.grad_fn._set_sequence_nr(1_000_000)  # autograd would take it first
    if tied:
        a, phony = fork(a)
        other = join(other, phony)
    b = hooked(other, lambda _: log.append("b"))
    (a + b).backward()
    assert log == expected


def test_fork_and_join_change_nothing_without_a_gradient_and_a_batch_is_tied_by_all_that_have_one():
    x = torch.ones(1)
    y = torch.ones(1, requires_grad=True)
    same, phony = fork(x)
    assert same is x
    assert not phony.requires_grad
    assert join(x, phony) is x
    _, phony = fork(y)
    assert phony.requires_grad
    assert join(x, phony).requires_grad
    with torch.no_grad():
        assert fork(y)[0] is y
        assert join(y, phony) is y
        assert fork_batch(Batch(y)) is None
    mask = torch.tensor([True])
    ids = torch.tensor([1])
    a = torch.ones(1, requires_grad=True)
    b = torch.ones(1, requires_grad=True)
    fixed = torch.ones(1)
    batch = Batch((mask, a, ids, b, fixed))
    phony = fork_batch(batch)
    assert batch[0] is mask
    assert batch[2] is ids
    assert batch[4] is fixed
    assert batch[1].grad_fn is batch[3].grad_fn
    assert batch[1].grad_fn.name() == "ForkBackward"
    assert join_batch(batch, phony)
    assert batch[3].grad_fn.name() == "JoinBackward"
    batch[3].backward()  # the loss uses only one of them
    assert b.grad.item() == 1
    assert a.grad is None
    assert fork_batch(Batch((mask, fixed))) is None
    assert not join_batch(Batch((mask, fixed)), phony)
