"""Exercise 3 of notebook 13: a prefetcher on a PretendGPU, and what its operations say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from lib.streams.races import HOST, Clocks, Operation, Race, find_races, happens_before
from lib.text import plural
from support.kit.raised import in_case
from support.n13.batch_users import BLOCKS, NEXT_OWNER, STEP, Prefetch, User, issued
from support.n13.runs import ASK_THE_GPU

EPOCH = 12  # batches, for the memory that they take
LONG = 17  # batches, for what goes wrong later
BYTES = 16  # of a batch
STAGED = "stage"  # what the host does with memory that is not pinned

ASKED = (
    "A batch is used in the stream that was current when it was asked for. When the user asks for the next one, "
    "another stream may be current."
)
LEAVES = "A generator that is left gets GeneratorExit at its `yield`, and a `finally` there still runs."
RACES = {  # what is said of a race, by the habits of the user: whom it meets, and advice where a step races
    ("moves",): (
        "if its user goes on in another stream behind batch 0, ",
        "Ask for `gpu.current_stream()` at each hand-over: it is the one that will use the batch.",
    ),
    ("stops",): ("if its user leaves the loop behind batch 1, ", LEAVES),
    ("stops at once",): ("if its user leaves the loop behind batch 0, ", LEAVES),
    ("ends",): (
        "behind the last batch ",
        "Another part of the program may get your stream, and what is in its pool.",
    ),
    ("stops at the end",): ("if its user leaves the loop behind the last batch, ", LEAVES),
    ("wanders", "ends"): ("if its user asks for each batch in another stream, ", ASKED),
    ("wanders", "stops"): (
        "if its user goes on in another stream, and leaves the loop there behind batch 1, ",
        ASKED,
    ),
}
LEFT = {"GeneratorExit": "When its user has left the loop, a generator may yield no more."}
MEMORY = {  # who may hold how much, by the habits of the user
    ("unlucky",): ("", ""),
    ("unlucky", "keeps"): (
        "if its user keeps the name of a batch until the next one is there, as a plain `for` does, ",
        "",
    ),
}
MEMORY_ELSEWHERE = {
    ("wanders",): ("if its user asks for each batch in another stream, ", f" {ASKED}"),
    ("wanders", "keeps"): (
        "if its user asks for each batch in another stream, and keeps the name of the one before until then, ",
        f" {ASKED}",
    ),
}


def fault_of_prefetch(answer: Prefetch) -> str:
    """Look at the items, then at the order of the operations, at memory, and at users of other habits."""
    for batches in (6, 1, 0, 2, LONG):
        so_many = plural(batches, "batch", "batches")
        with in_case(f"with {so_many}", ASK_THE_GPU):
            found = issued(answer, batches)
        problem = (
            found.problem or _items(found.seen, batches) or _order(found.operations, batches) or found.greed
        )
        if problem:
            return f"with {so_many} {problem}"
    return (
        _fault_of_a_loader_that_raises(answer)
        or _fault_of_memory(answer, MEMORY)
        or _fault_of_races(answer)
        or _fault_of_order_elsewhere(answer)
        or _fault_of_memory(answer, MEMORY_ELSEWHERE)
    )


class _LoaderError(Exception):
    """What a loader raises here."""


def _fault_of_a_loader_that_raises(answer: Prefetch) -> str:
    user = User()

    def loader() -> Iterator[Any]:
        for i in range(2):
            yield user.gpu.host(torch.full((4,), float(i)), f"batch {i}")
        raise _LoaderError

    try:
        for _batch in answer(loader(), user.gpu):
            pass
    except _LoaderError:
        return ""
    return "The loader raised behind batch 1, and your loop ended as an epoch ends: let its exception pass."


def _fault_of_races(answer: Prefetch) -> str:
    for habits, (whom, advice) in RACES.items():
        with in_case(f"with a user that {' and '.join(habits)}", LEFT):
            found = issued(answer, LONG, *habits)
        if found.problem:
            return f"{whom}{found.problem}"
        if races := find_races(found.operations):
            race = races[0]
            launches = [op.label for op in found.operations if op.kind == "launch"]
            steps = [label for label in launches if label.startswith(STEP)]
            meant = steps[-1:] if advice == LEAVES else steps  # that advice is of the last step
            of_a_step = race.earlier.label in meant or race.later.label in meant
            return f"{whom}{race}. {advice}" if of_a_step else f"{whom}{race}."
    return ""


def _fault_of_order_elsewhere(answer: Prefetch) -> str:
    """Ask for the same overlap, and the same freedom of the host, where each batch is used in another stream."""
    problem = _order(issued(answer, LONG, "wanders").operations, LONG)
    return f"{RACES['wanders', 'ends'][0]}{problem}" if problem else ""


def _fault_of_memory(answer: Prefetch, users: Mapping[tuple[str, ...], tuple[str, str]]) -> str:
    for habits, (before, behind) in users.items():
        with in_case(f"with {EPOCH} batches"):
            problem = _memory(issued(answer, EPOCH, *habits).operations)
        if problem:
            return f"{before}{problem}{behind}"
    return ""


def _is_copy(op: Operation) -> bool:
    """Say whether this is a launch of a stream that reads memory of the host."""
    return op.kind == "launch" and op.lane != HOST and not all(r.block.isupper() for r in op.reads)


def _copies(operations: Sequence[Operation]) -> list[Operation]:
    return [op for op in operations if _is_copy(op)]


def _copy_of_each(operations: Sequence[Operation]) -> dict[str, int]:
    """Return the number of the copy of each batch; what the host has made of a batch is known by its turn."""
    copies = dict[str, int]()
    for number, op in enumerate(operations):
        if _is_copy(op):
            names = [r.block for r in op.reads if "batch" in r.block] or [f"batch {len(copies)}"]
            copies[names[0]] = number
    return copies


def _by_the_prefetcher(operations: Sequence[Operation]) -> list[Operation]:
    others = (STEP, NEXT_OWNER)
    return [op for op in operations if op.kind == "launch" and not op.label.startswith(others)]


def _bytes_of(launches: Sequence[Operation]) -> Counter[str]:
    """Return how many bytes of each block of the device these launches write to."""
    regions = [region for op in launches for region in op.writes if region.block.isupper()]
    written = {(region.block, byte) for region in regions for byte in range(region.start, region.stop)}
    return Counter(block for block, _ in written)


def blocks_of(operations: Sequence[Operation]) -> int:
    """Return how many batches the device memory holds that a prefetcher has written to, in whatever pieces."""
    return _bytes_of(_by_the_prefetcher(operations)).total() // BYTES


def _memory(operations: Sequence[Operation]) -> str:
    """Refuse memory that grows with the epoch: held by a name, or by a host that is far ahead of the device."""
    blocks = blocks_of(operations)
    if blocks <= BLOCKS:
        return ""
    told = f"{EPOCH} batches may take {blocks} blocks of device memory"
    ours = _by_the_prefetcher(operations)
    written = _bytes_of(ours)
    pools = {op.lane for op in operations if op.kind == "allocate" and op.label in written}
    if _bytes_of(_copies(operations)).total() // BYTES <= BLOCKS:
        more = ", ".join(dict.fromkeys(op.label for op in ours if not op.label.startswith("copy of")))
        return f"{told}. Besides the copies of the batches, it is {more} that takes some of them."
    if _most_held(operations, written) > BLOCKS:
        return f"{told}: a list or variable of yours keeps memory of batches that have been used."
    copy, steps, seen = _steps_seen(operations)
    if len(pools) > 2 or (len(pools) == 2 and steps - seen < 2):
        return (
            f"{told}. They come from the pools of {len(pools)} streams, and a block that goes back to one is of no use "
            "to the others."
        )
    return (
        f"{told}. `record_stream` holds a dropped block back until the host has "
        f"seen the device pass the drop. When copy {copy} takes its memory, {steps} steps are launched, and the "
        f"host has waited for {seen}."
    )


def _most_held(operations: Sequence[Operation], written: Mapping[str, int]) -> int:
    """Return how many batches were in somebody's hands at once, in these blocks with so many bytes in use."""
    held = set[str]()
    most = 0
    for op in operations:
        if op.kind == "allocate" and op.label in written:
            held.add(op.label)
        elif op.kind == "free":
            held.discard(op.label)
        most = max(most, sum(written[block] for block in held))
    return most // BYTES


def _steps_seen(operations: Sequence[Operation]) -> tuple[int, int, int]:
    """Return at which copy the host lags most, how many steps are launched then, and how many it has waited for."""
    clocks = Clocks()
    steps = []
    most = (0, 0, 0)
    copies = {number: i for i, number in enumerate(_copy_of_each(operations).values())}
    for number, op in enumerate(operations):
        clock = clocks.issue(op)
        if op.kind == "launch" and op.label.startswith(STEP):
            steps.append((op.lane, clock[op.lane]))
        host = clocks.lanes[HOST]
        seen = sum(host.get(lane, 0) >= time for lane, time in steps)
        if number in copies and len(steps) - seen >= most[1] - most[2]:
            most = (copies[number], len(steps), seen)
    return most


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
    copies = _copy_of_each(operations)
    kernels = {op.label: number for number, op in launches if op.label.startswith("F")}
    for name, number in copies.items():
        # The first one may: there is no step yet that it could overlap.
        if name != "batch 0" and operations[number].lane == "compute":
            return (
                f"{name} is copied in the stream that computes. A stream runs in order: that copy overlaps no step. "
                "`with gpu.use_stream(stream):` makes another one current."
            )
    if problem := _stands_still(operations):
        return problem
    if any(op.label == STAGED for op in operations if op.kind == "launch"):
        return "a batch is copied from memory that is not pinned: CUDA may stage it, and wait. Copy what you are given."
    for race in find_races(operations):
        if race.earlier.label.startswith("copy") and not _is_copy(race.later):
            return f"{race}. Before you hand a batch over, its user's stream must wait for the copy."
        if _dropped_between(operations, race):
            return f"{race}. The block was dropped, and the next copy took it, while the kernel may still use it."
        return f"{race}. Nobody has given the block back between the two: it is a wait that is missing."
    known = happens_before(operations)
    for i in range(batches - 1):
        kernel = kernels[f"F{i}"]
        following = copies[f"batch {i + 1}"]
        if following > kernel:
            late = f"batch {i + 1} is copied only after F{i} was launched"
            return f"{late}: while a user waits for F{i}, no copy runs."
        if early := [j for j in range(i + 2, batches) if copies[f"batch {j}"] < kernel]:
            return f"batch {early[-1]} is copied before batch {i} is handed over: one batch ahead, not more."
        lane = operations[following].lane
        if known[kernel].get(lane, 0) >= known[following][lane]:
            return (
                f"F{i} waits for the copy of batch {i + 1}, too. Wait for the event behind its own copy, or call "
                "wait_stream before the next copy is launched."
            )
    return ""


def _dropped_between(operations: Sequence[Operation], race: Race) -> bool:
    """Say whether the allocator gave the block away between the two."""
    between = operations[race.first : race.second]
    return any(op.kind == "allocate" and op.label == race.block for op in between)


def _stands_still(operations: Sequence[Operation]) -> str:
    """Refuse a wait of the host for the latest step, or for the copy of a batch to come."""
    clocks = Clocks()
    launched = Counter[str]()  # in each lane
    last = max((k for k, op in enumerate(operations) if op.kind == "launch"), default=0)
    steps = 0
    lane_of_the_step = "compute"  # of the one just launched
    copies = {number: i for i, number in enumerate(_copy_of_each(operations).values())}
    # the lane of the copy of each batch, and which of its launches it is
    known = dict[int, tuple[str, int]]()
    for number, op in enumerate(operations):
        before = dict(clocks.lanes[HOST])
        after = clocks.issue(op)
        launched[op.lane] += op.kind == "launch"
        if op.kind == "launch" and op.label.startswith(STEP):
            steps += 1
            lane_of_the_step = op.lane
        if number in copies:
            known[copies[number]] = (op.lane, after[op.lane])
        if op.kind != "synchronize" or number >= last or after == before:
            continue
        # Does it wait for a copy whose step is still to come?
        early = any(i >= steps and after.get(lane, 0) >= time for i, (lane, time) in known.items())
        done = after.get(lane_of_the_step, 0)
        latest = before.get(lane_of_the_step, 0) < done == launched[lane_of_the_step]
        if early or latest:
            elsewhere = lane_of_the_step != "compute"
            all_of_it = f"F{steps - 1} is done, the step just launched" if elsewhere else "all is computed"
            what = f"{op.label} is done" if early else all_of_it
            return (
                f"the host stands still until {what}. Let the stream wait, wait_event or wait_stream: the host must go "
                "on launching. (It may wait for an older step, so that it does not run too far ahead.)"
            )
    return ""


def _hand_over(stream: Any, side: Any, batch: Any, copied: Any) -> None:
    stream.wait_event(copied)
    batch.record_stream(stream)


def one_ahead(
    batches: Iterable[Any], gpu: Any, before: Callable[..., object] = _hand_over, lead: int = 1
) -> Iterator[Any]:
    """Copy one ahead; before a batch is handed over, its user's stream waits for its own event, and is told of.

    lead: steps that the host may be ahead of the device, when it launches a copy; one more has just been launched.
    """
    side = gpu.new_stream("copy")
    used = list[Any]()
    ready = None
    for x in chain(batches, [None]):
        if len(used) > lead:
            used.pop(0).synchronize()
        with gpu.use_stream(side):
            coming = None if x is None else (x.to(gpu.device, non_blocking=True), side.record_event())
        if ready is not None:
            stream = gpu.current_stream()  # behind the yield it may be another one
            before(stream, side, *ready)
            yield ready[0]
            used.append(stream.record_event())
        ready = coming
        del coming
