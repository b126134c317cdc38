"""torch's own race detector, the CUDA Sanitizer (TORCH_CUDA_SANITIZER=1), asked about a list of our operations.

Its rules are plain Python: `EventHandler` is told of launches, events and memory, and needs no GPU for that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.cuda._sanitizer import EventHandler

from lib.streams.operations import HOST, Operation


def torchs_races(operations: Sequence[Operation]) -> list[tuple[str, str]]:
    """Return the pairs of labels that torch's sanitizer reports, in its order, for launches on the device."""
    handler, found = EventHandler(), []
    streams = {lane: number for number, lane in enumerate(dict.fromkeys(op.lane for op in operations))}
    numbers: dict[str, int] = {}
    for op in operations:
        lane, event = streams[op.lane], op.event or 0
        if op.kind == "launch" and op.lane != HOST:
            writes = {numbers.setdefault(r.block, len(numbers)) for r in op.writes}
            reads = {numbers.setdefault(r.block, len(numbers)) for r in op.reads} - writes
            # it knows memory by its first byte: so host memory, where chunks have places of their own, stays out
            host = {numbers.get("rows"), numbers.get("result")}
            names = {pointer: [""] for pointer in reads | writes}
            errors = handler._handle_kernel_launch(lane, reads - host, writes - host, set(), op.label, names)
            found += [_labels(error) for error in errors]
        elif op.kind == "record":
            handler._handle_event_record(event, lane)
        elif op.kind == "wait":
            handler._handle_event_wait(event, lane)
        elif op.kind == "synchronize":
            handler._handle_event_synchronization(event)
        elif op.kind == "allocate":
            handler._handle_memory_allocation(numbers.setdefault(op.label, len(numbers)))
        elif op.kind == "free":
            handler._handle_memory_deallocation(numbers.setdefault(op.label, len(numbers)))
    return found


def _labels(error: Any) -> tuple[str, str]:
    return error.previous_access.operator, error.current_access.operator
