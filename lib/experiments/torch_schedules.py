"""The orders that torch.distributed.pipelining builds, without a process group: to be compared with ours."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

CLASSES = {
    "interleaved_one_f_one_b": "ScheduleInterleaved1F1B",
    "looped_bfs": "ScheduleLoopedBFS",
    "interleaved_zero_bubble": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}
"""torch's class for each of our makers whose order torch keeps as a table."""


def torch_order(maker: str, micro_batches: int, partitions: int, stages_per_rank: int = 2) -> list[list[str]]:
    """Return what torch does on each rank, as text: `0F0`.

    The constructor asks its stages for three numbers only. An overlapped pair is given as its forward and its
    backward. Raises ValueError where torch does, AttributeError if this torch has no such schedule.
    """
    from torch.distributed.pipelining import schedules

    stage = SimpleNamespace(
        group_rank=0, group_size=partitions, num_stages=partitions * stages_per_rank, submod=None
    )
    made: Any = getattr(schedules, CLASSES[maker])([stage] * stages_per_rank, micro_batches)
    orders = []
    for rank in range(partitions):
        row: list[Any] = [action for action in made.pipeline_order[rank] if action]
        orders.append(
            [str(one) for action in row for one in getattr(action, "sub_actions", None) or [action]]
        )
    return orders
