"""What a recorder sees of a run, the order of backward, and what that order is for: memory."""

import contextlib
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from lib.pipeline import GPipe, Pipeline
from lib.runtime.recording import device_span
from lib.schedules.distributed import EngineStage
from lib.timeline import Recorder
from tests.lib.accelerators import FakeAccelerator
from tests.lib.models import Function, hooked

CPU = ["cpu"] * 4


class Untied(Pipeline):
    dependencies = False


def recorded(checkpoint, pipeline=Pipeline, m=3, n=2, **arguments):
    layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(n)])
    model = GPipe(layers, [1] * n, devices=CPU, chunks=m, checkpoint=checkpoint)
    model._pipeline = pipeline
    recorder = Recorder()
    with recorder:
        model(torch.ones(2 * m, 4, **arguments)).sum().backward()
    return recorder.trace()


def order(trace, *kinds):
    return " ".join(f"{span.label}{span.lane[-1]}" for span in trace if span.kind in kinds)


TIED = "R21 B21 R11 R20 B11 R01 B20 R10 B01 B10 R00 B00"
UNTIED = "R21 R11 R01 B21 R20 B11 R10 B20 B01 R00 B10 B00"


@pytest.mark.parametrize("pipeline, expected", [(Pipeline, TIED), (Untied, UNTIED)])
@pytest.mark.parametrize("where", ["here", "in a new thread"])
def test_the_order_of_backward(pipeline, expected, where):
    """With fork and join a micro-batch is recomputed once the one after it is done; without, all at once."""
    for _ in range(3):
        if where == "here":
            trace = recorded("always", pipeline)
        else:  # whose nodes autograd counts from 0
            with ThreadPoolExecutor(1) as new:
                trace = new.submit(recorded, "always", pipeline).result()
        assert order(trace, "recompute", "backward") == expected


@pytest.mark.parametrize("checkpoint, expected", [
    ("always", dict(compute=6, copy=6, recompute=6, backward=6)),
    ("except_last", dict(compute=6, copy=6, recompute=4, backward=6)),
    ("never", dict(compute=6, copy=6, recompute=0, backward=6)),
])  # fmt: skip
def test_each_micro_batch_of_each_partition_has_its_spans(checkpoint, expected):
    trace = recorded(checkpoint)
    assert {kind: len(trace.only(kind=kind)) for kind in expected} == expected
    assert sorted(trace.lanes) == ["partition 0", "partition 1"]
    again = range(expected["recompute"] // 2)
    labels = {f"{letter}{i}" for letter in "FCRB" for i in range(3) if letter != "R" or i in again}
    assert {span.label for span in trace} == labels
    assert order(trace.only(kind="compute", lane="partition 0"), "compute") == "F00 F10 F20"


def test_spans_of_partitions_overlap_and_a_clock_waits_for_the_one_before():
    barrier = threading.Barrier(2, timeout=30)  # of partition 0 with micro-batch 1 and partition 1 with micro-batch 0
    layers = [Function(lambda x, j=j: barrier.wait() * 0 + x if int(x) + j == 1 else x) for j in range(2)]
    model = GPipe(nn.Sequential(*layers), [1, 1], devices=CPU, chunks=3)
    with Recorder() as recorder:
        model(torch.arange(3.0).view(3, 1))
    spans = {f"{span.label}{span.lane[-1]}": span for span in recorder.trace() if span.kind == "compute"}
    assert spans["F10"].start < spans["F01"].end
    assert spans["F01"].start < spans["F10"].end
    assert spans["F11"].start >= max(spans["F10"].end, spans["F01"].end)


def test_what_runs_outside_of_the_recorder_is_not_recorded_and_inside_the_graph_shows_copy_and_wait():
    model = GPipe(nn.Sequential(nn.Linear(1, 1)), [1], devices=CPU, chunks=2)
    recorder = Recorder()
    with recorder:
        y = model(torch.ones(2, 1))
        with Recorder() as inner:
            model(torch.ones(2, 1))
    y.sum().backward()
    model(torch.ones(2, 1))
    for each in (recorder, inner):
        assert order(each.trace(), "compute", "recompute", "backward") == "F00 F10"
    with pytest.raises(ZeroDivisionError), recorder:
        raise ZeroDivisionError
    model(torch.ones(2, 1))
    assert len(recorder.trace()) == 2, "an error ends the recording, too"

    def names(node, seen):
        if node is not None and node not in seen:
            seen.add(node)
            for before, _ in node.next_functions:
                names(before, seen)
        return {node.name() for node in seen}

    model = GPipe(nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), [1, 1], devices=CPU, chunks=2, checkpoint="always")
    with Recorder():
        drawn = names(model(torch.ones(2, 1)).grad_fn, set())
    ours = {"CopyBackward", "WaitBackward", "CheckpointBackward", "RecomputeBackward", "ForkBackward", "JoinBackward"}
    assert ours <= drawn
    assert ours - names(model(torch.ones(2, 1)).grad_fn, set()) == {"CopyBackward", "WaitBackward"}


# --- memory
class Live:
    """Count the tensors that autograd keeps for backward, now and at the peak."""

    def __init__(self):
        self.now = self.peak = 0
        self.lock = threading.RLock()  # a tensor may be let go while another one is counted

    def kept(self, x):
        with self.lock:
            self.now += 1
            self.peak = max(self.peak, self.now)
        packed = partial(lambda: x)
        weakref.finalize(packed, self.let_go)
        return packed

    def let_go(self):
        with self.lock:
            self.now -= 1


def keeps(live):
    """Three operations that keep one activation each; hooks are of the thread that computes, so they are set here."""
    weight = nn.Parameter(torch.ones(1))

    def layer(x):
        with torch.autograd.graph.saved_tensors_hooks(live.kept, lambda packed: packed()):
            for _ in range(3):
                x = x.tanh()
        return x * weight

    return Function(layer)


def peak(checkpoint, pipeline=Pipeline, m=4, n=3):
    live = Live()
    layers = nn.Sequential(*[keeps(live) for _ in range(n)])
    model = GPipe(layers, [1] * n, devices=CPU, chunks=m, checkpoint=checkpoint)
    model._pipeline = pipeline
    y = model(torch.ones(m, 1, requires_grad=True))
    after_forward = live.peak = live.now
    y.sum().backward()
    del y
    gc.collect()
    assert live.now == 0
    return after_forward, live.peak


@pytest.mark.parametrize("checkpoint, after_forward, most", [  # micro-batches × partitions × activations
    ("never", 4 * 3 * 3, 4 * 3 * 3), ("always", 0, 3 * 3), ("except_last", 3 * 3, 3 * 3),
])  # fmt: skip
def test_with_checkpoints_the_inside_of_one_micro_batch_a_partition_is_alive(checkpoint, after_forward, most):
    assert peak(checkpoint) == (after_forward, most)


@pytest.mark.parametrize("m", [4, 8])
def test_without_dependencies_the_peak_grows_with_the_micro_batches(m):
    """All micro-batches of the last partition are recomputed before the first of them goes backward."""
    tied = peak("always", m=m)[1]
    untied = peak("always", Untied, m=m)[1]
    assert tied == peak("always", m=4)[1], "the number of micro-batches does not matter"
    assert untied >= 3 * m > tied


def teller(j, recorder):
    """A layer that tells in backward which micro-batch comes by, and when."""
    weight = nn.Parameter(torch.ones(1))

    def told(i, _):
        now = recorder.now()
        recorder.add(f"partition {j}", f"B{i}", now, now, "told")

    # once more times 1: what is told lies behind the first node of the partition's backward
    return Function(lambda x: hooked(x * weight, partial(told, int(x[0, 0].detach()))) * 1)


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
@pytest.mark.parametrize("where", ["here", "after other work"])
def test_a_layer_goes_backward_within_the_span_of_its_partition(checkpoint, where):
    """The spans are no guess from other nodes of the graph: what the layers report lies inside of them."""
    recorder = Recorder()
    layers = nn.Sequential(*[teller(j, recorder) for j in range(2)])
    model = GPipe(layers, [1, 1], devices=CPU, chunks=3, checkpoint=checkpoint)
    if where == "after other work":  # autograd numbers nodes by thread: now this thread's numbers are far higher
        torch.stack([torch.ones(1, requires_grad=True) * k for k in range(500)]).sum().backward()
    with recorder:
        model(torch.arange(3.0).view(3, 1)).sum().backward()
    trace = recorder.trace()
    spans, told = ([span for span in trace if span.kind == kind] for kind in ("backward", "told"))
    assert [(span.label, span.lane) for span in spans] == [(one.label, one.lane) for one in told]
    if checkpoint != "never":  # there autograd may leave a partition and come back
        for span, one in zip(spans, told, strict=True):
            assert span.start <= one.start <= span.end


@pytest.mark.parametrize("checkpoint", ["never", "except_last", "always"])
@pytest.mark.parametrize("m, n", [(3, 2), (4, 3)])
def test_one_thread_goes_backward_in_one_span_at_a_time(checkpoint, m, n):
    """Each ends before the next begins, in whatever partition that is: what overlaps counts the same time twice."""
    spans = [span for span in recorded(checkpoint, m=m, n=n) if span.kind in ("backward", "recompute")]
    assert len([span for span in spans if span.kind == "backward"]) == m * n
    for before, after in pairwise(sorted(spans, key=lambda span: span.start)):
        assert before.end <= after.start


# --- on an accelerator, between two events of a stream
def test_spans_are_read_at_the_end_and_lie_on_the_recorders_clock(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    recorder = Recorder()
    with recorder:
        for label, seconds in (("F0", 3.0), ("F1", 2.0)):
            with device_span(gpu.stream, "compute", label, "compute"):
                gpu.work(seconds)
            gpu.host += 0.5
        assert gpu.waited == 0, "nothing waits while it runs"
        assert len(recorder.trace()) == 0
    found = {span.label: (span.start, span.end) for span in recorder.trace(from_zero=False)}
    assert found["F0"] == pytest.approx((10.0, 13.0), abs=1e-3)
    assert found["F1"] == pytest.approx((13.0, 15.0), abs=1e-3)


def test_an_action_of_torchs_engine_begins_when_its_stream_has_the_message_and_nothing_waits_for_its_end(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    recorder = Recorder()
    stage = EngineStage.__new__(EngineStage)
    stage.device = gpu.device
    stage.stage_index = 1
    stage.lane = "rank 1"
    with recorder:
        gpu.work(5.0)  # NCCL's wait() returns at once; the stream waits for the message
        with stage._doing("F", 0):
            gpu.work(2.0)
        assert gpu.waited == 0
    (span,) = recorder.trace(from_zero=False)
    assert (span.lane, span.label, span.kind) == ("rank 1", "1F0", "forward")
    assert (span.start, span.end) == pytest.approx((15.0, 17.0), abs=1e-3)


def test_a_span_of_work_that_raises_is_kept_and_without_a_recorder_no_event_is_made(monkeypatch):
    gpu = FakeAccelerator(monkeypatch)
    recorder = Recorder()
    with contextlib.suppress(ZeroDivisionError), recorder, device_span(gpu.stream, "compute", "F0", "compute"):
        gpu.work(1.0)
        raise ZeroDivisionError
    assert [span.duration for span in recorder.trace()] == pytest.approx([1.0])
    made = gpu.events
    with device_span(gpu.stream, "compute", "F0", "compute"):
        pass
    assert gpu.events == made
