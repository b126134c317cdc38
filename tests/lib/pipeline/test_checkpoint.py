"""Checkpoint and Recompute: what is kept, what is computed again, and what must be the same the second time."""

from functools import partial

import pytest
import torch
from torch import nn

from lib.pipeline.checkpoint import (
    Checkpointing,
    checkpoint,
    enable_checkpointing,
    enable_recomputing,
    is_checkpointing,
    is_recomputing,
)
from lib.runtime.dependency import fork, join
from lib.runtime.microbatch import Batch
from tests.lib.models import hooked
from tests.lib.refusal import refuses


def test_a_checkpoint_is_recomputed_just_before_its_backward():
    log = []

    def note(name, x):
        log.append(f"{name}: forward")
        return hooked(x, lambda _: log.append(f"{name}: backward"))

    a = torch.ones(1, requires_grad=True)
    b = torch.ones(1, requires_grad=True)
    a = checkpoint(partial(note, "a"), a)
    a, phony = fork(a)
    b = join(b, phony)
    b = checkpoint(partial(note, "b"), b)
    torch.cat((a, b)).sum().backward()
    assert log == ["a: forward", "b: forward", "b: forward", "b: backward", "a: forward", "a: backward"]


def test_an_output_that_depends_on_nothing_has_no_gradient_to_give_and_none_at_all_is_told():
    checkpointing = Checkpointing(lambda x: x * 2, Batch(torch.ones(1)))
    output = checkpointing.checkpoint()
    checkpointing.recompute(output)
    output.tensor.backward()
    message = "expected a Tensor or a tuple of Tensors, but got NoneType"
    refuses(TypeError, message, checkpoint, lambda x: None, torch.ones(2))


def test_a_layer_can_ask_in_which_pass_it_is():
    seen = []

    def layer(x):
        seen.append((is_checkpointing(), is_recomputing()))
        return x

    x = torch.ones(1, requires_grad=True)
    checkpoint(layer, x).backward()
    layer(x).backward()
    assert seen == [(True, False), (False, True), (False, False)]


def test_random_numbers_are_the_same_and_the_generator_moves_once():
    x = torch.ones(100, requires_grad=True)
    torch.manual_seed(0)
    plain = nn.functional.dropout(x, 0.5)
    after = torch.rand(1)
    torch.manual_seed(0)
    y = checkpoint(partial(nn.functional.dropout, p=0.5), x)
    assert torch.equal(y, plain)
    assert torch.equal(torch.rand(1), after)
    state = torch.get_rng_state()
    y.sum().backward()
    assert torch.equal(x.grad, plain)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("positions", [(0, 1, 2, 3), (1, 0, 2), (2, 1, 3, 0), (3, 0), (0,)])
def test_masks_indices_and_fixed_tensors_pass_at_any_position(positions):
    x = torch.ones(2, requires_grad=True)
    mask = torch.tensor([True, False])
    index = torch.arange(2)
    fixed = torch.full((2,), 5.0)

    def layer(inputs):  # doubles the float, and gives on some of the others as they came
        made = inputs[0] * 2, *inputs[1:]
        return tuple(made[k] for k in positions)

    outputs = checkpoint(layer, (x, mask, index, fixed))
    assert [y.requires_grad for y in outputs] == [k == 0 for k in positions]
    outputs[positions.index(0)].sum().backward()
    assert x.grad.tolist() == [2, 2]


@pytest.mark.parametrize("used", [0, 1])
def test_any_of_the_outputs_may_be_the_one_that_is_used_and_none_need_have_a_gradient(used):
    x = torch.ones(2, requires_grad=True)
    checkpoint(lambda x: (x * 2, x * 3), x)[used].sum().backward()
    assert x.grad.tolist() == [2 + used] * 2
    assert not any(y.requires_grad for y in checkpoint(lambda x: (x > 0, x.argsort()), x))


def test_backward_may_go_through_twice_but_a_gradient_of_the_gradient_is_refused():
    x = torch.ones(50, requires_grad=True)
    y = checkpoint(partial(nn.functional.dropout, p=0.5), x)
    y.sum().backward(retain_graph=True)
    once = x.grad.clone()
    y.sum().backward()
    assert torch.equal(x.grad, 2 * once)
    x = torch.ones(2, requires_grad=True)
    y = checkpoint(lambda x: x**2, x)
    refuses(RuntimeError, "create_graph=True .*'never'", torch.autograd.grad, y.sum(), x, create_graph=True)


@pytest.mark.parametrize("outside", [False, True])
def test_autocast_is_the_same_the_second_time(outside):
    seen = []

    def layer(x):
        y = x @ x
        seen.append(y.dtype)
        return y

    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not outside):
        y = checkpoint(layer, x)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=outside):
        y.sum().backward()
    assert seen == [torch.float32 if outside else torch.bfloat16] * 2


def test_an_input_without_grad_that_is_changed_in_place_is_refused_and_not_recomputed_from_what_it_became():
    """torchgpipe goes on, and its gradients are wrong: silu(silu(x)) in the recomputation."""
    segment = nn.Sequential(nn.SiLU(inplace=True), nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r"tensor 0 of the input was changed in place.* inplace=False"):
        checkpoint(segment, torch.ones(3, 2))
    unchanged = nn.Sequential(nn.Linear(2, 2), nn.SiLU(inplace=True))  # what it makes itself, it may change
    checkpoint(unchanged, torch.ones(3, 2)).sum().backward()
    assert unchanged[0].weight.grad is not None


def test_who_computes_in_two_passes_by_hand_can_say_in_which_one_it_is():
    assert (is_checkpointing(), is_recomputing()) == (False, False)
    with enable_checkpointing():
        assert (is_checkpointing(), is_recomputing()) == (True, False)
        with enable_recomputing():
            assert (is_checkpointing(), is_recomputing()) == (False, True)
        assert (is_checkpointing(), is_recomputing()) == (True, False)
    assert (is_checkpointing(), is_recomputing()) == (False, False)
