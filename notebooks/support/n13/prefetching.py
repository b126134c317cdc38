"""Exercise 3 of notebook 13: a prefetcher on a PretendGPU, and what its operations say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_memory import Block, Pools
from lib.streams.pretend_tensor import PretendTensor
from lib.streams.races import HOST, Clocks, Operation, find_races, happens_before, learn
from support.kit.raised import in_case

Prefetch: TypeAlias = Callable[[Iterable[Any], Any], Iterator[Any]]
EPOCH = 12  # batches, for the memory that they take
BLOCKS = 4  # of memory are enough for any number of batches


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
    """Use each batch in a kernel F0, F1, … of the stream that is current, and drop it at once, as most loops do.

    moves: behind the first batch the host waits for its kernel, and the user goes on in another stream.
    stops: the user leaves behind batch 1, and somebody else gets its memory.
    ends: somebody else gets it behind the last batch.
    unlucky: a block that could be free again is not yet.
    """

    def __init__(self, habit: str = "") -> None:
        self.habit = habit
        self.gpu = SlowestGPU() if habit == "unlucky" else PretendGPU()
        self.issued = Issued(self.gpu.operations)

    def use(self, prefetch: Prefetch, batches: int) -> Issued:
        """Run a prefetcher to its end, or to that of its user."""
        if self.habit == "stops":
            self._stop_early(prefetch, batches)
            return self.issued
        with ExitStack() as place:
            for batch in prefetch(self._loader(batches), self.gpu):
                if not self._step(batch):
                    break
                del batch
                if len(self.issued.seen) > batches:
                    self.issued.problem = "there is no end"
                    break
                if self.habit == "moves" and len(self.issued.seen) == 1:
                    self.gpu.current_stream().synchronize()  # whose blocks are free from now on
                    place.enter_context(self.gpu.use_stream(self.gpu.new_stream("another")))
        if self.habit == "ends":
            self._pass_on()
        return self.issued

    def _loader(self, batches: int) -> Iterator[Any]:
        for i in range(batches):
            ahead = len(self.issued.seen)
            if i > ahead + 2:
                self.issued.greed = (
                    f"batch {i} is asked for before batch {ahead} is handed over: take one at a time."
                )
            yield self.gpu.host(torch.full((4,), float(i)), f"batch {i}")

    def _step(self, batch: Any) -> bool:
        seen = self.issued.seen
        if not (isinstance(batch, PretendTensor) and batch.block.on_device):
            self.issued.problem = f"item {len(seen)} is not a tensor on the device"
            return False
        with self.gpu.span(self.gpu.current_stream(), "", f"F{len(seen)}"):
            result = batch + 0
        seen.append(float(result.as_subclass(Tensor)[0]))  # to look is no operation of the GPU
        return True

    def _stop_early(self, prefetch: Prefetch, batches: int) -> None:
        self._use_two(iter(prefetch(self._loader(batches), self.gpu)))
        self._pass_on()  # nobody holds the generator any more, and it gets no turn

    def _pass_on(self) -> None:
        # torch has 32 streams of a kind: somebody gets this one, and what is in its pool
        for stream in self.gpu.streams:
            with self.gpu.use_stream(stream), self.gpu.span(stream, "", "its next owner"):
                _all_of_it = [self.gpu.empty_like(torch.zeros(4)).fill_(0.0) for _ in range(2 * BLOCKS)]

    def _use_two(self, items: Iterator[Any]) -> None:
        for batch in items:
            if not self._step(batch) or len(self.issued.seen) == 2:
                break
            del batch


def issued(prefetch: Prefetch, batches: int, habit: str = "") -> Issued:
    """Run a prefetcher with a user of this habit."""
    return User(habit).use(prefetch, batches)


HABITS = {
    "moves": (
        "if its user goes on in another stream behind batch 0, {race}. Ask for `gpu.current_stream()` at each "
        "hand-over: it is the one that will use the batch."
    ),
    "stops": (
        "if its user leaves the loop behind batch 1, {race}. What you do behind the last `yield` is never done."
    ),
    "ends": "behind the last batch {race}. Another part of the program may get your stream, and what is in its pool.",
}


def fault_of_prefetch(answer: Prefetch) -> str:
    """Look at the items, then at the order of the operations, at memory, and at users of other habits."""
    for batches in (6, 1, 0, 2):
        with in_case(f"with {batches} batches"):
            found = issued(answer, batches)
        problem = (
            found.problem or _items(found.seen, batches) or _order(found.operations, batches) or found.greed
        )
        if problem:
            return f"with {batches} batches {problem}"
    with in_case(f"with {EPOCH} batches"):
        problem = _memory(issued(answer, EPOCH, "unlucky").operations)
    if problem:
        return problem
    for habit, said in HABITS.items():
        with in_case(f"with a user that {habit}"):
            races = find_races(issued(answer, 6, habit).operations)
        if races:
            return said.format(race=races[0])
    return ""


def _copies(operations: Sequence[Operation]) -> list[Operation]:
    return [op for op in operations if op.kind == "launch" and any("batch" in r.block for r in op.reads)]


def blocks_of(operations: Sequence[Operation]) -> int:
    """Return how many blocks of device memory the batches were copied to."""
    return len({region.block for op in _copies(operations) for region in op.writes})


def _memory(operations: Sequence[Operation]) -> str:
    """Refuse memory that grows with the epoch: held by a name, or by a host that is far ahead of the device."""
    lanes = {op.lane for op in _copies(operations)}
    blocks = blocks_of(operations)
    if blocks <= BLOCKS:
        return ""
    told = f"{EPOCH} batches may take {blocks} blocks of device memory"
    alive = set[str]()
    most = 0
    for op in operations:
        if op.kind == "allocate" and op.lane in lanes:
            alive.add(op.label)
        elif op.kind == "free":
            alive.discard(op.label)
        most = max(most, len(alive))
    if most > BLOCKS:
        return f"{told}: a list or variable of yours keeps batches that have been used."
    if len(lanes) > 2:
        return f"{told}. They are copied in {len(lanes)} streams, and each has a pool of its own: nobody asks it again."
    return (
        f"{told}. All are dropped in time, but `record_stream` holds a dropped block back until the host has seen the "
        f"device pass the drop. When copy {EPOCH - 1} takes its memory, {EPOCH - 1} steps are launched, and the host "
        f"has waited for {_steps_seen(operations)}."
    )


def _steps_seen(operations: Sequence[Operation]) -> int:
    """Return how many steps the host has waited for when it launches the last copy."""
    clocks = Clocks()
    seen = 0
    last = _copies(operations)[-1]
    for op in operations:
        clocks.issue(op)
        if op is last:
            seen = clocks.lanes[HOST].get("compute", 0)
    return seen


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
        return (
            f"{race}. The batch was dropped, and the next copy took its memory, which the kernel still reads."
        )
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


def _stands_still(operations: Sequence[Operation]) -> str:
    """Refuse a wait of the host, but for one that bounds how far it runs ahead: for a step before the latest."""
    clocks = Clocks()
    launched = 0
    last = max((k for k, op in enumerate(operations) if op.kind == "launch"), default=0)
    for number, op in enumerate(operations):
        before = clocks.lanes[HOST].get("compute", 0)
        done = clocks.issue(op).get("compute", 0)
        launched += op.kind == "launch" and op.lane == "compute"
        if op.kind == "synchronize" and number < last and not before < done < launched:
            what = "until all is computed" if done == launched > before else f"until {op.label} is done"
            return (
                f"the host stands still {what}. Let the stream wait, wait_event or wait_stream: the host must go "
                "on launching. (It may wait for an older step, so that it does not run too far ahead.)"
            )
    return ""


def _hand_over(gpu: Any, side: Any, batch: Any, event: Any) -> None:
    gpu.current_stream().wait_event(event)
    batch.record_stream(gpu.current_stream())


def one_ahead(
    batches: Iterable[Any], gpu: Any, before: Callable[..., object] = _hand_over, lead: int = 1
) -> Iterator[Any]:
    """Copy one ahead; before a batch is handed over, wait for its own event and tell the allocator.

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
            before(gpu, side, *ready)
            yield ready[0]
            used.append(gpu.current_stream().record_event())
        ready = coming
        del coming
