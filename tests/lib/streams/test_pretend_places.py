"""Where a pretended tensor is, and what is made of it: what torch documents for CUDA, although its C++ sees a CPU."""

import copy
import io
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lib.streams import DevicePrefetcher, PretendGPU, StreamPipeline, find_races, in_place_of_cuda
from lib.streams.races import HOST

X = torch.arange(6.0).reshape(2, 3)


def values(x):
    """Return its numbers as a tensor of the CPU."""
    return x.detach().cpu().plain


# Each is composed by torch in C++, of operators that are told the device of its tensor.
COMPOSED = {
    "softmax to another dtype": lambda x: torch.softmax(x, 1, dtype=torch.float64),
    "log_softmax of halves": lambda x: F.log_softmax(x.half(), 1, dtype=torch.float32),
    "circular padding": lambda x: F.pad(x[None], (1, 1), mode="circular"),
    "a sequence padded": lambda x: nn.utils.rnn.pad_sequence([x[0], x[1, :2]]),
    "powers": lambda x: torch.vander(x[0]),
    "a median": lambda x: torch.quantile(x, 0.5),
    "covariance": lambda x: torch.cov(x, aweights=x[0].abs() + 1),
    "a copy": torch.tensor,
    "another dtype": lambda x: torch.as_tensor(x, dtype=torch.float64),
    "the dtype of another": lambda x: x.type_as(x.double()),
    "a legacy copy": lambda x: x.new([1.0, 2.0]),
    "a legacy type": lambda x: x.type(torch.float64),
}


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("made", COMPOSED)
def test_what_torch_composes_of_a_tensor_is_where_the_tensor_is(made):
    with in_place_of_cuda(PretendGPU(count=2)) as gpu:
        x = X.to("cuda:1")
        y = COMPOSED[made](x)
        assert str(y.device) == "cuda:1"
        torch.testing.assert_close(values(y), COMPOSED[made](X), check_stride=False)
        assert not [op for op in gpu.operations if op.kind == "launch" and op.lane == HOST]


@pytest.mark.parametrize(
    "loss",
    [
        torch.sum,
        torch.mean,
        lambda x: x.half().sum(),
        lambda x: x.expand(2, 2, 3).sum(),
        lambda x: x.float_power(2).sum(),
    ],
    ids=["sum", "mean", "half", "expand", "float_power"],
)
def test_a_gradient_is_where_its_tensor_is_and_in_the_stream_of_backward(loss):
    with in_place_of_cuda(PretendGPU()) as gpu:
        x = X.to("cuda").requires_grad_()
        loss(x).backward()
        assert str(x.grad.device) == "cuda:0"
        assert not [op for op in gpu.operations if op.kind == "launch" and op.lane == HOST]
        side = gpu.new_stream()
        with gpu.use_stream(side):
            x.grad.mul(2)
    assert find_races(gpu.operations), "side has not waited for backward"


MOVES = {
    "like another tensor": lambda x, to: x.to(torch.ones((), device=to)),
    "type_as": lambda x, to: x.type_as(torch.ones((), device=to)),
    "device by name": lambda x, to: x.to(device=to),
    "device and dtype": lambda x, to: x.to(device=to, dtype=torch.float32),
    "copy as the fourth": lambda x, to: x.to(to, torch.float32, False, True),
    "as_tensor": lambda x, to: torch.as_tensor(x, device=to),
    "asarray": lambda x, to: torch.asarray(x, device=to),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(
    "begin, to", [("cpu", "cuda:0"), ("cuda:0", "cuda:1"), ("cuda:1", "cpu"), ("cuda:0", "cuda:0")]
)
def test_every_way_to_write_a_move_moves(move, begin, to):
    with in_place_of_cuda(PretendGPU(count=2)):
        x = X if begin == "cpu" else X.to(begin)
        y = MOVES[move](x, to)
        assert (str(y.device), y.dtype) == (to, torch.float32)
        assert torch.equal(values(y), X)


@pytest.mark.parametrize("ask", [(), (1,), ("cuda:1",)])
def test_cuda_takes_what_it_takes_of_torch_and_refuses_what_is_no_gpu(ask):
    with in_place_of_cuda(PretendGPU(count=2)):
        for x in (X, X.to("cuda:0")):
            assert str(x.cuda(*ask).device) == ("cuda:1" if ask else "cuda:0")
            assert str(x.cuda(non_blocking=True).device) == "cuda:0"
            with pytest.raises(ValueError, match=r"write x\.to\('cpu'\)"):
                x.cuda("cpu")


@pytest.mark.parametrize("device", [1, "cuda:1", torch.device("cuda", 1)])
def test_a_number_names_a_gpu_wherever_torch_takes_a_device(device):
    with in_place_of_cuda(PretendGPU(count=2)):
        x = X.cuda()
        made = [torch.zeros(2, device=device), x.new_zeros(2, device=device), torch.ones_like(X, device=device)]
        made += [torch.tensor([1.0], device=device), torch.tensor([x[0, 0]], device=device), X.to(device), x.to(device)]
        made += [nn.Linear(1, 1).to(device).weight, nn.Linear(1, 1).to(device=device).weight]
        assert {str(y.device) for y in made} == {"cuda:1"}
        assert {y.get_device() for y in made} == {torch.get_device(y) for y in made} == {1}
        assert X.get_device() == x.cpu().get_device() == -1


def test_the_default_device_may_be_the_pretended_one():
    with in_place_of_cuda(PretendGPU()):
        torch.set_default_device("cuda")
        try:
            assert {str(x.device) for x in (torch.ones(2), torch.tensor([1.0]), nn.Linear(1, 1).bias)} == {"cuda:0"}
        finally:
            torch.set_default_device(None)


@pytest.mark.parametrize("make", [torch.zeros_like, torch.ones_like, lambda x, device: x.new_zeros(2, device=device)])
@pytest.mark.parametrize("inside", [True, False])
def test_who_names_the_host_gets_memory_of_the_host(make, inside):
    gpu = PretendGPU()
    x = gpu.host(X).to(gpu.device)
    if inside:
        with in_place_of_cuda(gpu):
            assert make(x, device="cpu").is_cpu
    assert make(x, device="cpu").is_cpu


def test_a_memory_format_is_kept_on_the_way():
    image = torch.ones(1, 2, 3, 4)
    with in_place_of_cuda(PretendGPU()):
        for x in (image, image.cuda()):
            assert x.to("cuda", memory_format=torch.channels_last).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("device", ["cuda", None])
def test_what_is_not_pinned_is_pinned_on_the_way_to_a_gpu_that_pretends(device):
    rows = TensorDataset(torch.arange(8.0))
    with in_place_of_cuda(PretendGPU()) as gpu:
        for (batch,) in DevicePrefetcher(DataLoader(rows, 4), device or gpu):
            assert batch.is_cuda
        assert torch.equal(values(StreamPipeline(torch.neg, 2, device=device or gpu)(X)), -X)
        assert X.pin_memory().is_pinned()
        assert torch.empty(3, pin_memory=True).is_pinned()
    assert len(list(DevicePrefetcher(DataLoader(rows, 4), gpu))) == 2
    assert not find_races(gpu.operations)


def test_what_a_gpu_refuses_is_refused():
    with in_place_of_cuda(PretendGPU()):
        x = X.cuda()
        with pytest.raises(TypeError, match=re.escape("write x.cpu().numpy()")):
            x.numpy()
        with pytest.raises(RuntimeError, match=re.escape("write x.cpu().pin_memory()")):
            x.pin_memory()
        assert x.cpu().numpy().tolist() == x.numpy(force=True).tolist() == X.tolist()


def test_a_model_on_a_gpu_can_be_copied_saved_and_loaded_and_its_parameters_be_given_other_memory():
    with in_place_of_cuda(PretendGPU()) as gpu:
        model = nn.Linear(3, 2).cuda()
        model(X.cuda()).sum().backward()
        average = copy.deepcopy(model)
        for mine, theirs in zip(average.parameters(), model.parameters(), strict=True):
            assert isinstance(mine, nn.Parameter) and mine.is_cuda and mine.grad.is_cuda
            assert mine.region != theirs.region
            mine.data = mine.data * 2
            assert torch.equal(values(mine), values(theirs) * 2)
        file = io.BytesIO()
        torch.save(model.state_dict(), file)
        file.seek(0)
        average.load_state_dict(torch.load(file))
        assert torch.equal(values(average.weight), values(model.weight))
        assert average.weight.is_cuda
        assert copy.copy(model.weight).region == model.weight.region
    assert not find_races(gpu.operations)


def test_who_writes_through_data_is_not_noticed_by_autograd():
    with in_place_of_cuda(PretendGPU()):
        x = X.cuda().requires_grad_()
        loss = (x * x).sum()
        x.data.mul_(2)
        loss.backward()
        assert torch.equal(values(x.grad), 4 * X)


def test_a_tensor_prints_as_that_of_a_gpu():
    with in_place_of_cuda(PretendGPU()):
        x = X.half().cuda().requires_grad_()
        assert repr(x[0].detach()) == "tensor([0., 1., 2.], device='cuda:0', dtype=torch.float16)"
        assert repr(x).endswith("dtype=torch.float16, requires_grad=True)")
        assert repr(x * 2).endswith("grad_fn=<MulBackward0>)")
        assert (f"{x[1, 1]:.2f}", x.type()) == ("4.00", "torch.cuda.HalfTensor")


@pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")
def test_lengths_of_a_packed_sequence_stay_on_the_host():
    with in_place_of_cuda(PretendGPU()) as gpu:
        packed = nn.utils.rnn.pack_padded_sequence(X.cuda()[..., None], [3, 2], batch_first=True)
        assert (packed.data.is_cuda, packed.batch_sizes.is_cpu) == (True, True)
        assert packed.batch_sizes.tolist() == [2, 2, 1]
        assert nn.LSTM(1, 2).cuda()(packed)[0].data.is_cuda
    assert not find_races(gpu.operations)
