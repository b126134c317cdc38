"""GPipe as its users meet it: attributes, refusals, results equal to the plain nn.Sequential's, workers, copies."""

import copy
import io
import os
import pickle
import re
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from lib.pipeline import BalanceError, GPipe, flatten_sequential
from tests.lib.pipeline.small_gpipes import CPU, MODES, gpipe, mlp, of, pipeline_threads, wait_until
from tests.lib.refusal import refuses


# --- what it looks like
def test_its_arguments_are_attributes_in_their_plain_types():
    model = GPipe(mlp(3), (1, 2), devices=iter(CPU), chunks=42.0, checkpoint="always")
    assert model.balance == [1, 2]
    assert model.devices == [torch.device("cpu")] * 2
    assert model.chunks == 42
    assert type(model.chunks) is int
    assert model.checkpoint == "always"
    assert isinstance(model.partitions, nn.ModuleList)
    assert [len(part) for part in model.partitions] == [1, 2]
    assert GPipe(mlp(1), [1], devices=CPU).checkpoint == "except_last"
    if torch.cuda.is_available():
        assert GPipe(mlp(1), [1]).devices == [torch.device("cuda", 0)]
    else:
        assert GPipe(mlp(2), [1, 1]).devices == [torch.device("cpu")] * 2


@pytest.mark.parametrize("balance, layers, fits", [(2, 3, "[2, 1]"), ("22", 4, "[2, 2]"), (2.0, 1, "[1]")])
def test_a_number_of_partitions_is_no_balance_and_is_told_one_that_fits_and_how_to_get_another(balance, layers, fits):
    words = rf"each partition has, as {re.escape(fits)}, not {balance!r}[\s\S]*balance_by_time"
    refuses(BalanceError, words, GPipe, mlp(layers), balance)


@pytest.mark.parametrize("devices", ["cpu", torch.device("cpu"), 0])
def test_one_device_is_no_list_of_them(devices):
    refuses(TypeError, "devices must be one for each partition, as", GPipe, mlp(2), [1, 1], devices=devices)


def test_a_device_that_is_not_here_is_refused_by_its_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = "torch sees no CUDA device here, so there is no 'cuda:1'; use 'cpu'"
    refuses(RuntimeError, words, GPipe, mlp(2), [1, 1], devices=["cpu", "cuda:1"])
    refuses(RuntimeError, "no device is called 'gpu0'", GPipe, mlp(2), [1, 1], devices=["cpu", "gpu0"])


def test_it_is_a_sequence_of_its_layers_and_without_any_returns_its_input():
    module = nn.Sequential(OrderedDict(a=nn.Linear(1, 1), b=nn.ReLU(), c=nn.Linear(1, 1)))
    model = gpipe(module, [2, 1])
    assert len(model) == 3
    assert list(model) == list(module)
    assert model[0] is module.a
    assert model[2] is model[-1] is module.c
    assert model[-3] is module.a
    for outside in (3, -4):
        refuses(IndexError, "", model.__getitem__, outside)
    assert {"partitions.0.a", "partitions.0.b", "partitions.1.c"} <= dict(model.named_modules()).keys()
    refuses(AttributeError, "", getattr, model, "a")
    model = GPipe(nn.Sequential(), [])
    assert model(torch.tensor(42)).item() == 42
    assert model((torch.tensor(42),)) == (torch.tensor(42),)


def test_nested_sequentials_are_flattened_on_request():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    shared = nn.ReLU()
    nested = nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), shared), Own(nn.Linear(2, 2)), nn.Sequential(nn.Sequential(shared))
    )
    flat = flatten_sequential(nested)
    assert [name for name, _ in flat.named_children()] == ["0_0", "0_1", "1"]  # named_children skips the repeated
    assert len(flat) == 4
    assert flat[1] is flat[3] is shared
    assert type(flat[2]) is Own
    x = torch.randn(3, 2)
    assert torch.equal(flat(x), nested(x))
    refuses(TypeError, "Linear", flatten_sequential, nn.Linear(1, 1))


HOOKS = ["register_forward_hook", "register_forward_pre_hook"]
HOOKS += ["register_full_backward_hook", "register_full_backward_pre_hook"]


@pytest.mark.parametrize("register", HOOKS)
def test_a_nested_sequential_that_calls_a_hook_stays_whole(register):
    nested = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Tanh()))
    called = []
    getattr(nested[0], register)(lambda *given: called.append(len(given)))
    flat = flatten_sequential(nested)
    assert [*flat] == [nested[0]]
    flat(torch.ones(1, 1, requires_grad=True)).sum().backward()
    assert len(called) == 1


def shared_parameter():
    first = nn.Sequential(nn.Linear(1, 1))
    second = nn.Sequential(nn.Linear(1, 1))
    second[0].weight = first[0].weight
    return nn.Sequential(first, second)


def shared_buffer():
    first = nn.BatchNorm1d(1)
    second = nn.BatchNorm1d(1)
    second.running_mean = first.running_mean
    second.running_var = first.running_var
    return nn.Sequential(nn.Sequential(first), second)


same = nn.Linear(1, 1)


@pytest.mark.parametrize(
    "module, arguments, error, message",
    [
        (mlp(2), dict(balance=None), ValueError, "balance is required.*lib.pipeline.balance"),
        (mlp(2), dict(balance=[1]), ValueError, r"module: 2, sum of balance: 1\).*lib.pipeline.balance"),
        (mlp(2), dict(balance=[3, -1]), ValueError, r"positive integer \(balance: \[3, -1\]\)"),
        (mlp(2), dict(balance=[0, 2]), ValueError, "positive"),
        (mlp(2), dict(balance=[2], chunks=0), ValueError, "chunks must be at least 1, not 0"),
        (mlp(2), dict(balance=[2], chunks=1.5), ValueError, "1.5"),
        (mlp(2), dict(balance=[2], checkpoint="sometimes"), ValueError, "'except_last', or 'never': 'sometimes'"),
        (nn.Sequential(same, same), dict(balance=[2]), ValueError, "duplicate children.*2, 1 different"),
        (shared_buffer(), dict(balance=[1, 1]), ValueError, "duplicate buffers of batch norms.*6, 4 different"),
        (shared_parameter(), dict(balance=[2]), ValueError, "duplicate parameters.*4, 3 different"),
        (mlp(3), dict(balance=[1, 1, 1], devices=["cpu"]), IndexError, r"devices: 1, partitions: 3"),
        (nn.Linear(1, 1), dict(balance=[1]), TypeError, "nn.Sequential.*Linear"),
        (nn.ModuleList([nn.Linear(1, 1)]), dict(balance=[1]), TypeError, "nn.Sequential"),
    ],
)
def test_a_wrong_argument_is_told_at_once(module, arguments, error, message):
    with pytest.raises(error) as told:
        GPipe(module, **{"devices": CPU, **arguments})
    assert told.match("(?s)" + message)


@pytest.mark.parametrize(
    "move",
    [
        lambda model: model.cuda(),
        lambda model: model.cpu(),
        lambda model: model.to("cpu"),
        lambda model: model.to(0),
        lambda model: model.to(torch.device("cpu")),
        lambda model: model.to(device="cpu"),
        lambda model: model.to(torch.ones(1)),
        lambda model: model.to(tensor=torch.ones(1)),
    ],
)
def test_it_cannot_be_moved_to_a_device_but_to_another_dtype(move):
    model = gpipe(mlp()).double()
    refuses(TypeError, "devices=", move, model)
    assert model.to(torch.float16)[0].weight.dtype == torch.float16
    assert model.to(dtype=torch.float32)[3].weight.dtype == torch.float32


@pytest.mark.parametrize("input", [42, "x", [torch.ones(1)], (torch.ones(1), 2), None])
def test_an_input_that_is_no_tensor_and_more_than_one_input_are_type_errors(input):
    for model in (gpipe(mlp()), GPipe(nn.Sequential(), [])):
        refuses(TypeError, "expected a Tensor", model, input)
    refuses(TypeError, "", gpipe(mlp()), torch.ones(1), torch.ones(1))


# --- equal to the plain module


@pytest.mark.parametrize("checkpoint", MODES)
def test_the_loss_may_use_the_second_output_alone_and_indices_go_in_and_out(checkpoint):
    arguments = dict(chunks=2, checkpoint=checkpoint)
    model = of(nn.Linear(2, 2), lambda x: (x * 2, x * 3), lambda xy: xy, **arguments)
    model(torch.ones(4, 2))[1].sum().backward()
    assert model[0].weight.grad.tolist() == [[12, 12]] * 2
    model = of(lambda x: (x * 2, x), lambda xy: xy, **arguments)
    if checkpoint != "except_last":  # there the last micro-batch is tied to the others by its input
        assert not model(torch.ones(4, 2))[1].requires_grad, "the input, handed on as it came"
    model = of(nn.Embedding(9, 4), nn.Linear(4, 5), lambda x: x.argmax(-1), **arguments)
    assert model(torch.arange(9)).dtype == torch.int64
    model = of(nn.Embedding(9, 4), nn.Linear(4, 5), **arguments)
    model(torch.arange(9)).sum().backward()
    assert model[0].weight.grad.abs().sum() > 0


# --- workers, copies, files
def test_workers_are_kept_between_forwards_and_go_with_the_model():
    """Fault 11."""
    before = pipeline_threads()
    seen = []
    model = of(lambda x: seen.append(threading.current_thread()) or x, nn.Identity())
    for _ in range(3):
        model(torch.ones(2, 1))
    mine = pipeline_threads() - before
    assert len(mine) == 2
    assert set(seen) < mine
    del model
    seen.clear()
    assert wait_until(lambda: not mine & pipeline_threads())


def test_two_threads_may_use_one_model_and_the_number_of_chunks_be_changed():
    model = gpipe(mlp(), [2, 2], chunks=4)
    x = torch.randn(8, 3)
    expected = model(x)
    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda _: [model(x) for _ in range(10)], range(3)))
    assert all(torch.equal(y, expected) for y in sum(got, []))
    model = gpipe(mlp(), [2, 2], chunks=2)
    x = torch.randn(6, 3)
    expected = model(x)
    model.chunks = 5
    torch.testing.assert_close(model(x), expected)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model)), "save"])
def test_a_copy_works_before_and_after_a_forward(way, used):
    """Fault 7."""

    def save(model):
        file = io.BytesIO()
        torch.save(model, file)
        return torch.load(io.BytesIO(file.getvalue()), weights_only=False)

    model = gpipe(mlp(), [2, 2], chunks=2)
    x = torch.randn(4, 3)
    if used:
        model(x).sum().backward()
    twin = (save if way == "save" else way)(model)
    assert twin.partitions[0] is not model.partitions[0]
    assert twin.devices == model.devices
    assert torch.equal(twin(x), model(x))
    twin(x).sum().backward()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, which this system does not have")
def test_a_forked_process_starts_workers_of_its_own():
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # an OpenMP team does not survive a fork
    try:
        model = gpipe(mlp(), [2, 2], chunks=2)
        x = torch.randn(4, 3)
        with torch.no_grad():
            expected = model(x)
            child = os.fork()
            if child == 0:
                os._exit(0 if torch.equal(model(x), expected) else 1)
        done = []
        assert wait_until(lambda: done or done.extend(filter(any, [os.waitpid(child, os.WNOHANG)])) or done)
        assert done[0][1] == 0
    finally:
        torch.set_num_threads(torch_threads)


def test_a_state_dict_of_the_plain_module_can_be_loaded():
    plain = nn.Sequential(OrderedDict(stem=nn.Linear(3, 3), norm=nn.BatchNorm1d(3), head=nn.Linear(3, 3)))
    twin = copy.deepcopy(plain)
    nn.init.zeros_(twin.stem.weight)
    model = gpipe(twin, [2, 1])
    assert "partitions.1.head.weight" in model.state_dict()
    model.load_state_dict(plain.state_dict())
    assert torch.equal(model[0].weight, plain.stem.weight)
    nn.init.ones_(model[0].weight)
    plain.load_state_dict(model.to_sequential().state_dict())
    assert plain.stem.weight.sum() == 9
    model.load_state_dict(model.state_dict())
    whole = nn.Sequential(model)
    whole.load_state_dict(whole.state_dict())
    whole.load_state_dict({f"0.{key}": value for key, value in plain.state_dict().items()})
    refuses(RuntimeError, "Missing", model.load_state_dict, {"stem.weight": plain.stem.weight})
