"""What notebook 01, the loading pipeline, runs and measures, and its models: an epoch, a path with hops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from lib.arguments import integer
from lib.timeline import Recorder, Span, Trace, Work, play

TRAINER = "trainer"
LOADING = ("read", "load", "collate")


def worker_lane(worker: int) -> str:
    """Return the name of a worker's lane: "worker 0"."""
    return f"worker {worker}"


def simulate_loading(
    batches: int, load: float | Sequence[float], step: float, num_workers: int = 0, prefetch_factor: int = 2
) -> Trace:
    """Predict an epoch of torch's DataLoader: lanes "worker 0" … and "trainer", from an empty queue to the last step.

    load: seconds that a worker needs for a batch, or a sequence with one number for each batch. Everybody has a core,
    and sending costs nothing. The rules 1 to 3 are those of the notebook. Raises ValueError.
    """
    batches = integer("batches", batches, at_least=1)
    workers = integer("num_workers", num_workers, at_least=0)
    places = workers * integer("prefetch_factor", prefetch_factor, at_least=1)
    loads = list(load) if isinstance(load, Sequence) else [load] * batches
    if len(loads) != batches:
        raise ValueError(f"load must be one number or one for each of {batches} batches, not {len(loads)}")
    seconds = [check_seconds("load", value) for value in loads]
    step = check_seconds("step", step)
    spans = list[Span]()
    loaded = list[float]()
    taken = list[float]()
    done = 0.0
    for batch in range(batches):
        begun = done
        if workers:
            before = loaded[batch - workers] if batch >= workers else 0.0  # rule 2
            begun = max(before, taken[batch - places] if batch >= places else 0.0)  # rule 3
        loaded.append(begun + seconds[batch])
        lane = worker_lane(batch % workers) if workers else TRAINER
        spans.append(Span(lane, f"load {batch}", begun, loaded[-1], "load"))
        if workers and loaded[-1] > done:
            spans.append(Span(TRAINER, f"wait {batch}", done, loaded[-1], "wait"))
        taken.append(max(loaded[-1], done))  # rule 1
        done = taken[-1] + step
        spans.append(Span(TRAINER, f"step {batch}", taken[-1], done, "step"))
    return Trace(spans, (*map(worker_lane, range(workers)), TRAINER))


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
    tasks = list[Work]()
    before = list[str]()
    for batch in range(batches):
        before = [] if overlap else before
        for hop, seconds in hops.items():
            tasks.append(Work(hop, f"{hop} {batch}", check_seconds(hop, seconds), before, hop))
            before = [tasks[-1].label]
    return play(tasks, hops)


def run_epoch(loader: DataLoader[Any], step: Callable[[Any], object], recorder: Recorder) -> Trace:
    """Train one epoch and return who did what when, from the call of `iter(loader)` to the end of the last step.

    The loader's dataset records spans of kind "read", "load" and "collate", in lane "worker k" or "trainer", in the
    same recorder, which is cleared first. They are numbered by torch's rule 2.
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
        if span.kind in LOADING:
            turn = loaded[span.lane, span.kind] = loaded.get((span.lane, span.kind), -1) + 1
            worker = 0 if span.lane == TRAINER else int(span.lane.rpartition(" ")[2])
            label = f"{span.kind} {turn * max(num_workers, 1) + worker}"
        yield Span(span.lane, label, span.start, span.end, span.kind)


def moments(trace: Trace) -> dict[str, list[float]]:
    """Return when each batch was "asked" for and "taken" by the trainer, and when its loading "started" and "ended".

    trace: of `run_epoch` or `simulate_loading`, with workers or without.
    """
    spans = {(span.kind, int(span.label.rpartition(" ")[2])): span for span in trace}
    order = range(len(trace.only(kind="step")))
    return {
        "asked": [spans["step", batch - 1].end if batch else trace.start for batch in order],
        "taken": [spans["step", batch].start for batch in order],
        "started": [(spans.get(("read", batch)) or spans["load", batch]).start for batch in order],
        "ended": [(spans.get(("collate", batch)) or spans["load", batch]).end for batch in order],
    }


def queue_depth(trace: Trace) -> list[tuple[float, int]]:
    """Return (time, number of batches that are loaded and not yet taken) at each change, from (start, 0) on."""
    at = moments(trace)
    depth = {trace.start: 0}
    for moment in sorted(at["ended"] + at["taken"]):
        depth[moment] = sum(time <= moment for time in at["ended"])
        depth[moment] -= sum(time <= moment for time in at["taken"])
    return list(depth.items())


def queue_held_up(trace: Trace) -> list[int]:
    """Return, at each change of `queue_depth`, how many of the batches that lie ready come after one that doesn't."""
    at = moments(trace)
    held_up = []
    for moment, depth in queue_depth(trace):
        due = next((b for b, time in enumerate(at["ended"]) if time > moment), len(at["ended"]))
        held_up.append(depth - (due - sum(time <= moment for time in at["taken"])))
    return held_up


def verdict(miss: float, quiet: bool) -> str:
    """Say what a worst point that is off by this share tells about the model."""
    if miss <= 0.25:
        return "all ten points within a quarter: the model explains this run"
    if quiet:
        return "more than a quarter off, no disturbance seen: do not rely on the model at that point"
    return "more than a quarter off, machine disturbed: measure again"
