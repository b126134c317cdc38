"""What notebook 01, the loading pipeline, runs and measures, and its models: an epoch, a path with hops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lib.arguments import integer
from lib.timeline import Recorder, Span, Trace

TRAINER = "trainer"


def worker_lane(worker: int) -> str:
    """Return the name of a worker's lane: "worker 0"."""
    return f"worker {worker}"


def number_of(span: Span) -> int:
    """Return the number of the batch that stands at the end of a span's label."""
    return int(span.label.rpartition(" ")[2])


def simulate_loading(
    batches: int,
    load: float | Sequence[float],
    step: float,
    num_workers: int = 0,
    prefetch_factor: int = 2,
    in_order: bool = True,
) -> Trace:
    """Predict an epoch of torch's DataLoader: lanes "worker 0" … and "trainer", from an empty queue to the last step.

    load: seconds that a worker needs for a batch, or a sequence with one number for each batch. Everybody has a core,
    and sending costs nothing. The rules 1 to 3 are those of the notebook. in_order=False: the trainer takes what has
    arrived first, and the next order goes to the next worker, in turns, that has a place. Raises ValueError.
    """
    batches = integer("batches", batches, at_least=1)
    workers = integer("num_workers", num_workers, at_least=0)
    prefetch = integer("prefetch_factor", prefetch_factor, at_least=1)
    loads = list(load) if isinstance(load, Sequence) else [load] * batches
    if len(loads) != batches:
        raise ValueError(f"load must be one number or one for each of {batches} batches, not {len(loads)}")
    seconds = [check_seconds("load", value) for value in loads]
    step = check_seconds("step", step)
    if workers == 0:
        return _one_after_the_other(seconds, step)
    team = _Team(seconds, workers, prefetch, in_order)
    done = 0.0
    for turn in range(batches):
        batch = turn if in_order else team.first_arrived()
        loaded = team.loaded.pop(batch)
        if loaded > done:
            team.spans.append(Span(TRAINER, f"wait {batch}", done, loaded, "wait"))
        taken = max(loaded, done)  # rule 1
        done = taken + step
        team.spans.append(Span(TRAINER, f"step {batch}", taken, done, "step"))
        team.hand_back(batch, taken)
    return Trace(team.spans, (*map(worker_lane, range(workers)), TRAINER))


def _one_after_the_other(loads: Iterable[float], step: float) -> Trace:
    spans = []
    done = 0.0
    for batch, load in enumerate(loads):
        spans.append(Span(TRAINER, f"load {batch}", done, done + load, "load"))
        spans.append(Span(TRAINER, f"step {batch}", done + load, done + load + step, "step"))
        done += load + step
    return Trace(spans, (TRAINER,))


class _Team:
    """The workers of a simulated epoch: who has which order, and when each batch is loaded."""

    def __init__(self, loads: Sequence[float], workers: int, prefetch: int, in_order: bool) -> None:
        self.loads = loads
        self.prefetch = prefetch
        self.in_order = in_order
        self.free = [0.0] * workers  # when each worker has done what it was ordered
        self.orders: list[set[int]] = [set() for _ in range(workers)]  # of each: not handed over yet
        self.loaded: dict[int, float] = {}
        self.spans: list[Span] = []
        self.ordered = 0
        self.turn = 0
        for _ in range(workers * prefetch):
            self.order(0.0)

    def order(self, now: float) -> None:
        """Order the next batch, if there is one: from worker b mod W (rule 2), or from the next that has a place."""
        batch = self.ordered
        if batch == len(self.loads):
            return
        while not self.in_order and len(self.orders[self.turn]) == self.prefetch:
            self.turn = (self.turn + 1) % len(self.free)
        worker = self.turn
        self.turn = (self.turn + 1) % len(self.free)
        begun = max(self.free[worker], now)
        end = begun + self.loads[batch]
        self.free[worker] = end
        self.loaded[batch] = end
        self.orders[worker].add(batch)
        self.spans.append(Span(worker_lane(worker), f"load {batch}", begun, end, "load"))
        self.ordered += 1

    def first_arrived(self) -> int:
        """Return the batch that is loaded first of those that are ordered."""
        return min(self.loaded, key=lambda batch: (self.loaded[batch], batch))

    def hand_back(self, batch: int, now: float) -> None:
        """Give the place of a batch that was taken to the next order (rule 3)."""
        for orders in self.orders:
            orders.discard(batch)
        self.order(now)


def check_seconds(name: str, value: float) -> float:
    """Return value as a float, or raise ValueError if it is no time."""
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    return float(value)


def simulate_path(batches: int, hops: Mapping[str, float], *, overlap: bool = True, places: int = 3) -> Trace:
    """Send batches along the hops of a path, each hop a lane (and kind) that handles one batch at a time.

    hops: seconds of each, in order, by name. overlap: True for a pipeline, with a queue of so many places between any
    two hops: a hop begins a batch only when a place behind it is free. False: one batch after the other. Raises
    ValueError.
    """
    batches = integer("batches", batches, at_least=1)
    places = integer("places", places, at_least=1)
    if not hops:
        raise ValueError("a path needs at least one hop: hops is empty")
    names = list(hops)
    seconds = [check_seconds(hop, hops[hop]) for hop in names]
    starts: dict[tuple[int, int], float] = {}
    ends: dict[tuple[int, int], float] = {}
    for batch in range(batches):
        for hop in range(len(names)):
            arrived = ends.get((hop - 1, batch), 0.0)
            if hop == 0 and not overlap:
                arrived = ends.get((len(names) - 1, batch - 1), 0.0)
            free = ends.get((hop, batch - 1), 0.0)
            place = starts.get((hop + 1, batch - places), 0.0)
            starts[hop, batch] = max(arrived, free, place)
            ends[hop, batch] = starts[hop, batch] + seconds[hop]
    spans = [
        Span(names[hop], f"{names[hop]} {batch}", start, ends[hop, batch], names[hop])
        for (hop, batch), start in starts.items()
    ]
    return Trace(spans, names)


def most_waiting(trace: Trace, hop: str, following: str) -> int:
    """Return how many batches at most lay between two hops of `simulate_path` at the same time."""
    arrived = [span.end for span in trace.only(lane=hop)]
    taken = [span.start for span in trace.only(lane=following)]
    lying = [sum(time <= now for time in arrived) - sum(time <= now for time in taken) for now in arrived]
    return max(lying)


def run_epoch(loader: Any, step: Callable[[Any], object], recorder: Recorder, size: int) -> Trace:
    """Train one epoch and return who did what when, from the call of `iter(loader)` to the end of the last step.

    The loader's dataset records, in the same recorder, a span "load b" for each item of batch b, in lane "worker k" or
    "trainer"; those of a batch become one. A batch is a tuple whose third is the indices of its items: its number is
    the first of them divided by `size`, so what stands in the trace is what came, by nobody's rule.
    """
    recorder.clear()
    asked = recorder.now()
    for batch in loader:
        taken = recorder.now()
        number = int(batch[2][0]) // size
        if getattr(loader, "num_workers", 0):  # otherwise the trainer did not wait: it loaded
            recorder.add(TRAINER, f"wait {number}", asked, taken, "wait")
        step(batch)
        asked = recorder.now()
        recorder.add(TRAINER, f"step {number}", taken, asked, "step")
    lanes = (*map(worker_lane, range(getattr(loader, "num_workers", 0))), TRAINER)
    return Trace(_one_a_batch(recorder.trace()), lanes)


def _one_a_batch(trace: Trace) -> list[Span]:
    """Return the spans, those of one batch in one lane joined."""
    joined: dict[tuple[str, str], Span] = {}
    for span in trace:
        key = (span.lane, span.label)
        known = joined.get(key, span)
        start = min(known.start, span.start)
        end = max(known.end, span.end)
        joined[key] = Span(span.lane, span.label, start, end, span.kind)
    return list(joined.values())


def broken_rules(trace: Trace, workers: int, prefetch: int = 2) -> list[str]:
    """Return which of the notebook's rules 1 to 3 an epoch of `run_epoch` broke, each with its first example.

    Of rule 3 only what can be seen: no load begins before the trainer has asked for the batch that gives it a place.
    """
    broken = []
    steps = sorted(trace.only(kind="step"), key=lambda span: span.start)
    taken = [number_of(span) for span in steps]
    late = next((turn for turn, batch in enumerate(taken) if batch != turn), None)
    if late is not None:
        broken.append(f"rule 1: in turn {late} the trainer got batch {taken[late]}")
    loads = sorted(trace.only(kind="load"), key=lambda span: span.start)
    other = [span for span in loads if span.lane != worker_lane(number_of(span) % workers)]
    if other:
        due = worker_lane(number_of(other[0]) % workers)
        broken.append(f"rule 2: batch {number_of(other[0])} was loaded by {other[0].lane}, not by {due}")
    asked = [trace.start, *(span.end for span in steps)]
    for turn, span in enumerate(loads[workers * prefetch :]):
        if span.start < asked[turn]:
            early = f"batch {number_of(span)} was begun when {turn} batches had been asked for"
            broken.append(f"rule 3: with {workers * prefetch} places, {early}")
            break
    return broken


def moments(trace: Trace) -> dict[str, list[float]]:
    """Return when each batch was "taken" by the trainer, and when its loading "started" and "ended".

    trace: of `run_epoch` or `simulate_loading`, with workers or without.
    """
    spans = {(span.kind, number_of(span)): span for span in trace}
    order = range(len(trace.only(kind="step")))
    return {
        "taken": [spans["step", batch].start for batch in order],
        "started": [spans["load", batch].start for batch in order],
        "ended": [spans["load", batch].end for batch in order],
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
