"""What notebook 13 runs where streams really run: races as wrong numbers, times by a device's clock, blocks of memory.

Functions of a `gpu` stand in the notebook word for word: where there is no device their recorded results are shown.
"""

# mypy: allow-untyped-calls, allow-untyped-defs, disable-error-code="no-any-return,var-annotated"

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lib.runtime.device import active_bytes, reset_peak
from lib.simulated import Kernel, Link, profile, start
from lib.timeline import Span, Trace
from support.devices import InPlaceOfADevice, RealStreams, key_of, key_of_often, start_device
from support.n13.device_judge import KERNEL, numbers_of
from support.n13.exhibits import EXHIBITS, RIGHT, handed_over, refilled, shared_buffer
from support.n13.prefetchers import by_order, in_the_loop, loaded, without_a_bound
from support.n13.prefetching import one_ahead
from support.n13.runs import WAYS
from support.n13.streaming import stream_chunks
from support.n13.timing import device_ms
from support.overlap import LANES

__all__ = ["handed_over", "refilled", "shared_buffer"]  # a recording asks this module for them

LATE = 0.5
"""Seconds; far more than the host needs for a launch, also on a busy machine."""
TIMES = 200
"""How often the notebook runs early_read without being late."""
FEW = 10
"""How often it runs an exhibit, and a loop without one of its waits."""
NAN = -1.0
"""Stands for nan in a recording."""
SLEEPS = (0, 0.02)
"""Seconds by which the exhibits' kernels, or copies, are late."""
COUNTS = (1, 2, 4, 8, 16, 32, 64)
SHORT = (20, 0.0005, 0.003, 0)
"""Kernels, the seconds of each, and of the host before it, which are more; behind nothing else."""
DISTURBED = ("nothing", "late kernels", "slow copies")

timed = device_ms  # as the notebook names what it goes on with
prefetch = one_ahead
stream = stream_chunks


# ---- section 1: a race as a wrong number


def early_read(gpu, waits, late):
    """Copy ones in a side stream; add them up in the current one, behind a wait or without."""
    batch = gpu.host(torch.ones(1_000_000), "batch 0")
    y = gpu.empty_like(batch).zero_()
    side = gpu.new_stream("side")
    side.wait_stream(gpu.current_stream())  # the zeros are in their place: this wait always stays
    with gpu.use_stream(side):
        gpu.sleep(late)
        y.copy_(batch, non_blocking=True)
    if waits:
        gpu.current_stream().wait_stream(side)
    return y.sum()


# ---- section 2: what a wait costs


def end_of_kernels(gpu, way, copy=2, kernel=3):
    """Return when the last of three kernels has ended, in ticks of 20 ms."""
    tick = 0.02
    compute = gpu.current_stream()
    side = compute if way == "one stream" else gpu.new_stream()
    gpu.synchronize()
    began = time.perf_counter()
    events = []
    for _ in range(3):
        with gpu.use_stream(side):
            gpu.sleep(copy * tick)
            events.append(side.record_event())
    for event in events:
        if way == "wait_event":
            compute.wait_event(event)
        elif way == "wait_stream":
            compute.wait_stream(side)
        elif way == "synchronize":
            side.synchronize()
        gpu.sleep(kernel * tick)
    gpu.synchronize()
    return torch.tensor((time.perf_counter() - began) / tick)


# ---- section 4: whose clock


def by_the_host(gpu, waits, empty=False):
    """Return the ms of three kernels of 20 ms by the host's clock; one of 50 ms is in the stream before."""
    gpu.synchronize()
    gpu.sleep(0.05)
    if empty:
        gpu.synchronize()
    began = time.perf_counter()
    for _ in range(3):
        gpu.sleep(0.02)
    if waits:
        gpu.synchronize()
    return torch.tensor(1000 * (time.perf_counter() - began))


def by_events(gpu, kernels=3, kernel=0.02, pause=0.0, busy=0.05):
    """Return the ms of kernels by your timer. pause: seconds of the host before each; busy: of the device, first."""
    gpu.synchronize()
    gpu.sleep(busy)

    def work():
        for _ in range(kernels):
            time.sleep(pause)
            gpu.sleep(kernel)

    return torch.tensor(timed(work, torch.get_device_module(gpu.device)))


# ---- section 5: one batch ahead


LOOPS = {
    "in the loop": in_the_loop,
    "yours": prefetch,
    "without a bound": without_a_bound,
    "by order": by_order,
}


def epoch(gpu, loop, copy=0.01, step=0.02, drops=False, load=0):
    """Return ms of a copy alone, of a step alone, of a step in an epoch of 12, and the batches held at most."""
    size = 1 << (18 if gpu.is_simulated else 26)
    batches = [gpu.host(torch.full((size,), float(i))) for i in range(12)]
    module = torch.get_device_module(gpu.device)
    with gpu.slow(kernel=0, copy=copy):
        alone = timed(lambda: batches[0].to(gpu.device, non_blocking=True), module)
        slept = timed(lambda: gpu.sleep(step), module)
        gpu.synchronize()
        held = active_bytes(gpu.device, "current")
        reset_peak(gpu.device)
        began = time.perf_counter()
        for batch in LOOPS[loop](loaded(batches, load), gpu):
            gpu.sleep(step)
            batch.neg_()
            if drops:
                del batch
        gpu.synchronize()
        took = 1000 * (time.perf_counter() - began) / len(batches)
    return torch.tensor([alone, slept, took, (active_bytes(gpu.device, "peak") - held) / batches[0].nbytes])


# ---- section 6: three lanes


@contextmanager
def costing(gpu: RealStreams, numbers: int, costs: Sequence[float]) -> Iterator[None]:
    """Let the copy of so many numbers, the kernel over them, and each operation besides, take so many seconds.

    Only a simulated device can: CUDA is as fast as it is.
    """
    copy, compute, overhead = costs
    gpu.synchronize()
    if gpu.is_simulated:
        kernel = Kernel(flops=numbers / compute, launch=overhead)
        link = Link(latency=overhead, bandwidth=4 * numbers / copy)
        start(len(gpu.devices), memory=gpu.memory, kernel=kernel, host_link=link)
    try:
        yield
    finally:
        gpu.synchronize()
        if gpu.is_simulated:
            start(len(gpu.devices), memory=gpu.memory)


def work_for(gpu: RealStreams) -> tuple[Any, Any, Any]:
    """Return a tensor of the host, room for the result, and a stage: large on a GPU, small on a simulated one."""
    numbers, times = (1 << 18, 1) if gpu.is_simulated else (1 << 26, 40)

    def stage(part):
        part = part.sin()
        for _ in range(times - 1):
            part.sin_()
        return part

    return torch.ones(numbers).pin_memory(), torch.empty(numbers).pin_memory(), stage


def copied_over(parts, places):
    """Launch a copy of each part into its place."""
    return [place.copy_(part, non_blocking=True) for part, place in zip(parts, places, strict=True)]


def lanes_alone(gpu, *costs):
    """Return the ms of copying in, computing, copying out: in one operation, then in 64."""
    x, y, stage = work_for(gpu)
    buffer = gpu.empty_like(x).zero_()
    module = torch.get_device_module(gpu.device)
    rows = []
    with costing(gpu, len(x), costs):
        for chunks in (1, 64):
            lanes = (
                lambda: copied_over(x.chunk(chunks), buffer.chunk(chunks)),  # noqa: B023
                lambda: [stage(part) for part in buffer.chunk(chunks)],  # noqa: B023
                lambda: copied_over(buffer.chunk(chunks), y.chunk(chunks)),  # noqa: B023
            )
            rows.append([min(timed(lane, module) for _ in range(3)) for lane in lanes])
    return torch.tensor(rows)


def loop_ms(gpu, counts, *costs):
    """Return the ms of your loop for each number of chunks: the best of three rounds, taken in turns."""
    x, y, stage = work_for(gpu)
    rounds = []
    with costing(gpu, len(x), costs):
        for _ in range(3):
            rounds.append([])
            for chunks in counts:
                gpu.synchronize()
                began = time.perf_counter()
                stream(gpu, stage, x.chunk(chunks), y.chunk(chunks))
                rounds[-1].append(1000 * (time.perf_counter() - began))
    return torch.tensor(rounds).amin(0)


def seen_of_loop(gpu, chunks, *costs):
    """Return what the device itself noted of your loop: a row [lane, start, end] for each copy and kernel, in s."""
    x, y, stage = work_for(gpu)
    with costing(gpu, len(x), costs):
        return trace_rows(device_trace(gpu, lambda: stream(gpu, stage, x.chunk(chunks), y.chunk(chunks))))


def device_trace(gpu: RealStreams, work: Callable[[], object]) -> Trace:
    """Let the device note when each copy and kernel began and ended, on its own clock; in lanes by what they do."""
    if gpu.is_simulated:
        with profile() as found:
            work()
        spans: Sequence[Span] = found[0].spans
    else:
        spans = _profiled(work)
    return Trace([s for s in map(_in_its_lane, spans) if s is not None], LANES).from_zero()


def _profiled(work: Callable[[], object]) -> Sequence[Span]:
    """Return what torch's profiler has heard of a GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        work()
        torch.cuda.synchronize()
    with TemporaryDirectory() as folder:
        file = str(Path(folder, "profile.json"))
        profiler.export_chrome_trace(file)
        return Trace.from_chrome(file).spans


def _in_its_lane(span: Span) -> Span | None:
    """Name a span after its lane; None for what is neither copy nor kernel of the device."""
    label = span.label.lower()
    if "copy from host" in label or "htod" in label:
        return Span(LANES[0], "C", span.start, span.end, "copy")
    if "copy to host" in label or "dtoh" in label:
        return Span(LANES[2], "D", span.start, span.end, "copy")
    if span.kind in ("compute", "kernel"):
        return Span(LANES[1], "F", span.start, span.end, "compute")
    return None


def trace_rows(trace: Trace) -> torch.Tensor:
    """Return a trace as numbers: [lane, start, end]."""
    return torch.tensor(
        [[LANES.index(span.lane), span.start, span.end] for span in trace], dtype=torch.float64
    )


def trace_of(rows: Sequence[Sequence[float]]) -> Trace:
    """Return the trace that was made into these rows; spans are numbered lane by lane."""
    counts = dict.fromkeys(LANES, 0)
    spans = []
    for number, start_time, end_time in sorted(rows, key=lambda row: row[1]):
        lane = LANES[int(number)]
        label = f"{'CFD'[int(number)]}{counts[lane]}"
        counts[lane] += 1
        spans.append(Span(lane, label, start_time, end_time, "compute" if lane == LANES[1] else "copy"))
    return Trace(spans, LANES)


# ---- section 7: break it


def numbers_without(gpu, wait, disturbed):
    """Return the results of the three-stream loop without one of its waits: 2, 3, 4, 5 are right, -1 stands for nan."""
    loop = partial(stream_chunks, kept="123405".replace(str(wait), ""))
    if disturbed == "slow copies":
        with gpu.slow_copies(1e6):
            numbers = numbers_of(gpu, loop, 0)
    else:
        numbers = numbers_of(gpu, loop, KERNEL if disturbed == "late kernels" else 0)
    return torch.tensor(numbers).nan_to_num(nan=-1)


def wrong_of(device: RealStreams | InPlaceOfADevice, exhibit: Callable[..., Any], late: float) -> str:
    """Say in how many runs an exhibit gave a wrong number, and which; of an edited one only a device can tell."""
    try:
        numbers = device.run_often(FEW, exhibit, late)
    except LookupError as error:
        return str(error)
    wrong = [number for number in numbers if number != RIGHT]
    told = f"{len(wrong)} of {FEW} runs are wrong"
    shown = ["nan" if number == NAN else f"{number:.0f}" for number in wrong]
    return f"{told}, such as {shown[0]} for {RIGHT:.0f}" if wrong else told


# ---- recorded for those who have no device


def record_streams() -> dict[str, Any]:
    """Return what the notebook's cells compute, on a simulated device."""
    device = start_device("early_read")
    if not isinstance(device, RealStreams) or not device.is_simulated:
        raise RuntimeError(f"early_read is recorded on a simulated device, and this is {device}")
    results: dict[str, dict[str, Any]] = {}

    def note(function: Any, *arguments: Any) -> None:
        results.setdefault(function.__name__, {})[key_of(*arguments)] = device.run(function, *arguments)

    def note_often(times: int, function: Any, *arguments: Any) -> None:
        key = key_of_often(times, *arguments)
        numbers = torch.tensor(device.run_often(times, function, *arguments)).nan_to_num(nan=NAN)
        results.setdefault(function.__name__, {})[key] = numbers.tolist()

    for waits in (False, True):
        for late in (0, LATE):
            note(early_read, waits, late)
        note_often(TIMES, early_read, waits, 0)
        note(by_the_host, waits)
    note(by_the_host, True, True)
    note(by_events)
    note(by_events, *SHORT)
    for way in WAYS:
        note(end_of_kernels, way)
        note(end_of_kernels, way, 0)
    for loop, (copy, load), drops in product(LOOPS, ((0.01, 0), (0.03, 0), (0.01, 0.03)), (False, True)):
        note(epoch, loop, copy, 0.02, drops, load)
    for copy in (0.01, 0.03):
        note(epoch, "without a bound", copy, 0.02, True, 0.02)
    for costs in COSTS:
        note(lanes_alone, *costs)
        note(loop_ms, COUNTS, *costs)
    note(seen_of_loop, 4, *COSTS[0])
    for wait, disturbed in product((1, 2, 3, 4), DISTURBED):
        note_often(FEW, numbers_without, wait, disturbed)
    for exhibit, late in product(EXHIBITS, SLEEPS):
        note_often(FEW, exhibit, late)
    return {"results": results}


COSTS = ((0.075, 0.1, 0.001), (0.075, 0.1, 0.004))
"""Seconds of copying in or out, of computing, and of each operation besides, as the notebook asks for them."""
