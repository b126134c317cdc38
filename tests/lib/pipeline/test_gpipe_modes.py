"""The modes of the thread that calls a GPipe: autocast reaches its workers, what no worker can have stays here."""

import contextlib
import contextvars
import copy
import subprocess
import sys
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lib.pipeline import GPipe
from tests.lib.models import Function
from tests.lib.pipeline.small_gpipes import MODES, fail, gpipe, mlp, of


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
    assert len(threads) == 2, "a default device changes nothing"
    assert threading.main_thread() not in threads, "a default device changes nothing"
    for mode in (Note(), torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x)):
        assert torch.equal(run(mode), expected)
        assert threads == {threading.main_thread()}
    assert operations.count("sin") == 4
    assert len(saved) == 2 * 3
    with FlopCounterMode(display=False), pytest.raises(ZeroDivisionError) as told:
        of(nn.Identity(), fail(ZeroDivisionError), chunks=2)(x)
    assert told.value.__notes__ == ["in micro-batch 0 of 2 in partition 1 of 2 (on cpu)"]


def test_torch_compile_leaves_it_alone_and_says_nothing(capfd):
    model = gpipe(mlp(2), chunks=2)
    x = torch.ones(4, 3)
    with warnings.catch_warnings(action="error"):
        y = torch.compile(model, backend="eager")(x)
    assert torch.equal(y, model(x))
    assert capfd.readouterr() == ("", "")


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
    assert y.dtype == torch.bfloat16
    assert seen == {torch.bfloat16}
    assert torch.equal(layers[1][0].bias.grad, torch.full((2,), 4.0))  # one for each row
    assert all(parameter.grad is not None for parameter in model.parameters())


NUMBER = contextvars.ContextVar("number", default=1)


class TimesNumber(nn.Module):
    """Multiply by what the caller's context says, and leave another number there."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        number = NUMBER.get()
        NUMBER.set(100)
        return x * self.weight * number


@pytest.mark.parametrize("checkpoint", ["always", "except_last", "never"])
def test_layers_see_the_callers_contextvars_in_forward_and_when_they_are_computed_again(checkpoint):
    model = GPipe(nn.Sequential(TimesNumber(), TimesNumber()), [1, 1], devices=["cpu"] * 2, chunks=2)
    model.checkpoint = checkpoint
    token = NUMBER.set(9)
    y = model(torch.ones(4, 1))
    NUMBER.reset(token)
    y.sum().backward()
    assert y.flatten().tolist() == [81.0] * 4
    assert [p.grad.item() for p in model.parameters()] == [4 * 81.0] * 2
    assert NUMBER.get() == 1


def test_a_script_with_a_pipeline_of_its_own_ends():
    """Its workers are no reason to stay."""
    script = """
import torch
from torch import nn
from lib.pipeline import GPipe
model = GPipe(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), [1, 1], devices=["cpu"] * 2, chunks=2)
model(torch.ones(4, 2)).sum().backward()
print("trained")
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "trained\n"), ended.stderr
