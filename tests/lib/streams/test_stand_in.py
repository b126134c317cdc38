"""A PretendGPU in the place of CUDA judges lib.pipeline's own copies and waits."""

import copy
import itertools

import pytest
import torch
from torch import nn

import lib.pipeline.copy
from lib.pipeline import GPipe
from lib.runtime.device import accelerators, current_stream, stand_in, synchronize, synchronize_used
from lib.streams import PretendGPU, find_races
from lib.streams.races import waits, without
from lib.streams.stand_in import in_place_of_cuda
from tests.lib.races import assert_no_race
from tests.lib.streams.prefetched import plain


def test_what_takes_its_shape_alone_from_a_tensor_elsewhere_copies_nothing():
    with in_place_of_cuda(PretendGPU(count=2)) as gpu:
        x = torch.ones(3, device="cuda:0").requires_grad_()
        began = len(gpu.operations)
        empty = [torch.empty_like(x, device="cuda:1"), x.new_empty(x.shape, device=torch.device("cuda", 1))]
        assert [op.kind for op in gpu.operations[began:]] == ["allocate", "allocate"]
        zeros = torch.zeros_like(x, device="cuda:1", requires_grad=True)
        launched = [(op.lane, op.label) for op in gpu.operations[began:] if op.kind == "launch"]
        assert launched == [("compute of cuda:1", "zeros_like")]
        assert zeros.requires_grad
        assert {str(y.device) for y in (*empty, zeros)} == {"cuda:1"}


def new_tensor(x, **place):
    return x.new_tensor(x, **place)


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, new_tensor])
def test_what_takes_the_numbers_of_a_tensor_elsewhere_reads_them_there(make):
    with in_place_of_cuda(PretendGPU(count=2)) as gpu:
        x = torch.arange(3.0, device="cuda:0")
        began = len(gpu.operations)
        y = make(x, device="cuda:1")
        assert str(y.device) == "cuda:1"
        assert x.region in [region for op in gpu.operations[began:] for region in op.reads]
        assert y.tolist() == [0, 1, 2]


@pytest.mark.parametrize("asked, place", [({}, "cuda:1"), ({"device": "cuda:0"}, "cuda:0"), ({"device": "cpu"}, "cpu")])
def test_new_tensor_is_where_its_tensor_is_unless_told_otherwise_and_the_host_waits_for_the_copy(asked, place):
    with in_place_of_cuda(PretendGPU(count=2)) as gpu:
        x = torch.ones(2, dtype=torch.float64, device="cuda:1")
        began = len(gpu.operations)
        y = x.new_tensor([1, 2, 3], requires_grad=True, **asked)
        assert (str(y.device), y.dtype, y.requires_grad, y.tolist()) == (place, torch.float64, True, [1, 2, 3])
        waits = [op for op in gpu.operations[began:] if op.kind == "synchronize"]
        assert bool(waits) == (place != "cpu")
        assert x.new_tensor([1], dtype=torch.int32).dtype == torch.int32


def test_what_is_written_in_place_is_read_too_and_an_out_is_only_written():
    with in_place_of_cuda(PretendGPU()) as gpu:
        x = torch.ones(3, device="cuda")
        y = torch.empty(3, device="cuda")
        x.add_(1)
        assert (gpu.operations[-1].reads, gpu.operations[-1].writes) == ((x.region,), (x.region,))
        torch.add(x, 1, out=y)
        assert (gpu.operations[-1].reads, gpu.operations[-1].writes) == ((x.region,), (y.region,))


MODES = ["never", "except_last", "always"]


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Dropout(0.0), nn.Linear(5, 2), nn.Tanh())


def run(checkpoint, forgets=()):
    """Run a GPipe on two devices, forward and backward; return the GPU, the model, input and output."""
    gpu = PretendGPU(forgets, count=2)
    with in_place_of_cuda(gpu):
        model = GPipe(layers(), [3, 2], chunks=3, checkpoint=checkpoint)
        x = torch.linspace(-1, 1, 18).reshape(6, 3).to("cuda:0").requires_grad_()
        y = model(x)
        y.square().sum().backward()
    return gpu, model, x, y


@pytest.mark.parametrize("checkpoint", MODES)
def test_gpipe_has_no_race_forward_and_backward(checkpoint):
    gpu, model, x, y = run(checkpoint)
    assert [str(device) for device in model.devices] == ["cuda:0", "cuda:1"]
    assert str(y.device) == "cuda:1"
    assert {str(p.device) for p in model.partitions[1].parameters()} == {"cuda:1"}
    assert_no_race(gpu.operations)
    reference = layers()
    expected_input = plain(x).clone().requires_grad_()
    expected = reference(expected_input)
    expected.square().sum().backward()
    torch.testing.assert_close(plain(y), expected.detach())
    torch.testing.assert_close(plain(x.grad), expected_input.grad)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(plain(ours.grad), theirs.grad)


class Calls:
    """Count the calls of wait_stream in lib.pipeline.copy, and leave one of them out."""

    def __init__(self, left_out=None):
        self.left_out = left_out
        self.count = 0
        self.original = lib.pipeline.copy.wait_stream

    def __call__(self, source, target):
        if self.count != self.left_out:
            self.original(source, target)
        self.count += 1


@pytest.mark.parametrize("checkpoint", MODES)
def test_each_wait_of_the_pipeline_that_is_left_out_is_found(checkpoint, monkeypatch):
    calls = Calls()
    monkeypatch.setattr(lib.pipeline.copy, "wait_stream", calls)
    run(checkpoint)
    total = calls.count
    assert total == 3 * 2 * 2, "behind each of 3 copies and before it, forward and backward"
    for number in range(total):
        calls = Calls(left_out=number)
        monkeypatch.setattr(lib.pipeline.copy, "wait_stream", calls)
        gpu, *_ = run(checkpoint)
        assert find_races(gpu.operations), f"wait {number}"


def test_without_record_stream_memory_is_given_away_too_early():
    gpu, *_ = run("never", forgets=["record_stream"])
    assert find_races(gpu.operations)


def test_every_wait_of_the_list_is_needed_but_those_that_follow_from_another():
    gpu, *_ = run("never")
    numbers = waits(gpu.operations)
    needed = [number for number in numbers if find_races(without(gpu.operations, number))]
    assert len(needed) >= 12


def test_what_is_made_on_cuda_by_name_is_on_the_pretend_gpu():
    gpu = PretendGPU(count=2)
    plain_tensor = torch.ones(3)
    with in_place_of_cuda(gpu):
        made = [torch.zeros(3, device="cuda:1"), plain_tensor.cuda(1), plain_tensor.to("cuda:1", torch.float64)]
        made += [torch.tensor([1.0], device=torch.device("cuda", 1)), torch.zeros_like(made[0], device="cuda:1")]
        model = copy.deepcopy(nn.Linear(3, 2)).to("cuda:1")
        assert torch.ones(3, device="cpu").is_cpu
        assert accelerators() == [torch.device("cuda", 0), torch.device("cuda", 1)]
        assert current_stream(torch.device("cuda", 1)) is gpu.current_stream(1)
    assert [str(x.device) for x in (*made, model.weight)] == ["cuda:1"] * 6
    assert made[2].dtype == torch.float64
    assert gpu.operations, "and they are noted"
    assert not torch.ones(1).is_cuda


def test_two_cannot_stand_in_at_once():
    told = pytest.raises(RuntimeError, match="something stands in for 'cuda' already")
    with in_place_of_cuda(PretendGPU()), told, stand_in("cuda", object()):
        pass
    with in_place_of_cuda(PretendGPU()):
        pass


class MadeInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad + torch.ones(3, device="cuda")


@pytest.mark.parametrize("by", ["Tensor.backward", "autograd.backward", "autograd.grad"])
def test_what_backward_makes_on_cuda_is_there_too(by):
    with in_place_of_cuda(PretendGPU()):
        x = torch.zeros(3, device="cuda", requires_grad=True)
        y = MadeInBackward.apply(x).sum()
        if by == "autograd.grad":
            (found,) = torch.autograd.grad(y, x)
        else:
            y.backward() if by == "Tensor.backward" else torch.autograd.backward(y)
            found = x.grad
    assert found.is_cuda
    assert plain(found).tolist() == [2.0] * 3


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_an_optimizer_over_lists_runs_once_a_device(how):
    gpu = PretendGPU(count=2)
    with in_place_of_cuda(gpu):
        parameters = [torch.zeros(3, device=f"cuda:{index}", requires_grad=True) for index in (0, 1, 0)]
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer = torch.optim.Adam(parameters, lr=0.1, **{how: True})
        gpu.operations.clear()
        optimizer.step()
        torch._foreach_norm(parameters)
    for p in parameters:
        torch.testing.assert_close(plain(p.detach()), torch.full((3,), -0.1))
    norms = [op.lane for op in gpu.operations if op.label == "foreach_norm"]
    assert norms == ["compute", "compute of cuda:1"]
    assert_no_race(gpu.operations)


@pytest.mark.parametrize("asked", ["cuda:0", "cuda:1", "cuda", None])
def test_who_waits_for_a_device_waits_for_all_its_streams_and_for_no_other_device(asked):
    gpu = PretendGPU(count=2)
    for index in (0, 1):
        gpu.new_stream(index=index)
    with in_place_of_cuda(gpu), gpu.use_device(1):
        for stream in gpu.streams:
            with gpu.use_stream(stream):
                gpu.sleep(1)
        if asked is None:
            synchronize_used()
        else:
            synchronize(torch.device(asked))
    waited_for = [str(stream.device) for stream in gpu.streams if stream.record_event().query()]
    assert waited_for == ["cuda:0" if asked == "cuda:0" else "cuda:1"] * 2, "cuda:1 is the current one"


class InAStreamOfItsOwn(torch.autograd.Function):
    """Compute in a side stream, forward and backward, and return what was made there."""

    @staticmethod
    def forward(ctx, side, x, keeps_output):
        ctx.side = side
        side.wait_stream(current_stream(x.device))
        with side:
            y = x * 2
            if keeps_output:
                ctx.save_for_backward(y)
            return y

    @staticmethod
    def backward(ctx, gradient):
        ctx.found = current_stream(gradient.device)
        ctx.side.seen.append(ctx.found)
        return None, gradient * 2, None


@pytest.mark.parametrize(("around", "keeps_output"), itertools.product([False, True], repeat=2))
def test_a_function_goes_backward_in_the_stream_that_is_current_when_its_forward_has_returned(around, keeps_output):
    # lib.simulated says the same, and torch's engine on a GPU: the node is made behind forward
    gpu = PretendGPU()
    with in_place_of_cuda(gpu):
        side = gpu.new_stream("side")
        side.seen = []
        outside = side if around else gpu.current_stream()
        x = torch.ones(3, device="cuda", requires_grad=True)
        with outside:
            y = InAStreamOfItsOwn.apply(side, x, keeps_output)
            outside.wait_stream(side)
            loss = y.sum()
            begins = len(gpu.operations)
            loss.backward()
        assert side.seen == [outside]
        assert all(number < begins for number in waits(gpu.operations)), "backward is in one stream"
    assert torch.autograd.Function.apply.__func__.__name__ == "apply"


def test_a_module_that_a_graph_holds_may_be_moved_to_where_it_is():
    with in_place_of_cuda(PretendGPU()) as gpu:
        layer = nn.Linear(3, 2).to("cuda")
        weight = layer.weight
        y = layer(torch.ones(1, 3, device="cuda"))
        launched = len(gpu.operations)
        layer.to("cuda")
        assert layer.weight is weight
        assert len(gpu.operations) == launched, "nothing is copied"
        y.sum().backward()
        layer.to("cuda")
        assert plain(weight.grad).tolist() == [[1.0] * 3] * 2
