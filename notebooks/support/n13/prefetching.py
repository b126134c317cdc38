"""Exercise 3 of notebook 13: a prefetcher on a PretendGPU, and what its operations say of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_memory import Block, Pools
from lib.streams.pretend_tensor import PretendTensor
from lib.streams.races import HOST, Clocks, Operation, Race, find_races, happens_before, learn
from lib.text import plural
from support.kit.raised import in_case

Prefetch: TypeAlias = Callable[[Iterable[Any], Any], Iterator[Any]]
EPOCH = 12  # batches, for the memory that they take
LONG = 17  # batches, for what goes wrong later
BLOCKS = 4  # of memory are enough for any number of batches
BYTES = 16  # of a batch
STAGED = "stage"  # what the host does with memory that is not pinned
STEP = "F"  # begins the label of what the user launches
NEXT_OWNER = "its next owner"


class MarkingPools(Pools):
    """Take a block back as torch does: behind the drop stands a mark, and it is free when the host has seen *that*.

    Who has waited for an event in front of the drop does not know of the mark, though a device mostly has passed it.
    """

    def _give_back(self, block: Block, users: set[str]) -> None:
        for lane in users - {block.stream}:
            learn(self._clocks.lanes.setdefault(lane, {}), {lane: self._clocks.lanes[lane].get(lane, 0) + 1})
        super()._give_back(block, users)


class SlowestGPU(PretendGPU):
    """A PretendGPU whose allocator has no luck: what it may need at most."""

    def __init__(self) -> None:
        super().__init__()
        self._pools = MarkingPools(self.operations, self._clocks)


@dataclass
class Issued:
    """What a prefetcher did for one user: operations, the batches' numbers in order, what is wrong with an item."""

    operations: list[Operation]
    seen: list[float] = field(default_factory=list)
    greed: str = ""
    problem: str = ""


class User:
    """Use each batch in a kernel F0, F1, … of the stream that was current when it was asked for, and drop it at once.

    A user may have habits, several as well.
    keeps: the name holds a batch until the next one is there, as in most loops.
    moves: behind the first batch the host waits for its kernel, and the user goes on in another stream.
    wanders: behind each batch the user goes on in another stream, and waits for nothing.
    stops: the user leaves behind batch 1, and somebody else gets its memory.
    ends: somebody else gets it behind the last batch.
    unlucky: a block that could be free again is not yet.
    """

    def __init__(self, *habits: str) -> None:
        self.habits = frozenset(habits)
        self.gpu = SlowestGPU() if "unlucky" in habits else PretendGPU()
        self.issued = Issued(self.gpu.operations)
        self.stream = self.gpu.current_stream()  # the one that this user has chosen

    def use(self, prefetch: Prefetch, batches: int) -> Issued:
        """Run a prefetcher to its end, or to that of its user."""
        self._use_each(prefetch, batches)
        # Nobody holds the generator any more, and it gets no turn.
        if self.habits & {"stops", "ends"}:
            self._pass_on()
        return self.issued

    def _use_each(self, prefetch: Prefetch, batches: int) -> None:
        with ExitStack() as place:
            for batch in prefetch(self._loader(batches), self.gpu):
                if not self._step(batch):
                    return
                if len(self.issued.seen) > batches:
                    self.issued.problem = "more come out than go in."
                    return
                if not self.habits & {"keeps", "stops"}:
                    del batch
                self._go_on(place)
                if "stops" in self.habits and len(self.issued.seen) == 2:
                    return

    def _go_on(self, place: ExitStack) -> None:
        """Go on in another stream, if this user does."""
        first = len(self.issued.seen) == 1
        if "moves" in self.habits and first:
            self.gpu.current_stream().synchronize()  # whose blocks are free from now on
        if "wanders" in self.habits or ("moves" in self.habits and first):
            self.stream = self.gpu.new_stream("another")
            place.enter_context(self.gpu.use_stream(self.stream))

    def _loader(self, batches: int) -> Iterator[Any]:
        for i in range(batches):
            ahead = len(self.issued.seen)
            if i > ahead + 2:
                self.issued.greed = (
                    f"batch {i} is asked for before batch {ahead} is handed over: take one at a time."
                )
            numbers = 4 if batches > 2 else 3  # of one shape within an epoch
            yield self.gpu.host(torch.full((numbers,), float(i)), f"batch {i}")

    def _step(self, batch: Any) -> bool:
        seen = self.issued.seen
        if not (isinstance(batch, PretendTensor) and batch.block.on_device):
            self.issued.problem = f"item {len(seen)} is not a tensor on the device"
            return False
        stream = self.gpu.current_stream()
        if stream is not self.stream:
            ran = f"{STEP}{len(seen)} ran in {stream.name}"
            self.issued.problem = f"{ran}: you yield inside `use_stream`, so the caller's kernels go there."
            return False
        with self.gpu.span(stream, "", f"{STEP}{len(seen)}"):
            result = batch + 0
        seen.append(float(result.as_subclass(Tensor)[0]))  # to look is no operation of the GPU
        return True

    def _pass_on(self) -> None:
        # torch has 32 streams of a kind: somebody gets this one, and what is in its pool
        for stream in self.gpu.streams:
            with self.gpu.use_stream(stream), self.gpu.span(stream, "", NEXT_OWNER):
                _all_of_it = [self.gpu.empty_like(torch.zeros(4)).fill_(0.0) for _ in range(2 * BLOCKS)]


def issued(prefetch: Prefetch, batches: int, *habits: str) -> Issued:
    """Run a prefetcher with a user of these habits."""
    return User(*habits).use(prefetch, batches)


ASKED = (
    "A batch is used in the stream that was current when it was asked for. When the user asks for the next one, "
    "another stream may be current."
)
RACES = {  # what is said of a race, by the habits of the user: whom it meets, and advice where a step races
    ("moves",): (
        "if its user goes on in another stream behind batch 0, ",
        "Ask for `gpu.current_stream()` at each hand-over: it is the one that will use the batch.",
    ),
    ("stops",): (
        "if its user leaves the loop behind batch 1, ",
        "Behind the last `yield` only a `finally` has its turn.",
    ),
    ("ends",): (
        "behind the last batch ",
        "Another part of the program may get your stream, and what is in its pool.",
    ),
    ("wanders", "ends"): ("if its user asks for each batch in another stream, ", ASKED),
    ("wanders", "stops"): (
        "if its user goes on in another stream, and leaves the loop there behind batch 1, ",
        ASKED,
    ),
}
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
        with in_case(f"with {so_many}"):
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
        with in_case(f"with a user that {' and '.join(habits)}"):
            found = issued(answer, LONG, *habits)
        if found.problem:
            return f"{whom}{found.problem}"
        if races := find_races(found.operations):
            race = races[0]
            of_a_step = STEP in (race.earlier.label[:1], race.later.label[:1])
            return f"{whom}{race}. {advice}" if of_a_step else f"{whom}{race}."
    return ""


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
    if len(pools) > 2:
        return (
            f"{told}. They come from the pools of {len(pools)} streams, and a block that goes back to one is of no use "
            "to the others."
        )
    steps, seen = _steps_seen(operations)
    return (
        f"{told}. No name keeps a used one too long, but `record_stream` holds a dropped block back until the host has "
        f"seen the device pass the drop. When copy {EPOCH - 1} takes its memory, {steps} steps are launched, and the "
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


def _steps_seen(operations: Sequence[Operation]) -> tuple[int, int]:
    """Return how many steps are launched before the last copy, and how many of them the host has waited for then."""
    clocks = Clocks()
    steps = []
    last = _copies(operations)[-1]
    for op in operations:
        clock = clocks.issue(op)
        if op.kind == "launch" and op.label.startswith(STEP):
            steps.append((op.lane, clock[op.lane]))
        if op is last:
            break
    host = clocks.lanes[HOST]
    return len(steps), sum(host.get(lane, 0) >= number for lane, number in steps)


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
    lanes = {operations[number].lane for number in copies.values()}
    if "compute" in lanes:
        return "batch 0 is copied in the stream that computes. A stream runs in order: nothing overlaps."
    if problem := _stands_still(operations):
        return problem
    if any(op.label == STAGED for op in operations if op.kind == "launch"):
        return "batch 0 is copied from memory that is not pinned: CUDA may stage it, and wait. Copy what you are given."
    for race in find_races(operations):
        if race.earlier.label.startswith("copy"):
            return f"{race}. Before you hand a batch over, its user's stream must wait for the copy."
        if _dropped_between(operations, race):
            return f"{race}. The batch was dropped, and the next copy took its memory, which the kernel still reads."
        return f"{race}. Nobody has given the block back between the two: it is a wait that is missing."
    known = happens_before(operations)
    for i in range(batches - 1):
        kernel = kernels[f"F{i}"]
        following = copies[f"batch {i + 1}"]
        if following > kernel:
            return f"batch {i + 1} is copied only after F{i} was launched: nothing is prefetched."
        if early := [j for j in range(i + 2, batches) if copies[f"batch {j}"] < kernel]:
            return f"batch {early[-1]} is copied before batch {i} is handed over: one batch ahead, not more."
        lane = operations[following].lane
        if known[kernel].get(lane, 0) >= known[following][lane]:
            return (
                f"F{i} waits for the copy of batch {i + 1}, too: wait_stream waits for all that is in the stream. "
                "Record an event behind each copy, or wait before the next copy is launched."
            )
    return ""


def _dropped_between(operations: Sequence[Operation], race: Race) -> bool:
    """Say whether the allocator gave the block away between the two."""
    between = operations[race.first : race.second]
    return any(op.kind == "allocate" and op.label == race.block for op in between)


def _stands_still(operations: Sequence[Operation]) -> str:
    """Refuse a wait of the host for the latest step, or for the copy of a batch to come."""
    clocks = Clocks()
    launched = 0
    last = max((k for k, op in enumerate(operations) if op.kind == "launch"), default=0)
    steps = 0
    copies = {number: i for i, number in enumerate(_copy_of_each(operations).values())}
    # the lane of the copy of each batch, and which of its launches it is
    known = dict[int, tuple[str, int]]()
    for number, op in enumerate(operations):
        before = dict(clocks.lanes[HOST])
        after = clocks.issue(op)
        launched += op.kind == "launch" and op.lane == "compute"
        steps += op.kind == "launch" and op.label.startswith(STEP)
        if number in copies:
            known[copies[number]] = (op.lane, after[op.lane])
        if op.kind != "synchronize" or number >= last or after == before:
            continue
        done = after.get("compute", 0)
        # Does it wait for a copy whose step is still to come?
        early = any(i >= steps and after.get(lane, 0) >= time for i, (lane, time) in known.items())
        if early or before.get("compute", 0) < done == launched:
            what = "until all is computed" if not early and done == launched else f"until {op.label} is done"
            return (
                f"the host stands still {what}. Let the stream wait, wait_event or wait_stream: the host must go "
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
