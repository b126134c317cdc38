"""lib.streams on a real GPU: the results are right, the copies are hidden, and a planted race is seen in the data."""

import os
import subprocess
import sys
from itertools import cycle, islice

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lib.measure import measure
from lib.streams import DevicePrefetcher, StreamPipeline, device_span
from lib.streams.gpu import Accelerator
from lib.timeline import Recorder, Trace, overlap_share
from support import recordings
from support.n13.checks import one_ahead
from support.overlap import LANES, predict_chunks
from tests.gpu.common import active_bytes, memory_at_rest
from tools.project import ROOT

LONG = 50_000_000  # clock ticks of a kernel that does nothing: some 30 ms


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_prefetched_epoch_is_the_loaders_epoch_on_the_device(workers, pinned, depth):
    data = TensorDataset(torch.arange(50), torch.arange(100.0).reshape(50, 2))
    loader = DataLoader(data, batch_size=8, num_workers=workers, pin_memory=pinned)
    prefetcher = DevicePrefetcher(loader, "cuda", depth)
    for _ in range(2):
        pairs = list(zip(prefetcher, loader, strict=True))
        assert len(pairs) == len(prefetcher) == 7
        for ours, theirs in pairs:
            for x, y in zip(ours, theirs, strict=True):
                assert x.is_cuda
                assert torch.equal(x.cpu(), y)


STAGES = {
    "a model": nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)),
    "a tuple": lambda x: (x * 2, x.sum(1)),
    "itself": lambda x: x,
    "a view": lambda x: x[:, 3:],
    "in place": lambda x: x.mul_(2),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("rows, chunks, depth", [(100_000, 16, 2), (100_003, 64, 3), (1001, 7, 1), (3, 8, 2)])
def test_a_streamed_result_equals_the_unstreamed(stage, pinned, rows, chunks, depth):
    function = STAGES["a model"].cuda() if stage == "a model" else STAGES[stage]
    x = torch.randn(rows, 32, pin_memory=pinned)
    pipeline = StreamPipeline(function, chunks, depth=depth)
    for _ in range(3):  # memory is used again, which would show a wait that is missing
        with torch.no_grad():
            expected = function(x.cuda())
        got = pipeline(x)
        for ours, theirs in zip(*((y if isinstance(y, tuple) else (y,)) for y in (got, expected)), strict=True):
            assert not ours.is_cuda
            torch.testing.assert_close(ours, theirs.cpu(), rtol=1e-4, atol=1e-5)


def test_a_host_tensor_larger_than_its_share_goes_through():
    x = torch.ones(2**14, 2**12, pin_memory=True)  # 256 MiB
    pipeline = StreamPipeline(torch.sin, 32)
    pipeline(x[:64])
    before = memory_at_rest()
    pipeline(x)
    assert active_bytes("peak") - before <= (2 + 2 + 1) * x.nbytes / 32


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_the_device_holds_no_more_than_twice_depth_batches_however_fast_the_host(depth):
    batches = [torch.zeros(2**20, pin_memory=True)] * 40
    before = memory_at_rest()
    for _ in DevicePrefetcher(batches, "cuda", depth):
        torch.cuda._sleep(LONG // 10)
    assert depth * batches[0].nbytes < active_bytes("peak") - before <= (2 * depth + 2) * batches[0].nbytes


def test_an_early_break_leaves_no_memory_taken():
    batches = [torch.zeros(2**20, pin_memory=True) for _ in range(10)]
    before = memory_at_rest()
    for number, batch in enumerate(DevicePrefetcher(batches, "cuda")):  # noqa: B007
        if number == 3:
            break
    del batch
    torch.cuda.synchronize()
    assert active_bytes("current") == before


def seconds(work):
    return min(measure(work, device="cuda").samples)


def run_epoch(batches, steps, cycles, *, ahead):
    """Return the spans of an epoch: copies in the loop itself, or ahead by a DevicePrefetcher. Computing only waits."""

    def in_the_loop():
        for i, x in enumerate(source):
            with device_span(torch.cuda.current_stream(), "copy", f"C{i}", "copy"):
                y = x.to("cuda", non_blocking=True)
            yield y

    source = islice(cycle(batches), steps)
    with Recorder() as recorder:
        for i, _ in enumerate(DevicePrefetcher(source, "cuda") if ahead else in_the_loop()):
            with device_span(torch.cuda.current_stream(), "compute", f"F{i}", "compute"):
                torch.cuda._sleep(cycles)
    return recorder.trace(("copy", "compute"))


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0])
def test_a_step_takes_the_longer_of_copy_and_compute(ratio):
    batches = [torch.zeros(256 << 18).pin_memory() for _ in range(4)]
    steps = 30
    warm = 10
    copy = seconds(lambda: batches[0].to("cuda", non_blocking=True))
    cycles = round(ratio * copy / seconds(lambda: torch.cuda._sleep(10_000_000)) * 10_000_000)
    compute = seconds(lambda: torch.cuda._sleep(cycles))
    step = {}
    for ahead in (False, True):
        ends = [span.end for span in run_epoch(batches, steps, cycles, ahead=ahead).only(kind="compute")]
        step[ahead] = (ends[-1] - ends[warm]) / (steps - 1 - warm)  # without the filling of the pipeline
    # clocks drift and others use the link: which of the two a step is nearer to, no more
    assert step[True] < (max(copy, compute) + copy + compute) / 2 < step[False]


def test_only_a_prefetcher_hides_the_copies():
    batches = [torch.zeros(2**25).pin_memory() for _ in range(3)]
    plain, ahead = (run_epoch(batches, 20, 5_000_000, ahead=how) for how in (False, True))
    assert overlap_share(plain) < 0.1
    assert overlap_share(ahead) > 0.5


def test_chunks_overlap_and_the_number_says_so():
    x = torch.ones(16384, 4096, pin_memory=True)  # 256 MiB
    on_device = x.cuda()
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
        pipeline = StreamPipeline(stage, chunks)
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
        stream = torch.cuda.current_stream()
        with device_span(stream, "compute", "sleep", "compute"):
            torch.cuda._sleep(LONG)
        assert not stream.query(), "the kernel still runs: nothing has waited for it"
    (span,) = recorder.trace()
    taken = measure(lambda: torch.cuda._sleep(LONG), device="cuda").median
    assert 0.5 < span.duration / taken < 2, "its ticks are of a clock that changes"


def test_spans_of_host_and_device_are_on_one_clock():
    torch.cuda.synchronize()
    with Recorder() as recorder:
        with device_span(torch.cuda.current_stream(), "device", "sleep", "compute"), recorder.span("host", "launch"):
            torch.cuda._sleep(LONG)
        with recorder.span("host", "wait"):
            torch.cuda.synchronize()
    device, host, wait = (next(s for s in recorder.trace() if s.label == name) for name in ("sleep", "launch", "wait"))
    assert abs(device.start - host.start) < 0.25 * device.duration > abs(device.end - wait.end)


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
    batches = [torch.full((2**22,), float(i), pin_memory=True) for i in range(1, 9)]
    prefetcher = DevicePrefetcher(batches, "cuda")
    with torch.cuda.stream(prefetcher._stream):  # so that there is no memory with the right values in the pool
        junk = [torch.full((2**22,), -1.0, device="cuda") for _ in range(6)]
        del junk
    torch.cuda.synchronize()
    seen = []
    if late_copy:
        with torch.cuda.stream(prefetcher._stream):
            torch.cuda._sleep(10 * LONG)
    for batch in prefetcher:
        if late_reader:
            torch.cuda._sleep(LONG)
        seen.append(torch.stack((batch.min(), batch.max())))
        del batch
    return [pair.tolist() for pair in seen]


RIGHT = [[float(i)] * 2 for i in range(1, 9)]


@pytest.mark.parametrize(
    "late, type_, wait",
    [
        ("late_copy", torch.cuda.Stream, "wait_event"),
        ("late_reader", torch.Tensor, "record_stream"),
    ],
)
def test_with_its_waits_every_batch_is_whole_and_a_missing_one_is_seen_in_the_data(monkeypatch, late, type_, wait):
    assert read_prefetched(**{late: True}) == RIGHT
    monkeypatch.setattr(type_, wait, lambda self, event: None)
    assert read_prefetched(**{late: True}) != RIGHT


def test_a_pipeline_without_waits_gives_a_wrong_result(monkeypatch):
    x = torch.arange(1.0, 17).repeat_interleave(2**20).reshape(16, -1).pin_memory()

    def slow(y):
        torch.cuda._sleep(LONG // 10)
        return y + 0

    assert torch.equal(StreamPipeline(slow, 16)(x), x)
    monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda self, event: None)
    assert not torch.equal(StreamPipeline(slow, 16)(x), x)


PROGRAM = """
import torch
from lib.streams import StreamPipeline
if {planted}:
    torch.cuda.Stream.wait_event = lambda self, event: None
StreamPipeline(torch.sin, 4)(torch.ones(64, 1024, pin_memory=True))
"""


@pytest.mark.parametrize("planted", [False, True])
def test_torchs_own_sanitizer_finds_the_missing_waits_and_nothing_else(planted):
    command = [sys.executable, "-c", PROGRAM.format(planted=planted)]
    environment = {**os.environ, "TORCH_CUDA_SANITIZER": "1"}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ("possible data race" in done.stderr) == planted, done.stderr[-2000:]


def test_a_recording_made_here_is_whole(tmp_path, monkeypatch):
    saved = recordings.save_recording
    monkeypatch.setattr(recordings, "save_recording", lambda *a, **k: saved(*a, **k, folder=tmp_path / "recorded"))
    recordings.make_recording("chunk_speed_gpu")
    monkeypatch.setattr(recordings, "_REPOSITORY", tmp_path)
    monkeypatch.chdir(tmp_path)
    known = {recording.name: recording for recording in recordings.RECORDINGS}
    recordings.check_recording(recordings.load("chunk_speed_gpu"), known["chunk_speed_gpu"])


def test_the_prefetcher_of_exercise_3_runs_on_a_real_gpu():
    batches = [torch.full((2**20,), float(i), pin_memory=True) for i in range(8)]
    seen = [batch.mean() for batch in one_ahead(batches, Accelerator(torch.device("cuda", 0)))]
    assert [x.item() for x in seen] == [float(i) for i in range(8)]
