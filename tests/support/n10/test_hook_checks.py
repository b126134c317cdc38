"""Right and wrong checkpoints made of hooks, exercise 3 of notebook 10, and what each is told."""

import weakref
from contextlib import suppress
from functools import partial
from itertools import count

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from support import built
from support.kit.mistakes import edited
from support.kit.raised import InCaseError
from support.n10 import checks as n10
from support.n10.hook_trials import fault_behind_an_error


def with_a_list(function, *inputs):
    """Keep all that was computed again until the graph goes: too long, if a backward keeps the graph."""
    state = torch.get_rng_state()
    numbers = []
    again = []

    def pack(tensor):
        numbers.append(len(numbers))
        return numbers[-1]

    def unpack(number):
        if not again:
            collect = saved_tensors_hooks(lambda tensor: again.append(tensor.detach()), lambda nothing: nothing)
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), collect:
                torch.set_rng_state(state)
                function(*inputs)
        return again[number]

    with saved_tensors_hooks(pack, unpack):
        return function(*inputs)


def with_a_list_that_lets_go(function, *inputs):
    """Keep a list with None for what was handed out."""
    state = torch.get_rng_state()
    again = []
    handed = []

    def pack(tensor):
        again.append(None)
        return len(again) - 1

    def unpack(number):
        if again[number] is None:
            del handed[:]
            collect = saved_tensors_hooks(handed.append, lambda nothing: nothing)
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), collect:
                torch.set_rng_state(state)
                function(*inputs)
            again[:] = [tensor.detach() for tensor in handed]
            del handed[:]
        tensor = again[number]
        again[number] = None
        return tensor

    with saved_tensors_hooks(pack, unpack):
        return function(*inputs)


def without_detach(function, *inputs):
    """Collect straight into what the tensors are popped from: half a backward leaves a circle."""
    state = torch.get_rng_state()
    numbers = count()
    again = {}

    def unpack(number):
        if number not in again:
            more = count()
            keep = saved_tensors_hooks(lambda tensor: again.__setitem__(next(more), tensor), lambda nothing: nothing)
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), keep:
                torch.set_rng_state(state)
                function(*inputs)
        return again.pop(number)

    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*inputs)


class Box:
    def __init__(self):
        self.tensor = None


def with_boxes(function, *inputs):
    """Give autograd an empty box for each tensor; who finds his empty fills all that are still there."""
    state = torch.default_generator.get_state()
    boxes = []

    def pack(tensor):
        box = Box()
        boxes.append(weakref.ref(box))
        return box

    def fill(waiting, tensor):
        box = next(waiting)()
        if box is not None:
            box.tensor = tensor.detach()

    def unpack(box):
        if box.tensor is None:
            now = torch.default_generator.get_state()
            torch.default_generator.set_state(state)
            try:
                with torch.enable_grad(), saved_tensors_hooks(partial(fill, iter(boxes)), lambda nothing: nothing):
                    function(*inputs)
            finally:
                torch.default_generator.set_state(now)
        tensor = box.tensor
        box.tensor = None
        return tensor

    with saved_tensors_hooks(pack, unpack):
        return function(*inputs)


def with_inputs_and_weights_as_they_are(function, *inputs):
    """Let autograd keep inputs and weights, and compute the rest again."""
    state = torch.get_rng_state()
    numbers = count()
    again = {}

    def stays(x):
        return isinstance(x, torch.nn.Parameter) or any(x is given for given in inputs)

    def unpack(kept):
        if isinstance(kept, torch.Tensor):
            return kept
        if kept not in again:
            found = []
            collect = saved_tensors_hooks(lambda x: stays(x) or found.append(x.detach()), lambda nothing: nothing)
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), collect:
                torch.set_rng_state(state)
                function(*inputs)
            again.update(enumerate(found))
        return again.pop(kept)

    with saved_tensors_hooks(lambda x: x if stays(x) else next(numbers), unpack):
        return function(*inputs)


@pytest.mark.costly
@pytest.mark.parametrize(
    "answer",
    [
        with_a_list_that_lets_go,
        with_boxes,
        with_inputs_and_weights_as_they_are,
        partial(torch_checkpoint, use_reentrant=False),
    ],
    ids=["list", "boxes", "weights", "torch"],
)
def test_checkpoints_of_hooks_that_are_built_otherwise_pass(answer):
    assert n10.check_hook_checkpoint(answer)


def keeps_the_tensors(function, *inputs):
    shelf = []

    def pack(tensor):
        shelf.append(tensor)
        return len(shelf) - 1

    with saved_tensors_hooks(pack, shelf.__getitem__):
        return function(*inputs)


def one_flag(function, *inputs):
    done = []
    again = {}

    def unpack(number):
        if not done:
            done.append(True)
            with (
                torch.enable_grad(),
                saved_tensors_hooks(lambda x: again.update({len(again): x.detach()}), lambda x: x),
            ):
                function(*inputs)
        return again.pop(number)

    numbers = iter(range(1000))
    with saved_tensors_hooks(lambda tensor: next(numbers), unpack):
        return function(*inputs)


def from_the_end(function, *inputs):
    state = torch.get_rng_state()
    found = []

    def unpack(_):
        if not found:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(state)
                with saved_tensors_hooks(lambda x: found.append(x.detach()), lambda x: x):
                    function(*inputs)
        return found.pop()

    with saved_tensors_hooks(lambda tensor: None, unpack):
        return function(*inputs)


hands_out_copies = edited(n10.hook_checkpoint, ("tensor.detach()", "tensor.clone().detach()"))


def edits(*changes):
    return edited(n10.hook_checkpoint, *changes)


by_the_seed = edits(
    ("torch.get_rng_state()", "torch.initial_seed()"),
    ("torch.set_rng_state(random_state)", "torch.manual_seed(random_state)"),
)
late_state = edits(
    ("    random_state = torch.get_rng_state()\n", "    late = []\n"),
    ("lambda tensor: next(numbers)", "lambda tensor: (late or late.append(torch.get_rng_state()), next(numbers))[1]"),
    ("torch.set_rng_state(random_state)", "torch.set_rng_state(late[0])"),
)
holds_its_output = edits(
    ("            function(*inputs)\n", "            assert function(*inputs).shape == y.shape\n"),
    ("        return function(*inputs)", "        y = function(*inputs)\n    return y"),
)


calls = []
notes_its_call = edited(
    n10.hook_checkpoint,
    ("    again = {}\n", "    again = {}\n    calls[:] = function, inputs\n"),
    names={"calls": calls},
)


at_the_last_number = edits(
    ("numbers = count()", "numbers = []"),
    ("lambda tensor: next(numbers)", "lambda tensor: numbers.append(tensor.ndim) or len(numbers) - 1"),
    ("if number not in again:", "if number == len(numbers) - 1:"),
)


first_in_a_fork = edits(
    (
        "    with saved_tensors_hooks(lambda tensor: next(numbers), unpack)",
        "    with torch.random.fork_rng(devices=[]), saved_tensors_hooks(lambda tensor: next(numbers), unpack)",
    ),
)
state_that_moves_on = edits(
    ("    def recompute():\n", "    def recompute():\n        nonlocal random_state\n"),
    (
        "            function(*inputs)\n",
        "            function(*inputs)\n            random_state = torch.get_rng_state()\n",
    ),
)


keeps_what_it_found = edits(
    ("        again.update(enumerate(found))", "        again.update(enumerate(found))\n        unpack.found = found")
)


remembers_the_last = edits(
    ("        return again.pop(number)", "        unpack.last = again.pop(number)\n        return unpack.last")
)
rounds = edits(("tensor.detach()", "tensor.detach().half().to(tensor.dtype)"))


def runs_twice_in_forward(function, *inputs):
    function(*inputs)
    return n10.hook_checkpoint(function, *inputs)


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda function, *inputs: function(*inputs), "ran once, in forward"),
        (keeps_the_tensors, "ran once, in forward"),
        (one_flag, "another dropout mask"),
        (from_the_end, "backward"),
        (with_a_list, "after backward(retain_graph=True) 464 KiB are still alive beside inputs and output"),
        (hands_out_copies, "at the peak 1424 KiB are alive"),
        (by_the_seed, "the second forward drew another dropout mask"),
        (late_state, "the second forward drew another dropout mask"),
        (without_detach, "for one weight the output is dropped, and 336 KiB stay alive"),
        (holds_its_output, "after forward the output is dropped, and"),
        (notes_its_call, "the inputs and the function as well, and 640 KiB stay alive"),
        (at_the_last_number, "two equal steps of a Linear"),
        (first_in_a_fork, "after forward the random state is another one than without a checkpoint"),
        (state_that_moves_on, "a later backward through a kept graph drew another dropout mask"),
        (keeps_what_it_found, "after backward 464 KiB are still alive beside inputs and output"),
        (remembers_the_last, " 64 KiB are still alive beside inputs and output"),
        (rounds, "the gradient is off by 0.1%"),
        (runs_twice_in_forward, "in forward the function ran 2 times; once is enough"),
        (built.MyCheckpoint.apply, "so backward can't begin"),
        (built.my_checkpoint, "torch.autograd.grad must fill no .grad"),
        (partial(torch_checkpoint, use_reentrant=True), "so backward can't begin"),
        (lambda function, *inputs: function(*inputs).detach(), "it has lost its graph"),
        (lambda function, *inputs: function(*inputs) * 2, "returns another output than function(*inputs)"),
        (lambda function, *inputs: function(*inputs).tolist(), "a tensor, not list"),
    ],
)
def test_a_wrong_checkpoint_of_hooks_is_told_what_was_seen_of_it(answer, says):
    verdict = n10.check_hook_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_whoever_swallows_the_second_forwards_error_is_told_in_which_case():
    swallows = edited(
        n10.hook_checkpoint,
        (
            "            function(*inputs)\n",
            "            with suppress(RuntimeError):\n                function(*inputs)\n",
        ),
        names={"suppress": suppress},
    )
    with pytest.raises(InCaseError, match="in the second forward"):
        fault_behind_an_error(swallows)


def test_whoever_detaches_and_keeps_a_list_is_not_told_to_detach():
    assert "detach what you" not in n10.check_hook_checkpoint(keeps_what_it_found).message


def test_exercise_1_in_its_place_is_told_why_backward_cannot_begin():
    said = n10.check_hook_checkpoint(n10.MyCheckpoint.apply).message
    assert "the inputs are data that require no gradient" in said
    assert "The weights are no inputs" in said
    assert "RuntimeError" not in said
    without = edits(
        ("    with saved", "    with torch.set_grad_enabled(any(x.requires_grad for x in inputs)), saved"),
    )
    assert "autograd function" not in n10.check_hook_checkpoint(without).message


def test_whoever_hangs_the_second_forward_on_a_leaf_is_not_told_that_it_is_still_alive():
    def on_a_leaf(function, *inputs):
        """Go backward in a hook of the output, which is a leaf and gets a gradient of its own."""
        random_state = torch.get_rng_state()
        with torch.no_grad():
            y = function(*inputs)

        def again(gradient):
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(random_state)
                output = function(*inputs)
            output.backward(gradient)

        y.requires_grad_().register_hook(again)
        return y

    verdict = n10.check_hook_checkpoint(on_a_leaf)
    assert verdict.status == "wrong"
    assert "of the second forward" not in verdict.message


def test_a_second_run_in_forward_is_told_from_one_in_backward():
    def looks_first(function, *inputs):
        output = n10.hook_checkpoint(function, *inputs)
        with torch.no_grad():
            function(*inputs)
        return output

    said = n10.check_hook_checkpoint(looks_first).message
    assert "the function ran again, in forward, with gradients off" in said
    assert "In backward" not in said
