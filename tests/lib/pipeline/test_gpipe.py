"""GPipe as its users meet it: attributes, errors, and results equal to those of the plain nn.Sequential."""

import contextlib
import copy
import gc
import io
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
import weakref
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lib.pipeline import GPipe, flatten_sequential, is_recomputing, pop, skippable, stash, worker
from lib.pipeline.checkpoint import is_checkpointing
from tests.lib.models import Function
from tests.lib.refusal import refuses

MODES = ["always", "except_last", "never"]
CPU = ["cpu"] * 4


def mlp(layers=4, width=3):
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -1, 1, generator=generator)
    return model


def gpipe(module, balance=None, **arguments):
    return GPipe(module, balance or [1] * len(module), **{"devices": CPU, **arguments})


def of(*functions, **arguments):
    """A GPipe with a layer, and a partition, for each function or module."""
    made = [function if isinstance(function, nn.Module) else Function(function) for function in functions]
    return gpipe(nn.Sequential(*made), **arguments)


def pipeline_threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("partition ")}


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


# --- what it looks like
def test_its_attributes():
    model = GPipe(mlp(3), (1, 2), devices=iter(CPU), chunks=42.0, checkpoint="always")
    assert model.balance == [1, 2] and model.devices == [torch.device("cpu")] * 2
    assert model.chunks == 42 and type(model.chunks) is int and model.checkpoint == "always"
    assert isinstance(model.partitions, nn.ModuleList) and [len(part) for part in model.partitions] == [1, 2]
    assert GPipe(mlp(1), [1], devices=CPU).checkpoint == "except_last"
    if torch.cuda.is_available():
        assert GPipe(mlp(1), [1]).devices == [torch.device("cuda", 0)]
    else:
        assert GPipe(mlp(2), [1, 1]).devices == [torch.device("cpu")] * 2


def test_it_is_a_sequence_of_its_layers_and_without_any_returns_its_input():
    module = nn.Sequential(OrderedDict(a=nn.Linear(1, 1), b=nn.ReLU(), c=nn.Linear(1, 1)))
    model = gpipe(module, [2, 1])
    assert len(model) == 3 and list(model) == list(module)
    assert model[0] is module.a and model[2] is model[-1] is module.c and model[-3] is module.a
    for outside in (3, -4):
        refuses(IndexError, "", model.__getitem__, outside)
    assert {"partitions.0.a", "partitions.0.b", "partitions.1.c"} <= dict(model.named_modules()).keys()
    refuses(AttributeError, "", getattr, model, "a")
    model = GPipe(nn.Sequential(), [])
    assert model(torch.tensor(42)).item() == 42 and model((torch.tensor(42),)) == (torch.tensor(42),)


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
    assert len(flat) == 4 and flat[1] is flat[3] is shared and type(flat[2]) is Own
    x = torch.randn(3, 2)
    assert torch.equal(flat(x), nested(x))
    refuses(TypeError, "Linear", flatten_sequential, nn.Linear(1, 1))


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


# --- checkpoint modes
@pytest.mark.parametrize("rows", [8, 3, 1])
@pytest.mark.parametrize("mode", MODES)
def test_which_micro_batches_are_checkpointed(mode, rows):
    """Fault 2: with fewer rows than chunks, "except_last" still leaves out the last."""
    seen = []
    m = min(rows, 4)
    model = of(lambda x: seen.append(is_checkpointing()) or x * 1, chunks=4, checkpoint=mode)
    model(torch.ones(rows, 1, requires_grad=True))
    assert seen == {"always": [True] * m, "except_last": [True] * (m - 1) + [False], "never": [False] * m}[mode]


@pytest.mark.parametrize("how", ["eval", "no_grad", "inference_mode"])
def test_without_backward_nothing_is_checkpointed(how):
    seen = []
    note = lambda x: seen.append((is_checkpointing(), torch.is_grad_enabled())) or x  # noqa: E731
    model = of(note, chunks=2, checkpoint="always").train(how != "eval")
    with torch.enable_grad() if how == "eval" else getattr(torch, how)():
        y = model(torch.ones(2, 1))
    assert seen == [(False, how == "eval")] * 2 and y.is_inference() == (how == "inference_mode")


class InPlace(nn.Module):
    """SiLU in place: to do it twice is something else. when: at which calls (all)."""

    def __init__(self, when=None):
        super().__init__()
        self.when = when
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return nn.functional.silu(x, inplace=self.when is None or self.calls in self.when)


@pytest.mark.parametrize("checkpoint", MODES)
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("balance", [[3, 2], [1, 4], [2, 3]], ids=["begins", "first of the next", "behind a view"])
def test_a_partition_may_begin_in_place(balance, needs_grad, checkpoint):
    """The input is needed again: by the recomputation; by other micro-batches, which are views of the same tensor."""
    first = [InPlace()] if balance[0] == 3 else [nn.Linear(3, 3)]
    plain = nn.Sequential(*first, nn.Flatten(), InPlace(), nn.Linear(3, 3), nn.Tanh())
    model = gpipe(copy.deepcopy(plain), balance, chunks=3, checkpoint=checkpoint)
    leaves = [torch.linspace(-3, 3, 21).reshape(7, 3).requires_grad_(needs_grad) for _ in range(2)]
    for module, leaf in zip((plain, model), leaves, strict=True):
        y = module(leaf * 1)
        for _ in range(2):  # the second time from what is still there
            y.square().sum().backward(retain_graph=True)
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_what_a_partition_wrote_into_has_its_gradient_but_not_into_a_later_micro_batch_only():
    scale = nn.Linear(1, 1)
    model = of(lambda x: x.mul_(scale.weight), scale, chunks=2, checkpoint="always")
    x = torch.ones(4, 1)
    model(x)[:2].sum().backward()
    assert scale.weight.grad.item() == 2 * 2 * scale.weight.item() and x.tolist() == [[1]] * 4
    model = of(InPlace(when=[2]), nn.Linear(3, 3), chunks=2, checkpoint="always")
    refuses(RuntimeError, "tensor 0 of the input was changed in place.* inplace=False", model, torch.ones(4, 3))


@pytest.mark.parametrize("checkpoint", MODES)
def test_a_parameter_that_the_loss_does_not_depend_on_has_no_gradient_not_zeros(checkpoint):
    """Zeros would let AdamW's weight decay move it."""

    @skippable(stash=["side"])
    class Put(nn.ModuleDict):
        def forward(self, x):
            yield stash("side", self["side"](x))
            return self["main"](x)

    @skippable(pop=["side"])
    class Get(nn.Module):
        def forward(self, x):
            return (yield pop("side")) * 2

    model = gpipe(nn.Sequential(nn.Linear(2, 2), Function(torch.detach), nn.Linear(2, 2)), checkpoint=checkpoint)
    model(torch.ones(2, 2)).sum().backward()
    assert [p.grad is None for p in model.parameters()] == [True, True, False, False]
    model = gpipe(
        nn.Sequential(Put({"main": nn.Linear(2, 2), "side": nn.Linear(2, 2)}), nn.Linear(2, 2), Get()),
        chunks=2,
        checkpoint=checkpoint,
    )
    model(torch.ones(4, 2)).sum().backward()
    assert model[0]["main"].weight.grad is None and model[1].weight.grad is None
    assert model[0]["side"].bias.grad.tolist() == [8, 8], "what the last layer popped, though it ignored its input"


# --- what is recomputed is what ran
@pytest.mark.parametrize(
    "change, named",
    [
        (lambda model: model.eval(), "Sequential.training, Linear.training"),
        (lambda model: model[1].eval(), "Dropout.training"),
        (lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(3, 3))), "Linear.weight"),
        (lambda model: setattr(model[0], "bias", None), "Linear.bias"),
        (lambda model: nn.init.ones_(model[0].weight), "Linear.weight"),
        (lambda model: setattr(model[0].weight, "data", torch.ones(3, 3)), "Linear.weight"),
    ],
)
def test_a_module_that_changed_since_forward_is_not_recomputed(change, named):
    model = of(nn.Linear(3, 3), nn.Dropout(0.5), nn.Linear(3, 3), chunks=2, checkpoint="always")
    model(torch.ones(4, 3)).sum().backward()
    y = model(torch.ones(4, 3))
    change(model)
    refuses(RuntimeError, f"{named} changed between forward and backward", y.sum().backward)


def test_to_eval_and_back_and_a_lazy_layer_are_no_change():
    model = of(nn.LazyLinear(3), nn.Dropout(0.5), chunks=2, checkpoint="always")
    y = model(torch.ones(4, 3))
    model.eval()(torch.ones(4, 3))
    model.train()
    y.sum().backward()
    assert model[0].weight.grad is not None


@pytest.mark.parametrize("checkpoint", MODES)
def test_functional_call_needs_never(checkpoint):
    model = gpipe(mlp(2), chunks=2, checkpoint=checkpoint)
    given = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    y = torch.func.functional_call(model, given, torch.ones(4, 3))
    if checkpoint == "never":
        y.sum().backward()
        assert all(p.grad is not None for p in given.values()) and all(p.grad is None for p in model.parameters())
    else:
        refuses(RuntimeError, "Linear.weight, Linear.bias changed", y.sum().backward)


@pytest.mark.parametrize("checkpoint, calls", [("always", 4), ("except_last", 4), ("never", 1)])
def test_a_hook_of_a_parameter_sees_the_gradient_in_parts(checkpoint, calls):
    model = gpipe(mlp(1), chunks=4, checkpoint=checkpoint)
    seen = []
    after = []
    model[0].bias.register_hook(lambda grad: seen.append(grad.clone()))
    model[0].bias.register_post_accumulate_grad_hook(after.append)
    y = model(torch.ones(8, 3))
    y.sum().backward()
    assert len(seen) == len(after) == calls and sum(seen).tolist() == model[0].bias.grad.tolist() == [8, 8, 8]
    if checkpoint == "always":
        refuses(RuntimeError, "not have been used", torch.autograd.grad, model(torch.ones(8, 3)).sum(), [model[0].bias])


# --- modes of the caller
@pytest.mark.parametrize("checkpoint", MODES)
def test_flops_are_counted_those_of_the_recomputation_too(checkpoint):
    plain = mlp()
    x = torch.ones(4, 3, requires_grad=True)
    model = gpipe(copy.deepcopy(plain), [2, 2], chunks=4, checkpoint=checkpoint)
    counts = []
    for module in (plain, model):
        with FlopCounterMode(display=False) as counter:
            y = module(x)
            forward = counter.get_total_flops()
            y.sum().backward()
        counts.append((forward, counter.get_total_flops()))
    (forward, both), ours = counts
    assert ours == (forward, both + forward * {"always": 4, "except_last": 3, "never": 0}[checkpoint] / 4)


def test_what_only_the_calling_thread_can_do_is_done_there():
    threads = set()
    operations = []
    saved = []

    class Note(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            operations.append(function.__name__)
            return function(*args, **(kwargs or {}))

    def note(x):
        threads.add(threading.current_thread())
        return x.sin()

    model = of(note, nn.Dropout(0.5), note, chunks=2, checkpoint="never")
    x = torch.ones(4, 3, requires_grad=True)

    def run(mode):
        torch.manual_seed(0)
        threads.clear()
        with mode:
            return model(x)

    with torch.device("cpu"):
        expected = run(contextlib.nullcontext())
    assert len(threads) == 2 and threading.main_thread() not in threads, "a default device changes nothing"
    for mode in (Note(), torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x)):
        assert torch.equal(run(mode), expected) and threads == {threading.main_thread()}
    assert operations.count("sin") == 4 and len(saved) == 2 * 3
    with FlopCounterMode(display=False), pytest.raises(ZeroDivisionError) as told:
        of(nn.Identity(), fail(ZeroDivisionError), chunks=2)(x)
    assert told.value.__notes__ == ["in micro-batch 0 of 2 in partition 1 of 2 (on cpu)"]


def test_torch_compile_leaves_it_alone_and_says_nothing(capfd):
    model = gpipe(mlp(2), chunks=2)
    x = torch.ones(4, 3)
    with warnings.catch_warnings(action="error"):
        y = torch.compile(model, backend="eager")(x)
    assert torch.equal(y, model(x)) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("checkpoint", MODES)
def test_autocast_reaches_the_workers_and_the_recomputation(checkpoint):
    """Fault 4. The weight cast in a checkpoint must not stand in for the one that the last micro-batch needs."""
    seen = set()
    note = lambda x: seen.add(x.dtype) or x  # noqa: E731
    layers = [nn.Sequential(nn.Linear(2, 2), Function(note)) for _ in range(2)]
    model = of(*layers, chunks=2, checkpoint=checkpoint)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.ones(4, 2))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and seen == {torch.bfloat16}
    assert torch.equal(layers[1][0].bias.grad, torch.full((2,), 4.0))  # one for each row
    assert all(parameter.grad is not None for parameter in model.parameters())


# --- errors
def fail(kind, when=lambda: True):
    def layer(x):
        if when():
            raise kind("in the layer")
        return x

    return Function(layer)


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, MemoryError])
def test_whatever_a_layer_raises_ends_the_call(kind):
    """Faults 5 and 6: no hang, the same object, and a note that says where."""
    mine = kind("in the layer")

    def layer(x):
        if (x == 5).any():
            raise mine
        return x

    model = gpipe(nn.Sequential(nn.Identity(), Function(layer), nn.Identity()), chunks=3)
    with pytest.raises(kind) as told:
        model(torch.arange(9.0).reshape(9, 1))
    assert told.value is mine and mine.__notes__ == ["in micro-batch 1 of 3 in partition 1 of 3 (on cpu)"]
    frames = [frame.name for frame in traceback.extract_tb(mine.__traceback__)]
    assert "layer" in frames, "the traceback leads into the layer"
    assert model(torch.zeros(3, 1)).shape == (3, 1), "and the model can be used again"


def test_an_error_in_backward_says_where_as_well():
    y = of(nn.Linear(1, 1), fail(ZeroDivisionError, is_recomputing), chunks=2, checkpoint="always")(torch.ones(4, 1))
    with pytest.raises(ZeroDivisionError) as told:
        y.sum().backward()
    assert told.value.__notes__ == ["while recomputing micro-batch 1 of 2 in partition 1 of 2 (on cpu)"]


@pytest.mark.parametrize("here", [False, True])
def test_of_several_errors_in_a_clock_the_first_partition_is_heard_and_no_further_clock_begins(here):
    calls = []
    with FlopCounterMode(display=False) if here else contextlib.nullcontext(), pytest.raises(KeyError):
        of(fail(KeyError, lambda: bool(calls) or calls.append(1)), fail(IndexError), chunks=2)(torch.ones(2, 1))
    calls.clear()
    with pytest.raises(ZeroDivisionError):
        of(lambda x: calls.append(1) or x, fail(ZeroDivisionError), chunks=9)(torch.ones(9, 1))
    assert len(calls) == 2


@pytest.mark.parametrize("output", ["text", None, [torch.ones(1)], (torch.ones(1), None)])
def test_a_layer_that_returns_no_tensors_is_a_type_error_that_says_where(output):
    with pytest.raises(TypeError, match="expected a Tensor") as told:
        of(lambda x: output, nn.Identity())(torch.ones(1, 1))
    assert "partition 0 of 2" in told.value.__notes__[0]


@pytest.mark.skipif(os.name == "nt", reason="needs signals as POSIX has them")
def test_ctrl_c_ends_the_call_though_a_layer_is_still_at_work():
    """Thirty times: now and then the signal comes when the caller is about to sleep, which it doesn't prevent."""
    release = threading.Event()
    waited = []

    def layer(x):
        if not release.is_set():
            os.kill(os.getpid(), signal.SIGINT)
            waited.append(release.wait(20))
        return x

    model = of(layer, chunks=2)
    for _ in range(30):
        refuses(KeyboardInterrupt, "", model, torch.ones(2, 1))
        assert waited == [], "the caller has it before the layer has ended"
        release.set()
        assert model(torch.ones(2, 1)).tolist() == [[1], [1]], "new workers: the old answer is not taken for a new one"
        assert wait_until(lambda: waited)
        release.clear(), waited.clear()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_dies_ends_the_call(monkeypatch):
    model = gpipe(mlp(2), chunks=2)
    before = pipeline_threads()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "attempt", lambda task: 1 / 0)
        refuses(RuntimeError, "a worker has ended", model, torch.ones(2, 3))
    assert wait_until(lambda: not pipeline_threads() - before)
    assert model(torch.ones(2, 3)).shape == (2, 3), "and the next one has others"


def test_no_micro_batch_is_kept_after_a_run_and_no_tensor_by_an_error_once_it_is_handled():
    model = gpipe(nn.Sequential(fail(ZeroDivisionError)))
    x = torch.ones(1, 1)
    gone = weakref.ref(x)
    with contextlib.suppress(ZeroDivisionError):
        model(x)
    del x
    assert gone() is None, "no circle that only the garbage collector would find"
    seen = []
    model = of(lambda x: x * 2, lambda x: seen.append(weakref.ref(x)) or x + 1, chunks=2)
    with torch.no_grad():
        y = model(torch.ones(4, 1))
    assert wait_until(lambda: not any(x() is not None for x in seen)) and y.sum() == 12


# --- workers, copies, files
def test_workers_are_kept_between_forwards_and_go_with_the_model():
    """Fault 11."""
    before = pipeline_threads()
    seen = []
    model = of(lambda x: seen.append(threading.current_thread()) or x, nn.Identity())
    for _ in range(3):
        model(torch.ones(2, 1))
    mine = pipeline_threads() - before
    assert len(mine) == 2 and set(seen) < mine
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
    assert twin.partitions[0] is not model.partitions[0] and twin.devices == model.devices
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
