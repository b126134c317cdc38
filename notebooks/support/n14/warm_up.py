"""A schedule of one stage a rank whose ranks do as many forwards first as one likes."""

from __future__ import annotations

from collections.abc import Sequence

from lib.schedules import Schedule
from support.n14.solved import alternate, table


def with_warm_up(name: str, micro_batches: int, ahead: Sequence[int]) -> Schedule:
    """Return the schedule in which rank j does ahead[j] forwards, then a backward and a forward in turn."""
    both = [[[(op, j, i) for i in range(micro_batches)] for op in "FB"] for j in range(len(ahead))]
    return table(name, [alternate(f, b, first) for (f, b), first in zip(both, ahead, strict=True)])
