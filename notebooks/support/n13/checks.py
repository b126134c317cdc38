"""Predictions and exercises of notebook 13, CUDA streams."""

from __future__ import annotations

from functools import partial

from lib.streams.races import HOST, VectorClock
from support.kit.exact import exact_number
from support.kit.exercise import Exercise, cases
from support.kit.guess import Guess, Tried, letter
from support.kit.judged import judged
from support.kit.mistakes import edited
from support.n13 import timing
from support.n13.batch_users import issued as issued
from support.n13.clocks import ask_clocks as ask_clocks
from support.n13.clocks import fault_of_vector_clocks, reference_step
from support.n13.clocks import programs as programs
from support.n13.device_judge import judged_on_a_device_too, wrong_numbers
from support.n13.museum import REPAIRED, judge_of
from support.n13.prefetchers import by_order
from support.n13.prefetching import EPOCH, blocks_of, fault_of_prefetch
from support.n13.prefetching import one_ahead as one_ahead
from support.n13.runs import damaged, earliest, launch_way, outcomes
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
        12: "that is when F1 ends",
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
    lambda: 10 * (timing.ask_time(timing.by_the_hosts_clock_and_a_wait)(5.0, (2.0, 2.0, 2.0)) or 0),
    "ms",
    said={
        60: "the three kernels alone; synchronize waits for all",
        50: "the earlier kernel alone",
        0: "what the launches take, without synchronize",
    },
    tried=Tried(right=110, wrong=60),
)
guess_blocks = exact_number(
    "the batches that the device holds at most, handed back by order",
    lambda: blocks_of(issued(by_order, EPOCH).operations),
    "batches",
    said={
        12: "as without a bound: there it is record_stream that holds the blocks back",
        3: "that is with a user who keeps the name of the last one",
        4: "so many at most with a bound on the host; here nothing holds a block back",
        1: "the next one must arrive while this one is in use",
    },
    tried=Tried(right=2, wrong=12),
)
guess_step = exact_number(
    "a step with copies ahead",
    lambda copy=3, compute=6: max(copy, compute),
    unit="ticks",
    said={
        9: "copy and step one after the other, as in one stream",
        11: "one after the other, nothing overlaps",
        3: "the copy alone; the step is slower",
        5: "loading and copying; the step is slower than both",
        8: "loading and the step, one after the other",
    },
    tried=Tried(right=6, wrong=9),
)
guess_chunks = Guess(
    "the fastest number of chunks",
    lambda: best_chunks(75, 100, 75, 1),
    "chunks",
    0.05,
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


KEEPS = "events[op.event] = keep(clock, op.lane)"
LEARNS = "take(pupil, events.get(op.event, {}))"
ASKS = "learn(clock, lanes.setdefault(HOST, {}))"
check_step = Exercise(
    "step",
    reference=reference_step,
    view=ask_clocks,
    cases=lambda: cases("program", programs()),
    praise="the races of find_races in all {count} programs",
    fault=fault_of_vector_clocks,
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
        "Behind a wait its lane knows what the event stands for, the launch before the record included.": partial(
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
        "A wait changes the clock of who waits. The event stays what it was when it was recorded.": edited(
            reference_step, (LEARNS, f"{LEARNS}\n            events[op.event] = dict(clock)")
        ),
        "The host launches, too, such as a write into a pinned batch: that counts in its own lane.": edited(
            reference_step, ('if op.kind == "launch":', 'if op.kind == "launch" and op.lane != HOST:')
        ),
        "An event may be recorded again: from then on it stands for the later mark.": edited(
            reference_step,
            (KEEPS, "events.setdefault(op.event, keep(clock, op.lane))"),
        ),
        "An event that is recorded again stands for the later mark only: what the older one knew is gone.": edited(
            reference_step, (KEEPS, "learn(events.setdefault(op.event, {}), clock)")
        ),
        "A wait is for the mark that is there when it is launched: a later record tells it nothing.": edited(
            reference_step,
            (LEARNS, f"{LEARNS}\n            events.setdefault(('who waits', op.event), []).append(clock)"),
            (
                KEEPS,
                f"{KEEPS}\n        for waiting in events.get(('who waits', op.event), []):\n"
                "            learn(waiting, clock)",
            ),
        ),
        "What a stream knows may be more than the host knows: take the larger number there, too.": edited(
            reference_step, (ASKS, "clock.update(lanes[HOST])")
        ),
        "The host goes on learning: ask for its clock at each operation, not only when the lane appears.": edited(
            reference_step,
            (ASKS, "pass"),
            ("setdefault(op.lane, {})", "setdefault(op.lane, dict(lanes[HOST]))"),
        ),
        "The host goes on learning, also of what the lane knows in part: the larger number counts.": edited(
            reference_step, (ASKS, "clock.update(lanes.setdefault(HOST, {}) | clock)")
        ),
        "Several may wait for one event: keep it.": edited(
            reference_step, ("events.get(op.event, {})", "events.pop(op.event, {})")
        ),
        "The host keeps what it knew when it waits for an older event.": edited(
            reference_step,
            (LEARNS, f"if op.lane == HOST:\n                clock.clear()\n            {LEARNS}"),
        ),
    },
)


# ---- exercise 2: the time of some work on the device

check_device_ms = Exercise(
    "device_ms",
    reference=timing.device_ms,
    view=timing.ask_time,
    cases=cases(
        "waiting kernels side",
        [
            (5.0, (2.0,) * 3, False),
            (0.0, (2.0,) * 3, False),
            (5.0, (0.25,), False),
            (9.0, (), False),
            (5.0, (2.0,) * 3, True),
        ],
    ),
    praise="the device's time in all {count} cases",
    fault=timing.fault_of_time,
    mistakes={
        "The host's clock times the launches, not the work.": timing.by_the_hosts_clock,
        "The host's clock times the launches, and in seconds.": timing.in_the_hosts_seconds,
        "The host's clock waits for what was in the stream before, too.": timing.by_the_hosts_clock_and_a_wait,
        "The device runs empty on the way, and then it waits for a launch, which is measured, too.": (
            timing.with_a_wait_inside
        ),
        "elapsed_time gives milliseconds already.": lambda work, cuda: timing.device_ms(work, cuda) / 1000,
        "elapsed_time asks the earlier event for the later one.": lambda work, cuda: (
            -timing.device_ms(work, cuda)
        ),
        "work() launches into the current stream, and that is not always the default one.": (
            timing.in_the_default_stream
        ),
        "Both marks lie on the same side of the work.": timing.with_both_marks_behind,
    },
)


# ---- exercise 3: the prefetcher

check_prefetch = Exercise(
    "my_prefetch",
    reference=one_ahead,
    judge=judged(
        fault_of_prefetch, "all items, copied one ahead, no race, and four blocks are enough for any epoch."
    ),
)


# ---- exercise 4: the three-stream loop

check_streamed = Exercise(
    "streamed",
    reference=stream_chunks,
    judge=judged_on_a_device_too(
        judged(
            fault_of_streamed,
            "right results, no race, no wait too many, two inputs and two outputs in turn.",
        ),
        wrong_numbers,
    ),
    mistakes={
        EDGES[edge]: partial(stream_chunks, kept="123405".replace(number, ""))
        for edge, number in zip(EDGES, "123405", strict=True)
    }
    | {
        "C1 waits for F0: both are in stream compute, which runs in order.": partial(
            stream_chunks, streams=1
        ),
        "C2 waits for D0, and need not": partial(stream_chunks, after="D"),
        "C1 waits for D0: both are in stream copy in, which runs in order.": partial(
            stream_chunks, streams=2
        ),
        "C1 waits for F0, because it writes the block that F0 reads. Take two buffers": partial(
            stream_chunks, depth=1
        ),
        "F1 waits for D0, because it writes the block that D0 reads. Hold": partial(stream_chunks, outputs=1),
        "the host stands still until": partial(stream_chunks, kept="123405h"),
        "two of each are enough. An output that still has a name": partial(stream_chunks, depth=8),
    },
)


# ---- exercises 5 to 7: the missing line of three exhibits


check_handed = Exercise(
    "handed_over",
    reference=REPAIRED["handed_over"],
    judge=judge_of("handed_over"),
    mistakes={
        "Dropped, this block goes back to the pool of the copy stream, unless the allocator knows who else "
        "reads it.": edited(REPAIRED["handed_over"], ("record_stream(compute)", "record_stream(copies)")),
        "copy 1 now waits for addition 0": edited(
            REPAIRED["handed_over"], ("weight.record_stream(compute)", "copies.wait_stream(compute)")
        ),
        "the host stands still until": edited(
            REPAIRED["handed_over"], ("weight.record_stream(compute)", "compute.synchronize()")
        ),
        "So it is the layer after the next that gets the block.": edited(
            REPAIRED["handed_over"],
            ("        weight.record_stream(compute)\n        del weight\n", ""),
        ),
        "in one stream now": edited(
            REPAIRED["handed_over"], ('gpu.new_stream("copies")', "gpu.current_stream()")
        ),
    },
)
SHARDS = "    for shard in shards:\n"
check_shared = Exercise(
    "shared_buffer",
    reference=REPAIRED["shared_buffer"],
    judge=judge_of("shared_buffer"),
    mistakes={
        "Between the shards nobody gives this buffer back, so it is for the next writer to wait, and a wait holds "
        "what is launched behind it.": edited(
            REPAIRED["shared_buffer"], ("gather.wait_stream(compute)", "buffer.record_stream(compute)")
        ),
        "Each addition but the last is waited for, and behind the last the function gives the buffer back.": (
            edited(
                REPAIRED["shared_buffer"],
                ("        gather.wait_stream(compute)\n", ""),
                (SHARDS, f"{SHARDS}        gather.wait_stream(compute)\n"),
            )
        ),
        "the host stands still until": edited(
            REPAIRED["shared_buffer"], ("gather.wait_stream(compute)", "compute.synchronize()")
        ),
    },
)
check_refilled = Exercise(
    "refilled",
    reference=REPAIRED["refilled"],
    judge=judge_of("refilled", host_waits=True),
    mistakes={
        "Here the host comes too early: it must have waited for this copy before it fills the batch.": edited(
            REPAIRED["refilled"], ("side.synchronize()", "side.wait_stream(compute)")
        ),
        "copy 1 now waits for addition 0": edited(
            REPAIRED["refilled"], ("side.synchronize()", "compute.synchronize()")
        ),
    },
)
