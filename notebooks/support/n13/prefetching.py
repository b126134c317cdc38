"""Exercise 3 of notebook 13: a prefetcher on a PretendGPU, and what its operations say of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_tensor import PretendTensor
from lib.streams.races import HOST, Clocks, Operation, find_races, happens_before
from support.kit.raised import in_case

Prefetch: TypeAlias = Callable[[Iterable[Any], Any], Iterator[Any]]
Issued: TypeAlias = tuple[list[Operation], list[float], str, str]


def issued(prefetch: Prefetch, batches: int, moves: bool = False) -> Issued:
    """Run a prefetcher with a consumer that drops each batch; return operations, values, a problem, greed.

    moves: after the first batch the consumer lets the host wait for it, and goes on in another stream.
    """
    gpu = PretendGPU()
    seen = list[float]()
    greed = ""

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
            seen.append(float(result.as_subclass(Tensor)[0]))  # to look is no operation of the GPU
            del batch, result
            if len(seen) > batches:
                return gpu.operations, seen, greed, "there is no end"
            if moves and len(seen) == 1:
                gpu.current_stream().synchronize()  # whose blocks are free from now on
                place.enter_context(gpu.use_stream(gpu.new_stream("another")))
    return gpu.operations, seen, greed, ""


def fault_of_prefetch(answer: Prefetch) -> str:
    """Look at the items, then at the order of the operations, by happens-before."""
    for batches in (6, 1, 0, 2):
        with in_case(f"with {batches} batches"):
            operations, seen, greed, problem = issued(answer, batches)
            moved = find_races(issued(answer, batches, moves=True)[0])
        problem = problem or _items(seen, batches) or _order(operations, batches) or greed
        if problem:
            return f"with {batches} batches {problem}"
        if moved:
            return (
                f"if its user goes on in another stream after batch 0, {moved[0]}. Ask for `gpu.current_stream()` "
                "at each hand-over: it is the one that will use the batch."
            )
    return ""


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
    return _held(operations, lanes)


def _held(operations: Sequence[Operation], lanes: Collection[str]) -> str:
    """Refuse a batch that lives on although it has been used, when a copy asks for the next one's memory."""
    alive = set[str]()
    copied = -1
    for op in operations:
        if op.kind == "allocate" and op.lane in lanes:
            alive.add(op.label)
            copied += 1
        elif op.kind == "free":
            alive.discard(op.label)
        if len(alive) > 2:
            return (
                f"{len(alive)} batches are alive when batch {copied} is copied, and only batch {copied - 1} is yet "
                "to be used: a list or variable of yours keeps an older one. `del` the name behind the yield."
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


def _wait_and_record(gpu: Any, side: Any, batch: Any, event: Any) -> None:
    gpu.current_stream().wait_event(event)
    batch.record_stream(gpu.current_stream())


def one_ahead(
    batches: Iterable[Any], gpu: Any, before: Callable[..., object] = _wait_and_record
) -> Iterator[Any]:
    """Copy one ahead; before a batch is handed over, wait for its own event and tell the allocator."""
    side = gpu.new_stream("copy")
    ready = None
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
