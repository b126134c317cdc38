"""What is said of wrappers around a checkpoint, exercise 4 of notebook 10: other right ones, and wrong ones."""

import pytest
import torch

from support import built
from support.kit.mistakes import edited
from support.n10 import checks as n10


def with_a_counter(function, *inputs):
    """Count the calls in place of asking whether gradients are on; look at the versions inside."""
    here = built.here
    calls = []

    def run(extra, *given):
        before = built.is_recomputing()
        versions = [x._version for x in given]
        calls.append(1)
        here.recomputing = before or len(calls) > 1
        try:
            y = function(*given)
        finally:
            here.recomputing = before
        if versions != [x._version for x in given]:
            raise RuntimeError("written in place")
        return y

    return built.MyCheckpoint.apply(run, torch.zeros(0, requires_grad=True), *inputs)


def test_a_wrapper_that_counts_its_calls_passes():
    assert n10.check_my_checkpoint(with_a_counter)


def test_a_wrapper_with_the_phony_behind_the_inputs_passes():
    behind = edited(
        n10.my_checkpoint,
        ("def run(phony, *inputs):", "def run(*inputs):\n        *inputs, phony = inputs"),
        ("run, phony, *inputs)", "run, *inputs, phony)"),
        ("device=inputs[0].device, ", ""),
    )
    assert n10.check_my_checkpoint(behind)


READ_AT_THE_CALL = edited(
    n10.my_checkpoint,
    ("        before = is_recomputing()\n", ""),
    ("    def run(", "    before = is_recomputing()\n\n    def run("),
)
SECOND_RUN_ALONE = edited(
    n10.my_checkpoint,
    ("    def run(", "    calls = []\n\n    def run("),
    ("before or torch.is_grad_enabled()", "calls.append(1) or before or len(calls) == 2"),
)

IF_AN_INPUT_REQUIRES_ONE = edited(
    n10.my_checkpoint,
    ("torch.is_grad_enabled()", "torch.is_grad_enabled() and any(x.requires_grad for x in inputs)"),
)

DATA_BESIDE_A_LAYERS_OUTPUT_REQUIRE = edited(
    n10.my_checkpoint,
    (
        "    phony =",
        "    if any(x.requires_grad for x in inputs):\n        inputs = [MORE(x) for x in inputs]\n    phony =",
    ),
    names={"MORE": lambda x: x if x.requires_grad else x.detach().requires_grad_(x.is_floating_point())},
)
PARAMETERS_OF_MODULES = edited(
    n10.my_checkpoint,
    ("def run(phony, *inputs):", "def run(*given):\n        given = given[: len(inputs)]"),
    ("return function(*inputs)", "return function(*given)"),
    (
        "phony = torch.empty(0, device=inputs[0].device, requires_grad=True)",
        "more = getattr(function, 'parameters', list)()",
    ),
    ("run, phony, *inputs)", "run, *inputs, *more)"),
)

FLAG_OF_THE_CALLING_THREAD = edited(
    n10.my_checkpoint,
    ("    def run(", "    here.recomputing = is_recomputing()\n\n    def run("),
    ("before = is_recomputing()", "before = here.recomputing"),
)
ANY_VERSION = edited(
    n10.my_checkpoint,
    ("if [x._version for x in inputs] != versions", "if any(x._version for x in inputs)"),
    ("the function changed its input", "somebody changed an input"),
)
INPUTS_BY_CLOSURE = edited(
    n10.my_checkpoint, ("def run(phony, *inputs):", "def run(phony):"), ("phony, *inputs)", "phony)")
)
PHONY_ON_THE_CPU = edited(n10.my_checkpoint, ("device=inputs[0].device, ", ""))
PHONY_BY_CHANCE = edited(n10.my_checkpoint, ("torch.empty(0, ", "torch.rand(1, "))
GRADIENTS_ON = edited(
    n10.my_checkpoint,
    ("def run(", "torch.set_grad_enabled(True)\n\n    def run("),
    names={"torch": torch},
)


@pytest.mark.parametrize("function, says", [(max, "Versions before:"), (set, "Versions before:")])
def test_versions_that_are_compared_as_a_set_or_by_the_largest_are_refused(function, says):
    folded = edited(
        n10.my_checkpoint,
        ("!= versions", "!= FOLD(versions)"),
        ("if [x._version for x in inputs]", "if FOLD([x._version for x in inputs])"),
        names={"FOLD": function},
    )
    verdict = n10.check_my_checkpoint(folded)
    assert verdict.status == "wrong"
    assert says in verdict.message


@pytest.mark.parametrize(
    "answer, says",
    [
        (DATA_BESIDE_A_LAYERS_OUTPUT_REQUIRE, "its data require a gradient, which is computed for nothing"),
        (PARAMETERS_OF_MODULES, "Repair 1: no input requires a gradient, and the layer's weights get none"),
        (READ_AT_THE_CALL, "What it was before is what it is when this run begins"),
        (IF_AN_INPUT_REQUIRES_ONE, "data that require no gradient: is_recomputing() says False, False"),
        (SECOND_RUN_ALONE, "two backwards through a kept graph: is_recomputing() says False, True, False"),
        (FLAG_OF_THE_CALLING_THREAD, "forward in one new thread, backward in another"),
        (ANY_VERSION, "an input was written before the call"),
        (INPUTS_BY_CLOSURE, "a layer's output goes into the checkpoint and around it"),
        (PHONY_ON_THE_CPU, "the first input that Checkpoint gets is on"),
        (PHONY_BY_CHANCE, "from one seed: the output is another"),
        (GRADIENTS_ON, "with gradients off the output requires one"),
        (
            edited(PHONY_ON_THE_CPU, ("Checkpoint.apply", "MyCheckpoint.apply")),
            "the first input that Checkpoint gets is on",
        ),
        (edited(n10.my_checkpoint, ("before = is_recomputing()", "before = here.recomputing")), "in a new thread"),
        (edited(n10.my_checkpoint, ("in inputs]", "in inputs[-1:]]")), "changed input 1 of 2 (data)"),
        (edited(n10.my_checkpoint, ("in inputs]", "in inputs if x.is_floating_point()]")), "1 of 1 (token numbers)"),
        (edited(n10.my_checkpoint, ("in inputs]", "in inputs if not x.requires_grad]")), "1 of 1 (a layer's output)"),
        (
            edited(n10.my_checkpoint, ("in inputs]", "in inputs if not (x.requires_grad and x.is_leaf)]")),
            "1 of 1 (a leaf",
        ),
        (edited(n10.my_checkpoint, ("in inputs]", "in inputs[:2]]")), "changed input 3 of"),
        (lambda function, *inputs: function(*inputs), "with its graph: no checkpoint"),
        (lambda function, *inputs: built.MyCheckpoint.apply(function, *inputs), "the layer's weights get none"),
    ],
)
def test_a_wrapper_without_repairs_is_told_which_is_missing(answer, says):
    verdict = n10.check_my_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_whoever_knows_a_second_run_by_the_function_is_not_told_to_put_the_flag_back():
    seen = edited(
        n10.my_checkpoint,
        ("torch.is_grad_enabled()", "bool(function in SEEN or SEEN.add(function))"),
        names={"SEEN": set()},
    )
    verdict = n10.check_my_checkpoint(seen)
    assert verdict.status == "wrong"
    assert "Put back" not in verdict.message


def test_whoever_returns_nothing_is_asked_once_for_a_return():
    said = n10.check_my_checkpoint(lambda function, *inputs: None).message
    assert "not None" in said
    assert said.count("`return`") == 1


def test_a_flag_is_told_with_what_was_expected():
    always = n10.check_my_checkpoint.mistakes[
        "In Checkpoint.apply's first forward gradients are off, in the second they are on: torch.is_grad_enabled()."
    ]
    said = n10.check_my_checkpoint(always).message
    assert "is_recomputing() says True, True; expected False, True." in said


def test_an_autocast_that_an_error_leaves_open_is_told_so():
    left_open = edited(
        n10.MyCheckpoint,
        (", torch.autocast(*ctx.autocast)", ""),
        (
            "            output = ctx.function(*inputs)\n",
            "            cast = torch.autocast(*ctx.autocast)\n            cast.__enter__()\n"
            "            output = ctx.function(*inputs)\n            cast.__exit__(None, None, None)\n",
        ),
    )
    assert "its autocast never ends" in n10.check_checkpoint(left_open).message
