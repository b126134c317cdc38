"""Predictions and exercises of notebook 13, CUDA streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from lib.streams.races import HOST, VectorClock
from support.kit.exact import exact_number
from support.kit.exercise import Exercise, cases
from support.kit.guess import Guess, Tried, letter
from support.kit.judged import judged
from support.n13.clocks import ask_clocks as ask_clocks
from support.n13.clocks import programs as programs
from support.n13.clocks import reference_step
from support.n13.on_device import judged_on_a_device_too
from support.n13.prefetching import fault_of_prefetch
from support.n13.prefetching import issued as issued
from support.n13.prefetching import one_ahead as one_ahead
from support.n13.runs import ModelGPU, damaged, earliest, launch_way, outcomes
from support.n13.streaming import EDGES, fault_of_streamed
from support.n13.streaming import run_streamed as run_streamed
from support.n13.streaming import stream_chunks as stream_chunks
from support.overlap import best_chunks

# ---- predictions


def _end_of_f2() -> float:
    ran = earliest(launch_way("wait_stream"), lambda op: 2 + (op.label[0] == "F"))
    return max(span.end for span in ran.values())


def _chunks_why(number: object) -> object:
    if not isinstance(number, (int, float)) or 5 < number < 24:
        return number
    why = "as if an operation were free" if number > 5 else "too much sticks out at the ends"
    return f"{number:g} ({why})"


guess_wait_stream = exact_number(
    "the end of F2 behind wait_stream",
    _end_of_f2,
    "ticks",
    said={
        11: "if each kernel waited for its own copy only",
        9: "the kernels alone, as if none waited",
        13: "so F0 would wait for two copies: it waits for all three",
        6: "the end of C2, when F0 may start",
    },
    tried=Tried(right=15, wrong=11),
)
guess_hurried = Guess(
    "the sums without a wait and without a sleep",
    lambda: "C",
    read=letter,
    said={
        "A": "as if the copy always came first: nothing promises it",
        "B": "as if a sum saw all of the copy or nothing: it can read in the middle of it",
    },
    tried=Tried(right="C", wrong="B"),
)
guess_timed = exact_number(
    "what the host's clock shows",
    lambda: ask_time(_by_the_host(True))(5.0, (2.0, 2.0, 2.0)),
    "ms",
    said={
        6: "the three kernels alone; synchronize waits for all",
        5: "the earlier kernel alone",
        0: "what the launches take, without synchronize",
    },
    tried=Tried(right=11, wrong=6),
)
guess_step = exact_number(
    "a step with copies ahead",
    lambda copy=3, compute=6: max(copy, compute),
    unit="ticks",
    said={
        9: "copy and step one after the other, as in one stream",
        11: "one after the other, nothing overlaps",
        3: "the copy alone; the step is slower",
    },
    tried=Tried(right=6, wrong=9),
)
guess_chunks = Guess(
    "the fastest number of chunks",
    lambda: best_chunks(75, 100, 75, 1),
    "chunks",
    0.1,
    _chunks_why,
    tried=Tried(right=12, wrong=52),
)
guess_spoiled = exact_number(
    "the chunk whose result may be wrong",
    lambda: next(i for got in outcomes(damaged(4), 4) for i in range(4) if got[i] != str(i)),
    said={
        2: "its data are right: F2 still waits for C2",
        1: "it lies in the other block",
        3: "it lies in the other block",
    },
    tried=Tried(right=0, wrong=2),
)


# ---- exercise 1: one step of the vector clocks


def _forget_and_learn(clock: VectorClock, other: VectorClock) -> None:
    clock.clear()
    clock.update(other)


check_step = Exercise(
    "step",
    reference=reference_step,
    view=ask_clocks,
    cases=lambda: cases("program", programs()),
    praise="the races of find_races in all {count} programs",
    mistakes={
        "What the host has waited for is known to all that it launches later.": partial(
            reference_step, host=False
        ),
        "An event knows the past of its record only: store a copy.": partial(
            reference_step, keep=lambda x, _: x
        ),
        "A wait adds knowledge: what the lane knew already stays.": partial(
            reference_step, take=_forget_and_learn
        ),
        "The larger number counts: dict.update may lower one.": partial(reference_step, take=dict.update),
        "An event knows all that its lane knew, also of other lanes.": partial(
            reference_step, keep=lambda clock, lane: {lane: clock.get(lane, 0)}
        ),
        "A wait is a wait of its lane: here nothing ever learns of an event.": partial(
            reference_step, obeyed=()
        ),
        "A wait teaches the waiting stream only: the host goes on without knowing.": partial(
            reference_step, taught=[HOST]
        ),
        "A launch raises the entry of its own lane in its own clock.": partial(
            reference_step, counts="nobody"
        ),
        "Return a copy: the lane's own clock goes on changing.": partial(
            reference_step, answer=lambda clock: clock
        ),
    },
)


# ---- exercise 2: the time of some work on the device

DeviceTimer: TypeAlias = Callable[[Callable[[], object], Any], float]


def _device_ms(work: Callable[[], object], cuda: Any) -> float:
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _by_the_host(waits: bool, before: bool = False) -> DeviceTimer:
    def timed(work: Callable[[], object], cuda: Any) -> float:
        if before:
            cuda.synchronize()
        begin = cuda.host
        work()
        if waits:
            cuda.synchronize()
        return round(float(cuda.host - begin), 9)

    return timed


def _waits_inside(work: Callable[[], object], cuda: Any) -> float:
    def work_and_wait() -> None:
        work()
        cuda.synchronize()

    return _device_ms(work_and_wait, cuda)


def ask_time(timing: DeviceTimer) -> Callable[[float, Sequence[float]], float]:
    """Return the function that times kernels behind `waiting` ms of other work on a ModelGPU."""

    def timed(waiting: float, kernels: Sequence[float]) -> float:
        cuda = ModelGPU()
        if waiting:
            cuda.launch(waiting)
        got = timing(lambda: list(map(cuda.launch, kernels)), cuda)
        return got if got is None else round(float(got), 9)

    return timed


check_device_ms = Exercise(
    "device_ms",
    reference=_device_ms,
    view=ask_time,
    cases=cases("waiting kernels", [(0.0, (2.0,) * 3), (5.0, (2.0,) * 3), (5.0, (0.25,)), (9.0, ())]),
    praise="the device's time in all {count} cases",
    mistakes={
        "The host's clock times the launches, not the work.": _by_the_host(False),
        "The host's clock waits for what was in the stream before, too.": _by_the_host(True),
        "To empty the stream first lets the launches show.": _by_the_host(True, before=True),
        "Record the second event first, then wait: else what the host does after its wait is measured, "
        "too.": _waits_inside,
        "elapsed_time gives milliseconds already.": lambda work, cuda: _device_ms(work, cuda) / 1000,
        "elapsed_time asks the earlier event for the later one.": lambda work, cuda: -_device_ms(work, cuda),
        "The first event belongs before the work.": lambda work, cuda: (work(), 0.0)[1],
    },
)


# ---- exercise 3: the prefetcher

check_prefetch = Exercise(
    "my_prefetch",
    reference=one_ahead,
    judge=judged(fault_of_prefetch, "all items, copied one ahead, no race, and the host waits for no copy."),
)


# ---- exercise 4: the three-stream loop

check_streamed = Exercise(
    "streamed",
    reference=stream_chunks,
    judge=judged_on_a_device_too(
        judged(
            fault_of_streamed,
            "right results, no race, no wait too many, two inputs and no more than three outputs.",
        )
    ),
    mistakes={
        EDGES[edge]: partial(stream_chunks, kept="123405".replace(number, ""))
        for edge, number in zip(EDGES, "123405", strict=True)
    }
    | {
        "C1 waits for F0, and need not (both are in stream compute)": partial(stream_chunks, streams=1),
        "C2 waits for D0, and need not": partial(stream_chunks, after="D"),
        "C1 waits for F0, and need not: it uses and overwrites nothing of F0": partial(
            stream_chunks, streams=2
        ),
        "C1 waits for F0, because it writes the block that F0 reads. Take two buffers": partial(
            stream_chunks, depth=1
        ),
        "F1 waits for D0, because it writes the block that D0 reads. Hold": partial(stream_chunks, outputs=1),
        "the host stands still until": partial(stream_chunks, kept="123405h"),
        "blocks of device memory are in use": partial(stream_chunks, depth=8),
    },
)
