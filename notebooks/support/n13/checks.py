"""Predictions and exercises of notebook 13, CUDA streams."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from lib.streams.model import best_chunks, earliest, predict_chunks
from lib.streams.pretend import PretendGPU, PretendTensor
from lib.streams.races import Operation, find_races, happens_before

from support.checks import Verdict, guess, not_attempted, untouched
from support.n13 import checks as answers
from support.n13.runs import damaged, run_way

# ---- Notebook 13: the reference answers, and the famous wrong ones.

Prefetch = Callable[[Iterable[Any], Any], Iterator[Any]]
ChunksFor = Callable[[float, float, float, float], float]

# ---- exercise 2: how many chunks


def true_chunks(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Return where the two parts that depend on the count are equal: what is not hidden, and the launches."""
    lanes = (copy_in, compute, copy_out)
    return max(1, round(math.sqrt((sum(lanes) - max(lanes)) / overhead)))


def all_lanes(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Count the slowest lane among what is not hidden."""
    return max(1, round(math.sqrt((copy_in + compute + copy_out) / overhead)))


def only_copies(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Take for granted that computing is the slowest."""
    return max(1, round(math.sqrt((copy_in + copy_out) / overhead)))


def no_root(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Make a launch as long as what is not hidden: but there is a launch for each chunk."""
    lanes = (copy_in, compute, copy_out)
    return max(1, round((sum(lanes) - max(lanes)) / overhead))


def one(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Overlap nothing."""
    return 1


def very_many(copy_in: float, compute: float, copy_out: float, overhead: float) -> int:
    """Overlap all, at any price."""
    return 256


# ---- exercise 3: the prefetcher


def _prefetch(
    batches: Iterable[Any], gpu: Any, hand_over: Callable[[Any, Any, Any], Any], *, drop_last: bool = False
) -> Iterator[Any]:
    side, ready = gpu.new_stream("copy"), None
    for x in batches:
        with gpu.use_stream(side):
            coming = x.to("cuda", non_blocking=True), side.record_event()
        if ready is not None:
            yield hand_over(gpu, side, ready)
        ready = coming
        del coming
    if ready is not None and not drop_last:
        yield hand_over(gpu, side, ready)


def _wait_and_record(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
    gpu.current_stream().wait_event(ready[1])
    ready[0].record_stream(gpu.current_stream())
    return ready[0]


def true_prefetch(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Copy one ahead, wait for the batch's own event, tell the allocator."""
    return _prefetch(batches, gpu, _wait_and_record)


def no_wait(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Hand over what may still be on its way."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        ready[0].record_stream(gpu.current_stream())
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


def no_record(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Leave the allocator in the dark."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        gpu.current_stream().wait_event(ready[1])
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


def waits_for_all(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Wait for the stream, in which the next copy is already."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        gpu.current_stream().wait_stream(side)
        ready[0].record_stream(gpu.current_stream())
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


def drops_last(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Stop when the loader does, with a batch in the hand."""
    return _prefetch(batches, gpu, _wait_and_record, drop_last=True)


def nothing_ahead(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Copy on a side stream, but only when the batch is asked for."""
    side = gpu.new_stream("copy")
    for x in batches:
        with gpu.use_stream(side):
            y = x.to("cuda", non_blocking=True)
        gpu.current_stream().wait_stream(side)
        y.record_stream(gpu.current_stream())
        yield y


def same_stream(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Copy ahead, in the stream that computes."""
    ready = None
    for x in batches:
        coming = x.to("cuda", non_blocking=True)
        if ready is not None:
            yield ready
        ready = coming
    if ready is not None:
        yield ready


def host_waits(batches: Iterable[Any], gpu: Any) -> Iterator[Any]:
    """Let the host wait for the copy."""

    def hand_over(gpu: Any, side: Any, ready: tuple[Any, Any]) -> Any:
        ready[1].synchronize()
        ready[0].record_stream(gpu.current_stream())
        return ready[0]

    return _prefetch(batches, gpu, hand_over)


# ---- Checks of notebook 13: a wait that is missing, how many chunks, a prefetcher by the operations that it issues.

# ---- predictions


def guess_wait_stream(my_guess: object, copy: float = 2, compute: float = 3) -> Verdict:
    """Comment on the guess of section 1: when the third kernel ends, each behind wait_stream."""
    spans = earliest(run_way("wait_stream"), lambda op: copy if op.label.startswith("C") else compute)
    truth = max(span.end for span in spans.values())
    return guess(my_guess, truth, what="the end of F2 behind wait_stream", unit="ticks")


def guess_half(my_guess: object, link: float = 25, latency: float = 10) -> Verdict:
    """Comment on the guess of section 2: kB a copy for half the link's speed (link in GB/s, latency in µs)."""
    return guess(my_guess, link * latency, what="the size for half the speed", unit="kB", tolerance=0.05)


def guess_step(my_guess: object, copy: float = 3, compute: float = 6) -> Verdict:
    """Comment on the guess of section 3: ticks of a step when copies go ahead."""
    return guess(my_guess, max(copy, compute), what="a step with copies ahead", unit="ticks")


def guess_waits(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: waits of the pipeline that could be left out."""
    return guess(my_guess, 0, what="the number of waits that can go")


def guess_chunks(my_guess: object, copy: float = 75, compute: float = 100, overhead: float = 1) -> Verdict:
    """Comment on the guess of section 5: the number of chunks that is fastest."""
    truth = best_chunks(copy, compute, copy, overhead)
    return guess(my_guess, truth, what="the fastest number of chunks", unit="chunks", tolerance=0.1)


# ---- exercise 1: the missing wait

DAMAGED, CHUNKS = 10, 5  # [4] of F3


@cache
def damaged_list() -> tuple[Operation, ...]:
    """Return what a StreamPipeline of 5 chunks would issue if it lacked one wait."""
    return tuple(damaged(DAMAGED, CHUNKS))


def check_missing(answer: object) -> Verdict:
    """Check exercise 1: a pair of labels, (who must wait, for whom)."""
    what = "the missing wait"
    if answer is None or answer is ...:
        return not_attempted(what)
    operations = damaged_list()
    labels = {op.label: number for number, op in enumerate(operations) if op.kind == "launch"}
    example = "write it as a pair of labels such as ('F1', 'C1'): F1 waits for C1"
    if not (isinstance(answer, Sequence) and not isinstance(answer, str) and len(answer) == 2):
        return Verdict("wrong", f"{what}: {answer!r} is no pair; {example}.")
    later, first = (str(label).strip().upper() for label in answer)
    if unknown := [label for label in (later, first) if label not in labels]:
        return Verdict("wrong", f"{what}: there is no {unknown[0]!r} in the list; {example}.")
    (race,) = find_races(operations)
    if (later, first) == (race.later.label, race.earlier.label):
        return Verdict("right", f"{what}: {later} must wait for {first}. {str(race).split(':')[0]}.")
    if (first, later) == (race.later.label, race.earlier.label):
        return Verdict("wrong", f"{what}: these two, but {later} is launched before {first}. Who must wait?")
    a, b = labels[first], labels[later]
    if a >= b:
        return Verdict("wrong", f"{what}: {first} is launched after {later}, so {later} can't wait for it.")
    if (
        happens_before(operations)[b].get(operations[a].lane, 0)
        >= happens_before(operations)[a][operations[a].lane]
    ):
        return Verdict("wrong", f"{what}: {later} already waits for {first}, by a stream or by events.")
    if not find_races(with_wait(operations, a, b)):
        return Verdict(
            "wrong", f"{what}: with it there is no race, but {later} would wait for more than it must."
        )
    blocks = [{r.block for r in (*operations[k].reads, *operations[k].writes)} for k in (a, b)]
    shared = ", ".join(sorted(blocks[0] & blocks[1])) or "no memory"
    return Verdict(
        "wrong", f"{what}: nothing orders {first} and {later}, but they share {shared}: no conflict there."
    )


def with_wait(operations: Sequence[Operation], first: int, later: int) -> list[Operation]:
    """Return the list with one more wait: of launch number `later` for launch number `first`."""
    event = 1 + max(op.event or 0 for op in operations)
    record = Operation("record", operations[first].lane, event=event)
    wait = Operation("wait", operations[later].lane, event=event)
    return [*operations[: first + 1], record, *operations[first + 1 : later], wait, *operations[later:]]


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
ALLOWED = 1.03
MISTAKES: dict[str, ChunksFor] = {
    "One chunk: nothing overlaps.": answers.one,
    "Each chunk costs a launch in every lane: so many are too many.": answers.very_many,
    "The slowest lane is never idle: only the others must be hidden.": answers.all_lanes,
    "Is computing always the slowest lane?": answers.only_copies,
    "There is a launch for each chunk: both sides depend on their number, hence a root.": answers.no_root,
}


def check_chunks(answer: ChunksFor) -> Verdict:
    """Check exercise 2 by the model's time, which may be 3 % above the best."""
    what = "chunks_for"
    if untouched(answer):
        return not_attempted(what)
    suspects = dict(MISTAKES)
    for case in CASES:
        where = "{}: for copy_in {:g}, compute {:g}, copy_out {:g}, overhead {:g}, ".format(what, *case)
        try:
            given = answer(*case)
            got = None if given is None else int(given)
        except Exception as error:
            return Verdict("wrong", f"{where}your code raised {type(error).__name__}: {error}")
        if got is None:
            return Verdict("wrong", f"{where}your function returned None (is a `return` missing?).")
        if got < 1 or got != given:
            return Verdict("wrong", f"{where}{given!r} is no number of chunks: 1, 2, 3, …")
        suspects = {why: wrong for why, wrong in suspects.items() if wrong(*case) == got}
        best = best_chunks(*case, most=128)
        mine, least = (predict_chunks(count, *case[:3], overhead=case[3]).makespan for count in (got, best))
        if mine > ALLOWED * least:
            why = next(iter(suspects), "")
            text = f"{got} chunks take {mine:.1f} ticks, {best} take {least:.1f}. {why}"
            return Verdict("wrong", where + text.strip())
    return Verdict("right", f"{what}: within 3 % of the best in all {len(CASES)} cases.")


# ---- exercise 3: the prefetcher


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


def check_prefetch(answer: Prefetch) -> Verdict:
    """Check exercise 3: the items, then the order of the operations, by happens-before."""
    what = "my_prefetch"
    if untouched(answer):
        return not_attempted(what)
    for batches in (6, 1, 0, 2):
        try:
            operations, seen, problem = issued(answer, batches)
        except Exception as error:
            return Verdict(
                "wrong", f"{what}: with {batches} batches your code raised {type(error).__name__}: {error}"
            )
        problem = problem or _items(seen, batches) or _order(operations, batches)
        if problem:
            return Verdict("wrong", f"{what}, {batches} batches: {problem}")
    return Verdict("right", f"{what}: all items, copied ahead, no race, and the host never waits.")


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
    if any(op.kind == "synchronize" for op in operations):
        return "the host stands still. Let the stream wait, wait_event or wait_stream: the host must go on launching."
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
