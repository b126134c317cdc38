"""An exact little model of torch's DataLoader, and of a path with hops: what an epoch takes, before it is run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lib._arguments import integer
from lib.timeline import Span, Trace

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
    spans, free, clock = [], dict.fromkeys(hops, 0.0), 0.0
    for batch in range(batches):
        clock = 0.0 if overlap else clock
        for hop, seconds in hops.items():
            start = max(clock, free[hop])
            clock = free[hop] = start + check_seconds(hop, seconds)
            spans.append(Span(hop, f"{hop} {batch}", start, clock, hop))
    return Trace(spans, hops)
