"""The pipeline on a GPU: streams, copies that overlap, random numbers of the device, and memory as it is promised."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lib.pipeline import GPipe, Pipeline
from lib.pipeline.copy import Copy, Wait
from lib.runtime.device import (
    CPUStream,
    current_stream,
    default_stream,
    get_device,
    new_stream,
    on_accelerator,
    record_stream,
    use_device,
    use_stream,
    wait_stream,
)
from lib.timeline import Recorder
from tests.gpu.common import (
    GPU,
    KIND,
    MODES,
    First,
    Last,
    Slow,
    assert_equal_gradients,
    gpu,
    let_it_cost,
    memory_at_rest,
    sized,
    sleep,
)

LONG = 0.05  # seconds of a kernel that does nothing


def places():
    all_gpus = [f"{KIND}:{k % gpu.device_count()}" for k in range(3)]
    several = [all_gpus] if gpu.device_count() > 1 else []
    one = str(GPU)
    return [[one] * 3, [one, "cpu", one], ["cpu", one, "cpu"], *several]


def cnn():
    middle = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(First(2, 4), middle, Last(4, 2)).double()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [8, 7])
def test_a_cnn_with_a_skip_equals_the_plain_one_wherever_its_partitions_are(mode, rows):
    for devices in places():
        plain = cnn()
        model = GPipe(copy.deepcopy(plain), [1, 1, 1], devices=devices, chunks=1, checkpoint=mode)
        x = torch.randn(rows, 2, 6, 6, dtype=torch.float64)
        inputs = [x.clone().to(devices[0]).requires_grad_(), x.clone().requires_grad_()]
        outputs = [model(inputs[0]), plain(inputs[1])]
        assert outputs[0].device == model.devices[-1]
        torch.testing.assert_close(outputs[0].cpu(), outputs[1])
        for output in outputs:
            output.square().sum().backward()
        torch.testing.assert_close(inputs[0].grad.cpu(), inputs[1].grad)
        assert_equal_gradients(model, plain)


@pytest.mark.parametrize("mode", MODES)
def test_many_micro_batches_equal_the_plain_module(mode):
    for devices in places():
        plain = nn.Sequential(*[nn.Linear(64, 64) for _ in range(3)]).double()
        model = GPipe(copy.deepcopy(plain), [1, 1, 1], devices=devices, chunks=7, checkpoint=mode)
        x = torch.randn(100, 64, dtype=torch.float64)
        for _ in range(5):  # memory is used again, which shows a stream that was not waited for
            model.zero_grad()
            plain.zero_grad()
            model(x.to(devices[0])).square().sum().backward()
            plain(x).square().sum().backward()
            assert_equal_gradients(model, plain)


@pytest.mark.parametrize("mode", MODES)
def test_masks_of_the_device_are_equal_when_recomputed_and_from_run_to_run(mode):
    class Dropouts(nn.Module):
        def forward(self, x):
            return F.dropout(x, 0.5) * (torch.rand(len(x), 1) > 0.2).to(x.device)  # draws on the CPU as well

    for devices in places():
        dropouts = nn.Sequential(Dropouts(), Dropouts(), Dropouts())
        model = GPipe(dropouts, [1, 1, 1], devices=devices, chunks=4, checkpoint=mode)
        outputs = []
        for _ in range(3):
            torch.manual_seed(0)
            x = torch.ones(16, 32, device=devices[0], requires_grad=True)
            y = model(x)
            y.sum().backward()
            assert torch.equal(y.bool().cpu(), x.grad.bool().cpu())
            outputs.append(y)
        assert torch.equal(outputs[0], outputs[1])
        assert torch.equal(outputs[0], outputs[2])


@pytest.mark.parametrize("mode", MODES)
def test_autocast_of_the_device_reaches_the_workers(mode):
    layers = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model = GPipe(layers, [1, 1], devices=[GPU] * 2, chunks=2, checkpoint=mode)
    with torch.autocast(KIND, dtype=torch.bfloat16):
        y = model(torch.ones(4, 8, device=GPU))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.equal(model[1].bias.grad, torch.full((8,), 4.0, device=GPU))


WIDTH = sized(cuda=2**20, simulated=2**14)


class Wide(nn.Module):
    def forward(self, x):
        for _ in range(8):
            x = x.tanh()
        return x


def peak(mode, pipeline=Pipeline, chunks=4):
    devices = [GPU] * 2
    model = GPipe(nn.Sequential(Wide(), Wide()), [1, 1], devices=devices, chunks=chunks, checkpoint=mode)
    model._pipeline = pipeline
    x = torch.ones(chunks, WIDTH, device=GPU, requires_grad=True)
    before = memory_at_rest()
    model(x).sum().backward()
    gpu.synchronize()
    return (gpu.max_memory_allocated() - before) / (WIDTH * 4)  # in activations of a micro-batch


def test_checkpoints_and_dependencies_hold_the_peak_down():
    class Untied(Pipeline):
        dependencies = False

    never = peak("never")
    always = peak("always")
    untied = peak("always", Untied)
    assert never > 4 * 2 * 8, "micro-batches × partitions × activations"
    assert always < never / 1.5
    assert always < untied < never


def test_spans_of_a_gpu_are_the_times_of_its_streams():
    model = GPipe(nn.Sequential(Slow(LONG), Slow(LONG)), [1, 1], devices=[GPU] * 2, chunks=2, checkpoint="always")
    model(torch.ones(2, 2, device=GPU))
    with Recorder() as recorder:
        model(torch.ones(2, 2, device=GPU, requires_grad=True)).sum().backward()
    trace = recorder.trace()
    assert [len(trace.only(kind=kind)) for kind in ("compute", "copy", "recompute", "backward")] == [4] * 4
    assert all(span.duration > 0.01 for span in trace if span.kind in ("compute", "recompute"))
    order = " ".join(f"{span.label}{span.lane[-1]}" for span in trace if span.kind in ("recompute", "backward"))
    assert order == "R11 B11 R01 R10 B01 B10 R00 B00"


def test_a_copy_overlaps_with_computing():
    if gpu.device_count() < 2:
        pytest.skip("needs two GPUs: on one there is nothing to copy")
    model = GPipe(nn.Sequential(Slow(LONG), Slow(LONG)), [1, 1], devices=[f"{KIND}:0", f"{KIND}:1"], chunks=4)
    x = torch.ones(4, sized(cuda=2**22, simulated=2**16), device=GPU)
    let_it_cost(peer_link=2e7)  # a micro-batch takes 13 ms
    model(x)
    with Recorder() as recorder, torch.no_grad():
        model(x)
    assert recorder.trace().overlap("copy", "compute") > 0


def test_streams_of_a_gpu():
    stream = new_stream(GPU)
    assert on_accelerator(stream)
    assert get_device(stream) == GPU
    assert stream != default_stream(GPU)
    with use_device(GPU), use_stream(stream):
        assert current_stream(GPU) == stream
    assert current_stream(GPU) == default_stream(GPU)


@pytest.mark.parametrize("source", ["cpu", "new"])
def test_waiting_for_a_stream(source):
    target = new_stream(GPU)
    waits = CPUStream if source == "cpu" else new_stream(GPU)
    with use_stream(target):
        sleep(LONG)
        x = torch.ones(100, 100, device=GPU)
    wait_stream(waits, target)
    if source == "cpu":
        assert target.query(), "the CPU has waited"
    with use_stream(waits):
        assert x.sum().item() == 10_000


def test_memory_that_another_stream_uses_is_not_given_away():
    x = torch.ones(1, device=GPU)
    address = x.data_ptr()
    stream = new_stream(GPU)
    record_stream(x, stream)
    with use_stream(stream):
        sleep(LONG)
    del x
    assert torch.ones(1, device=GPU).data_ptr() != address
    wait_stream(CPUStream, stream)
    assert torch.ones(1, device=GPU).data_ptr() == address


@pytest.mark.parametrize("pair", ["cpu gpu", "gpu cpu", "gpu new"])
def test_copy_and_wait_between_cpu_and_gpu(pair):
    streams = {"cpu": CPUStream, "gpu": current_stream(GPU), "new": new_stream(GPU)}
    prev, next = (streams[name] for name in pair.split())
    with use_stream(prev):
        if on_accelerator(prev):
            sleep(LONG)
        x = torch.ones(100, device=get_device(prev), requires_grad=True)
    (y,) = Copy.apply(prev, next, x)
    (y,) = Wait.apply(prev, next, y)
    with use_stream(next):
        assert y.sum().item() == 100
        y.norm().backward()
    with use_stream(prev):
        assert round(x.grad.sum().item()) == 10
