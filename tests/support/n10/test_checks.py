"""What is particular about the checks of notebook 10; what all exercises have in common is in test_detectors.

Three exercises have files of their own: 2, the peak, 3, the checkpoint made of hooks, and 4, the wrapper.
"""

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n10 import checks as n10


@pytest.mark.costly
def test_checks_leave_random_numbers_and_the_flag_alone():
    before = torch.get_rng_state()
    for answer in (n10.MyCheckpoint, n10.check_checkpoint.mistakes["(is a `return` missing?)"]):
        n10.check_checkpoint(answer)
    n10.check_my_checkpoint(n10.check_my_checkpoint.mistakes["Put back what here.recomputing was."])
    n10.check_hook_checkpoint(n10.hook_checkpoint)
    assert torch.equal(torch.get_rng_state(), before)
    assert not built.is_recomputing()
    assert n10.check_my_checkpoint(n10.my_checkpoint)


# ---- exercise 1


class ByHand(torch.autograd.Function):
    """No context manager for the random state, one autograd call for all that require a gradient."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.state = torch.default_generator.get_state()
        ctx.enabled = torch.is_autocast_enabled("cpu")
        ctx.dtype = torch.get_autocast_dtype("cpu")
        ctx.run = function
        ctx.save_for_backward(*inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        leaves = []
        for x in ctx.saved_tensors:
            leaf = x.detach()
            leaf.requires_grad = x.requires_grad
            leaves.append(leaf)
        now = torch.default_generator.get_state()
        torch.default_generator.set_state(ctx.state)
        try:
            with torch.set_grad_enabled(True), torch.amp.autocast("cpu", dtype=ctx.dtype, enabled=ctx.enabled):
                y = ctx.run(*leaves)
        finally:
            torch.default_generator.set_state(now)
        if y.requires_grad:
            y.backward(gradient)
        return (None, *[leaf.grad for leaf in leaves])


def test_a_checkpoint_without_fork_rng_passes():
    assert n10.check_checkpoint(ByHand)


def test_one_for_the_cpu_alone_passes():
    class ForTheCPU(ByHand):
        @staticmethod
        def backward(ctx, gradient):
            inputs = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(ctx.state)
                with torch.autocast("cpu", ctx.dtype, ctx.enabled):
                    output = ctx.run(*inputs)
            if output.requires_grad:
                torch.autograd.backward([output], [gradient])
            return None, *(x.grad for x in inputs)

    assert n10.check_checkpoint(ForTheCPU)


def test_a_checkpoint_that_keeps_its_own_graph_is_told_what_is_held():
    class KeepsTheGraph(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, *inputs):
            ctx.inputs = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
            with torch.enable_grad():
                ctx.y = function(*ctx.inputs)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, gradient):
            torch.autograd.backward(ctx.y, gradient)
            return None, *(x.grad for x in ctx.inputs)

    verdict = n10.check_checkpoint(KeepsTheGraph)
    assert verdict.status == "wrong"
    assert "not its inputs alone (2)" in verdict.message


def test_a_checkpoint_with_a_closure_passes():
    class WithAClosure(torch.autograd.Function):
        @staticmethod
        def forward(ctx, function, *inputs):
            state = torch.get_rng_state()
            cast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
            asked = ctx.needs_input_grad[1:]

            def again(kept):
                leaves = [x.detach().requires_grad_(asks) for x, asks in zip(kept, asked, strict=True)]
                with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", *cast):
                    torch.set_rng_state(state)
                    return leaves, function(*leaves)

            ctx.again = again
            ctx.save_for_backward(*inputs)
            return function(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            leaves, output = ctx.again(ctx.saved_tensors)
            if output.requires_grad:
                output.backward(gradient)
            return None, *[x.grad for x in leaves]

    assert n10.check_checkpoint(WithAClosure)


class CastOnTheClass(ByHand):
    """Keeps autocast where the next checkpoint's forward overwrites it."""

    @staticmethod
    def forward(ctx, function, *inputs):
        y = ByHand.forward(ctx, function, *inputs)
        CastOnTheClass.cast = ctx.enabled, ctx.dtype
        return y

    @staticmethod
    def backward(ctx, gradient):
        ctx.enabled, ctx.dtype = CastOnTheClass.cast
        return ByHand.backward(ctx, gradient)


class FunctionOnTheClass(ByHand):
    """Keeps the function where the next checkpoint's forward overwrites it."""

    @staticmethod
    def forward(ctx, function, *inputs):
        FunctionOnTheClass.run = staticmethod(function)
        return ByHand.forward(ctx, function, *inputs)

    @staticmethod
    def backward(ctx, gradient):
        ctx.run = FunctionOnTheClass.run
        return ByHand.backward(ctx, gradient)


class FirstInputOnly(ByHand):
    """Makes a new leaf of the first input and leaves the others where they were."""

    @staticmethod
    def backward(ctx, gradient):
        first, *others = ctx.saved_tensors
        leaf = first.detach().requires_grad_(first.requires_grad)
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", ctx.dtype, ctx.enabled):
            torch.set_rng_state(ctx.state)
            y = ctx.run(leaf, *others)
        if y.requires_grad:
            y.backward(gradient)
        return None, leaf.grad, *(None for _ in others)


class BackwardInsideAutocast(ByHand):
    """Goes backward in the world of the second forward."""

    @staticmethod
    def backward(ctx, gradient):
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", ctx.dtype, ctx.enabled):
            torch.set_rng_state(ctx.state)
            y = ctx.run(*leaves)
            if y.requires_grad:
                y.backward(gradient)
        return None, *(leaf.grad for leaf in leaves)


@pytest.mark.parametrize(
    "answer, says",
    [
        (CastOnTheClass, "the first forward computed in bfloat16, the second in float32"),
        (FunctionOnTheClass, "their functions ran 1 and 3 times, and each must run twice"),
        (FirstInputOnly, "Every input that requires a gradient needs a new leaf"),
        (BackwardInsideAutocast, "another gradient than without a checkpoint (backward was called inside autocast)"),
    ],
)
def test_a_checkpoint_that_fails_beside_another_one_or_under_autocast_is_told_where(answer, says):
    verdict = n10.check_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


class StateAsATensor(torch.autograd.Function):
    """Keeps the random state where tensors go."""

    @staticmethod
    def forward(ctx, function, *inputs):
        ctx.cast = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")
        ctx.run = function
        ctx.save_for_backward(torch.get_rng_state(), *inputs)
        return function(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        state, *inputs = ctx.saved_tensors
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in inputs]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", *ctx.cast):
            torch.set_rng_state(state)
            y = ctx.run(*leaves)
        if y.requires_grad:
            y.backward(gradient)
        return None, *(leaf.grad for leaf in leaves)


def test_a_random_state_that_is_saved_as_a_tensor_is_no_kept_activation():
    assert n10.check_checkpoint(StateAsATensor)


def of_the_solution(*changes):
    return edited(n10.MyCheckpoint, *changes)


SWALLOWS = of_the_solution(
    (
        "        if output.requires_grad:\n            torch.autograd.backward(output, gradient)",
        "        try:\n            torch.autograd.backward(output, gradient)\n"
        "        except RuntimeError:\n            pass",
    )
)
DATA_REQUIRE = of_the_solution(("requires_grad_(x.requires_grad)", "requires_grad_(x.is_floating_point())"))
ZEROS = of_the_solution(("(x.grad for x", "(torch.zeros_like(x) if x.grad is None else x.grad for x"))
KEEPS_THE_OUTPUT = of_the_solution(
    (
        "        ctx.save_for_backward(*inputs)\n        return function(*inputs)",
        "        y = function(*inputs)\n        ctx.save_for_backward(*inputs, y)\n        return y",
    ),
    ("for x in ctx.saved_tensors]", "for x in ctx.saved_tensors[:-1]]"),
)


CUTS_ITS_OUTPUT_OFF = of_the_solution(
    (
        "        return function(*inputs)",
        "        y = function(*inputs)\n        ctx.mark_non_differentiable(y)\n        return y",
    )
)


def test_an_output_without_a_graph_is_not_told_that_an_attribute_hides_tensors():
    message = n10.check_checkpoint(CUTS_ITS_OUTPUT_OFF).message
    assert "the output requires no gradient" in message
    assert "save_for_backward" not in message


@pytest.mark.parametrize(
    "answer, says",
    [
        (SWALLOWS, "a layer inside raised RuntimeError in its own backward, and nobody heard of it"),
        (DATA_REQUIRE, "requires a gradient, unlike the caller's"),
        (ZEROS, "its .grad must stay None, and it was filled"),
        (KEEPS_THE_OUTPUT, "3 tensors of the segment, 540 bytes, not its inputs alone (2)"),
    ],
)
def test_a_checkpoint_that_is_silently_wrong_is_told_what_was_seen(answer, says):
    verdict = n10.check_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message
    assert "not copies of them" not in verdict.message


NO_STATE = of_the_solution(("torch.set_rng_state(ctx.random_state)", "pass"))
GRADIENTS_OFF = of_the_solution(("torch.enable_grad()", "torch.no_grad()"))
CAST_OUTSIDE = of_the_solution(("torch.autocast(*ctx.autocast)", "torch.enable_grad()"))
ALWAYS_BACKWARD = of_the_solution(("if output.requires_grad:", "if True:"))


@pytest.mark.parametrize(
    "answer, says, line",
    [
        (NO_STATE, "another dropout mask", "output = ctx.function(*inputs)"),
        (GRADIENTS_OFF, "ran again, in backward, with gradients off", "output = ctx.function(*inputs)"),
        (CAST_OUTSIDE, "the second in float32", "output = ctx.function(*inputs)"),
        (ALWAYS_BACKWARD, "the output of the second forward requires no gradient", "torch.autograd.backward("),
        (of_the_solution(("ctx.function = function", "pass")), "AttributeError", "output = ctx.function(*inputs)"),
    ],
)
def test_a_refusal_names_the_line_of_the_second_forward(answer, says, line):
    message = n10.check_checkpoint(answer).message
    assert says in message
    assert "in backward, line " in message
    assert f"`{line}" in message


KEEPS_THE_SECOND = of_the_solution(
    (
        "            output = ctx.function(*inputs)\n        if output.requires_grad:",
        "            output = ctx.function(*inputs)\n"
        "        ctx.second = inputs, output\n"
        "        if output.requires_grad:",
    )
)
KEEPS_THE_LEAVES = of_the_solution(
    ("        return None, *(x.grad", "        ctx.leaves = inputs\n        return None, *(x.grad")
)
HEARS_NOTHING = of_the_solution(
    (
        "        return function(*inputs)",
        "        try:\n            return function(*inputs)\n"
        "        except RuntimeError:\n            return inputs[0].clone()",
    )
)
FORGETS_THE_FUNCTION = of_the_solution(
    (
        "            output = ctx.function(*inputs)\n",
        "            output = ctx.function(*inputs)\n            del ctx.function\n",
    )
)
STATE_MOVES_ON = of_the_solution(
    (
        "            output = ctx.function(*inputs)\n",
        "            output = ctx.function(*inputs)\n            ctx.random_state = torch.get_rng_state()\n",
    )
)
GRAPH_OF_BACKWARD = of_the_solution(("(output, gradient)", "(output, gradient, create_graph=True)"))
CASTS_TO_THE_FIRST_INPUTS_TYPE = of_the_solution(("(output, gradient)", "(output, gradient.to(inputs[0].dtype))"))
CASTS_TO_32_BITS = of_the_solution(("(output, gradient)", "(output, gradient.float())"))
COMPUTES_IN_32_BITS = of_the_solution(
    ("*(x.grad for x in inputs)", "*(x.grad if x.grad is None else x.grad.float().to(x.dtype) for x in inputs)")
)
ROUNDS_THE_GRADIENT = of_the_solution(("(output, gradient)", "(output, gradient.bfloat16().float())"))


class GoesBackTwice(ByHand):
    """Asks for the gradients of the inputs, and then for those of the parameters."""

    @staticmethod
    def backward(ctx, gradient):
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autocast("cpu", ctx.dtype, ctx.enabled):
            torch.set_rng_state(ctx.state)
            y = ctx.run(*leaves)
        if not y.requires_grad:
            return None, *(None for _ in leaves)
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(y, asked, gradient, retain_graph=True, allow_unused=True))
        y.backward(gradient)
        return None, *(next(found) if leaf.requires_grad else None for leaf in leaves)


class BackwardInsideTheFork(ByHand):
    """Leaves autocast before it goes backward, and the random state afterwards."""

    @staticmethod
    def backward(ctx, gradient):
        leaves = [x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            with torch.autocast("cpu", ctx.dtype, ctx.enabled):
                y = ctx.run(*leaves)
            if y.requires_grad:
                y.backward(gradient)
        return None, *(leaf.grad for leaf in leaves)


ZEROS_FOR_A_MASK_ALONE = of_the_solution(
    ("(x.grad for", "(x.grad if output.requires_grad else torch.zeros_like(x) for")
)
NEVER_LEAVES_ITS_AUTOCAST = of_the_solution(
    (", torch.autocast(*ctx.autocast)", ""),
    ("            output =", "            torch.autocast(*ctx.autocast).__enter__()\n            output ="),
)


def test_an_answer_that_never_leaves_its_autocast_leaves_none_behind():
    was = torch.autocast_increment_nesting(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.autocast_decrement_nesting()
    assert not n10.check_checkpoint(NEVER_LEAVES_ITS_AUTOCAST)
    now = torch.autocast_increment_nesting(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    torch.autocast_decrement_nesting()
    assert now == was


@pytest.mark.parametrize(
    "answer, says",
    [
        (ZEROS_FOR_A_MASK_ALONE, "the function does not use input 1: its .grad must stay None, and it was filled"),
        (KEEPS_THE_SECOND, "after backward 48 KiB are still alive"),
        (KEEPS_THE_LEAVES, "after backward 16 KiB are still alive"),
        (GoesBackTwice, "backward went 2 times through the second forward"),
        (BackwardInsideTheFork, "a layer draws random numbers in its own backward"),
        (HEARS_NOTHING, "function raised RuntimeError in forward, and nobody heard of it"),
        (ROUNDS_THE_GRADIENT, "the gradient is off by 0."),
        (CASTS_TO_THE_FIRST_INPUTS_TYPE, "the layer before has another gradient than without a checkpoint"),
        (CASTS_TO_32_BITS, "inputs in float64: an input has another gradient than without a checkpoint"),
        (COMPUTES_IN_32_BITS, "inputs in float64: an input has another gradient than without a checkpoint"),
        (FORGETS_THE_FUNCTION, "the second of two backwards through a kept graph"),
        (STATE_MOVES_ON, "the second of two backwards through a kept graph drew another dropout mask"),
        (GRAPH_OF_BACKWARD, "as long as the output is. What holds them: an attribute of ctx, or a graph"),
    ],
)
def test_a_checkpoint_with_right_gradients_that_wastes_or_hides_something_is_refused(answer, says):
    verdict = n10.check_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def leaves_behind(node):
    """Return the leaves that a graph leads to, each once."""
    found = {}
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        waiting += [following for following, _ in node.next_functions if following is not None]
    return list(found.values())


def assign_gradients(output, gradient):
    """Give each leaf a new tensor as its .grad, and add nothing in place."""
    leaves = leaves_behind(output.grad_fn) if output.grad_fn else [output]
    for leaf, more in zip(leaves, torch.autograd.grad(output, leaves, gradient, retain_graph=True), strict=True):
        leaf.grad = more if leaf.grad is None else leaf.grad + more


def test_a_checkpoint_that_assigns_a_new_grad_passes():
    answer = edited(
        n10.MyCheckpoint,
        ("torch.autograd.backward(output, gradient)", "assign_gradients(output, gradient)"),
        names={"assign_gradients": assign_gradients},
    )
    verdict = n10.check_checkpoint(answer)
    assert verdict, verdict.message


def test_who_goes_backward_for_the_inputs_alone_is_told_nothing_that_is_untrue_of_it():
    alone = of_the_solution(
        ("(output, gradient)", "(output, gradient, inputs=[x for x in inputs if x.requires_grad])"),
    )
    message = n10.check_checkpoint(alone).message
    assert "The parameters are no inputs, and need their gradients, too." in message
    assert "torch.autograd.backward also" not in message
