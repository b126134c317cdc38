"""What imitated ranks share: messages on their way, collectives begun, who waits."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, TypeAlias

from lib.arguments import integer
from support.imitated_memory import Expected, InTransit
from support.kit.threads import Waits

#: A collective that has begun: by rank of the world what it is, what must be equal on all ranks, and what is given.
Call: TypeAlias = "dict[int, tuple[str, Any, Any]]"


class World(Waits):
    """What imitated ranks share: messages on their way, collectives begun, who waits, and counts for a check.

    sent: values that each rank has sent. posted: (from, to) of each message. events: (rank, what) in the order in which
    it happened: collectives begun, "waited" when an all_reduce is waited for, "waited again" when something is once
    more. unwaited: by rank, what was begun and never waited for. calls: the collectives of all ranks, in order.
    calls_among: those of other groups.
    """

    def __init__(self, size: int) -> None:
        super().__init__(everybody=lambda: self.size - len(self._ended))
        self.size = integer("world_size", size, at_least=1)
        self.messages: dict[tuple[tuple[int, ...], int, int], deque[InTransit]] = {}
        self.expected: dict[tuple[tuple[int, ...], int, int], deque[Expected]] = {}
        self.calls: list[Call] = []
        self.calls_among: dict[tuple[int, ...], list[Call]] = {}
        self.sent: Counter[int] = Counter()
        self.posted: list[tuple[int, int]] = []
        self.events: list[tuple[int, str]] = []
        self.unwaited: dict[int, list[str]] = {rank: [] for rank in range(size)}
        self._ended: set[int] = set()

    def end(self, rank: int) -> None:
        """Note that a rank has returned, or raised."""
        with self.changed:
            self._ended.add(rank)
            self.look()

    def told(self) -> str:
        """Say what each rank waits for, and which have ended."""
        waiting = [f"rank {rank} waits in {self.waiting[rank][0]}" for rank in sorted(self.waiting)]
        return ", ".join(waiting + [f"rank {rank} has ended" for rank in sorted(self._ended)])
