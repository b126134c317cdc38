"""Errors in a GPipe: the original exception reaches the caller, says where it happened, and nothing hangs."""

import contextlib
import os
import signal
import threading
import traceback
import weakref

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lib.pipeline import is_recomputing, worker
from tests.lib.models import Function
from tests.lib.pipeline.small_gpipes import fail, gpipe, mlp, of, pipeline_threads, wait_until
from tests.lib.refusal import refuses


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
    assert told.value is mine
    assert mine.__notes__ == ["in micro-batch 1 of 3 in partition 1 of 3 (on cpu)"]
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
        patch.setattr(worker, "answer_of", lambda task: 1 / 0)
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
    assert wait_until(lambda: not any(x() is not None for x in seen))
    assert y.sum() == 12
