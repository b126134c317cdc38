"""What is particular about the checks of notebook 10; what all exercises have in common is in test_detectors."""

import weakref
from functools import partial

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from support import built
from support.n10 import checks as n10


def test_checks_leave_random_numbers_and_the_flag_alone():
    before = torch.get_rng_state()
    for answer in (n10.MyCheckpoint, n10.check_checkpoint.mistakes["Is a `return` missing?"]):
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
        if y.grad_fn is not None:
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


# ---- exercise 2


def by_moments(sizes, starts):
    """Walk backward through the model and note what is held after each recompute."""
    held = [sizes[k] for k in starts]
    most = 0
    end = len(sizes) - 1
    for start in reversed(starts):
        most = max(most, sum(held) + sum(sizes[k] for k in range(start + 1, end + 1)))
        held.pop()
        end = start
    return most


def test_a_peak_by_walking_backward_passes_and_a_cut_of_the_text_is_as_it_says():
    assert n10.check_peak_bytes(by_moments)
    assert n10.peak_bytes([9, 9, 1, 1, 1, 1, 1], [0, 2]) == 19
    assert n10.peak_bytes([1] * 17, [0, 4, 8, 12]) == 8


def test_whoever_looks_at_the_last_segment_alone_is_refused():
    last_alone = n10.check_peak_bytes.mistakes[
        "The peak is the largest sum over all segments, not that of the last one."
    ]
    assert n10.check_peak_bytes(last_alone).status == "wrong"


# ---- exercise 3


def with_a_list(function, *inputs):
    """Keep all that was computed again until the graph goes."""
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


@pytest.mark.parametrize(
    "answer", [with_a_list, with_boxes, partial(torch_checkpoint, use_reentrant=False)], ids=["list", "boxes", "torch"]
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
        (runs_twice_in_forward, "in forward the function ran 2 times; once is enough"),
        (built.MyCheckpoint.apply, "in backward"),
        (built.my_checkpoint, "torch.autograd.grad must fill no .grad"),
        (partial(torch_checkpoint, use_reentrant=True), "in backward"),
        (lambda function, *inputs: function(*inputs).detach(), "it has lost its graph"),
        (lambda function, *inputs: function(*inputs) * 2, "does not return what function(*inputs) returns"),
        (lambda function, *inputs: function(*inputs).tolist(), "a tensor, not list"),
    ],
)
def test_a_wrong_checkpoint_of_hooks_is_told_what_was_seen_of_it(answer, says):
    verdict = n10.check_hook_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


# ---- exercise 4


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


@pytest.mark.parametrize(
    "answer, says",
    [
        (lambda function, *inputs: function(*inputs), "nothing is checkpointed at all"),
        (lambda function, *inputs: built.MyCheckpoint.apply(function, *inputs), "the layer's weights get none"),
        (lambda function, *inputs: None, "not None"),
    ],
)
def test_a_wrapper_without_repairs_is_told_which_is_missing(answer, says):
    verdict = n10.check_my_checkpoint(answer)
    assert verdict.status == "wrong"
    assert says in verdict.message


def test_a_flag_is_told_with_what_was_expected():
    always = n10.check_my_checkpoint.mistakes[
        "In a checkpoint's first forward gradients are off, in the second they are on: torch.is_grad_enabled()."
    ]
    said = n10.check_my_checkpoint(always).message
    assert "is_recomputing() says True, True; expected False, True." in said


# ---- predictions


def test_a_famous_wrong_guess_is_neither_right_nor_close():
    for guess, wrong in (
        (n10.guess_flops, 1.25),
        (n10.guess_momentum, 0.2),
        (n10.guess_least, 8),
        (n10.guess_one_block, 21),
    ):
        said = guess(wrong).message
        assert "that is it" not in said
        assert "close" not in said
        assert "(" in said
    assert "that is it" in n10.guess_flops("1.33").message
    assert "that is it" in n10.guess_one_block("34 u").message
