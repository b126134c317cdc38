"""What notebook 13, CUDA streams, runs and measures: races, chunks, prefetching, bandwidth, preprocessing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, cycle, islice
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.cuda._sanitizer import EventHandler

from lib._values import integer
from lib.measure import measure
from lib.pipeline.microbatch import TensorOrTensors
from lib.pipeline.recording import device_span
from lib.streams.pipeline import StreamPipeline
from lib.streams.prefetch import DevicePrefetcher
from lib.streams.pretend import PretendGPU
from lib.streams.races import HOST, Operation, Region, happens_before, waits, without
from lib.timeline import Recorder, Span, Trace, overlap_share
from support.recordings import as_rows, measured_or_recorded, need_gpu
from support.runs import LANES, predict_chunks

# ---- A list of operations: read, timed, and run in any order that it allows.


def as_text(operations: Iterable[Operation]) -> str:
    """Return a line for each operation, numbered as in the list; records of events and allocations are left out."""
    rows = enumerate(operations)
    return "\n".join(f"{number:>3}  {op}" for number, op in rows if op.kind not in ("record", "allocate"))


def earliest(operations: Sequence[Operation], seconds: Callable[[Operation], float]) -> dict[int, Span]:
    """Return when each launch would run, by its number, if everything ran as soon as its stream and its waits allow.

    seconds: of a launch. Where the host stands still for a time, that is a span of kind "wait" in its lane.
    """
    clock, events, spans = {HOST: 0.0}, dict[int, float](), dict[int, Span]()
    for number, op in enumerate(operations):
        now = max(clock.get(op.lane, 0.0), clock[HOST])
        if op.kind == "launch":
            kind = "copy" if op.lane.startswith("copy") or op.label.startswith("C") else "compute"
            spans[number] = Span(op.lane, op.label, now, now + seconds(op), kind)
            clock[op.lane] = spans[number].end
        elif op.kind == "record" and op.event is not None:
            events[op.event] = now
        elif op.kind in ("wait", "synchronize") and op.event is not None:
            clock[op.lane] = max(now, events.get(op.event, 0.0))
            if op.lane == HOST and clock[HOST] > now:
                spans[number] = Span(HOST, "", now, clock[HOST], "wait")
    return spans


def orders(operations: Sequence[Operation], seed: int = 0) -> Iterator[list[int]]:
    """Yield orders in which a device may run the launches, at random, without end: each obeys happens-before."""
    known, generator = happens_before(operations), torch.Generator().manual_seed(seed)
    before: dict[int, set[int]] = {number: set() for number in known}
    for a, b in combinations(known, 2):
        lane = operations[a].lane
        if known[b].get(lane, 0) >= known[a][lane]:
            before[b].add(a)
    while True:
        order: list[int] = []
        left = list(known)
        while left:  # take one of those that wait for nothing any more
            ready = [number for number in left if before[number].isdisjoint(left)]
            order.append(ready[int(torch.randint(len(ready), (), generator=generator))])
            left.remove(order[-1])
        yield order


def replay(
    operations: Sequence[Operation], order: Sequence[int], contents: Mapping[Region, str]
) -> dict[Region, str]:
    """Run the launches in this order over memory that holds names, and return what it holds in the end.

    contents: the names at the beginning, such as "0" for the rows of chunk 0; memory that nobody wrote holds "?". A
    launch writes the names that it reads (without repetition, joined by "+").
    """
    memory = {(region.block, region.start): (region, name) for region, name in contents.items()}
    for number in order:
        op = operations[number]
        names = [memory.get((r.block, r.start), (r, "?"))[1] for r in op.reads]
        for region in op.writes:
            memory[region.block, region.start] = (region, "+".join(dict.fromkeys(names)) or op.label)
    return dict(memory.values())


# ---- Small programs on a PretendGPU: ways to wait for a side stream, and a damaged pipeline.

WAYS = ("one stream", "no wait", "wait_event", "wait_stream", "synchronize")


def run_way(way: str, batches: int = 3) -> list[Operation]:
    """Launch the copies C0, C1, … on a side stream, then F0, F1, … that read them; return the operations.

    way: what stands before F(i): nothing ("one stream": there is no other; "no wait"), a wait for the event behind
    C(i), a wait for the whole side stream, or the host's own. Raises ValueError for another way.
    """
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    gpu = PretendGPU()
    compute = gpu.current_stream()
    side = compute if way == "one stream" else gpu.new_stream("side")
    copied, events = [], []
    for i in range(batches):
        with gpu.use_stream(side), gpu.span(side, "", f"C{i}"):
            copied.append(gpu.host(torch.ones(4), f"batch {i}").to("cuda", non_blocking=True))
        events.append(side.record_event())
    for i, x in enumerate(copied):
        if way == "wait_event":
            compute.wait_event(events[i])
        elif way == "wait_stream":
            compute.wait_stream(side)
        elif way == "synchronize":
            side.synchronize()
        with gpu.span(compute, "", f"F{i}"):
            x * 2
    del copied, x
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


def run_prefetcher(forgets: Sequence[str] = (), batches: int = 6, depth: int = 2) -> list[Operation]:
    """Run a DevicePrefetcher and launches F0, F1, … over its batches; return the operations. forgets: as PretendGPU."""
    gpu = PretendGPU(forgets)
    loader = [gpu.host(torch.full((4,), float(i)), f"batch {i}") for i in range(batches)]
    labels = iter(range(batches))
    for batch in DevicePrefetcher(loader, gpu, depth):  # no enumerate: it would hold on to its last item
        with gpu.span(gpu.current_stream(), "", f"F{next(labels)}"):
            batch.square()
        del batch
    return gpu.operations


def run_chunks(chunks: int = 4, depth: int = 2) -> list[Operation]:
    """Run a StreamPipeline over rows 0, 1, …, one a chunk; return the operations."""
    gpu = PretendGPU()
    StreamPipeline(_plus_one, chunks, device=gpu, depth=depth)(gpu.host(torch.arange(float(chunks)), "rows"))
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


def _plus_one(x: TensorOrTensors) -> TensorOrTensors:
    return x + 1 if isinstance(x, Tensor) else x


def damaged(wait: int | None, chunks: int = 4, depth: int = 2) -> list[Operation]:
    """Return run_chunks without its wait number `wait`, in order of the list; None: with all of them."""
    operations = run_chunks(chunks, depth)
    return operations if wait is None else without(operations, waits(operations)[wait])


def outcomes(
    operations: Sequence[Operation], chunks: int, tries: int = 100, seed: int = 0
) -> list[list[str]]:
    """Return, for random orders that the waits allow, which chunk's data each place of the result holds in the end."""
    contents = {Region("rows", 4 * i, 4 * i + 4): str(i) for i in range(chunks)}
    found = []
    for _, order in zip(range(tries), orders(operations, seed), strict=False):
        end = replay(operations, order, contents)
        found.append([end.get(Region("result", 4 * i, 4 * i + 4), "?") for i in range(chunks)])
    return found


# ---- A StreamPipeline on a GPU, by its number of chunks, measured and predicted.
#
# `python -m support.recordings stream_chunks`, on a GPU, writes notebooks/recorded/stream_chunks.json.

CHUNKS = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS, WIDTH = 16384, 4096  # 256 MiB of float32


def measure_chunks(
    chunks: Sequence[int] = CHUNKS, *, rows: int = ROWS, ratio: float = 1.0, repeats: int = 5
) -> dict[str, Any]:
    """Return "alone" (seconds of the whole tensor; "launch" of a chunk), "rows" by chunk count, and "traces".

    ratio: computing takes about so many times as long as the copy to the device. A row is {"chunks", "seconds",
    "predicted", "overlap"}: the shortest of `repeats` runs, from its CUDA events; the prediction knows only "alone".
    launch: the host's seconds for a chunk, of a run that has nearly nothing to copy or to compute, so that the device
    waits for the host. Raises RuntimeError without a GPU.
    """
    need_gpu("measure_chunks")
    x = torch.ones(rows, WIDTH, pin_memory=True)
    on_device, back = x.cuda(), torch.empty_like(x, pin_memory=True)
    alone = {
        "copy_in": _seconds(lambda: on_device.copy_(x, non_blocking=True)),
        "copy_out": _seconds(lambda: back.copy_(on_device, non_blocking=True)),
    }
    times = max(1, round(ratio * alone["copy_in"] / _seconds(lambda: on_device.sin())))

    def stage(y: Any) -> Tensor:
        z = y.sin()
        for _ in range(times - 1):
            z.sin_()
        return z  # type: ignore[no-any-return]

    alone["compute"] = _seconds(lambda: stage(on_device))
    small = torch.ones(256, 1, pin_memory=True)
    alone["launch"] = _best(StreamPipeline(stage, 256), small, repeats).makespan / 256
    found: dict[str, Any] = {"alone": alone, "bytes": x.nbytes, "rows": [], "traces": {}}
    for count in chunks:
        trace = _best(StreamPipeline(stage, count), x, repeats)
        row = {"chunks": count, "seconds": trace.makespan, "overlap": overlap_share(trace)}
        found["rows"].append({**row, "predicted": _predicted(count, alone)})
        if count <= 16:
            found["traces"][str(count)] = as_rows(trace)
    return found


def _predicted(chunks: int, alone: Mapping[str, float]) -> float:
    stages = (alone[name] for name in ("copy_in", "compute", "copy_out"))
    return predict_chunks(chunks, *stages, launch=alone["launch"]).makespan


def _seconds(work: Any) -> float:
    return min(measure(work, device="cuda").samples)


def _best(pipeline: StreamPipeline, x: Tensor, repeats: int) -> Trace:
    traces = []
    for _ in range(repeats + 1):  # the first one fills torch's pools of memory
        with Recorder() as recorder:
            pipeline(x)
        traces.append(recorder.trace(LANES))
    return min(traces[1:], key=lambda trace: trace.makespan)


def find_chunks() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("stream_chunks", measure_chunks)


# ---- The time of a training step with and without a DevicePrefetcher, on a GPU.
#
# `python -m support.recordings stream_prefetch`, on a GPU, writes notebooks/recorded/stream_prefetch.json.

RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0)
MEBIBYTES = 128


def measure_prefetch(
    ratios: Sequence[float] = RATIOS, *, steps: int = 30, mebibytes: int = MEBIBYTES
) -> dict[str, Any]:
    """Return "rows" by the ratio of computing to copying, and "traces" of a few steps of ratio 1.

    A row is {"ratio", "copy", "compute", "plain", "prefetched"}: seconds of one batch alone, and of a step. Computing
    is a kernel that only waits, so that it takes no bandwidth. Raises RuntimeError without a GPU.
    """
    need_gpu("measure_prefetch")
    batches = [torch.zeros(mebibytes << 18).pin_memory() for _ in range(4)]
    copy = min(measure(lambda: batches[0].to("cuda", non_blocking=True), device="cuda").samples)
    tick = min(measure(lambda: _compute(10_000_000), device="cuda").samples) / 10_000_000
    rows, traces = [], {}
    for ratio in ratios:
        cycles = round(ratio * copy / tick)
        compute = min(measure(lambda: _compute(cycles), device="cuda").samples)  # noqa: B023
        row = {"ratio": ratio, "copy": copy, "compute": compute}
        for name in ("plain", "prefetched"):
            trace = run_epoch(batches, steps, cycles, ahead=name == "prefetched")
            ends = [span.end for span in trace.only(kind="compute")]
            warm = steps // 3  # without the filling of the pipeline
            row[name] = (ends[-1] - ends[warm]) / (steps - 1 - warm)
            if ratio == 1.0:
                traces[name] = as_rows(Trace([s for s in trace if int(s.label[1:]) < 6]))
        rows.append(row)
    return {"rows": rows, "traces": traces, "bytes": batches[0].nbytes}


def run_epoch(batches: Sequence[Tensor], steps: int, cycles: int, *, ahead: bool) -> Trace:
    """Return the spans of an epoch: copies in the loop itself, or ahead by a DevicePrefetcher. Needs a GPU."""
    source = islice(cycle(batches), steps)
    loader: Iterable[Tensor] = DevicePrefetcher(source, "cuda") if ahead else _in_the_loop(source)
    with Recorder() as recorder:
        for i, _ in enumerate(loader):
            with device_span(torch.cuda.current_stream(), "compute", f"F{i}", "compute"):
                _compute(cycles)
    return recorder.trace(("copy", "compute"))


def _in_the_loop(batches: Iterable[Tensor]) -> Iterable[Tensor]:
    for i, x in enumerate(batches):
        with device_span(torch.cuda.current_stream(), "copy", f"C{i}", "copy"):
            y = x.to("cuda", non_blocking=True)
        yield y


def _compute(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def find_prefetch() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("stream_prefetch", measure_prefetch)


# ---- How fast copies to and from a GPU are, by size, from pageable and from pinned memory.
#
# `python -m support.recordings bandwidth`, on a GPU, writes notebooks/recorded/bandwidth.json.

COPY_WAYS = ("pageable", "pageable, non_blocking", "pinned, non_blocking")
DIRECTIONS = ("to the device", "to the host")
SIZES = tuple(4**k * 4096 for k in range(9))  # 4 KiB to 256 MiB


def measure_bandwidth(sizes: Sequence[int] = SIZES, repeats: int = 9) -> dict[str, Any]:
    """Return {"rows": …}, each {"bytes", "direction", "way", "call", "done"}.

    call: seconds until copy_ returns; done: until the copy has arrived. Medians of runs that take turns, after one
    that does not count. Raises RuntimeError without a GPU, ValueError for sizes below 1.
    """
    need_gpu("measure_bandwidth")
    rows = []
    for size in sizes:
        bytes_ = integer("size", size, at_least=1)
        on_device = torch.zeros(bytes_, dtype=torch.uint8, device="cuda")
        hosts = [torch.zeros(bytes_, dtype=torch.uint8, pin_memory="pinned" in way) for way in COPY_WAYS]
        cases = [(direction, k) for direction in DIRECTIONS for k in range(len(COPY_WAYS))]
        times: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
        for turn in range(repeats + 1):
            for direction, k in cases:
                pair = (on_device, hosts[k]) if direction == DIRECTIONS[0] else (hosts[k], on_device)
                torch.cuda.synchronize()
                start = time.perf_counter()
                pair[0].copy_(pair[1], non_blocking="non_blocking" in COPY_WAYS[k])
                called = time.perf_counter()
                torch.cuda.synchronize()
                if turn:
                    times[direction, k].append((called - start, time.perf_counter() - start))
        for (direction, k), taken in times.items():
            call, done = (median(column) for column in zip(*taken, strict=True))
            rows.append(
                {"bytes": bytes_, "direction": direction, "way": COPY_WAYS[k], "call": call, "done": done}
            )
    return {"rows": rows}


def find_bandwidth() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("bandwidth", measure_bandwidth)


# ---- Images made ready for a model on the CPU or on the GPU: the seconds, and the bytes that travel.
#
# `python -m support.recordings preprocess`, on a GPU, writes notebooks/recorded/preprocess.json.

IMAGES, SIDE = 128, 224


def images(count: int = IMAGES) -> Tensor:
    """Return random images as a decoder gives them: bytes, (count, height, width, 3)."""
    shape, generator = (count, SIDE, SIDE, 3), torch.Generator().manual_seed(0)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


def make_ready(x: Tensor) -> Tensor:
    """Return float32 in (count, 3, height, width) with mean 0 and standard deviation 1 or so, wherever x is."""
    return ((x.permute(0, 3, 1, 2).to(torch.float32) - 127.5) / 73.6).contiguous()


def cpu_part(count: int = IMAGES) -> dict[str, Any]:
    """Measure here what needs no GPU: {"images", "cpu" seconds, "byte_bytes", "float_bytes"}."""
    x = images(count)
    cpu = min(measure(lambda: make_ready(x), repeats=3).samples)
    return {"images": count, "cpu": cpu, "byte_bytes": x.nbytes, "float_bytes": make_ready(x).nbytes}


def measure_preprocess() -> dict[str, Any]:
    """Return cpu_part, and seconds "copy_bytes", "copy_floats" (pinned), "gpu"; RuntimeError without a GPU."""
    need_gpu("measure_preprocess")
    x, found = images(), cpu_part()
    pinned, ready = x.pin_memory(), make_ready(x).pin_memory()
    on_device = x.cuda()
    works = {
        "copy_bytes": lambda: pinned.to("cuda", non_blocking=True),
        "copy_floats": lambda: ready.to("cuda", non_blocking=True),
        "gpu": lambda: make_ready(on_device),
    }
    return {**found, **{name: min(measure(work, device="cuda").samples) for name, work in works.items()}}


def find_preprocess() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("preprocess", measure_preprocess)


# ---- torch's own race detector, the CUDA Sanitizer, asked about a list of our operations.
#
# Its rules are plain Python: `EventHandler` is told of launches, events and memory, which needs no GPU.


def torchs_races(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Return the pairs of labels that torch's sanitizer reports, in its order, for launches on the device."""
    handler, found = EventHandler(), []
    streams = {lane: number for number, lane in enumerate(dict.fromkeys(op.lane for op in operations))}
    numbers: dict[str, int] = {}
    for op in operations:
        lane, event = streams[op.lane], op.event or 0
        if op.kind == "launch" and op.lane != HOST:
            writes = {numbers.setdefault(r.block, len(numbers)) for r in op.writes}
            reads = {numbers.setdefault(r.block, len(numbers)) for r in op.reads} - writes
            # it knows memory by its first byte: so host memory, where chunks have places of their own, stays out
            host = {numbers.get("rows"), numbers.get("result")}
            names = {pointer: [""] for pointer in reads | writes}
            errors = handler._handle_kernel_launch(lane, reads - host, writes - host, set(), op.label, names)
            found += [_labels(error) for error in errors]
        elif op.kind == "record":
            handler._handle_event_record(event, lane)
        elif op.kind == "wait":
            handler._handle_event_wait(event, lane)
        elif op.kind == "synchronize":
            handler._handle_event_synchronization(event)
        elif op.kind == "allocate":
            handler._handle_memory_allocation(numbers.setdefault(op.label, len(numbers)))
        elif op.kind == "free":
            handler._handle_memory_deallocation(numbers.setdefault(op.label, len(numbers)))
    return found


def _labels(error: Any) -> tuple[str, str]:
    return error.previous_access.operator, error.current_access.operator
