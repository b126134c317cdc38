"""Exercise 4 of notebook 13: the three-stream loop on a PretendGPU, by results, races, memory and needless waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from lib.streams.pretend import PretendGPU
from lib.streams.races import HOST, Operation, find_races
from support.kit.raised import in_case
from support.n13.runs import ordered

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


def run_streamed(streamed: Streamed, chunks: int = 5) -> tuple[list[Operation], list[float]]:
    """Run the loop on a PretendGPU, then read the results on the host; the operations are C0, F0, D0, R0, …"""
    gpu = PretendGPU()
    count = iter(range(10**6))
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


def fault_of_streamed(answer: Streamed) -> str:
    """Look at the results, then at races, memory, and at order that is not needed."""
    for chunks in (5, 2, 1, 8):
        with in_case(f"with {chunks} chunks"):
            operations, values = run_streamed(answer, chunks)
        problem = _streamed_wrong(operations, values, chunks)
        if problem:
            return f"with {chunks} chunks: {problem}"
    return ""


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
    blocks = {
        r.block for k in launches for r in (*operations[k].reads, *operations[k].writes) if r.block.isupper()
    }
    inputs = {r.block for i in range(chunks) for r in lanes[f"C{i}"].writes}
    if (n := len(inputs)) > 2 or len(blocks - inputs) > 3:
        m = len(blocks - inputs)
        return f"{n} blocks of device memory are in use for inputs, {m} for outputs: two of each are enough."
    if (waits := sum(op.kind == "synchronize" for op in operations)) > 1:
        return f"the host waits {waits} times: behind the last copy out nothing is left, one wait is enough."
    needed = set(_ordered(run_streamed(stream_chunks, chunks)[0]))
    extra = []
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
        way = (
            "Hold the output in a variable until the next one exists"
            if q.label[0] == "F"
            else "Take two buffers"
        )
        why = f"because it writes the block that {p.label} reads"  # so with these blocks the wait is needed
        return f"{q.label} waits for {p.label}, {why}. {way}: if two blocks take turns, it need not."
    return ""
