"""Predictions and exercises of notebook 13, CUDA streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch

from lib.streams.pretend import PretendGPU, PretendTensor
from lib.streams.races import HOST, Clocks, Operation, find_races, happens_before
from support.checks import Exercise, Guess, Verdict
from support.n13.runs import damaged, earliest, run_way
from support.runs import best_chunks, predict_chunks

# ---- predictions


def _end_behind_wait_stream(copy: float = 2, compute: float = 3) -> float:
    spans = earliest(run_way("wait_stream"), lambda op: copy if op.label.startswith("C") else compute)
    return max(span.end for span in spans.values())


guess_wait_stream = Guess("the end of F2 behind wait_stream", _end_behind_wait_stream, unit="ticks")
"""Section 1: when the third kernel ends, each behind wait_stream."""
guess_half = Guess("the size for half the speed", lambda: 25 * 10, unit="kB", tolerance=0.05)
"""Section 2: kB a copy for half the speed of a link of 25 GB/s, with 10 µs of latency."""
guess_step = Guess("a step with copies ahead", lambda copy=3, compute=6: max(copy, compute), unit="ticks")
"""Section 3: ticks of a step when copies go ahead."""
guess_waits = Guess("the number of waits that can go", lambda: 0)
"""Section 5: waits of the pipeline that could be left out."""
guess_chunks = Guess(
    "the fastest number of chunks", lambda: best_chunks(75, 100, 75, 1), unit="chunks", tolerance=0.1
)
"""Section 5: the number of chunks that is fastest: 75 ticks of copies in and out, 100 of computing, 1 a launch."""


# ---- exercise 1: the missing wait

DAMAGED, CHUNKS = 10, 5  # [4] of F3


@cache
def damaged_list() -> tuple[Operation, ...]:
    """Return what a StreamPipeline of 5 chunks would issue if it lacked one wait."""
    return tuple(damaged(DAMAGED, CHUNKS))


def _check_missing(exercise: Exercise, answer: object) -> Verdict:
    """Compare a pair of labels, (who must wait, for whom), with the race in the damaged list."""
    operations = damaged_list()
    labels = {op.label: number for number, op in enumerate(operations) if op.kind == "launch"}
    example = "write it as a pair of labels such as ('F1', 'C1'): F1 waits for C1"
    if not (isinstance(answer, Sequence) and not isinstance(answer, str) and len(answer) == 2):
        return exercise.wrong(f"{answer!r} is no pair; {example}.")
    later, first = (str(label).strip().upper() for label in answer)
    if unknown := [label for label in (later, first) if label not in labels]:
        return exercise.wrong(f"there is no {unknown[0]!r} in the list; {example}.")
    (race,) = find_races(operations)
    if (later, first) == (race.later.label, race.earlier.label):
        return exercise.right(f"{later} must wait for {first}. {str(race).split(':')[0]}.")
    if (first, later) == (race.later.label, race.earlier.label):
        return exercise.wrong(f"these two, but {later} is launched before {first}. Who must wait?")
    a, b = labels[first], labels[later]
    if a >= b:
        return exercise.wrong(f"{first} is launched after {later}, so {later} can't wait for it.")
    known, lane = happens_before(operations), operations[a].lane
    if known[b].get(lane, 0) >= known[a][lane]:
        return exercise.wrong(f"{later} already waits for {first}, by a stream or by events.")
    if not find_races(with_wait(operations, a, b)):
        return exercise.wrong(f"with it there is no race, but {later} would wait for more than it must.")
    blocks = [{r.block for r in (*operations[k].reads, *operations[k].writes)} for k in (a, b)]
    shared = ", ".join(sorted(blocks[0] & blocks[1])) or "no memory"
    return exercise.wrong(f"nothing orders {first} and {later}, but they share {shared}: no conflict there.")


def with_wait(operations: Sequence[Operation], first: int, later: int) -> list[Operation]:
    """Return the list with one more wait: of launch number `later` for launch number `first`."""
    event = 1 + max(op.event or 0 for op in operations)
    record = Operation("record", operations[first].lane, event=event)
    wait = Operation("wait", operations[later].lane, event=event)
    return [*operations[: first + 1], record, *operations[first + 1 : later], wait, *operations[later:]]


check_missing = Exercise("the missing wait", reference=("F3", "D1"), judge=_check_missing)
"""Exercise 1: a pair of labels, (who must wait, for whom)."""


# ---- exercise 2: how many chunks

CASES = (
    (75.0, 100.0, 75.0, 1.0),
    (100.0, 25.0, 100.0, 0.5),
    (5.0, 100.0, 5.0, 1.0),
    (100.0, 100.0, 0.0, 0.25),
    (200.0, 50.0, 10.0, 2.0),
    (1.0, 100.0, 1.0, 4.0),
    (100.0, 2.0, 2.0, 1.0),
    (60.0, 60.0, 60.0, 0.1),
)
"""(copy_in, compute, copy_out, overhead)"""
ALLOWED = 1.03

ChunksFor: TypeAlias = Callable[[float, float, float, float], float]


def _check_chunks(exercise: Exercise, answer: ChunksFor) -> Verdict:
    """Judge by the model's time, which may be 3 % above the best."""
    suspects = dict(exercise.mistakes)
    for case in CASES:
        where = "for copy_in {:g}, compute {:g}, copy_out {:g}, overhead {:g}, ".format(*case)
        try:
            given = answer(*case)
            got = None if given is None else int(given)
        except Exception as error:
            return exercise.wrong(f"{where}your code raised {type(error).__name__}: {error}")
        if got is None:
            return exercise.wrong(f"{where}your function returned None (is a `return` missing?).")
        if got < 1 or got != given:
            return exercise.wrong(f"{where}{given!r} is no number of chunks: 1, 2, 3, …")
        suspects = {why: wrong for why, wrong in suspects.items() if wrong(*case) == got}
        best = best_chunks(*case, most=128)
        mine, least = (predict_chunks(count, *case[:3], overhead=case[3]).makespan for count in (got, best))
        if mine > ALLOWED * least:
            why = next(iter(suspects), "")
            text = f"{got} chunks take {mine:.1f} ticks, {best} take {least:.1f}. {why}"
            return exercise.wrong(where + text.strip())
    return exercise.right(f"{exercise.praise.format(count=len(CASES))}.")


def _root_of(exposed: Callable[..., float], root: Callable[[float], float] = math.sqrt) -> ChunksFor:
    """Make an answer from the ticks that are `exposed` without overlap; `root` balances them with the launches."""
    return lambda copy_in, compute, copy_out, overhead: max(
        1, round(root(exposed(copy_in, compute, copy_out) / overhead))
    )


def _all_but_slowest(*lanes: float) -> float:
    return sum(lanes) - max(lanes)


check_chunks = Exercise(
    "chunks_for",
    reference=_root_of(_all_but_slowest),
    judge=_check_chunks,
    praise="within 3 % of the best in all {count} cases",
    mistakes={
        "One chunk: nothing overlaps.": lambda *case: 1,
        "Each chunk costs a launch in every lane: so many are too many.": lambda *case: 256,
        "The slowest lane is never idle: only the others must be hidden.": _root_of(
            lambda *lanes: sum(lanes)
        ),
        "Is computing always the slowest lane?": _root_of(
            lambda copy_in, compute, copy_out: copy_in + copy_out
        ),
        "There is a launch for each chunk: both sides depend on their number, hence a root.": _root_of(
            _all_but_slowest, root=float
        ),
    },
)
"""Exercise 2: the number of chunks."""


# ---- exercise 3: the prefetcher

Prefetch: TypeAlias = Callable[[Iterable[Any], Any], Iterator[Any]]


def issued(prefetch: Prefetch, batches: int) -> tuple[list[Operation], list[float], str]:
    """Run a prefetcher on a PretendGPU with a consumer that drops each batch; return operations, values, a problem."""
    gpu, seen = PretendGPU(), list[float]()
    loader = [gpu.host(torch.full((4,), float(i)), f"batch {i}") for i in range(batches)]
    for batch in prefetch(loader, gpu):
        if not (isinstance(batch, PretendTensor) and batch.block.on_device):
            return gpu.operations, seen, f"item {len(seen)} is not a tensor on the device"
        with gpu.span(gpu.current_stream(), "", f"F{len(seen)}"):
            result = batch + 0
        with torch._C.DisableTorchFunctionSubclass():  # to look is no operation of the GPU
            seen.append(float(result[0]))
        del batch, result
        if len(seen) > batches:
            return gpu.operations, seen, "there is no end"
    return gpu.operations, seen, ""


def _check_prefetch(exercise: Exercise, answer: Prefetch) -> Verdict:
    """Look at the items, then at the order of the operations, by happens-before."""
    for batches in (6, 1, 0, 2):
        try:
            operations, seen, problem = issued(answer, batches)
        except Exception as error:
            return exercise.wrong(f"with {batches} batches your code raised {type(error).__name__}: {error}")
        problem = problem or _items(seen, batches) or _order(operations, batches)
        if problem:
            return Verdict("wrong", f"{exercise.what}, {batches} batches: {problem}")
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
    copies = {
        region.block: number for number, op in launches for region in op.reads if "batch" in region.block
    }
    kernels = {op.label: number for number, op in launches if op.label.startswith("F")}
    lanes = {operations[number].lane for number in copies.values()}
    if "compute" in lanes:
        return "batch 0 is copied in the stream that computes. A stream runs in order: nothing overlaps."
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
        lane = operations[following].lane
        if known[kernel].get(lane, 0) >= known[following][lane]:
            return (
                f"F{i} waits for the copy of batch {i + 1}, too: wait_stream waits for all that is in the stream. "
                "Record an event behind each copy, or wait before the next copy is launched."
            )
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
            return (
                f"the host stands still {what}. Let the stream wait, wait_event or wait_stream: the host must go on "
                "launching. (It may wait for an older step, so that it does not run too far ahead.)"
            )
    return ""


def _wait_and_record(gpu: Any, side: Any, batch: Any, event: Any) -> None:
    gpu.current_stream().wait_event(event)
    batch.record_stream(gpu.current_stream())


def one_ahead(
    batches: Iterable[Any], gpu: Any, before: Callable[..., object] = _wait_and_record
) -> Iterator[Any]:
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
    praise="all items, copied ahead, no race, and the host waits for no copy",
)
"""Exercise 3: what a prefetcher issues on a PretendGPU, with several numbers of batches."""
