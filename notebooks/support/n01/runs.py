"""What notebook 01, the loading pipeline, runs and measures, and its models: an epoch, a path with hops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, get_worker_info

from lib._values import integer
from lib.timeline import Recorder, Span, Trace, Work, play
from support.recordings import measured_or_recorded, need_gpu, origin_of

# ---- A model of torch's DataLoader, and of a path with hops: what an epoch takes, before it is run.

TRAINER = "trainer"


def worker_lane(worker: int) -> str:
    """Return the name of a worker's lane: "worker 0"."""
    return f"worker {worker}"


@dataclass
class _Job:
    """What a lane does just now: phases (kind, seconds, needs a core) of one batch, one after the other."""

    lane: str
    batch: int
    phases: list[tuple[str, float, bool]]
    since: float
    left: float = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.phases[0][1]


def simulate_loading(
    batches: int,
    load: float | Sequence[float],
    step: float,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    *,
    waiting: float = 0.0,
    transfer: float = 0.0,
    cores: float | None = None,
) -> Trace:
    """Predict an epoch of torch's DataLoader: lanes "worker 0" … and "trainer", from an empty queue to the last step.

    load: seconds that a worker needs for a batch when it has a core to itself, or a sequence with one for each batch.
    waiting: how much of that it only waits for storage, which takes no core. transfer: seconds in which the trainer
    stands still for the copy to the device. cores: how many workers and trainer get together, shared evenly when they
    are too few; 1.5 if others use the rest, None for enough. Raises ValueError.

    The rules, as in torch's _MultiProcessingDataLoaderIter:
      1. The trainer takes the batches in order, and trains on one at a time.
      2. Worker k loads batches k, k + W, k + 2 W, …, one at a time.
      3. Batch b is handed out when the trainer takes batch b - W · prefetch_factor: no more than W · prefetch_factor
         batches are being loaded or lie ready.
      4. What needs a core gets one, or an even share if there are too few (the operating system's rule).
    Not in the model: starting processes, collating a batch and sending it.
    """
    batches = integer("batches", batches, at_least=1)
    workers = integer("num_workers", num_workers, at_least=0)
    places = workers * integer("prefetch_factor", prefetch_factor, at_least=1)
    cores = workers + 1 if cores is None else cores
    if not cores >= 1:
        raise ValueError(f"cores must be at least 1, not {cores!r}: load and step are measured on one core")
    work = _work(batches, load, check_seconds("waiting", waiting))
    train = [
        ("transfer", check_seconds("transfer", transfer), False),
        ("step", check_seconds("step", step), True),
    ]
    lanes = (*map(worker_lane, range(workers)), TRAINER)
    spans: list[Span] = []
    jobs: dict[str, _Job] = {}
    todo, ready = list(range(workers)), set() if workers else set(range(batches))
    clock, free_since, taken, trained = 0.0, 0.0, 0, 0
    while trained < batches:
        if TRAINER not in jobs and taken in ready:  # rule 1
            if workers and clock > free_since:
                spans.append(Span(TRAINER, f"wait {taken}", free_since, clock, "wait"))
            jobs[TRAINER] = _Job(TRAINER, taken, (train if workers else work[taken] + train), clock)
            taken += 1
        for worker, batch in enumerate(todo):  # rule 2, rule 3
            if (lane := lanes[worker]) not in jobs and batch < min(batches, taken + places):
                jobs[lane] = _Job(lane, batch, work[batch], clock)
                todo[worker] += workers
        # rule 4; then on to the moment at which the next phase of any lane ends
        speed = min(1.0, cores / max(1, sum(job.phases[0][2] for job in jobs.values())))
        pace = {lane: speed if job.phases[0][2] else 1.0 for lane, job in jobs.items()}
        passed = min(job.left / pace[lane] for lane, job in jobs.items())
        clock += passed
        for lane, job in list(jobs.items()):
            # what ends within rounding of the others ends with them
            if job.left > pace[lane] * passed * (1 + 1e-9):
                job.left -= pace[lane] * passed
                continue
            kind = job.phases[0][0]
            if clock > job.since or kind in ("load", "step"):
                spans.append(Span(lane, f"{kind} {job.batch}", job.since, clock, kind))
            if len(job.phases) > 1:
                jobs[lane] = _Job(lane, job.batch, job.phases[1:], clock)
                continue
            del jobs[lane]
            if lane == TRAINER:
                trained, free_since = trained + 1, clock
            else:
                ready.add(job.batch)
    return Trace(spans, lanes)


def _work(batches: int, load: float | Sequence[float], waiting: float) -> list[list[tuple[str, float, bool]]]:
    loads = list(load) if isinstance(load, Sequence) else [load] * batches
    if len(loads) != batches:
        raise ValueError(
            f"load must be one number or one for each of {batches} batches, not {len(loads)} numbers"
        )
    if waiting > min(check_seconds("load", seconds) for seconds in loads):
        raise ValueError(f"waiting is a part of load, so {waiting} must not exceed {min(loads)}")
    return [[("read", waiting, False), ("load", seconds - waiting, True)] for seconds in loads]


def check_seconds(name: str, value: float) -> float:
    """Return value as a float, or raise ValueError if it is no time."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)


def simulate_path(batches: int, hops: Mapping[str, float], *, overlap: bool = True) -> Trace:
    """Send batches along the hops of a path, each hop a lane (and kind) that handles one batch at a time.

    hops: seconds of each, in order, by name. overlap: True for a pipeline with a queue between any two hops, False for
    one batch after the other. Raises ValueError.
    """
    batches = integer("batches", batches, at_least=1)
    if not hops:
        raise ValueError("a path needs at least one hop: hops is empty")
    tasks: list[Work] = []
    before: list[str] = []
    for batch in range(batches):
        before = [] if overlap else before
        for hop, seconds in hops.items():
            tasks.append(Work(hop, f"{hop} {batch}", check_seconds(hop, seconds), before, hop))
            before = [tasks[-1].label]
    return play(tasks, hops)


# ---- Where a batch's time goes: a dataset that writes down what its workers do, and an epoch recorded.
#
#     hop        from -> to                              who does it in torch
#     read       storage -> pageable host memory         a worker (`num_workers` of them)
#     load       bytes -> tensors: decode, augment       the same worker
#     pin        pageable -> pinned host memory          a thread of the main process (`pin_memory=True`)
#     transfer   pinned host memory -> device            the GPU's copy engine (`.to(device, non_blocking=True)`)
#     step       forward, backward, update               the trainer
#
# `run_epoch` measures an epoch; `simulate_loading` predicts it: traces with the same lanes and labels.


def prepare(image: torch.Tensor, size: int = 64, detail: int = 1) -> torch.Tensor:
    """Enlarge a (1, h, w) image to (1, size, size) and turn it a little: real work for a core, as augmentation is.

    detail: enlarge to `detail` times the size first and average afterwards; the work grows with its square.
    The angle, -15° to 15°, follows from the pixels: it varies like a random one and every run gives the same picture.
    """
    angle = math.radians(float(image.sum() * 255) % 31 - 15)
    cos, sin = math.cos(angle), math.sin(angle)
    large = functional.interpolate(
        image[None], size=(detail * size,) * 2, mode="bicubic", align_corners=False
    )
    turn = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = functional.affine_grid(turn, list(large.shape), align_corners=False)
    turned = functional.grid_sample(large, grid, align_corners=False)
    return functional.avg_pool2d(turned, detail)[0].clamp_(0, 1)


class TimedDataset(Dataset[Any]):
    """Wrap a dataset and record what loading each batch takes, in the lane of the worker that does it.

    recorder: gets a span of kind "load" per batch, in lane "worker k", or "trainer" where the main process loads.
    latency: seconds that a simulated storage takes to answer the one request of a batch: a sleep, recorded as kind
    "read". Only this waiting is simulated; reading the files and preparing the images is done. Raises ValueError.
    """

    def __init__(self, dataset: Dataset[Any], recorder: Recorder, *, latency: float = 0.0) -> None:
        self.dataset, self.recorder, self.latency = dataset, recorder, check_seconds("latency", latency)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the items of one batch: torch's DataLoader asks for a whole batch where a dataset has this method."""
        info = get_worker_info()
        lane = TRAINER if info is None else worker_lane(info.id)
        if self.latency:
            with self.recorder.span(lane, "read", "read"):
                time.sleep(self.latency)
        with self.recorder.span(lane, "load", "load"):
            return [self.dataset[index] for index in indices]


def run_epoch(loader: DataLoader[Any], step: Callable[[Any], object], recorder: Recorder) -> Trace:
    """Train one epoch and return who did what when, from the call of `iter(loader)` to the end of the last step.

    The loader's dataset is a TimedDataset over the same recorder, which is cleared first. Batches are numbered by the
    rule that torch keeps: worker k of W loads batches k, k + W, k + 2 W, …
    """
    recorder.clear()
    asked = recorder.now()
    for number, batch in enumerate(loader):
        taken = recorder.now()
        if loader.num_workers:  # otherwise the trainer did not wait: it loaded
            recorder.add(TRAINER, f"wait {number}", asked, taken, "wait")
        step(batch)
        asked = recorder.now()
        recorder.add(TRAINER, f"step {number}", taken, asked, "step")
    lanes = (*map(worker_lane, range(loader.num_workers)), TRAINER)
    return Trace(_numbered(recorder.trace(), loader.num_workers), lanes)


def _numbered(trace: Trace, num_workers: int) -> Iterator[Span]:
    loaded: dict[tuple[str, str], int] = {}
    for span in trace:
        label = span.label
        if span.kind in ("read", "load"):
            turn = loaded[span.lane, span.kind] = loaded.get((span.lane, span.kind), -1) + 1
            worker = 0 if span.lane == TRAINER else int(span.lane.rpartition(" ")[2])
            label = f"{span.kind} {turn * max(num_workers, 1) + worker}"
        yield Span(span.lane, label, span.start, span.end, span.kind)


def costs(*traces: Trace) -> dict[str, float]:
    """Return the measured numbers that `simulate_loading` takes, as medians: seconds of "load", "waiting" and "step".

    traces: of `run_epoch`, without workers, so that nothing competes. Raises ValueError for traces without a step.
    """

    def middle(kind: str) -> float:
        return median([span.duration for trace in traces for span in trace.only(kind=kind)] or [0.0])

    if not middle("step"):
        raise ValueError("there is no step in these traces, so nothing was measured")
    waiting = middle("read")
    return {"load": waiting + middle("load"), "waiting": waiting, "step": middle("step")}


def moments(trace: Trace) -> dict[str, list[float]]:
    """Return when each batch was "asked" for and "taken" by the trainer, and when its loading "started" and "ended".

    trace: of `run_epoch` or `simulate_loading`, with workers or without.
    """
    spans = {(span.kind, int(span.label.rpartition(" ")[2])): span for span in trace}
    order = range(len(trace.only(kind="step")))
    return {
        "asked": [spans["step", batch - 1].end if batch else trace.start for batch in order],
        "taken": [(spans.get(("transfer", batch)) or spans["step", batch]).start for batch in order],
        "started": [(spans.get(("read", batch)) or spans["load", batch]).start for batch in order],
        "ended": [spans["load", batch].end for batch in order],
    }


def queue_depth(trace: Trace) -> list[tuple[float, int]]:
    """Return (time, number of batches that are loaded and not yet taken) at each change, from (start, 0) on."""
    at, depth = moments(trace), {trace.start: 0}
    changes = [(time, 1) for time in at["ended"]] + [(time, -1) for time in at["taken"]]
    level = 0
    for moment, change in sorted(changes):
        level += change
        depth[moment] = level
    return list(depth.items())


# ---- Pinned memory: how long a batch takes to a GPU, and when the CPU is free again.
#
#     pageable   an ordinary tensor; the system may move its pages, so CUDA first copies it to a buffer of its own
#     pinned     its pages stay where they are: the GPU's copy engine reads them, and the CPU goes on
#
# `python -m support.recordings pinned_copies`, on a GPU, writes notebooks/recorded/pinned_copies.json.


def measure_copies(
    megabytes: Sequence[int] = (1, 4, 16, 64, 256), repeats: int = 20
) -> list[dict[str, float]]:
    """Return, for each size, the seconds until `.to("cuda", non_blocking=True)` returns and until the copy is done.

    Rows are {"megabytes", "pageable_call", "pageable_done", "pinned_call", "pinned_done"}: medians of `repeats` runs
    that take turns, after one that does not count. Raises RuntimeError without a GPU, ValueError for sizes below 1.
    """
    need_gpu("measure_copies")
    rows = []
    for size in megabytes:
        shape = integer("megabytes", size, at_least=1) * 250_000
        sources = {"pageable": torch.zeros(shape), "pinned": torch.zeros(shape, pin_memory=True)}
        times: dict[str, list[float]] = {f"{name}_{end}": [] for name in sources for end in ("call", "done")}
        for turn in range(repeats + 1):
            for name, source in sources.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                source.to("cuda", non_blocking=True)
                called = time.perf_counter()
                torch.cuda.synchronize()
                if turn:
                    times[f"{name}_call"].append(called - start)
                    times[f"{name}_done"].append(time.perf_counter() - start)
        rows.append({"megabytes": float(size), **{name: median(values) for name, values in times.items()}})
    return rows


def measure_rows() -> dict[str, Any]:
    """Return {"rows": …}, what measure_copies measures."""
    return {"rows": measure_copies()}


def find_copies() -> tuple[list[dict[str, float]], str | None]:
    """Return the rows, measured here, with None as provenance; else recorded; else ([], None)."""
    data, _ = measured_or_recorded("pinned_copies", measure_rows)
    return (data["rows"] if data else []), origin_of(data)
