"""Operation: what the host puts into streams, one after the other; the list of them is the whole truth about order.

kind          what it is
launch        a kernel or a copy in a stream (or work of the host itself, lane "host"): it reads and writes memory
record        an event is put into a stream
wait          the stream waits for an event
synchronize   the host waits for an event
allocate      a stream's pool gives memory away
free          the host drops a tensor: its memory goes back to the pool it came from
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

HOST = "host"
Kind = Literal["launch", "record", "wait", "synchronize", "allocate", "free"]


class Region(NamedTuple):
    """Name bytes start..stop-1 of a block of memory."""

    block: str
    start: int
    stop: int

    def meets(self, other: Region) -> bool:
        """Say whether the two have bytes in common."""
        return self.block == other.block and self.start < other.stop and other.start < self.stop


@dataclass(frozen=True)
class Operation:
    """Hold one operation: its lane (a stream, or the host), its label, and the memory or the event that it is about."""

    kind: Kind
    lane: str
    label: str = ""
    event: int | None = None
    reads: tuple[Region, ...] = ()
    writes: tuple[Region, ...] = ()

    def __str__(self) -> str:
        if self.kind == "launch":
            read, written = (
                ", ".join(dict.fromkeys(r.block for r in rs)) for rs in (self.reads, self.writes)
            )
            memory = " -> ".join(part for part in (read, written) if part)
            label = "copy" if self.label.startswith("copy of") else self.label  # of what: that follows
            return f"{self.lane:<9} {label:<5} {memory}".rstrip()
        does = {"record": "records", "wait": "waits for", "synchronize": "stands still until"}
        does |= {"allocate": "takes", "free": "drops"}
        return f"{self.lane:<9} {does[self.kind]} {self.label or f'event {self.event}'}"


def as_text(operations: Iterable[Operation]) -> str:
    """Return a line for each operation, numbered as in the list; records of events and allocations are left out."""
    rows = enumerate(operations)
    return "\n".join(f"{number:>3}  {op}" for number, op in rows if op.kind not in ("record", "allocate"))


def without(operations: Sequence[Operation], number: int) -> list[Operation]:
    """Return the list without one operation. Raises IndexError for a number that there is not."""
    if not 0 <= number < len(operations):
        raise IndexError(f"there is no operation {number}: they are 0..{len(operations) - 1}")
    return [op for k, op in enumerate(operations) if k != number]


def waits(operations: Sequence[Operation]) -> list[int]:
    """Return the numbers of the waits between streams."""
    return [number for number, op in enumerate(operations) if op.kind == "wait"]
