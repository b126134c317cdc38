"""Backward on a PretendGPU: in the streams of forward, and in order ("Stream semantics of backward passes")."""

import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint as torchs_checkpoint

from lib.streams import PretendGPU, find_races, in_place_of_cuda
from lib.streams.races import waits, without
from tests.lib.races import assert_no_race
from tests.lib.streams.prefetched import plain


def leaf(gpu, value=1.0, device="cuda"):
    """A tensor of the device that wants a gradient, and all streams have waited for it."""
    x = gpu.host(torch.full((4,), value)).to(device)
    return x.requires_grad_()


def launched(gpu, label):
    """The streams in which something of this name was launched, in the order of the list."""
    return [op.lane for op in gpu.operations if op.kind == "launch" and op.label == label]


def begin_of_backward(gpu):
    return next(number for number, op in enumerate(gpu.operations) if op.label == "ones_like")


def needed(gpu):
    """Of the waits that backward has made by itself: how many, and how many of them would be missed."""
    made = [number for number in waits(gpu.operations) if number > begin_of_backward(gpu)]
    return len(made), sum(bool(find_races(without(gpu.operations, number))) for number in made)


def test_in_one_stream_nobody_waits():
    gpu = PretendGPU()
    x = leaf(gpu)
    x.sin().square().sum().backward()
    assert {op.lane for op in gpu.operations if op.kind == "launch"} == {"compute"}
    assert waits(gpu.operations) == []
    assert_no_race(gpu.operations)


def test_what_one_stream_computed_goes_back_there_and_the_caller_may_use_the_gradient_at_once():
    gpu = PretendGPU()
    x = leaf(gpu)
    side = gpu.new_stream()
    with gpu.use_stream(side):
        y = x.sin().sum()
    y.backward()
    assert x.grad.mul(2).plain.tolist() == pytest.approx([2 * torch.tensor(1.0).cos().item()] * 4)
    assert launched(gpu, "cos") == ["side"]
    assert launched(gpu, "ones_like") == ["compute"], "the gradient of the loss is made by who calls backward"
    assert gpu.current_stream().name == "compute"
    assert_no_race(gpu.operations)
    assert needed(gpu) == (2, 2), "side waits for the gradient of the loss, and compute for that of the leaf"


def test_two_branches_go_back_in_their_two_streams_and_are_added_up_where_their_input_was_made():
    gpu = PretendGPU()
    x = leaf(gpu)
    streams = [gpu.new_stream("left"), gpu.new_stream("right")]
    h = x * 3
    outputs = []
    for stream, function in zip(streams, (torch.sin, torch.exp), strict=True):
        stream.wait_stream(gpu.current_stream())
        with gpu.use_stream(stream):
            outputs.append(function(h))
    for stream in streams:
        gpu.current_stream().wait_stream(stream)
    (outputs[0] + outputs[1]).sum().backward()
    expected = 3 * (torch.tensor(3.0).cos() + torch.tensor(3.0).exp())
    assert plain(x.grad).tolist() == pytest.approx([expected.item()] * 4)
    assert launched(gpu, "cos") == ["left"]
    assert "right" in launched(gpu, "mul"), "the gradient of exp"
    assert launched(gpu, "add")[-1] == "compute", "h was made there: there its two gradients are added up"
    assert_no_race(gpu.operations)
    assert needed(gpu) == (4, 4)


def test_a_leaf_that_two_streams_use_has_its_gradient_in_the_first_one_and_the_caller_waits_for_that():
    gpu = PretendGPU()
    x = leaf(gpu)
    streams = [gpu.new_stream("left"), gpu.new_stream("right")]
    losses = []
    for stream in streams:
        stream.wait_stream(gpu.current_stream())
        with gpu.use_stream(stream):
            losses.append(x.square().sum())
    for loss in losses:
        loss.backward()
    assert plain(x.grad).tolist() == [4.0] * 4
    x.grad.zero_()
    assert_no_race(gpu.operations)
    assert launched(gpu, "add") == ["left"], "the second gradient is added to the first"


def test_a_wait_that_forward_left_out_is_found_in_backward_too():
    """The gradient of the output is written in a third stream, and who calls backward has not waited for that one."""
    for waited, in_place in itertools.product((False, True), repeat=2):
        gpu = PretendGPU()
        x = leaf(gpu)
        side = gpu.new_stream()
        third = gpu.new_stream("third")
        side.wait_stream(gpu.current_stream())
        with gpu.use_stream(side):
            y = x * 2
        with gpu.use_stream(third):
            grad = gpu.host(torch.full((4,), 5.0)).to("cuda", non_blocking=True)
        if waited:
            gpu.current_stream().wait_stream(third)
        if in_place:
            with in_place_of_cuda(gpu):
                torch.autograd.backward(y, grad)
        else:
            y.backward(grad)
        assert plain(x.grad).tolist() == [10.0] * 4
        races = find_races(gpu.operations)
        assert bool(races) == (not waited)
        if races:
            assert {(race.earlier.lane, race.later.lane) for race in races} == {("third", "side")}


def test_a_wait_that_forward_left_out_races_in_forward_and_again_where_backward_reads_what_was_saved():
    gpu = PretendGPU()
    x = leaf(gpu)
    h = x * 2
    with gpu.use_stream(gpu.new_stream()):  # which does not wait for h
        y = h.sin().sum()
    gpu.current_stream().wait_stream(gpu.streams[-1])
    y.backward()
    races = [(race.earlier.label, race.later.label) for race in find_races(gpu.operations)]
    assert races == [("mul", "sin")], "backward begins behind compute, and so behind h"
    gpu = PretendGPU()
    x = leaf(gpu)
    h = x * 2
    with gpu.use_stream(gpu.new_stream()):
        h.sin().sum().backward()
    races = [(race.earlier.label, race.later.label) for race in find_races(gpu.operations)]
    assert races == [("mul", "sin"), ("mul", "cos")], "here it begins in side, which still waits for nothing"


def test_the_memory_of_a_gradient_is_not_given_away_while_the_stream_that_took_it_may_read_it():
    """compute makes the gradient of sin; it is dropped once side has launched its work; then compute wants memory."""
    gpu = PretendGPU()
    x = leaf(gpu)
    side = gpu.new_stream()
    h = x * 2
    by_compute = h.exp() * 3
    side.wait_stream(gpu.current_stream())
    with gpu.use_stream(side):
        by_side = h.sin()
    gpu.current_stream().wait_stream(side)
    (by_compute + by_side * 3).sum().backward()
    assert launched(gpu, "cos") == ["side"]
    assert_no_race(gpu.operations)


def test_torch_autograd_grad_gives_what_the_caller_may_use_at_once():
    gpu = PretendGPU()
    x = leaf(gpu)
    with gpu.use_stream(gpu.new_stream()):
        h = x * 3
        y = h.square().sum()
    for wanted, value in ((x, 18.0), (h, 6.0)):
        (found,) = torch.autograd.grad(y, wanted, retain_graph=True)
        assert found.mul(1).plain.tolist() == [value] * 4
        assert_no_race(gpu.operations)


def test_between_two_devices_each_computes_in_its_own_stream():
    gpu = PretendGPU(count=2)
    x = leaf(gpu, device="cuda:0")
    there = gpu.new_stream("there", 1)
    there.wait_stream(gpu.current_stream(0))
    with gpu.use_stream(there):
        y = x.to("cuda:1").sin().sum()
    y.backward()
    assert launched(gpu, "cos") == [there.name]
    assert str(x.grad.device) == "cuda:0"
    assert x.grad.add(1).plain.tolist() == pytest.approx([1 + torch.tensor(1.0).cos().item()] * 4)
    assert_no_race(gpu.operations)
    assert gpu.current_device == 0


class OnAStreamOfItsOwn(torch.autograd.Function):
    """Computes its gradient where it likes."""

    @staticmethod
    def forward(ctx, x, gpu, stream):
        ctx.way = gpu, stream
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        gpu, stream = ctx.way
        stream.wait_stream(gpu.current_stream())
        with gpu.use_stream(stream):
            made = grad.neg()
        gpu.current_stream().wait_stream(stream)
        return made, None, None


def test_a_function_may_use_another_stream_in_its_backward():
    gpu = PretendGPU()
    x = leaf(gpu)
    side = gpu.new_stream()
    own = gpu.new_stream("own")
    with gpu.use_stream(side):
        y = OnAStreamOfItsOwn.apply(x.sin(), gpu, own).sum()
    y.backward()
    assert launched(gpu, "neg") == ["own"]
    assert launched(gpu, "cos") == ["side"]
    assert_no_race(gpu.operations)


def test_a_backward_inside_of_a_backward_comes_back_to_the_stream_of_the_outer_one():
    gpu = PretendGPU()
    x = leaf(gpu)
    side = gpu.new_stream()
    with gpu.use_stream(side):
        y = torchs_checkpoint(lambda x: x.sin().exp(), x.square(), use_reentrant=True).tanh().sum()
    y.backward()
    reference = torch.ones(4, requires_grad=True)
    reference.square().sin().exp().tanh().sum().backward()
    torch.testing.assert_close(plain(x.grad), reference.grad)
    assert set(launched(gpu, "cos")) == {"side"}
    x.grad.mul(1)
    assert_no_race(gpu.operations)
    assert gpu.current_stream().name == "compute"


def test_an_error_in_backward_leaves_the_streams_as_they_were():
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            grad.neg()
            raise ValueError("in backward")

    gpu = PretendGPU()
    x = leaf(gpu)
    with gpu.use_stream(gpu.new_stream()):
        y = Fails.apply(x).sum()
    with pytest.raises(ValueError, match="in backward"):
        y.backward()
    assert gpu.current_stream().name == "compute"
    x.square().sum().backward()
    assert launched(gpu, "neg") == ["side"]
    assert plain(x.grad).tolist() == [2.0] * 4
