"""Exercise 4 of notebook 13: the three-stream loop on a PretendGPU, by results, races, memory and needless waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from lib.streams.pretend import PretendGPU
from lib.streams.pretend_stream import EVERYTHING
from lib.streams.races import HOST, Operation, Race, find_races
from lib.text import plural
from support.kit.raised import in_case
from support.n13.runs import ASK_THE_GPU, ordered

Streamed: TypeAlias = Callable[[Any, Callable[[Any], Any], Sequence[Any], Sequence[Any]], object]
EDGES = {  # by the first letters of the two that race
    "CF": "[1] compute must wait until the chunk has arrived.",
    "FC": "[2] The buffer may be written again only when the kernel before has read it.",
    "FD": "[3] The copy out must wait for the result.",
    "DF": "[4] The output was dropped, and the next kernel writes its memory, while the copy out still reads it.",
    "bC": "[0] An earlier kernel still uses this block of compute's pool: take buffers in the stream that fills them.",
    "DR": "[5] The results are read by whoever called you: wait for the last copy out before you return.",
}
WAYS_OUT = {  # by the first letters of the one that is waited for, and of the one that waits
    "FC": "Take two buffers: if two blocks take turns, it need not.",
    "DF": "Hold the output in a variable until the next one exists: if two blocks take turns, it need not.",
    "DC": "Let the copy out read what stage returned: then it need not.",
}
DROPPED = (
    "The input was dropped, and the next copy gets its memory from the pool, while the kernel still reads it."
)


def stream_chunks(
    gpu: Any,
    stage: Callable[[Any], Any],
    chunks: Sequence[Any],
    results: Sequence[Any],
    kept: str = "123405",
    after: str = "F",
    streams: int = 3,
    depth: int = 2,
    outputs: int = 2,
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


def run_streamed(
    streamed: Streamed, chunks: int = 5, numbers: int = 4
) -> tuple[list[Operation], list[float]]:
    """Run the loop on a PretendGPU, then read the results on the host; the operations are C0, F0, D0, R0, …"""
    gpu = PretendGPU()
    count = iter(range(10**6))
    sources = [gpu.host(torch.full((numbers,), float(i)), f"chunk {i}") for i in range(chunks)]
    results = [gpu.host(torch.zeros(numbers), f"result {i}") for i in range(chunks)]
    with gpu.span(gpu.current_stream(), "", "before"):  # by another function: its block is free again
        gpu.empty_like(sources[0]).fill_(0.0)

    def stage(x: Any) -> Any:
        with gpu.span(gpu.current_stream(), "", f"F{next(count)}"):
            return x + 1

    streamed(gpu, stage, sources, results)
    values = [float(y.sum()) / numbers for y in results]
    return [_renamed(op) for op in gpu.operations if op.kind != "free"], values


def _renamed(op: Operation) -> Operation:
    """Name a launch after what it reads or writes of the host's: C copies a chunk in, D a result out, R reads it."""
    if op.kind != "launch":
        return op
    written_by = "D" if op.lane != HOST else "W"
    for letter, block, regions in (
        ("C", "chunk", op.reads),
        (written_by, "result", op.writes),
        ("R", "result", op.reads),
    ):
        for region in regions:
            kind, _, number = region.block.partition(" ")
            if kind == block:
                return replace(op, label=f"{letter}{number}")
    return op


def _ordered(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    return [(operations[a].label, operations[b].label) for a, b in ordered(operations)]


def fault_of_streamed(answer: Streamed) -> str:
    """Look at the results, then at races, memory, and at order that is not needed."""
    for chunks, numbers in ((5, 4), (2, 3), (1, 5), (19, 2)):
        with in_case(f"with {plural(chunks, 'chunk')}", ASK_THE_GPU):
            operations, values = run_streamed(answer, chunks, numbers)
        problem = _Seen(operations, values, chunks).fault()
        if problem:
            return f"with {plural(chunks, 'chunk')}: {problem}"
    return ""


class _Seen:
    """What is seen of one run of the loop, looked at from all sides: each method says what is wrong there, or ""."""

    def __init__(self, operations: list[Operation], values: list[float], chunks: int) -> None:
        self.operations = operations
        self.values = values
        self.chunks = chunks
        numbers = [k for k, op in enumerate(operations) if op.kind == "launch" and op.lane != HOST]
        self.launches = [operations[k] for k in numbers]
        self.before_the_last = operations[: numbers[-1]] if numbers else []
        self.named = {op.label: op for op in self.launches}

    def fault(self) -> str:
        """Return the first thing that is wrong. What comes later may rely on what was looked at before."""
        looks = (
            self.of_results,
            self.of_chunks,
            self.of_a_host_that_waits,
            self.of_races,
            self.of_memory,
            self.of_the_end,
            self.of_needless_order,
        )
        return next(filter(None, (look() for look in looks)), "")

    def of_results(self) -> str:
        wanted = [float(i + 1) for i in range(self.chunks)]
        if self.values != wanted:
            return f"the results should hold {wanted}, they hold {self.values}."
        return ""

    def of_chunks(self) -> str:
        """Each chunk is copied and computed on the device, once, in order, and computed in the stream of the caller."""
        called = sum(label[0] == "F" and label[1:].isdigit() for label in self.named)
        if called > self.chunks:
            return f"stage was called {called} times for {plural(self.chunks, 'chunk')}."
        for i in range(self.chunks):
            roles = {
                f"C{i}": f"a copy from chunk {i}",
                f"F{i}": "its stage",
                f"D{i}": f"a copy into result {i}",
            }
            missing = [f"{name}, {role}" for name, role in roles.items() if name not in self.named]
            if missing:
                return f"the device has run no {', and no '.join(missing)}."
            lane = self.named[f"F{i}"].lane
            if lane != "compute":
                return f"F{i} ran in {lane}: call stage in the stream that was current when you were called."
        times = Counter(op.label for op in self.launches)
        for i in range(self.chunks):
            for label, what in ((f"C{i}", f"chunk {i} is copied in"), (f"D{i}", f"result {i} is copied out")):
                if times[label] > 1:
                    return f"{what} {times[label]} times: once is enough."
        copied = [label for label in self.named if label[0] == "C" and label[1:].isdigit()]
        for i, label in enumerate(copied):
            if label != f"C{i}":
                return f"{label} is launched where C{i} has its turn: take the chunks in their order."
        return ""

    def of_a_host_that_waits(self) -> str:
        """The host launches everything before it waits for anything."""
        for op in self.before_the_last:
            if op.kind == "synchronize":
                return f"the host stands still until {op.label} is done, and launches nothing."
        return ""

    def of_races(self) -> str:
        """Of several, one between two operations of the loop is told first."""
        races = sorted(find_races(self.operations), key=lambda race: race.earlier.label == "before")
        if not races:
            return ""
        race = races[0]
        if idle := self._idle():
            return f"{race}. Stream {idle} is told to wait, and nothing is ever launched there: stage runs in compute."
        edge = race.earlier.label[0] + race.later.label[0]
        if edge == "FC" and self._handed_out_between(race):
            return f"{race}. [2] {DROPPED}"
        return f"{race}. {EDGES.get(edge, '')}".strip()

    def _handed_out_between(self, race: Race) -> bool:
        """Say whether the allocator gave the block away between the two: then it was dropped, and is no buffer."""
        between = self.operations[race.first : race.second]
        return any(op.kind == "allocate" and op.label == race.block for op in between)

    def _idle(self) -> str:
        """Return a stream that waits for nothing's sake, or ""."""
        busy = {op.lane for op in self.launches}
        return next((op.lane for op in self.operations if op.kind == "wait" and op.lane not in busy), "")

    def of_memory(self) -> str:
        touched = {region.block for op in self.launches for region in (*op.reads, *op.writes)}
        blocks = {block for block in touched if block.isupper()}  # the device's
        inputs = {block for i in range(self.chunks) for block in _written(self.named[f"C{i}"])}
        outputs = blocks - inputs
        if len(inputs) > 2 or len(outputs) > 2:
            into = f"chunks are copied into {plural(len(inputs), 'block')} of device memory"
            used = f"{into}, {len(outputs)} more are in use"
            return f"{used}: two of each are enough. An output that still has a name when the next is made counts, too."
        taken = {op.label for op in self.operations if op.kind == "allocate"}
        if len(taken) > 4:
            return f"{len(taken)} blocks of device memory are taken: two for inputs and two for outputs are enough."
        return ""

    def of_the_end(self) -> str:
        told = [op.label for op in self.operations if op.kind == "synchronize"]
        waits = sum(label != EVERYTHING or told[:k][-1:] != [EVERYTHING] for k, label in enumerate(told))
        if waits > 1:
            return (
                f"the host waits {waits} times: behind the last copy out nothing is left, one wait is enough."
            )
        lanes = {op.lane for op in self.launches}
        if len(lanes) > 3:
            return f"its copies and kernels are in {len(lanes)} streams: three are enough."
        return ""

    def _pools(self, op: Operation) -> set[str]:
        """Return the streams whose pools have given what this operation writes."""
        return {a.lane for a in self.operations if a.kind == "allocate" and a.label in _written(op)}

    def _late(self, copy: str) -> str:
        """Say of a copy that waits for earlier work of compute what makes it wait."""
        told = f"{copy} waits for what compute did before you were called"
        if self.named[copy].lane == "compute":
            return f"{told}: both are in stream compute, which runs in order."
        if self._pools(self.named[copy]) == {"compute"}:
            return f"{told}: take the buffers in copy_in's own pool."
        return f"{told}, and need not: its buffer is not of compute's pool."

    def of_needless_order(self) -> str:
        """No operation waits for another one without need; ours are the waits that are needed."""
        order = _ordered(self.operations)
        late = {copy: self._late(copy) for copy in ("C0", "C1") if ("before", copy) in order}
        if "C0" in late and self.named["C0"].lane != "compute":
            return late["C0"]
        needed = set(_ordered(run_streamed(stream_chunks, self.chunks)[0]))
        extra = [
            (self.named[a], self.named[b])
            for a, b in order
            if (a, b) not in needed and a[0] in "CFD" and b[0] in "CFD"
        ]
        # What waits first has been told to; others may only have come behind it.
        launched = list(self.named)
        extra.sort(key=lambda pair: launched.index(pair[1].label))
        for earlier, later in extra:
            waits = f"{later.label} waits for {earlier.label}"
            if earlier.lane == later.lane:
                return f"{waits}: both are in stream {earlier.lane}, which runs in order."
            if _read(earlier) & _written(later):  # so with these blocks the wait is needed
                way = WAYS_OUT.get(earlier.label[0] + later.label[0], "")
                return f"{waits}, because it writes the block that {earlier.label} reads. {way}".strip()
        if not extra:
            return next(iter(late.values()), "")
        earlier, later = extra[0]
        waits = f"{later.label} waits for {earlier.label}, and need not"
        return f"{waits}: it uses and overwrites nothing of {earlier.label}."


def _read(op: Operation) -> set[str]:
    return {region.block for region in op.reads}


def _written(op: Operation) -> set[str]:
    return {region.block for region in op.writes}
