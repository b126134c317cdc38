"""Exercise 3 of notebook 14: what a layer does to others, by the list, by the gradient, by autograd's switch."""

import weakref

import pytest
import torch

from support.kit.mistakes import edited
from support.n14 import checks as n14
from support.n14 import solved
from tests.support.n14.split_answers import Work

ADD = "weight.grad = part if weight.grad is None else weight.grad + part"
RETURN = "return gradient @ weight, None, None"
SAVED = "ctx.save_for_backward(x, weight)"
UNPACKED = "x, weight = ctx.saved_tensors"
APPEND = "ctx.later.append(add_to_weight)"
PART = "part = gradient.T @ x"
LATER = "ctx.later = later"


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


@pytest.mark.parametrize("copied", ["x.detach().numpy().copy()", "x.tolist()"])
def test_a_copy_that_is_no_tensor_is_a_copy_too(copied):
    answer = edited(
        solved.SplitLinear,
        (LATER, f"{LATER}\n        ctx.copied = {copied}"),
        (SAVED, "ctx.save_for_backward(weight)"),
        (UNPACKED, "(weight,) = ctx.saved_tensors\n        copied = ctx.copied"),
        (PART, "part = gradient.T @ torch.as_tensor(copied, dtype=gradient.dtype)"),
    )
    assert "x is gone between I and W: keep x itself" in n14.check_split(answer).message


def test_who_keeps_no_x_at_all_is_not_told_of_a_copy():
    answer = edited(
        solved.SplitLinear,
        (UNPACKED, "x, weight = ctx.saved_tensors\n        known = ref(x)\n        del x"),
        (PART, "part = gradient.T @ known()"),
        names={"ref": weakref.ref},
    )
    message = n14.check_split(answer).message
    assert "x is gone between I and W" in message
    assert "copy" not in message


def test_who_empties_the_list_in_forward_loses_what_others_owe():
    answer = edited(solved.SplitLinear, ("ctx.later = later", "later.clear()\n        ctx.later = later"))
    assert "what another micro-batch owes" in n14.check_split(answer).message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (SAVED, f"x.data.mul_(2)\n        {SAVED}", "F has changed x in place"),
        (
            "return x @ weight.T",
            "y = x @ weight.T\n        weight.data.mul_(2)\n        return y",
            "F has changed weight",
        ),
        (RETURN, f"gradient.mul_(0)\n        {RETURN}", "I has changed the gradient of y"),
        (RETURN, f"x.data.zero_()\n        {RETURN}", "I has changed x in place"),
        (RETURN, f"found = {RETURN[7:]}\n        weight.data.mul_(2)\n        return found", "I has changed weight"),
        (ADD, f"{ADD}\n                x.zero_()", "W has changed x in place"),
        (ADD, f"{ADD}\n                gradient.zero_()", "W has changed the gradient of y"),
        (ADD, f"{ADD}\n                weight.data -= 0.1 * part", "W has changed weight in place"),
    ],
)
def test_who_changes_in_place_what_is_not_its_own_is_told_what(old, new, said):
    message = n14.check_split(edited(solved.SplitLinear, (old, new))).message
    assert said in message
    assert "not autograd's" not in message


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


@pytest.mark.parametrize(
    "zeros",
    [
        "weight.grad = weight.detach() * 0",
        "weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad",
    ],
)
def test_who_sets_the_weights_gradient_in_forward_is_told_so_and_not_of_a_copy_nor_of_none(zeros):
    message = n14.check_split(edited(solved.SplitLinear, (LATER, f"{LATER}\n        {zeros}"))).message
    assert "after F `weight.grad` has changed: only W adds to it" in message
    assert "copy" not in message and "None" not in message


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
    assert f"square weight, the gradient of {whose} is not autograd's" in n14.check_split(answer).message


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


def test_what_may_be_called_may_be_an_object_whose_equality_nobody_can_ask():
    answer = edited(solved.SplitLinear, (APPEND, "ctx.later.append(Work(x, gradient, weight))"), names={"Work": Work})
    assert n14.check_split(answer).status == "right"


OUTSIDE = "The product has to be inside the function"


def test_the_product_before_the_function_is_known_from_other_products_in_i_and_from_a_name_that_is_lacking():
    before = edited(
        solved.SplitLinear,
        (f"                {PART}\n", ""),
        ("        def add_to_weight", f"        {PART}\n\n        def add_to_weight"),
    )
    message = n14.check_split(before).message
    assert "I costs 2 matrix products and W 0" in message and OUTSIDE in message
    by_autograd = edited(
        solved.SplitLinear,
        (
            RETURN,
            "with torch.enable_grad():\n            mine = x.detach().requires_grad_()\n"
            "            y = mine @ weight.T\n        return *torch.autograd.grad(y, mine, gradient), None, None",
        ),
    )
    message = n14.check_split(by_autograd).message
    assert "I costs 2 matrix products and W 1" in message and OUTSIDE not in message
    misspelt = n14.check_split(edited(solved.SplitLinear, (PART, PART.replace("part", "prt")))).message
    assert "name 'part' is not defined" in misspelt and OUTSIDE not in misspelt


def test_who_has_put_x_away_before_w_is_not_told_that_the_gradient_is_none_at_first():
    answer = edited(
        solved.SplitLinear,
        (SAVED, "ctx.save_for_backward(weight)\n        ctx.x = x"),
        (UNPACKED, "(weight,) = ctx.saved_tensors"),
        (PART, "part = gradient.T @ ctx.x"),
        (APPEND, f"{APPEND}\n        ctx.x = None"),
    )
    message = n14.check_split(answer).message
    assert "for @: 'Tensor' and 'NoneType'" in message
    assert "None at first" not in message


def test_whose_layers_all_add_to_the_last_ones_weight_is_not_told_that_the_list_was_emptied():
    answer = edited(
        solved.SplitLinear,
        (LATER, f"{LATER}\n        SplitLinear.weight = weight"),
        (PART, f"{PART}\n                weight = SplitLinear.weight"),
        (UNPACKED, "x, used = ctx.saved_tensors"),
        ("gradient @ weight,", "gradient @ used,"),
    )
    message = n14.check_split(answer).message
    assert "both functions have run" in message
    assert "empties" not in message


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "backward(x, weight)",
            "backward(x.contiguous(), weight)",
            "after F 160 bytes are kept beside x, a transposed",
        ),
        ("return x @ weight.T", "return (x.float() @ weight.float().T).to(x.dtype)", "square weight, forward"),
        (
            "return x @ weight.T",
            "return x @ (weight if x.shape[1] == weight.shape[0] else weight.T)",
            "square weight, forward",
        ),
        (
            "gradient @ weight,",
            "gradient @ (weight.T if gradient.shape[1] == weight.shape[1] else weight),",
            "square weight, the gr",
        ),
        (
            ADD,
            f"sums[0] = part + (0 if weight.grad is None else sums[0])\n                {ADD[:13]}sums[0].clone()",
            "where somebody doubles `weight.grad` in place after W0",
        ),
        (LATER, f"{LATER}\n        weight.grad = None", "F has set `weight.grad` to None"),
        (APPEND, f"{APPEND}\n        weight.grad = None", "I has set `weight.grad` to None"),
        (APPEND, f"ctx.needs_input_grad[0] and {APPEND}", "where x needs no gradient, `later` is empty"),
        (APPEND, "(ctx.later.append if ctx.needs_input_grad[0] else apply)(add_to_weight)", "where x needs no"),
        (PART, f"{PART} + torch.zeros(weight.shape, dtype=x.dtype)", "on another device"),
        (
            PART,
            "part = torch.zeros(weight.shape, dtype=x.dtype)\n                part.addmm_(gradient.T, x)",
            "on another",
        ),
        (
            PART,
            "part = torch.empty(weight.shape, dtype=x.dtype)\n                torch.mm(gradient.T, x, out=part)",
            "on an",
        ),
        (
            APPEND,
            "store.append(gradient)\n        ctx.later.append(lambda: (add_to_weight(), ctx.later or store.clear()))",
            "the gradient of a micro-batch whose W is done is still alive while another W waits",
        ),
    ],
)
def test_each_clause_that_a_layer_may_break_alone_is_tried(old, new, said):
    answer = edited(solved.SplitLinear, (old, new), names={"sums": {}, "store": [], "apply": lambda work: work()})
    assert said in n14.check_split(answer).message


@pytest.mark.parametrize(
    "more", ["assert torch.isfinite(part).all()", "part.tolist()", "part.sum().item()", "part.numpy()"]
)
def test_who_looks_at_values_is_not_refused_where_a_device_has_none(more):
    assert n14.check_split(edited(solved.SplitLinear, (PART, f"{PART}\n                {more}"))).status == "right"


@pytest.mark.parametrize(
    "product", ["torch.addbmm(zero, gradient.T[None], x[None])", "zero.addbmm_(gradient.T[None], x[None])"]
)
def test_a_product_that_is_added_to_something_is_counted(product):
    answer = edited(solved.SplitLinear, (PART, f"zero = torch.zeros_like(weight)\n                part = {product}"))
    assert n14.check_split(answer).status == "right"
