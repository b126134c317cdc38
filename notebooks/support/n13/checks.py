"""Predictions and exercises of notebook 13, CUDA streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from itertools import combinations
from typing import Any, TypeAlias

import torch

from lib.streams.pretend import PretendEvent, PretendGPU, PretendTensor
from lib.streams.races import HOST, Clocks, Operation, VectorClock, find_races, happens_before, learn
from support.checks import Exercise, Guess, Tried, Verdict, cases, exact
from support.n13.runs import ModelGPU, damaged, earliest, launch_way, ordered, outcomes, run_prefetcher
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


guess_wait_stream = exact(
    "the end of F2 behind wait_stream",
    _end_of_f2,
    "ticks",
    _11="if each kernel waited for its own copy only",
    _9="the kernels alone, as if none waited",
    _13="so F0 would wait for two copies: it waits for all three",
    _6="the end of C2, when F0 may start",
    tried=Tried(right=15, wrong=11),
)
guess_timed = exact(
    "what the host's clock shows",
    lambda: ask_time(_by_the_host(True))(5.0, (2.0, 2.0, 2.0)),
    unit="ms",
    _6="the three kernels alone; synchronize waits for all",
    _5="the earlier kernel alone",
    _0="what the launches take, without synchronize",
    tried=Tried(right=11, wrong=6),
)
guess_step = exact(
    "a step with copies ahead",
    lambda copy=3, compute=6: max(copy, compute),
    unit="ticks",
    _9="copy and step one after the other, as in one stream",
    _11="one after the other, nothing overlaps",
    _3="the copy alone; the step is slower",
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
guess_spoiled = exact(
    "the chunk whose result may be wrong",
    lambda: next(i for got in outcomes(damaged(4), 4) for i in range(4) if got[i] != str(i)),
    _2="its data are right: F2 still waits for C2",
    _1="it lies in the other block",
    _3="it lies in the other block",
    tried=Tried(right=0, wrong=2),
)


# fmt: off
# ---- exercise 1: one step of the vector clocks

Step: TypeAlias = Callable[[dict[str, VectorClock], dict[int, VectorClock], Operation], VectorClock]


def _step(
    lanes: dict[str, VectorClock], events: dict[int, VectorClock], op: Operation, *, host: bool = True,
    keep: Callable[[VectorClock, str], VectorClock] = lambda clock, lane: dict(clock),
    take: Callable[[VectorClock, VectorClock], object] = learn,
    obeyed: Sequence[str] = ("wait", "synchronize"), answer: Callable[[VectorClock], VectorClock] = dict,
    taught: Sequence[str] = (), counts: str = "",
) -> VectorClock:
    clock = lanes.setdefault(op.lane, {})
    if host:
        learn(clock, lanes.setdefault(HOST, {}))
    if op.kind == "launch":
        clock[counts or op.lane] = clock.get(op.lane, 0) + 1
    elif op.kind == "record" and op.event is not None:
        events[op.event] = keep(clock, op.lane)
    elif op.kind in obeyed and op.event is not None:
        for pupil in (clock, *(lanes[lane] for lane in taught)):
            take(pupil, events.get(op.event, {}))
    return answer(clock)


RULES = {  # a+ copies into a; a! records event 0, 1, …; c?0 lets c, compute, wait for event 0; c*0 reads copy 0
    "waits for two streams": "a+ b+ a! b! c?0 c?1 c*0 c*1",
    "an event between two copies": "a+ a! a+ c?0 c*0 c*1",
    "the older of two events is waited for last": "a+ a! a+ a! c?1 c?0 c*0 c*1",
    "a chain of three streams": "a+ a! b?0 b+ b! c?1 c*0 c*1",
    "a wait for an event that was never recorded": "a+ c?9 c*0",
    "another stream waits, compute does not": "a+ a! b?0 c*0",
}


def small_program(steps: str) -> list[Operation]:
    """Return a list in which one rule decides."""
    gpu = PretendGPU()
    streams = {"a": gpu.new_stream("a"), "b": gpu.new_stream("b"), "c": gpu.current_stream()}
    copies, events = list[Any](), {9: PretendEvent(gpu, 999, "")}
    for step in steps.split():
        stream, verb, which = streams[step[0]], step[1], int(step[2:] or 0)
        with gpu.use_stream(stream):
            if verb == "+":
                source = gpu.host(torch.ones(4), f"batch {len(copies)}")
                copies.append(source.to("cuda", non_blocking=True))
            elif verb == "!":
                events[len(events) - 1] = stream.record_event()
            elif verb == "?":
                stream.wait_event(events[which])
            else:
                copies[which].neg_()
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


@cache
def programs() -> dict[str, list[Operation]]:
    """Return the lists that exercise 1 is judged by, by name."""
    ways = {f"three copies, {way}": launch_way(way) for way in ("no wait", "wait_event", "synchronize")}
    missing = {f"a pipeline without wait {number}": damaged(number) for number in (None, 0, 3, 5, 9)}
    small = {name: small_program(steps) for name, steps in RULES.items()}
    return ways | small | missing | {"a prefetcher without record_stream": run_prefetcher(["record_stream"], 5)}


def ask_clocks(step: Step) -> Callable[[str], list[str] | None]:
    """Return the function that names the races of a program by these clocks; None if a clock is."""

    def racing(program: str) -> list[str] | None:
        operations = programs()[program]
        lanes, events = dict[str, VectorClock]({HOST: {}}), dict[int, VectorClock]()
        try:
            known = [step(lanes, events, op) for op in operations]
        except KeyError as error:
            advice = "a new lane has an empty clock, an event that was never recorded knows nothing"
            raise LookupError(f"KeyError {error}: {advice}, and a missing entry counts as 0") from error
        if any(clock is None for clock in known):
            return None
        named = []
        for (p, a), (q, b) in combinations(enumerate(operations), 2):
            touched = [(u, v) for u in a.writes for v in (*b.reads, *b.writes)]
            touched += [(u, v) for u in a.reads for v in b.writes]
            if any(u.meets(v) for u, v in touched) and known[q].get(a.lane, 0) < known[p].get(a.lane, 0):
                named.append(f"{a.label} and {b.label}")
        return named

    return racing


check_step = Exercise(
    "step",
    reference=_step,
    view=ask_clocks,
    cases=lambda: cases("program", programs()),
    praise="the races of find_races in all {count} programs",
    mistakes={
        "What the host has waited for is known to all that it launches later.": partial(_step, host=False),
        "An event knows the past of its record only: store a copy.": partial(_step, keep=lambda x, _: x),
        "A wait adds knowledge: what the lane knew already stays.":
            partial(_step, take=lambda clock, other: (clock.clear(), clock.update(other))),  # type: ignore[func-returns-value]
        "The larger number counts: dict.update may lower one.": partial(_step, take=dict.update),
        "An event knows all that its lane knew, also of other lanes.":
            partial(_step, keep=lambda clock, lane: {lane: clock.get(lane, 0)}),
        "A wait is a wait of its lane: here nothing ever learns of an event.": partial(_step, obeyed=()),
        "A wait teaches the waiting stream only: the host goes on without knowing.":
            partial(_step, taught=[HOST]),
        "A launch raises the entry of its own lane in its own clock.": partial(_step, counts="nobody"),
        "Return a copy: the lane's own clock goes on changing.": partial(_step, answer=lambda clock: clock),
    },
)


# ---- exercise 2: the time of some work on the device

Timing: TypeAlias = Callable[[Callable[[], object], Any], float]


def _device_ms(work: Callable[[], object], cuda: Any) -> float:
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _by_the_host(waits: bool, before: bool = False) -> Timing:
    def timed(work: Callable[[], object], cuda: Any) -> float:
        if before:
            cuda.synchronize()
        begin = cuda.host
        work()
        if waits:
            cuda.synchronize()
        return round(float(cuda.host - begin), 9)

    return timed


def ask_time(timing: Timing) -> Callable[[float, Sequence[float]], float]:
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
        "Record the second event first, then wait: else what the host does after its wait is measured, too.":
            lambda work, cuda: _device_ms(lambda: (work(), cuda.synchronize()), cuda),
        "elapsed_time gives milliseconds already.": lambda work, cuda: _device_ms(work, cuda) / 1000,
        "elapsed_time asks the earlier event for the later one.": lambda work, cuda: -_device_ms(work, cuda),
        "The first event belongs before the work.": lambda work, cuda: (work(), 0.0)[1],
    },
)


# ---- exercise 3: the prefetcher

Prefetch: TypeAlias = Callable[[Iterable[Any], Any], Iterator[Any]]
Issued: TypeAlias = tuple[list[Operation], list[float], str, str]


def issued(prefetch: Prefetch, batches: int, moves: bool = False) -> Issued:
    """Run a prefetcher with a consumer that drops each batch; return operations, values, a problem, greed.

    moves: after the first batch the consumer lets the host wait for it, and goes on in another stream.
    """
    gpu, seen, greed = PretendGPU(), list[float](), ""

    def loader() -> Iterator[Any]:
        nonlocal greed
        for i in range(batches):
            if i > len(seen) + 2:
                greed = f"batch {i} is asked for before batch {len(seen)} is handed over: take one at a time."
            yield gpu.host(torch.full((4,), float(i)), f"batch {i}")

    with ExitStack() as place:
        for batch in prefetch(loader(), gpu):
            if not (isinstance(batch, PretendTensor) and batch.block.on_device):
                return gpu.operations, seen, greed, f"item {len(seen)} is not a tensor on the device"
            with gpu.span(gpu.current_stream(), "", f"F{len(seen)}"):
                result = batch + 0
            with torch._C.DisableTorchFunctionSubclass():  # to look is no operation of the GPU
                seen.append(float(result[0]))
            del batch, result
            if len(seen) > batches:
                return gpu.operations, seen, greed, "there is no end"
            if moves and len(seen) == 1:
                gpu.current_stream().synchronize()  # whose blocks are free from now on
                place.enter_context(gpu.use_stream(gpu.new_stream("another")))
    return gpu.operations, seen, greed, ""


def _check_prefetch(exercise: Exercise, answer: Prefetch) -> Verdict:
    """Look at the items, then at the order of the operations, by happens-before."""
    for batches in (6, 1, 0, 2):
        try:
            operations, seen, greed, problem = issued(answer, batches)
            moved = find_races(issued(answer, batches, moves=True)[0])
        except Exception as error:
            return exercise.wrong(f"with {batches} batches your code raised {type(error).__name__}: {error}")
        if problem := problem or _items(seen, batches) or _order(operations, batches) or greed:
            return exercise.wrong(f"with {batches} batches {problem}")
        if moved:
            return exercise.wrong(
                f"if its user goes on in another stream after batch 0, {moved[0]}. Ask for `gpu.current_stream()` "
                "at each hand-over: it is the one that will use the batch.")
    return exercise.right(f"{exercise.praise}.")


def _items(seen: list[float], batches: int) -> str:
    expected = [float(i) for i in range(batches)]
    if seen == expected:
        return ""
    got = ", ".join(f"{value:g}" for value in seen) or "nothing"
    if seen == expected[:-1]:
        return f"batch {batches - 1} is lost. When the loader ends, one batch is still in your hand. (You gave {got}.)"
    return f"expected the batches 0 to {batches - 1} in order, got {got}."


def _order(operations: list[Operation], batches: int) -> str:
    launches = [(number, op) for number, op in enumerate(operations) if op.kind == "launch"]
    copies = {r.block: number for number, op in launches for r in op.reads if "batch" in r.block}
    kernels = {op.label: number for number, op in launches if op.label.startswith("F")}
    lanes = {operations[number].lane for number in copies.values()}
    if "compute" in lanes:
        return "batch 0 is copied in the stream that computes. A stream runs in order: nothing overlaps."
    for name, number in kernels.items():
        if (lane := operations[number].lane) != "compute":
            return f"{name} ran in {lane}: you yield inside `use_stream`, so the caller's kernels go there."
    if problem := _stands_still(operations):
        return problem
    for race in find_races(operations):
        if race.earlier.label.startswith("copy"):
            return f"{race}. Before you hand a batch over, its user's stream must wait for the copy."
        return f"{race}. The batch was dropped, and the next copy took its memory: record_stream tells the allocator."
    known = happens_before(operations)
    for i in range(batches - 1):
        kernel, following = kernels[f"F{i}"], copies[f"batch {i + 1}"]
        if following > kernel:
            return f"batch {i + 1} is copied only after F{i} was launched: nothing is prefetched."
        if early := [j for j in range(i + 2, batches) if copies[f"batch {j}"] < kernel]:
            return f"batch {early[-1]} is copied before batch {i} is handed over: one batch ahead, not more."
        lane = operations[following].lane
        if known[kernel].get(lane, 0) >= known[following][lane]:
            return (f"F{i} waits for the copy of batch {i + 1}, too: wait_stream waits for all that is in the stream. "
                    "Record an event behind each copy, or wait before the next copy is launched.")
    return _held(operations, lanes)


def _held(operations: Sequence[Operation], lanes: Collection[str]) -> str:
    """Refuse a batch that lives on although it has been used, when a copy asks for the next one's memory."""
    alive, copied = set[str](), -1
    for op in operations:
        if op.kind == "allocate" and op.lane in lanes:
            alive.add(op.label)
            copied += 1
        elif op.kind == "free":
            alive.discard(op.label)
        if len(alive) > 2:
            return (f"{len(alive)} batches are alive when batch {copied} is copied, and only batch {copied - 1} is yet "
                    "to be used: a list or variable of yours keeps an older one. `del` the name behind the yield.")
    return ""


def _stands_still(operations: Sequence[Operation]) -> str:
    """Refuse a wait of the host, but for one that bounds how far it runs ahead: for a step before the latest."""
    clocks, launched = Clocks(), 0
    last = max((k for k, op in enumerate(operations) if op.kind == "launch"), default=0)
    for number, op in enumerate(operations):
        before = clocks.lanes[HOST].get("compute", 0)
        done = clocks.issue(op).get("compute", 0)
        launched += op.kind == "launch" and op.lane == "compute"
        if op.kind == "synchronize" and number < last and not before < done < launched:
            what = "until all is computed" if done == launched > before else f"until {op.label} is done"
            return (f"the host stands still {what}. Let the stream wait, wait_event or wait_stream: the host must go "
                    "on launching. (It may wait for an older step, so that it does not run too far ahead.)")
    return ""


def _wait_and_record(gpu: Any, side: Any, batch: Any, event: Any) -> None:
    gpu.current_stream().wait_event(event)
    batch.record_stream(gpu.current_stream())


def one_ahead(batches: Iterable[Any], gpu: Any, before: Callable[..., object] = _wait_and_record) -> Iterator[Any]:
    """Copy one ahead; before a batch is handed over, wait for its own event and tell the allocator."""
    side, ready = gpu.new_stream("copy"), None
    for x in batches:
        with gpu.use_stream(side):
            coming = x.to("cuda", non_blocking=True), side.record_event()
        if ready is not None:
            before(gpu, side, *ready)
            yield ready[0]
        ready = coming
        del coming
    if ready is not None:
        before(gpu, side, *ready)
        yield ready[0]


check_prefetch = Exercise(
    "my_prefetch",
    reference=one_ahead,
    judge=_check_prefetch,
    praise="all items, copied one ahead, no race, and the host waits for no copy",
)


# ---- exercise 4: the three-stream loop

Streamed: TypeAlias = Callable[[Any, Callable[[Any], Any], Sequence[Any], Sequence[Any]], object]
EDGES = {  # by the first letters of the two that race
    "CF": "[1] compute must wait until the chunk has arrived.",
    "FC": "[2] The buffer may be written again only when the kernel before has read it.",
    "FD": "[3] The copy out must wait for the result.",
    "DF": "[4] The output was dropped, and the next kernel writes its memory, while the copy out still reads it.",
    "bC": "[0] An earlier kernel still uses this block of compute's pool: take buffers in the stream that fills them.",
    "DR": "[5] The results are read by whoever called you: wait for the last copy out before you return.",
}


def stream_chunks(
    gpu: Any, stage: Callable[[Any], Any], chunks: Sequence[Any], results: Sequence[Any],
    kept: str = "123405", after: str = "F", streams: int = 3, depth: int = 2, outputs: int = 2,
) -> None:
    """Write the answer; wrong without one of the edges `kept`, with other streams, or with buffers that wait for D."""
    compute = gpu.current_stream()
    copy_in = gpu.new_stream("copy in") if streams > 1 else compute
    copy_out = gpu.new_stream("copy out") if streams > 2 else copy_in
    with gpu.use_stream(copy_in if "0" in kept else compute):
        buffers = [gpu.empty_like(chunks[0]) for _ in range(depth)]
    done: dict[str, list[Any]] = {"F": [], "D": []}
    for i, x in enumerate(chunks):
        if i >= depth and "2" in kept:
            copy_in.wait_event(done[after][i - depth])
        with gpu.use_stream(copy_in):
            buffers[i % depth].copy_(x, non_blocking=True)
        if "1" in kept:
            compute.wait_event(copy_in.record_event())
        if i >= outputs and "4" in kept:
            compute.wait_event(done["D"][i - outputs])
        y = stage(buffers[i % depth])
        done["F"].append(compute.record_event())
        if "3" in kept:
            copy_out.wait_event(done["F"][i])
        with gpu.use_stream(copy_out):
            results[i].copy_(y, non_blocking=True)
        done["D"].append(copy_out.record_event())
        if outputs == 1:
            del y
        if "h" in kept:
            copy_out.synchronize()
    if "5" in kept:
        copy_out.synchronize()


def run_streamed(streamed: Streamed, chunks: int = 5) -> tuple[list[Operation], list[float]]:
    """Run the loop on a PretendGPU, then read the results on the host; the operations are C0, F0, D0, R0, …"""
    gpu, count = PretendGPU(), iter(range(10**6))
    sources = [gpu.host(torch.full((4,), float(i)), f"chunk {i}") for i in range(chunks)]
    results = [gpu.host(torch.zeros(4), f"result {i}") for i in range(chunks)]
    with gpu.span(gpu.current_stream(), "", "before"):  # by another function: its block is free again
        gpu.empty_like(sources[0]).fill_(0.0)

    def stage(x: Any) -> Any:
        with gpu.span(gpu.current_stream(), "", f"F{next(count)}"):
            return x + 1

    streamed(gpu, stage, sources, results)
    values = [float(y.sum()) / 4 for y in results]
    return [_renamed(op) for op in gpu.operations if op.kind != "free"], values


def _renamed(op: Operation) -> Operation:
    for letter, regions in (("C", op.reads), ("D" if op.lane != HOST else "W", op.writes), ("R", op.reads)):
        for region in regions if op.kind == "launch" else ():
            kind, _, number = region.block.partition(" ")
            if kind == ("chunk" if letter == "C" else "result"):
                return replace(op, label=f"{letter}{number}")
    return op


def _ordered(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    return [(operations[a].label, operations[b].label) for a, b in ordered(operations)]


def _check_streamed(exercise: Exercise, answer: Streamed) -> Verdict:
    """Look at the results, then at races, memory, and at order that is not needed."""
    for chunks in (5, 2, 1, 8):
        try:
            operations, values = run_streamed(answer, chunks)
        except Exception as error:
            return exercise.wrong(f"with {chunks} chunks your code raised {type(error).__name__}: {error}")
        if problem := _streamed_wrong(operations, values, chunks):
            return exercise.wrong(f"with {chunks} chunks: {problem}")
    return exercise.right(f"{exercise.praise}.")


def _streamed_wrong(operations: list[Operation], values: list[float], chunks: int) -> str:
    wanted = [float(i + 1) for i in range(chunks)]
    if values != wanted:
        return f"the results should hold {wanted}, they hold {values}."
    launches = [k for k, op in enumerate(operations) if op.kind == "launch" and op.lane != HOST]
    lanes = {operations[k].label: operations[k] for k in launches}
    for i in range(chunks):
        if missing := [name for name in (f"C{i}", f"F{i}", f"D{i}") if name not in lanes]:
            return f"chunk {i} was computed or copied on the host: the device has run no {' and no '.join(missing)}."
        if (lane := lanes[f"F{i}"].lane) != "compute":
            return f"F{i} ran in {lane}: call stage in the stream that was current when you were called."
    for k in range(launches[-1]):
        if operations[k].kind == "synchronize":
            return f"the host stands still until {operations[k].label} is done, and launches nothing."
    for race in sorted(find_races(operations), key=lambda race: race.earlier.label == "before"):
        return f"{race}. {EDGES.get(race.earlier.label[0] + race.later.label[0], '')}".strip()
    blocks = {r.block for k in launches for r in (*operations[k].reads, *operations[k].writes) if r.block.isupper()}
    inputs = {r.block for i in range(chunks) for r in lanes[f"C{i}"].writes}
    if (n := len(inputs)) > 2 or len(blocks - inputs) > 3:
        m = len(blocks - inputs)
        return f"{n} blocks of device memory are in use for inputs, {m} for outputs: two of each are enough."
    if (waits := sum(op.kind == "synchronize" for op in operations)) > 1:
        return f"the host waits {waits} times: behind the last copy out nothing is left, one wait is enough."
    needed, extra = set(_ordered(run_streamed(stream_chunks, chunks)[0])), []
    for a, b in _ordered(operations):
        if (a, b) == ("before", "C0") and lanes[b].lane != "compute":
            return "C0 waits for what compute did before you were called: take the buffers in copy_in's own pool."
        if a[0] + b[0] == "DF" and not {r.block for r in lanes[a].reads} & {r.block for r in lanes[b].writes}:
            needed -= {(a, b)} if int(b[1:]) == int(a[1:]) + 2 else set()
        if (a, b) not in needed and a[0] in "CFD" and b[0] in "CFD":
            extra.append((lanes[a], lanes[b]))
    reused = [(p, q) for p, q in extra if {r.block for r in p.reads} & {r.block for r in q.writes}]
    for p, q in reused or extra:
        if not reused:
            same = f" (both are in stream {p.lane})" if p.lane == q.lane else ""
            return f"{q.label} waits for {p.label}, and need not{same}: it uses and overwrites nothing of {p.label}."
        way = "Hold the output in a variable until the next one exists" if q.label[0] == "F" else "Take two buffers"
        why = f"because it writes the block that {p.label} reads"  # so with these blocks the wait is needed
        return f"{q.label} waits for {p.label}, {why}. {way}: if two blocks take turns, it need not."
    return ""


check_streamed = Exercise(
    "streamed",
    reference=stream_chunks,
    judge=_check_streamed,
    praise="right results, no race, no wait too many, two inputs and no more than three outputs",
    mistakes={
        EDGES[edge]: partial(stream_chunks, kept="123405".replace(number, ""))
        for edge, number in zip(EDGES, "123405", strict=True)
    }
    | {
        "C1 waits for F0, and need not (both are in stream compute)": partial(stream_chunks, streams=1),
        "C2 waits for D0, and need not": partial(stream_chunks, after="D"),
        "C1 waits for F0, and need not: it uses and overwrites nothing of F0": partial(stream_chunks, streams=2),
        "C1 waits for F0, because it writes the block that F0 reads. Take two buffers": partial(stream_chunks, depth=1),
        "F1 waits for D0, because it writes the block that D0 reads. Hold": partial(stream_chunks, outputs=1),
        "the host stands still until": partial(stream_chunks, kept="123405h"),
        "blocks of device memory are in use": partial(stream_chunks, depth=8),
    },
)
