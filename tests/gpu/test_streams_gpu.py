"""lib.streams on a GPU: the results are right, the copies are hidden, and a planted race is seen in the data."""

import os
import subprocess
import sys
from itertools import cycle, islice, pairwise
from statistics import median

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, TensorDataset

from lib.measure import measure
from lib.streams import DevicePrefetcher, StreamPipeline, device_span
from lib.streams.gpu import Accelerator
from lib.timeline import Recorder, Trace, overlap_share
from support import recordings
from support.n13.checks import one_ahead
from support.overlap import LANES, predict_chunks
from tests.gpu.common import (
    GPU,
    active_bytes,
    forget,
    gpu,
    let_it_cost,
    memory_at_rest,
    sized,
    sleep,
)
from tools.project import ROOT

LONG = 0.03  # seconds of a kernel that does nothing
NUMBERS = sized(cuda=2**20, simulated=2**14)
"""Floats in a batch."""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_prefetched_epoch_is_the_loaders_epoch_on_the_device(workers, pinned, depth):
    data = TensorDataset(torch.arange(50), torch.arange(100.0).reshape(50, 2))
    loader = DataLoader(data, batch_size=8, num_workers=workers, pin_memory=pinned)
    prefetcher = DevicePrefetcher(loader, GPU, depth)
    for _ in range(2):
        pairs = list(zip(prefetcher, loader, strict=True))
        assert len(pairs) == len(prefetcher) == 7
        for ours, theirs in pairs:
            for x, y in zip(ours, theirs, strict=True):
                assert x.device == GPU
                assert torch.equal(x.cpu(), y)


MANY = sized(cuda=100_000, simulated=10_000)
STAGES = {
    "a model": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)),
    "a tuple": lambda x: (x * 2, x.sum(1)),
    "itself": lambda x: x,
    "a view": lambda x: x[:, 3:],
    "in place": lambda x: x.mul_(2),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("rows, chunks, depth", [(MANY, 16, 2), (MANY + 3, 64, 3), (1001, 7, 1), (3, 8, 2)])
def test_a_streamed_result_equals_the_unstreamed(stage, pinned, rows, chunks, depth):
    function = STAGES["a model"].to(GPU) if stage == "a model" else STAGES[stage]
    x = torch.randn(rows, 32, pin_memory=pinned)
    pipeline = StreamPipeline(function, chunks, device=GPU, depth=depth)
    for _ in range(3):  # memory is used again, which would show a wait that is missing
        with torch.no_grad():
            expected = function(x.to(GPU))
        got = pipeline(x)
        for ours, theirs in zip(*((y if isinstance(y, tuple) else (y,)) for y in (got, expected)), strict=True):
            assert ours.is_cpu
            torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-4, atol=1e-5)


def test_a_host_tensor_larger_than_its_share_goes_through():
    x = torch.ones(sized(cuda=2**14, simulated=2**10), 2**12, pin_memory=True)  # 256 MiB, 16 MiB
    pipeline = StreamPipeline(torch.sin, 32, device=GPU)
    pipeline(x[:64])
    before = memory_at_rest()
    pipeline(x)
    assert active_bytes("peak") - before <= (2 + 2 + 1) * x.nbytes / 32


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_device_holds_no_more_than_twice_depth_batches_however_fast_the_host(depth):
    batches = [torch.zeros(NUMBERS, pin_memory=True)] * 40
    before = memory_at_rest()
    for _ in DevicePrefetcher(batches, GPU, depth):
        sleep(LONG / 10)
    assert depth * batches[0].nbytes < active_bytes("peak") - before <= (2 * depth + 2) * batches[0].nbytes


def test_an_early_break_leaves_no_memory_taken():
    batches = [torch.zeros(NUMBERS, pin_memory=True) for _ in range(10)]
    before = memory_at_rest()
    for number, batch in enumerate(DevicePrefetcher(batches, GPU)):  # noqa: B007
        if number == 3:
            break
    del batch
    gpu.synchronize()
    assert active_bytes("current") == before


def seconds(work):
    return min(measure(work, device=GPU).samples)


def run_epoch(batches, steps, compute, *, ahead):
    """Return the spans of an epoch: copies in the loop itself, or ahead by a DevicePrefetcher. Computing only waits."""

    def in_the_loop():
        for i, x in enumerate(source):
            with device_span(gpu.current_stream(), "copy", f"C{i}", "copy"):
                y = x.to(GPU, non_blocking=True)
            yield y

    source = islice(cycle(batches), steps)
    with Recorder() as recorder:
        for i, _ in enumerate(DevicePrefetcher(source, GPU) if ahead else in_the_loop()):
            with device_span(gpu.current_stream(), "compute", f"F{i}", "compute"):
                sleep(compute)
    return recorder.trace(("copy", "compute"))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_a_step_takes_the_longer_of_copy_and_compute(ratio):
    batches = [torch.zeros(sized(cuda=2**26, simulated=2**18)).pin_memory() for _ in range(4)]
    let_it_cost(host_link=5e7)  # a batch takes 21 ms
    steps = 30
    warm = 10
    copy = seconds(lambda: batches[0].to(GPU, non_blocking=True))
    asked = ratio * copy * 0.005 / seconds(lambda: sleep(0.005))
    compute = seconds(lambda: sleep(asked))
    step = {}
    for ahead in (False, True):
        ends = [span.end for span in run_epoch(batches, steps, asked, ahead=ahead).only(kind="compute")]
        # without the filling of the pipeline, and of the others the median: a busy machine delays some of them
        step[ahead] = median(after - before for before, after in pairwise(ends[warm:]))
    # clocks drift and others use the link: which of the two a step is nearer to, no more
    assert step[True] < (max(copy, compute) + copy + compute) / 2 < step[False]


def test_only_a_prefetcher_hides_the_copies():
    batches = [torch.zeros(sized(cuda=2**25, simulated=2**17)).pin_memory() for _ in range(3)]
    let_it_cost(host_link=1e8)  # a batch takes 5 ms
    plain, ahead = (run_epoch(batches, 20, 0.0025, ahead=how) for how in (False, True))
    assert overlap_share(plain) < 0.1
    assert overlap_share(ahead) > 0.5


def test_chunks_overlap_and_the_number_says_so():
    x = torch.ones(sized(cuda=16384, simulated=64), 4096, pin_memory=True)  # 256 MiB, 1 MiB
    let_it_cost(host_link=2e7, kernel=4e7)  # each takes 52 ms
    on_device = x.to(GPU)
    back = torch.empty_like(x, pin_memory=True)
    copy_in = seconds(lambda: on_device.copy_(x, non_blocking=True))
    copy_out = seconds(lambda: back.copy_(on_device, non_blocking=True))
    times = max(1, round(copy_in / seconds(lambda: on_device.sin())))  # computing takes about as long as the copy

    def stage(y):
        z = y.sin()
        for _ in range(times - 1):
            z.sin_()
        return z

    def best(chunks, rows):
        traces = []
        pipeline = StreamPipeline(stage, chunks, device=GPU)
        for _ in range(6):  # the first one fills torch's pools of memory
            with Recorder() as recorder:
                pipeline(rows)
            traces.append(recorder.trace(LANES))
        return min(traces[1:], key=lambda trace: trace.makespan)

    compute = seconds(lambda: stage(on_device))
    # with nearly nothing to copy or to compute the device waits for the host
    launch = best(256, torch.ones(256, 1, pin_memory=True)).makespan / 256
    found = {count: best(count, x) for count in (1, 8, 16)}
    assert overlap_share(found[1]) < 0.1
    assert overlap_share(found[8]) > 0.4
    assert found[8].makespan < found[1].makespan
    for count, trace in found.items():
        predicted = predict_chunks(count, copy_in, compute, copy_out, launch=launch).makespan
        assert 0.5 < trace.makespan / predicted < 2, "the model does not know how copies slow each other"


def test_spans_do_not_hold_up_the_run():
    with Recorder() as recorder:
        stream = gpu.current_stream()
        with device_span(stream, "compute", "sleep", "compute"):
            sleep(LONG)
        assert not stream.query(), "the kernel still runs: nothing has waited for it"
    (span,) = recorder.trace()
    taken = measure(lambda: sleep(LONG), device=GPU).median
    assert 0.5 < span.duration / taken < 2, "its ticks are of a clock that changes"


def test_spans_of_host_and_device_are_on_one_clock():
    """In the best of ten tries: a busy machine may wake the host up late."""
    assert min(apart_by_share_of_a_kernel() for _ in range(10)) < 0.25


def apart_by_share_of_a_kernel():
    """Return how far what the host saw of a kernel lies from what the device says of it, at its start or its end."""
    gpu.synchronize()
    with Recorder() as recorder:
        with device_span(gpu.current_stream(), "device", "sleep", "compute"), recorder.span("host", "launch"):
            sleep(LONG)
        with recorder.span("host", "wait"):
            gpu.synchronize()
    device, host, wait = (next(s for s in recorder.trace() if s.label == name) for name in ("sleep", "launch", "wait"))
    return max(abs(device.start - host.start), abs(device.end - wait.end)) / device.duration


@pytest.mark.cuda_only(reason="torch's profiler asks CUPTI, which knows CUDA's kernels alone")
def test_the_profiler_sees_the_same_copies_and_the_same_overlap(tmp_path):
    x = torch.ones(2**13, 2**12, pin_memory=True)
    pipeline = StreamPipeline(lambda y: y.sin().cos().sin().cos(), 8)
    pipeline(x)
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler, Recorder() as recorder:
        pipeline(x)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    theirs = Trace.from_chrome(tmp_path / "trace.json").only(kind=("gpu_memcpy", "kernel"))
    ours = recorder.trace()
    for direction, lane in (("HtoD", "copy in"), ("DtoH", "copy out")):
        copies = [span for span in theirs if direction in span.label and span.duration > 1e-4]
        assert len(copies) == len(ours.only(lane=lane)) == 8
        seen = sum(span.duration for span in copies)
        assert 0.9 * seen < ours.busy(lane) < 1.5 * seen, "a span is its copy, and the gap before it is launched"
    assert overlap_share(ours) == pytest.approx(overlap_share(theirs, "gpu_memcpy", "kernel"), abs=0.3)


def read_prefetched(*, late_copy=False, late_reader=False):
    batches = [torch.full((4 * NUMBERS,), float(i), pin_memory=True) for i in range(1, 9)]
    prefetcher = DevicePrefetcher(batches, GPU)
    with gpu.stream(prefetcher._stream):  # so that there is no memory with the right values in the pool
        junk = [torch.full((4 * NUMBERS,), -1.0, device=GPU) for _ in range(6)]
        del junk
    gpu.synchronize()
    seen = []
    if late_copy:
        with gpu.stream(prefetcher._stream):
            sleep(10 * LONG)
    for batch in prefetcher:
        if late_reader:
            sleep(LONG)
        seen.append(torch.stack((batch.min(), batch.max())))
        del batch
    return [pair.tolist() for pair in seen]


RIGHT = [[float(i)] * 2 for i in range(1, 9)]


@pytest.mark.parametrize(
    "late, wait",
    [
        ("late_copy", "wait_event"),
        ("late_reader", "record_stream"),
    ],
)
def test_with_its_waits_every_batch_is_whole_and_a_missing_one_is_seen_in_the_data(monkeypatch, late, wait):
    assert read_prefetched(**{late: True}) == RIGHT
    forget(monkeypatch, wait)
    assert read_prefetched(**{late: True}) != RIGHT


def test_a_pipeline_without_waits_gives_a_wrong_result(monkeypatch):
    x = torch.arange(1.0, 17).repeat_interleave(NUMBERS).reshape(16, -1).pin_memory()

    def slow(y):
        sleep(LONG / 10)
        return y + 0

    assert torch.equal(StreamPipeline(slow, 16, device=GPU)(x), x)
    forget(monkeypatch, "wait_event")
    assert not torch.equal(StreamPipeline(slow, 16, device=GPU)(x), x)


PROGRAM = """
import torch
from lib.streams import StreamPipeline
if {planted}:
    torch.cuda.Stream.wait_event = lambda self, event: None
StreamPipeline(torch.sin, 4)(torch.ones(64, 1024, pin_memory=True))
"""


@pytest.mark.cuda_only(reason="torch's sanitizer listens to CUDA's calls alone")
@pytest.mark.parametrize("planted", [False, True])
def test_torchs_own_sanitizer_finds_the_missing_waits_and_nothing_else(planted):
    command = [sys.executable, "-c", PROGRAM.format(planted=planted)]
    environment = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ("possible data race" in done.stderr) == planted, done.stderr[-2000:]


@pytest.mark.cuda_only(reason="a recording names the GPU; what a simulated one takes is no GPU's")
def test_a_recording_made_here_is_whole(tmp_path, monkeypatch):
    saved = recordings.save_recording
    monkeypatch.setattr(recordings, "save_recording", lambda *a, **k: saved(*a, **k, folder=tmp_path / "recorded"))
    recordings.make_recording("chunk_speed_gpu")
    monkeypatch.setattr(recordings, "_REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    known = {recording.name: recording for recording in recordings.RECORDINGS}
    recordings.check_recording(recordings.load("chunk_speed_gpu"), known["chunk_speed_gpu"])


class OnThisGpu(TorchFunctionMode):
    """What is written for "cuda", as answers to exercises are, goes to the GPU that is here."""

    def __torch_function__(self, function, types, arguments=(), options=None):
        placed = [GPU if isinstance(x, str) and x == "cuda" else x for x in arguments]
        return function(*placed, **(options or {}))


def test_the_prefetcher_of_exercise_3_runs_on_a_gpu():
    batches = [torch.full((NUMBERS,), float(i), pin_memory=True) for i in range(8)]
    with OnThisGpu():
        seen = [batch.mean() for batch in one_ahead(batches, Accelerator(GPU))]
    assert [x.item() for x in seen] == [float(i) for i in range(8)]
