"""Wrong answers to exercises 1, 3 and 4 of notebook 10 that a reader wrote in earnest, and what each is told."""

from contextlib import suppress
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from support.kit.mistakes import edited
from support.n10 import checks as n10


def apply(*changes):
    return edited(n10.MyCheckpoint, *changes)


# ---- exercise 1

TYPE_OF_THE_CLASS = apply(
    ("ctx.random_state =", "MyCheckpoint.dtype = torch.get_autocast_dtype(kind)\n        ctx.random_state ="),
    ("torch.autocast(*ctx.autocast)", "torch.autocast(kind, MyCheckpoint.dtype, ctx.autocast[2])"),
)
AUTOCAST_BY_HAND = apply(
    ("torch.autocast(*ctx.autocast)", "torch.set_grad_enabled(True)"),
    (
        "            torch.set_rng_state(ctx.random_state)\n",
        "            torch.set_rng_state(ctx.random_state)\n"
        "            was = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)\n"
        "            torch.set_autocast_enabled(kind, ctx.autocast[2])\n"
        "            torch.set_autocast_dtype(kind, ctx.autocast[1])\n",
    ),
    (
        "        if output.requires_grad",
        "        torch.set_autocast_enabled(kind, was[0])\n"
        "        torch.set_autocast_dtype(kind, was[1])\n        if output.requires_grad",
    ),
)
KEEPS_INPUTS_AS_WELL = apply(("ctx.function = function", "ctx.function = function\n        ctx.inputs = inputs"))
HEARS_NO_ERROR = apply(
    (
        "            output = ctx.function(*inputs)",
        "            try:\n"
        "                output = ctx.function(*inputs)\n"
        "            except Exception:\n"
        "                return (None,) * (1 + len(inputs))",
    )
)
MASK_AS_NUMBERS = apply(
    ("x.detach().requires", "(x.detach().float() if x.dtype == torch.bool else x.detach()).requires"),
)
ONE_LEAF_A_TENSOR = apply(
    (
        "[x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]",
        "list(map({x.data_ptr(): x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors}.get, "
        "[x.data_ptr() for x in ctx.saved_tensors]))",
    )
)
STATE_BACK_WITHOUT_FINALLY = apply(
    (
        "torch.random.fork_rng(ctx.devices, device_type=kind)",
        "torch.enable_grad()\n        now = torch.get_rng_state()",
    ),
    (
        "            output = ctx.function(*inputs)",
        "            output = ctx.function(*inputs)\n        torch.set_rng_state(now)",
    ),
)
STATE_FOR_MODULES_ALONE = apply(
    (
        "torch.set_rng_state(ctx.random_state)",
        "getattr(ctx.function, 'training', 0) and torch.set_rng_state(ctx.random_state)",
    ),
)
KEEPS_THE_OUTPUT = apply(
    (
        "return function(*inputs)",
        "output = function(*inputs)\n        ctx.output = output.detach()\n        return output",
    )
)
STATE_IN_TRAINING_ALONE = apply(
    (
        "torch.set_rng_state(ctx.random_state)",
        "getattr(ctx.function, 'training', 1) and torch.set_rng_state(ctx.random_state)",
    ),
)
WEIGHTS_OF_MODULES_ALONE = apply(
    (
        "(output, gradient)",
        "(output, gradient, inputs=[*filter(lambda x: x.requires_grad, inputs), "
        "*getattr(ctx.function, 'parameters', list)()])",
    )
)
EMPTIES_THE_GRADIENT = apply(("        return None, *", "        gradient.zero_()\n        return None, *"))
ASKS_FOR_A_GRAD_FN = apply(("if output.requires_grad:", "if output.grad_fn is not None:"))
NO_GRADIENT_FOR_ZEROS = apply(("*(x.grad for", "*(x.grad if x.grad is not None and x.grad.any() else None for"))
GRAPH_IN_FORWARD = apply(
    (
        "        return function(*inputs)",
        "        with torch.enable_grad():\n            y = function(*inputs)\n        return y.detach()",
    )
)
LEAVES_IN_32_BITS_ALONE = apply(
    ("requires_grad_(x.requires_grad)", "requires_grad_(x.requires_grad and x.dtype == torch.float32)"),
)
FORKS_IN_TRAINING_ALONE = apply(
    ("device_type=kind)", "device_type=kind, enabled=getattr(ctx.function, 'training', True))"),
)
TRAINS_THE_SECOND_TIME = apply(
    ("            output = ctx", "            getattr(ctx.function, 'train', lambda: 0)()\n            output = ctx"),
)
BEGINS_AT_ZERO = apply(
    (
        "        if output.requires_grad",
        "        for weight in getattr(ctx.function, 'parameters', list)():\n"
        "            weight.grad is not None and weight.grad.zero_()\n"
        "        if output.requires_grad",
    ),
)
BEGINS_WITHOUT_GRADIENTS = apply(
    (
        "        if output.requires_grad",
        "        getattr(ctx.function, 'zero_grad', int)()\n        if output.requires_grad",
    ),
)


def apply_with_states(states):
    return edited(
        n10.MyCheckpoint,
        ("ctx.random_state = ", "STATES[function] = "),
        ("ctx.random_state", "STATES[ctx.function]"),
        names={"STATES": states},
    )


LEAVES_THAT_ADD_UP = apply(
    ("backward(*inputs)", "backward(*(x.detach() for x in inputs))"),
    ("ctx.function = function", "ctx.function = function\n        ctx.asks = [x.requires_grad for x in inputs]"),
    (
        "[x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]",
        "[x.requires_grad_(asks) for x, asks in zip(ctx.saved_tensors, ctx.asks, strict=True)]",
    ),
)


ASKING_FIRST = "*sorted(inputs, key=lambda x: not x.requires_grad)"  # no mask is another one


@pytest.mark.parametrize(
    "answer, says",
    [
        (LEAVES_THAT_ADD_UP, "the second of two backwards through a kept graph gives an input another gradient"),
        (ASKS_FOR_A_GRAD_FN, "the function returns its input as it is: it has another gradient"),
        (NO_GRADIENT_FOR_ZEROS, "the gradient is zero: it has another gradient than without a checkpoint"),
        (GRAPH_IN_FORWARD, "in forward the function ran with gradients on"),
        (apply_with_states({}), "one function in two checkpoints"),
        (FORKS_IN_TRAINING_ALONE, "the random state behind backward is another one than before it"),
        (STATE_IN_TRAINING_ALONE, "one function in two checkpoints, as for two micro-batches: a second forward drew"),
        (BEGINS_AT_ZERO, "the second leaves another .grad than twice the first's"),
        (BEGINS_WITHOUT_GRADIENTS, "the second leaves another .grad than twice the first's"),
        (TRAINS_THE_SECOND_TIME, "a second forward drew another dropout mask"),
        (LEAVES_IN_32_BITS_ALONE, "a layer's output in bfloat16"),
        (TYPE_OF_THE_CLASS, "the first forward computed in"),
        (AUTOCAST_BY_HAND, "until a `with torch.autocast(…)` ends"),  # it has none
        (edited(AUTOCAST_BY_HAND, ("dtype(kind, was[1])", "enabled(kind, was[0])")), "backward was called inside"),
        (KEEPS_INPUTS_AS_WELL, "after backward an input is still held"),
        (KEEPS_THE_OUTPUT, "nobody holds the output any more, and it stays in memory until backward"),
        (WEIGHTS_OF_MODULES_ALONE, "the function is a method, no module, and its weights have no gradient"),
        (HEARS_NO_ERROR, "in the second forward, and nobody heard of it"),
        (MASK_AS_NUMBERS, "is of type torch.float32, in the first of type torch.bool"),
        (ONE_LEAF_A_TENSOR, "one tensor is passed as two inputs"),
        (EMPTIES_THE_GRADIENT, "another gradient than without a checkpoint"),
        (STATE_BACK_WITHOUT_FINALLY, "an error in the second forward, and the random state is another one than before"),
        (apply(("ctx.function(*inputs)", f"ctx.function({ASKING_FIRST})")), "the gradient is off by"),
        (STATE_FOR_MODULES_ALONE, "the first of two backwards through a kept graph drew another dropout mask"),
    ],
)
def test_a_checkpoint_is_told_which_promise_it_breaks(answer, says):
    verdict = n10.check_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_whoever_returns_nothing_is_asked_once_whether_a_return_is_missing():
    verdict = n10.check_checkpoint(apply(("        return function(*inputs)", "        function(*inputs)")))
    assert verdict.status == "wrong"
    assert verdict.message.count("missing") == 1


SEED = "torch.manual_seed(ctx.seed)"
FROM_A_SEED = apply(
    ("ctx.random_state = torch.get_rng_state()", f"ctx.seed = torch.randint(99, ()).item()\n        {SEED}"),
    ("torch.set_rng_state(ctx.random_state)", SEED),
)
FORGETS_THE_INPUTS = apply(("        ctx.save_for_backward(*inputs)\n", ""))
LEAVES_OF_FORWARD = apply(
    ("backward(*inputs)", "backward(*(x.detach().requires_grad_(x.requires_grad) for x in inputs))"),
    ("[x.detach().requires_grad_(x.requires_grad) for x in ctx.saved_tensors]", "ctx.saved_tensors"),
)
GRADIENT_OF_ZEROS = apply(("(output, gradient)", "(output, torch.zeros_like(gradient))"))
COLLECTS_STATES = edited(
    n10.MyCheckpoint,
    (
        "ctx.random_state = ",
        "ctx.random_state = torch.get_rng_state().clone()\n        STATES.append(ctx.random_state)  # ",
    ),
    names={"STATES": []},
)
PRODUCT_AS_LOSS = apply(("torch.autograd.backward(output, gradient)", "(output * gradient).sum().backward()"))
LEAF_ITSELF = apply(("[x.detach()", "[x if x.is_leaf else x.detach()"))
REFUSES_THE_UNUSED = apply(
    (
        "        return None,",
        "        if any(x.requires_grad and x.grad is None for x in inputs):\n"
        "            raise RuntimeError('an input was not used')\n"
        "        return None,",
    ),
)
AUTOCAST_OF_A_GPU = apply(("torch.is_autocast_enabled(kind)", "torch.is_autocast_enabled()"))
DRAWS_IN_BACKWARD = apply(("        if output.requires_grad", "        torch.rand(1)\n        if output.requires_grad"))


@pytest.mark.parametrize(
    "answer, untrue",
    [
        (FROM_A_SEED, "does not return what function(*inputs) returns"),
        (FORGETS_THE_INPUTS, "hides them"),
        (LEAVES_OF_FORWARD, "A detached tensor requires no gradient until you say so"),
        (GRADIENT_OF_ZEROS, "The parameters are no inputs"),
        (COLLECTS_STATES, "attribute of ctx"),
        (DRAWS_IN_BACKWARD, "a second time"),
        (PRODUCT_AS_LOSS, "is lost"),
        (AUTOCAST_OF_A_GPU, "note in forward whether autocast is on"),
        (LEAF_ITSELF, "mask"),
        (REFUSES_THE_UNUSED, "go backward only if"),
    ],
)
def test_a_wrong_checkpoint_is_told_nothing_that_is_untrue_of_it(answer, untrue):
    verdict = n10.check_checkpoint(answer)
    assert verdict.status == "wrong"
    assert untrue not in verdict.message


# ---- exercise 3


def hooks(*changes):
    return edited(n10.hook_checkpoint, *changes)


LETS_GO_AT_THE_END = hooks(
    ("    again = {}\n", "    again = {}\n    asked = set()\n"),
    (
        "        return again.pop(number)",
        "        tensor = again[number]\n"
        "        asked.add(number)\n"
        "        if len(asked) == len(again):\n"
        "            again.clear()\n"
        "            asked.clear()\n"
        "        return tensor",
    ),
)
CHANGES_THE_DATA = hooks(
    ("    again = {}\n", "    again = {}\n    for x in inputs:\n        x.requires_grad_()\n"),
)
PUTS_BACK_WITHOUT_FINALLY = hooks(
    ("torch.random.fork_rng(devices=[]), torch", "torch"),
    ("        found = []\n", "        found = []\n        now = torch.get_rng_state()\n"),
    ("            function(*inputs)\n", "            function(*inputs)\n        torch.set_rng_state(now)\n"),
)
ALL_REQUIRE_IF_ONE_DOES = hooks(
    (
        "            function(*inputs)\n",
        "            asks = any(x.requires_grad for x in inputs)\n"
        "            function(*(x.detach().requires_grad_(asks) for x in inputs))\n",
    ),
)
DRAWS_AGAIN_IN_MODULES_ALONE = hooks(
    ("torch.set_rng_state(random_state)", "getattr(function, 'training', 0) and torch.set_rng_state(random_state)"),
)


def runs_again_on(copies):
    return hooks(("            function(*inputs)\n        again", f"            function(*{copies})\n        again"))


def keeps_those(that):
    keep = "lambda tensor: tensor if " + that + " else "
    return hooks(
        ("lambda tensor: next(numbers)", f"{keep}next(numbers)"),
        ("lambda tensor: found.append(tensor.detach())", f"{keep}found.append(tensor.detach())"),
        (
            "        if number not in again",
            "        if torch.is_tensor(number):\n            return number\n        if number not in again",
        ),
    )


class Enough(Exception):
    pass


def stops_at_the_one_that_was_asked(function, *inputs):
    state = torch.get_rng_state()
    numbers = count()
    again = {}

    def recompute(wanted):
        places = count()

        def keep(tensor):
            place = next(places)
            again[place] = tensor.detach()
            if place == wanted:
                raise Enough

        with torch.random.fork_rng(devices=[]), torch.enable_grad(), saved_tensors_hooks(keep, lambda nothing: nothing):
            torch.set_rng_state(state)
            with suppress(Enough):
                function(*inputs)

    def unpack(number):
        if number not in again:
            recompute(number)
        return again.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*inputs)


def hooks_at_zero(line):
    """Return the checkpoint of hooks with a line more before the second forward, where the function is a module."""
    ran = "            function(*inputs)\n        again"
    return hooks((ran, f"            hasattr(function, 'parameters') and {line}\n{ran}"))


TWICE = "the second leaves another .grad than twice the first's"
LEAVES_ON_THE_SHELF = hooks(("tensor.detach()", "tensor.detach().requires_grad_()"))
GRAPH_IN_EVALUATION = hooks(("    with saved_tensors_hooks(", "    with torch.enable_grad(), saved_tensors_hooks("))
RECOMPUTES_AT_THE_OUTPUT = hooks(
    (
        "        return function(*inputs)",
        "        y = function(*inputs)\n    y.register_hook(lambda _: recompute())\n    return y",
    )
)
ALL_IN_32_BITS = hooks(("tensor.detach()", "tensor.detach().float()"))
STATES_BY_FUNCTION = edited(
    n10.hook_checkpoint,
    ("    random_state = ", "    STATES[function] = "),
    ("torch.set_rng_state(random_state)", "torch.set_rng_state(STATES[function])"),
    names={"STATES": {}},
)


@pytest.mark.parametrize(
    "answer, says",
    [
        (LEAVES_ON_THE_SHELF, "only Tensors of floating point dtype can require gradients"),
        (ALL_IN_32_BITS, "in backward"),
        (GRAPH_IN_EVALUATION, "with gradients off the output requires one"),
        (RECOMPUTES_AT_THE_OUTPUT, "with gradients off: your code raised RuntimeError"),
        (keeps_those("tensor.numel() < 1000"), "the function itself ran once, in forward"),
        (STATES_BY_FUNCTION, "one function in two checkpoints"),
        (hooks_at_zero("[weight.grad.zero_() for weight in function.parameters() if weight.grad is not None]"), TWICE),
        (hooks_at_zero("function.zero_grad()"), TWICE),
        (keeps_those("tensor.is_leaf"), "KiB are alive beside inputs and output"),
        (keeps_those("tensor.dtype is torch.bool"), "KiB are alive beside inputs and output"),
        (LETS_GO_AT_THE_END, "at the peak"),
        (CHANGES_THE_DATA, "the caller's data now requires a gradient"),
        (ALL_REQUIRE_IF_ONE_DOES, "in the second forward not the same inputs require a gradient as in the first"),
        (lambda function, *inputs: function(*inputs).detach().requires_grad_(), "the first input has no gradient"),
        (PUTS_BACK_WITHOUT_FINALLY, "an error in the second forward, and the random state is another one than before"),
        (runs_again_on("[x.clone() for x in inputs]"), "a function that saves its five inputs: at the peak"),
        (runs_again_on("[x if x.requires_grad else x.clone() for x in inputs]"), "saves its five inputs: at the peak"),
        (runs_again_on("[x.clone() if x.requires_grad else x for x in inputs]"), "saves its five inputs: at the peak"),
        (DRAWS_AGAIN_IN_MODULES_ALONE, "the second forward drew another dropout mask than the first"),
        (stops_at_the_one_that_was_asked, "ran 3 times in forward and backward"),
    ],
)
def test_a_checkpoint_of_hooks_is_told_which_promise_it_breaks(answer, says):
    verdict = n10.check_hook_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_whoever_hands_out_zeros_is_not_told_of_shapes():
    zeros = hooks(("        return again.pop(number)", "        return torch.zeros_like(again.pop(number))"))
    verdict = n10.check_hook_checkpoint(zeros)
    assert verdict.status == "wrong"
    assert "shape" not in verdict.message


def test_whoever_keeps_the_second_output_is_not_told_to_let_go_of_what_is_gone():
    keeps = hooks(("            function(*inputs)\n", "            again['output'] = function(*inputs)\n"))
    verdict = n10.check_hook_checkpoint(keeps)
    assert verdict.status == "wrong"
    assert "Let go of each" not in verdict.message


# ---- exercise 4

FALSE_BEHIND_AN_ERROR = edited(
    n10.my_checkpoint,
    (
        "            return function(*inputs)\n        finally:\n            here.recomputing = before\n",
        "            done = function(*inputs)\n"
        "        except Exception:\n"
        "            here.recomputing = False\n"
        "            raise\n"
        "        here.recomputing = before\n"
        "        return done\n",
    ),
)


def test_a_flag_that_is_false_behind_an_error_inside_another_checkpoint_is_refused():
    verdict = n10.check_my_checkpoint(FALSE_BEHIND_AN_ERROR)
    assert verdict.status == "wrong"
    assert "raises an error in a checkpoint within another" in verdict.message


FALSE_BEHIND_A_SECOND_RUN = edited(
    n10.my_checkpoint,
    ("here.recomputing = before\n", "here.recomputing = before and not torch.is_grad_enabled()\n"),
)
ONE_FLAG_FOR_ALL_THREADS = edited(
    n10.my_checkpoint,
    ("before = is_recomputing()", "before = ALL.recomputing"),
    ("here.recomputing = before", "here.recomputing = ALL.recomputing = before"),
    names={"ALL": SimpleNamespace(recomputing=False)},
)


@pytest.mark.parametrize("answer", [FALSE_BEHIND_A_SECOND_RUN, ONE_FLAG_FOR_ALL_THREADS])
def test_a_flag_that_is_false_behind_a_second_run_and_was_true_is_refused(answer):
    verdict = n10.check_my_checkpoint(answer)
    assert verdict.status == "wrong"
    assert "before a second run and after it: is_recomputing() says True, False" in verdict.message


def test_a_write_with_gradients_off_is_a_write():
    plain = edited(
        n10.my_checkpoint,
        ("    phony =", "    if not torch.is_grad_enabled():\n        return function(*inputs)\n    phony ="),
    )
    verdict = n10.check_my_checkpoint(plain)
    assert verdict.status == "wrong"
    assert "with gradients off" in verdict.message
