"""Answers that readers gave to notebook 11: wrong ones that once passed, and right ones in another form."""

import pytest

from support.built import (
    Fork,
    Join,
    MyFork,
    MyJoin,
    MyRecompute,
    MyTwoNodeCheckpoint,
    my_tie,
)
from support.kit.mistakes import edited
from support.n11 import checks as n11
from support.n11.trials import three_at_once

HALVES = (MyTwoNodeCheckpoint, MyRecompute, my_tie)


def refused(verdict, says, *never):
    assert verdict.status == "wrong", verdict.message
    assert says in verdict.message
    assert not any(words in verdict.message for words in never), verdict.message


# ---- exercise 2


@pytest.mark.parametrize(
    ("line", "changed", "says"),
    [
        ("torch.empty(0, device=x.device)", "x[:0]", "for a single number"),
        ("return x.detach(), torch", "len(x)\n        return x.detach(), torch", "for a single number"),
        ("return x.detach(), torch", "return x.detach().squeeze(), torch", "MyFork must not change x"),
        ("return x.detach(), torch", "return x.to(torch.float64), torch", "it was of torch.float"),
        ("return x.detach()\n", "return x.detach().squeeze()\n", "MyJoin must not change x"),
        ("return x.detach(), torch", "return x.t().t(), torch", "in MyFork.forward for one row of half floats"),
        ("return x.detach()\n", "return x.to(torch.float64)\n", "it was of torch.float"),
        (
            "return x.detach(), torch",
            "return x.detach().requires_grad_(), torch",
            "in MyFork.forward for whole numbers",
        ),
        ("return x.detach()\n", "return x.detach().requires_grad_()\n", "in MyJoin.forward for whole numbers"),
        ("return x.detach()\n", "return torch.from_numpy(x.numpy())\n", "in MyJoin.forward for one row of half floats"),
        ("return x.detach()\n", "return x.as_strided(x.shape, x.stride(), 0)\n", "came out has other numbers"),
    ],
)
def test_any_shape_and_any_type_are_tried(line, changed, says):
    refused(n11.check_fork_join(*edited((MyFork, MyJoin), (line, changed))), says)


@pytest.mark.parametrize("returned", ["grad_x.clone()", "grad_x + grad_phony.sum()"])
def test_a_gradient_that_fork_copies_is_refused(returned):
    answer = edited((MyFork, MyJoin), ("return grad_x\n", f"return {returned}\n"))
    refused(n11.check_fork_join(*answer), "What MyFork.backward returns lies in other memory")


def test_a_gradient_that_join_copies_is_refused():
    answer = edited((MyFork, MyJoin), ("return grad_x, None", "return grad_x.clone(), None"))
    refused(n11.check_fork_join(*answer), "What MyJoin.backward returns lies in other memory")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return x.detach(), torch", "return x.reshape(-1), torch", "MyFork must not change x"),
        ("return x.detach(), torch", "return x.contiguous().detach(), torch", "MyFork copies x"),
        ("return x.detach()\n", "return x.reshape(-1)\n", "MyJoin must not change x"),
        ("return x.detach()\n", "return x.contiguous().detach()\n", "MyJoin copies x"),
        ("return grad_x\n", "return grad_x.contiguous()\n", "lies in other memory"),
        ("return grad_x\n", "return grad_x.float()\n", "lies in other memory"),
        ("return grad_x\n", "return grad_x.squeeze()\n", "for one row of half floats"),
        ("return grad_x\n", "return grad_x.double()\n", "for a single number"),
        ("return grad_x, None", "return grad_x.double(), None", "for a single number"),
        ("return grad_x, None", "return grad_x.contiguous(), None", "lies in other memory"),
    ],
)
def test_what_is_the_same_for_a_row_of_floats_only_is_refused(old, new, says):
    refused(n11.check_fork_join(*edited((MyFork, MyJoin), (old, new))), says)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("MyFork", "return x.detach(), torch", "ctx.x = x.clone()\n        return x.detach(), torch"),
        ("MyFork", "torch.empty(0, device=x.device)", "x.flatten()[:0].clone()"),
        ("MyFork", "return grad_x\n", "grad_x.clone()\n        return grad_x\n"),
        ("MyJoin", "return x.detach()\n", "ctx.x = x.clone()\n        return x.detach()\n"),
    ],
)
def test_a_copy_that_nobody_gets_is_one(name, old, new):
    refused(n11.check_fork_join(*edited((MyFork, MyJoin), (old, new))), f"In {name} '")


def test_a_backward_that_never_runs_is_not_said_to_return_something():
    marked = "y = x.detach()\n        ctx.mark_non_differentiable(y)\n        return y\n"
    answer = edited((MyFork, MyJoin), ("return x.detach()\n", marked))
    refused(n11.check_fork_join(*answer), "MyJoin.backward is not called", "returns")


def test_zeros_are_not_told_to_be_none():
    answer = edited((MyFork, MyJoin), ("return grad_x\n", "return torch.zeros_like(grad_x)\n"))
    refused(n11.check_fork_join(*answer), "MyFork.backward returns zeros", "returns None")


def test_who_adds_zero_is_not_told_of_a_clone():
    answer = edited((MyFork, MyJoin), ("x.detach()", "(x + 0)"))
    refused(n11.check_fork_join(*answer), "MyFork copies x", "clone")


@pytest.mark.parametrize(
    ("name", "line", "keeping"),
    [
        ("MyFork", "return x.detach(), torch", "ctx.x = x"),
        ("MyFork", "return x.detach(), torch", "ctx.save_for_backward(x)"),
        ("MyJoin", "return x.detach()\n", "ctx.save_for_backward(x, phony)"),
        ("MyJoin", "return x.detach()\n", "ctx.shape_of = x"),
    ],
)
def test_a_tie_that_keeps_an_activation_is_refused(name, line, keeping):
    answer = edited((MyFork, MyJoin), (line, f"{keeping}\n        {line}"))
    refused(n11.check_fork_join(*answer), f"{name} keeps its tensor")


@pytest.mark.parametrize(
    ("name", "line", "keeping"),
    [
        ("MyFork", "return x.detach(), torch.empty(0, device=x.device)", "ctx.phony = phony"),
        ("MyFork", "return x.detach(), torch.empty(0, device=x.device)", "ctx.save_for_backward(phony)"),
        ("MyFork", "return x.detach(), torch.empty(0, device=x.device)", "ctx.save_for_backward(x + 0)"),
        ("MyJoin", "return x.detach()\n", "ctx.phony = phony"),
    ],
)
def test_a_tie_that_keeps_a_tensor_is_refused(name, line, keeping):
    given = f"{keeping}\n        {line}"
    if name == "MyFork":
        given = f"phony = torch.empty(0)\n        {keeping}\n        return x.detach(), phony"
    refused(n11.check_fork_join(*edited((MyFork, MyJoin), (line, given))), f"{name} keeps a tensor")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("MyFork.phony = torch.empty(0)\n        return x.detach(), MyFork.phony", "MyFork keeps a tensor"),
        ("MyFork.x = x\n        return x.detach(), torch.empty(0)", "MyFork keeps its tensor"),
    ],
)
def test_what_the_class_of_fork_keeps_is_laid_on_nobody_else(given, says):
    answer = edited((MyFork, MyJoin), ("return x.detach(), torch.empty(0, device=x.device)", given))
    refused(n11.check_fork_join(*answer), says, "MyJoin keeps", "ctx")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return x.detach()\n", "return x.add_(0)\n"),
        ("return grad_x\n", "return grad_x.mul_(1)\n"),
        ("return grad_x, None", "return grad_x.mul_(1), None"),
    ],
)
def test_what_is_written_in_place_is_refused(old, new):
    refused(n11.check_fork_join(*edited((MyFork, MyJoin), (old, new))), "is written in place")


def test_a_phony_of_integers_is_told_that_it_is_one():
    answer = edited((MyFork, MyJoin), ("torch.empty(0", "torch.empty(0, dtype=torch.long"))
    refused(n11.check_fork_join(*answer), "torch.int64", "made there in each call", "non-differentiable")


@pytest.mark.parametrize("asked", ["ctx.shape = x.shape", "repr(x)", "assert not x.isnan().any()"])
def test_asking_a_tensor_for_something_is_no_fault(asked):
    line = "return x.detach(), torch"
    verdict = n11.check_fork_join(*edited((MyFork, MyJoin), (line, f"{asked}\n        {line}")))
    assert verdict, verdict.message


# ---- exercise 4


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("apply(phony, shared, function, x)", "apply(phony, shared, function, x.clone())", "with a copy of x"),
        ("x.detach().requires_grad_", "x.detach().clone().requires_grad_", "with a copy of x"),
        ("return Join.apply(output, phony)", "return Join.apply(output, phony) + 0", "in other memory than the output"),
        ("(phony, shared, function, x)", "(phony, dict(shared), function, x)", "another `shared`"),
        ("x = x.detach().requires", "x = x.detach().contiguous().requires", "with a copy of x"),
        ("Fork.apply(output)", "Fork.apply(output.flatten())", "in other memory than the output"),
        ("(output, gradient)", "(output, gradient.contiguous())", "a copy of the gradient that arrived"),
        ("x, ctx.function(x)", "x, ctx.function(x).contiguous()", "the output in `shared` was a copy"),
    ],
)
def test_a_copy_of_what_is_handed_on_is_refused(old, new, says):
    refused(n11.check_halves(*edited(HALVES, (old, new))), says, "StopIteration")


def test_a_tie_that_gives_the_phony_is_not_told_of_a_copy():
    answer = edited(HALVES, ("return Join.apply(output, phony)", "return Join.apply(phony, output)"))
    refused(n11.check_halves(*answer), "in other memory than the output", "copy")


def test_a_join_that_got_the_forks_phony_is_not_told_to_be_missing():
    thrown_away = ("phony = MyRecompute.apply", "MyRecompute.apply")
    answer = edited(HALVES, thrown_away)
    refused(n11.check_halves(*answer), "got the phony of Recompute", "Join is missing")


def test_two_recomputes_of_one_pair_are_not_told_to_be_missing():
    again = "Recompute.apply(phony, shared, function, x)"
    answer = edited(HALVES, (f"My{again}", f"My{again.replace('phony', f'My{again}')}"))
    refused(n11.check_halves(*answer), "MyRecompute recomputes, once", "no node of MyRecompute")


@pytest.mark.parametrize("end", ["", "0"])
def test_an_inside_in_a_global_list_is_another_pairs(end):
    changes = (
        ('ctx.shared.pop("inside")', f"STACK.pop({end})"),
        ('ctx.shared["inside"] = x, ctx.function(x)', "STACK.append((x, ctx.function(x)))"),
    )
    answer = edited(HALVES, *changes, names={"STACK": []})
    refused(n11.check_halves(*answer), "take the inside of its own pair")


def test_a_recompute_that_no_edge_puts_before_the_wait_is_refused():
    answer = edited(HALVES, ("apply(phony, shared", "apply(torch.empty(0, requires_grad=True), shared"))
    refused(n11.check_halves(*answer), "no edge leads from Recompute to the Wait")


def test_an_output_without_a_graph_is_not_told_to_be_swapped():
    detached = "x, ctx.function(x).detach().requires_grad_()"
    answer = edited(HALVES, ("x, ctx.function(x)", detached))
    refused(n11.check_halves(*answer), "B1 ", "in one order, and out in the other")


def test_zeros_for_x_are_a_second_gradient():
    answer = edited(HALVES, ("return None, None, None, None", "return None, None, None, torch.zeros_like(x)"))
    refused(n11.check_halves(*answer), "two gradients")


@pytest.mark.parametrize("asked", ["not x.is_leaf", "x.grad_fn is not None"])
def test_a_leaf_that_asks_for_a_gradient_is_no_less_an_input(asked):
    answer = edited(HALVES, ("requires_grad_(x.requires_grad)", f"requires_grad_({asked})"))
    refused(n11.check_halves(*answer), "the gradient of the input is None")


def test_zeros_for_an_x_that_asks_for_nothing_are_refused():
    zeros = "None, torch.zeros_like(x) if x.grad is None else x.grad"
    refused(n11.check_halves(*edited(HALVES, ("None, x.grad", zeros))), "x, which asks for no gradient, had got one")


def test_an_inside_that_is_a_copy_of_the_output_is_refused():
    answer = edited(HALVES, ("x, ctx.function(x)", "x, ctx.function(x) * 1"))
    refused(n11.check_halves(*answer), "the output in `shared` was a copy", "the gradient that arrived")


def test_what_else_lies_in_shared_is_not_taken_for_the_inside():
    kept = "    shared['output'] = output\n    output, phony = Fork.apply(output)\n"
    verdict = n11.check_halves(*edited(HALVES, ("    output, phony = Fork.apply(output)\n", kept)))
    assert verdict, verdict.message


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_all_three_insides_exist_before_the_first_is_used(order):
    ran, _ = three_at_once(HALVES, order)
    assert ran[3:] == ["R2", "R1", "R0", *(f"B{k}" for k in reversed(order))]


def recomputed(phony, *task):
    return Recompute.apply(phony, *task)  # noqa: F821  # as a cell calls what `use` has bound


def tie_with_a_helper(output, *task):
    output, phony = Fork.apply(output)
    return Join.apply(output, recomputed(phony, *task))


def test_a_helper_of_my_tie_sees_the_readers_recompute_and_only_meanwhile():
    own = edited(MyRecompute, ("backward(ctx, grad_phony)", "backward(ctx, grad_of_the_phony)"))
    verdict = n11.check_halves(MyTwoNodeCheckpoint, own, tie_with_a_helper)
    assert verdict, verdict.message
    assert "Recompute" not in globals()


TAKE = 'x, output = ctx.shared.pop("inside")'
LEAVE = 'ctx.shared["inside"] = x, ctx.function(x)'
LEFT = 'x, output = ctx.shared["inside"]\n        ctx.shared["inside"] ='


@pytest.mark.parametrize(
    "changes",
    [
        [(TAKE, f"{LEFT} None")],
        [(TAKE, f"{LEFT} ()")],
        [
            (TAKE, 'x, output = ctx.shared["inside"].pop()'),
            (LEAVE, 'ctx.shared.setdefault("inside", []).append((x, ctx.function(x)))'),
        ],
    ],
)
def test_an_empty_place_in_shared_holds_no_inside(changes):
    verdict = n11.check_halves(*edited(HALVES, *changes))
    assert verdict, verdict.message


@pytest.mark.parametrize(
    "changes",
    [
        [(TAKE, "x, output = MyRecompute.inside"), (LEAVE, "MyRecompute.inside = x, ctx.function(x)")],
        [(TAKE, TAKE.replace("=", "= MyTwoNodeCheckpoint.last ="))],
        [(TAKE, f"{TAKE}\n        LOG.append(output)")],
        [(TAKE, f"{TAKE}\n        ctx.node = output.grad_fn")],
        [("(output, gradient)", "(output, gradient, create_graph=True)")],
    ],
)
def test_what_outlives_backward_is_not_said_to_be_in_ctx_or_a_class(changes):
    answer = edited(HALVES, *changes, names={"LOG": []})
    refused(
        n11.check_halves(*answer), "something that outlives backward holds it", "What ctx holds", "neither", "class"
    )


@pytest.mark.parametrize(
    ("line", "keeping", "says"),
    [
        (TAKE, TAKE.replace("=", "= ctx.kept ="), "held by the ctx of MyTwoNodeCheckpoint"),
        (LEAVE, LEAVE.replace("=", "= ctx.kept ="), "held by the ctx of MyRecompute"),
        (TAKE, TAKE.replace('.pop("inside")', '["inside"]'), "still in `shared`"),
    ],
)
def test_who_holds_an_inside_is_named(line, keeping, says):
    refused(n11.check_halves(*edited(HALVES, (line, keeping))), says, "outlives backward")


NESTED = "torch.autograd.backward(output, gradient)"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (NESTED, "(output * gradient).sum().backward()"),
        (NESTED, "torch.autograd.backward(gradient, output)"),
        (LEAVE, f"{LEAVE}.detach()"),
    ],
)
def test_who_begins_without_a_graph_is_told_where_to_begin(old, new):
    told = "must begin at the recomputed output and its graph"
    refused(n11.check_halves(*edited(HALVES, (old, new))), told, "computed there from", "not with ones")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LEAVE, 'ctx.shared = {"inside": (x, ctx.function(x))}'),
        (LEAVE, 'ctx.shared["inside"].append((x, ctx.function(x)))'),
        (TAKE, "x, output = ctx.inside"),
    ],
)
def test_an_inside_that_is_elsewhere_is_not_told_to_come_too_late(old, new):
    refused(n11.check_halves(*edited(HALVES, (old, new))), "There is no inside where your code looks", "before")


@pytest.mark.parametrize(
    ("take", "leave"),
    [
        (TAKE.replace("inside", "pair"), LEAVE.replace("inside", "pair")),
        (
            'output, x = ctx.shared.pop("inside"), ctx.shared.pop("x")',
            'ctx.shared["inside"] = ctx.function(x)\n            ctx.shared["x"] = x',
        ),
    ],
)
def test_an_inside_that_is_not_in_its_place_in_shared_is_refused(take, leave):
    told = 'must leave the inside in `shared["inside"]`, its input and its output'
    refused(n11.check_halves(*edited(HALVES, (TAKE, take), (LEAVE, leave))), told)


def test_a_backward_for_x_alone_is_not_said_to_be_autograd_grad():
    alone = edited(HALVES, (NESTED, NESTED.replace("gradient)", "gradient, inputs=[x])")))
    refused(n11.check_halves(*alone), "without their gradients", "autograd.grad")


def test_a_leaf_that_asks_is_not_said_to_ask_for_nothing():
    detached = edited(HALVES, (LEAVE, LEAVE.replace("function(x)", "function(x.detach())")))
    refused(n11.check_halves(*detached), "or the gradient ends there", "the new leaf must")
