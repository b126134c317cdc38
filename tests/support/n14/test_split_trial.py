"""Exercise 3 of notebook 14: what a layer does to others, by the list, by the gradient, by autograd's switch."""

import pytest
import torch

from support.kit.mistakes import edited
from support.n14 import checks as n14
from support.n14 import solved

ADD = "weight.grad = part if weight.grad is None else weight.grad + part"
RETURN = "return gradient @ weight, None, None"
SAVED = "ctx.save_for_backward(x, weight)"
UNPACKED = "x, weight = ctx.saved_tensors"


def test_who_switches_autograd_off_is_told_so_and_the_next_answer_finds_it_on():
    answer = edited(
        solved.SplitLinear, ("with torch.no_grad():", "torch.set_grad_enabled(False)\n            if True:")
    )
    try:
        assert "switched off" in n14.check_split(answer).message
        assert torch.is_grad_enabled()
        assert n14.check_split(solved.SplitLinear).status == "right"
    finally:
        torch.set_grad_enabled(True)


def test_who_takes_the_weight_out_of_autograd_instead_of_no_grad_is_told_so():
    answer = edited(
        solved.SplitLinear,
        ("with torch.no_grad():", "if weight.requires_grad_(False) is not None:"),
        ("gradient.T @ x", "gradient.T @ x.detach()"),
    )
    assert "`weight.requires_grad` is False" in n14.check_split(answer).message


@pytest.mark.parametrize("first", ["queue.append(x)", "weight.__dict__.setdefault('queue', []).append(x)"])
def test_who_takes_the_inputs_in_the_order_of_the_forwards_is_refused(first):
    """Backwards may come in another order, and two layers of a stage come the other way round."""
    queue = "queue" if first.startswith("queue") else "weight.queue"
    answer = edited(
        solved.SplitLinear,
        (SAVED, f"ctx.save_for_backward(weight)\n        {first}"),
        (UNPACKED, f"(weight,) = ctx.saved_tensors\n        x = {queue}.pop(0)"),
        names={"queue": []},
    )
    assert "each W needs its own x and gradient" in n14.check_split(answer).message


def test_who_empties_the_list_in_forward_loses_what_others_owe():
    answer = edited(solved.SplitLinear, ("ctx.later = later", "later.clear()\n        ctx.later = later"))
    assert "what another micro-batch owes" in n14.check_split(answer).message


@pytest.mark.parametrize("change", ["gradient.mul_(0)", "gradient.add_(1)"])
def test_who_changes_the_gradient_that_came_in_is_told_so(change):
    answer = edited(solved.SplitLinear, (RETURN, f"{change}\n        {RETURN}"))
    assert "backward has changed the gradient that came in" in n14.check_split(answer).message


@pytest.mark.parametrize("put", ["ctx.later.insert(0, add_to_weight)", "ctx.later += [add_to_weight]"])
def test_where_in_the_list_a_function_stands_is_the_answers_own(put):
    answer = edited(solved.SplitLinear, ("ctx.later.append(add_to_weight)", put))
    assert n14.check_split(answer).status == "right"


@pytest.mark.parametrize("store", ["x, weight, gradient = store.pop()", "x, weight, gradient = store.pop(0)"])
def test_whose_functions_share_one_store_is_refused_in_whatever_order_it_is_emptied(store):
    """The function of one micro-batch then adds the gradient of another."""
    answer = edited(
        solved.SplitLinear,
        (UNPACKED, f"{UNPACKED}\n        store.append((x, weight, gradient))"),
        ("def add_to_weight() -> None:", f"def add_to_weight():\n            {store}"),
        names={"store": []},
    )
    assert n14.check_split(answer).status == "wrong"


def test_who_sets_the_weights_gradient_in_forward_is_told_so_and_not_of_a_copy():
    answer = edited(solved.SplitLinear, ("ctx.later = later", "ctx.later, weight.grad = later, weight.detach() * 0"))
    message = n14.check_split(answer).message
    assert "after F `weight.grad` has changed: only W adds to it" in message
    assert "copy" not in message


def test_a_gradient_that_asks_for_one_itself_but_has_no_graph_is_not_told_of_a_graph():
    answer = edited(solved.SplitLinear, (ADD, f"{ADD}\n                weight.grad.requires_grad_()"))
    message = n14.check_split(answer).message
    assert "`weight.grad` requires a gradient itself" in message
    assert "graph" not in message and "no_grad" not in message


@pytest.mark.parametrize(
    "asks",
    [
        RETURN.replace("gradient @ weight", "(gradient @ weight).requires_grad_()"),
        f"with torch.enable_grad():\n            {RETURN}",
    ],
)
def test_a_gradient_of_x_that_asks_for_one_itself_is_refused(asks):
    answer = edited(solved.SplitLinear, (RETURN, asks))
    assert "the gradient of x requires a gradient itself" in n14.check_split(answer).message


@pytest.mark.parametrize(
    ("whole", "rounded", "whose"),
    [
        ("gradient.T @ x", "(gradient.T.float() @ x.float()).to(x.dtype)", "the weights"),
        ("gradient @ weight,", "(gradient.float() @ weight.float()).to(x.dtype),", "x"),
    ],
)
def test_a_gradient_that_is_rounded_to_single_precision_is_refused(whole, rounded, whose):
    answer = edited(solved.SplitLinear, (whole, rounded))
    assert f"in float64 the gradient of {whose} is not autograd's" in n14.check_split(answer).message


@pytest.mark.parametrize(
    "put", ["ctx.later[:] = [add_to_weight]", "ctx.later.append(add_to_weight) if not ctx.later else None"]
)
def test_whose_backward_leaves_one_function_for_two_layers_is_told_so_and_not_of_who_empties_the_list(put):
    """A function that empties the list while it runs is another mistake."""
    answer = edited(solved.SplitLinear, ("ctx.later.append(add_to_weight)", put))
    message = n14.check_split(answer).message
    assert "1 function in it after both I's, expected 2" in message
    assert "empties the list" not in message


def test_who_takes_another_micro_batchs_function_out_of_the_list_is_told_so():
    """It calls both later, so that nothing is lost; but the other one is no longer there to be called."""
    answer = edited(
        solved.SplitLinear,
        (
            "def add_to_weight() -> None:",
            "old = ctx.later.pop() if ctx.later else int\n\n        def add_to_weight():\n            old()",
        ),
    )
    assert "I takes out of `later` what another micro-batch owes" in n14.check_split(answer).message
