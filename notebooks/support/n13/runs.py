"""What notebook 13, CUDA streams, runs and measures: races, a GPU with a clock, chunks, prefetching."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.cuda._sanitizer import EventHandler

from lib.runtime.microbatch import TensorOrTensors
from lib.runtime.regions import Region
from lib.streams.prefetch import DevicePrefetcher
from lib.streams.pretend import PretendGPU
from lib.streams.races import HOST, Operation, happens_before, waits, without
from lib.streams.stream_pipeline import StreamPipeline
from lib.timeline import Span

ASK_THE_GPU = {
    "CUDA": "Ask `gpu` for streams and memory, not torch.",
    "dummy base class": "`stream.record_event()` makes an event.",
}
"""What is said where a program asks torch for what a PretendGPU gives."""

# ---- A list of operations: read, timed, and run in any order that it allows.


def as_text(operations: Iterable[Operation]) -> str:
    """Return a line for each operation, numbered as in the list; records of events and allocations are left out."""
    rows = enumerate(operations)
    return "\n".join(f"{number:>3}  {op}" for number, op in rows if op.kind not in ("record", "allocate"))


def earliest(operations: Sequence[Operation], seconds: Callable[[Operation], float]) -> dict[int, Span]:
    """Return when each launch would run, by its number, if all ran as soon as its stream and its waits allow."""
    clock = {HOST: 0.0}
    events = dict[int, float]()
    spans = dict[int, Span]()
    for number, op in enumerate(operations):
        now = max(clock.get(op.lane, 0.0), clock[HOST])
        if op.kind == "launch":
            kind = "copy" if op.lane.startswith("copy") or op.label.startswith("C") else "compute"
            spans[number] = Span(op.lane, op.label, now, now + seconds(op), kind)
            clock[op.lane] = spans[number].end
        elif op.kind == "record" and op.event is not None:
            events[op.event] = now
        elif op.kind in ("wait", "synchronize") and op.event is not None:
            clock[op.lane] = max(now, events.get(op.event, 0.0))
    return spans


def ordered(operations: Sequence[Operation]) -> list[tuple[int, int]]:
    """Return the pairs of launches, by number, of which one happens before the other."""
    known = happens_before(operations)
    lanes = {number: operations[number].lane for number in known}
    return [(a, b) for a, b in combinations(known, 2) if known[b].get(lanes[a], 0) >= known[a][lanes[a]]]


def orders(operations: Sequence[Operation], seed: int = 0) -> Iterator[list[int]]:
    """Yield orders in which a device may run the launches, at random, without end: each obeys happens-before."""
    generator = torch.Generator().manual_seed(seed)
    before = {number: set[int]() for number, op in enumerate(operations) if op.kind == "launch"}
    for a, b in ordered(operations):
        before[b].add(a)
    while True:
        order = list[int]()
        left = list(before)
        while left:  # take one of those that wait for nothing any more
            ready = [number for number in left if before[number].isdisjoint(left)]
            order.append(ready[int(torch.randint(len(ready), (), generator=generator))])
            left.remove(order[-1])
        yield order


def replay(
    operations: Sequence[Operation], order: Sequence[int], contents: Mapping[Region, str]
) -> dict[Region, str]:
    """Run the launches in this order over memory that holds names, and return what it holds in the end.

    contents: the names at the beginning, such as "0" for the rows of chunk 0; memory that nobody wrote holds "?". A
    launch writes the names that it reads (without repetition, joined by "+").
    """
    memory = {(region.block, region.start): (region, name) for region, name in contents.items()}
    for number in order:
        op = operations[number]
        names = [memory.get((r.block, r.start), (r, "?"))[1] for r in op.reads]
        for region in op.writes:
            memory[region.block, region.start] = (region, "+".join(dict.fromkeys(names)) or op.label)
    return dict(memory.values())


# ---- Small programs on a PretendGPU: ways to wait for a side stream, and a damaged pipeline.

WAYS = ("one stream", "no wait", "wait_event", "wait_stream", "synchronize")


def launch_way(way: str, batches: int = 3) -> list[Operation]:
    """Launch the copies C0, C1, … on a side stream, then F0, F1, … that read them; return the operations.

    way: what stands before F(i): nothing ("one stream": there is no other; "no wait"), a wait for the event behind
    C(i), a wait for the whole side stream, or the host's own. Raises ValueError for another way.
    """
    if way not in WAYS:
        raise ValueError(f"way must be one of {', '.join(WAYS)}, not {way!r}")
    gpu = PretendGPU()
    compute = gpu.current_stream()
    side = compute if way == "one stream" else gpu.new_stream("side")
    copied = []
    events = []
    for i in range(batches):
        with gpu.use_stream(side), gpu.span(side, "", f"C{i}"):
            copied.append(gpu.host(torch.ones(4), f"batch {i}").to(gpu.device, non_blocking=True))
        events.append(side.record_event())
    for i, x in enumerate(copied):
        if way == "wait_event":
            compute.wait_event(events[i])
        elif way == "wait_stream":
            compute.wait_stream(side)
        elif way == "synchronize":
            side.synchronize()
        with gpu.span(compute, "", f"F{i}"):
            x * 2
    del copied, x
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


def run_prefetcher(forgets: Sequence[str] = (), batches: int = 6, depth: int = 2) -> list[Operation]:
    """Run a DevicePrefetcher and launches F0, F1, … over its batches; return the operations. forgets: as PretendGPU."""
    gpu = PretendGPU(forgets)
    loader = [gpu.host(torch.full((4,), float(i)), f"batch {i}") for i in range(batches)]
    labels = iter(range(batches))
    for batch in DevicePrefetcher(loader, gpu, depth):  # no enumerate: it would hold on to its last item
        with gpu.span(gpu.current_stream(), "", f"F{next(labels)}"):
            batch.square()
        del batch
    return gpu.operations


def run_chunks(chunks: int = 4, depth: int = 2) -> list[Operation]:
    """Run a StreamPipeline over rows 0, 1, …, one a chunk; return the operations."""
    gpu = PretendGPU()
    StreamPipeline(_plus_one, chunks, device=gpu, depth=depth)(gpu.host(torch.arange(float(chunks)), "rows"))
    return [op for op in gpu.operations if op.kind not in ("allocate", "free")]


def _plus_one(x: TensorOrTensors) -> TensorOrTensors:
    return x + 1 if isinstance(x, Tensor) else x


def damaged(wait: int | None, chunks: int = 4, depth: int = 2) -> list[Operation]:
    """Return run_chunks without its wait number `wait`, in order of the list; None: with all of them."""
    operations = run_chunks(chunks, depth)
    return operations if wait is None else without(operations, waits(operations)[wait])


def outcomes(operations: Sequence[Operation], chunks: int, tries: int = 100) -> list[list[str]]:
    """Return, for random orders that the waits allow, which chunk's data each place of the result holds in the end."""
    contents = {Region("rows", 4 * i, 4 * i + 4): str(i) for i in range(chunks)}
    found = []
    for _, order in zip(range(tries), orders(operations), strict=False):
        end = replay(operations, order, contents)
        found.append([end.get(Region("result", 4 * i, 4 * i + 4), "?") for i in range(chunks)])
    return found


# ---- torch's own race detector, the CUDA Sanitizer, asked about a list of our operations.
#
# Its rules are plain Python: `EventHandler` is told of launches, events and memory, which needs no GPU.


def torchs_races(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Return the pairs of labels that torch's sanitizer reports, in its order, for launches on the device."""
    handler = EventHandler()
    found = []
    streams = {lane: number for number, lane in enumerate(dict.fromkeys(op.lane for op in operations))}
    numbers: dict[str, int] = {}
    for op in operations:
        lane = streams[op.lane]
        event = op.event or 0
        if op.kind == "launch" and op.lane != HOST:
            writes, reads = (  # tensors of the host, with longer names, it does not watch
                {numbers.setdefault(r.block, len(numbers)) for r in regions if r.block.isupper()}
                for regions in (op.writes, op.reads)
            )
            reads -= writes
            names = {pointer: [""] for pointer in reads | writes}
            errors: list[Any] = handler._handle_kernel_launch(lane, reads, writes, set(), op.label, names)
            found += [(e.previous_access.operator, e.current_access.operator) for e in errors]
        elif op.kind in ("record", "wait"):
            getattr(handler, f"_handle_event_{op.kind}")(event, lane)
        elif op.kind == "synchronize":
            handler._handle_event_synchronization(event)
        elif op.kind in ("allocate", "free"):
            does = "allocation" if op.kind == "allocate" else "deallocation"
            getattr(handler, f"_handle_memory_{does}")(numbers.setdefault(op.label, len(numbers)))
    return found
