"""What notebook 14, schedules, compares with: torch's own orders, with and without its messages, and its halves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from lib.schedules.makers import MAKERS, Maker

# ---- The orders that torch.distributed.pipelining builds, without a process group: to be compared with ours.


def torch_keeps() -> list[Maker]:
    """Return our makers of several stages a rank that torch has, too: of those it keeps the order as a table."""
    several = [maker for maker in MAKERS.values() if maker.looped or maker.fixed_stages > 1]
    return [maker for maker in several if maker.torch_class is not None]


def _torchs(maker: Maker, m: int, n: int, v: int, **options: Any) -> Any:
    """Make torch's schedule; its constructor asks the stages for three numbers only."""
    from torch.distributed.pipelining import schedules

    stage = SimpleNamespace(group_rank=0, group_size=n, num_stages=n * v, submod=None)
    return getattr(schedules, str(maker.torch_class))([stage] * v, m, **options)


def torch_order(
    maker: Maker, micro_batches: int, partitions: int, stages_per_rank: int = 2
) -> list[list[str]]:
    """Return what torch does on each rank, as text, `0F0`; an overlapped pair as its forward and its backward.

    Raises ValueError where torch does, AttributeError if this torch has no such schedule.
    """
    order = _torchs(maker, micro_batches, partitions, stages_per_rank).pipeline_order
    rows = [[action for action in order[rank] if action] for rank in range(partitions)]
    return [[str(one) for a in row for one in getattr(a, "sub_actions", None) or [a]] for row in rows]


# ---- The same with what torch sends and receives in between: 2RECV_F0 is the input of 2F0.

WireStep: TypeAlias = tuple[str, int, int]  # what, stage, micro-batch


def torch_rows(
    micro_batches: int, partitions: int, stages_per_rank: int, defer: bool = False
) -> list[list[WireStep]]:
    """Return the rows that torch's engine does for interleaved 1F1B: F, B, SEND_F, RECV_F, SEND_B, RECV_B.

    defer: with receives as late as torch can put them (an option since torch 2.13).
    """
    options = {"defer_pp_recv": True} if defer else {}
    made = _torchs(MAKERS["interleaved 1F1B"], micro_batches, partitions, stages_per_rank, **options)
    found = []
    for rank in range(partitions):
        words = map(str, made.pipeline_order_with_comms[rank])
        parts = (re.fullmatch(r"(\d+)(F|B|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)", word) for word in words)
        found.append([(part[2], int(part[1]), int(part[3])) for part in parts if part])
    return found


def predicted_end(rows: Sequence[Sequence[WireStep]], seconds: dict[str, float]) -> float:
    """Return when rows end if a receive is over before anything behind it begins; seconds: of an F and of a B."""
    left = [list(row) for row in rows]
    done = dict[WireStep, float]()
    free = [0.0] * len(rows)
    while any(left):
        before = sum(map(len, left))
        for rank, row in enumerate(left):
            while row:
                what, stage, i = row[0]
                source = (what[-1], stage - 1 if what[-1] == "F" else stage + 1, i)
                if what.startswith("RECV"):
                    if source not in done:
                        break
                    free[rank] = max(free[rank], done[source])
                elif not what.startswith("SEND"):
                    free[rank] = done[what, stage, i] = free[rank] + seconds[what]
                row.pop(0)
        if sum(map(len, left)) == before:
            raise RuntimeError(f"ranks wait for each other: {[row[0] for row in left if row]}")
    return max(free)


def follow_row(dist: Any, rows: Sequence[Sequence[WireStep]], seconds: dict[str, float]) -> float:
    """Do one row on this rank of two; F and B sleep, a receive waits; return the seconds that it took."""
    rank = dist.get_rank()
    sent = []
    dist.barrier()
    begin = time.monotonic()
    for what, stage, i in rows[rank]:
        to = stage  # that receives
        if what == "SEND_F":
            to += 1
        elif what == "SEND_B":
            to -= 1
        tag = 1000 * (what[-1] == "B") + 10 * to + i
        if what.startswith("RECV"):
            dist.recv(torch.zeros(1), 1 - rank, tag=tag)
        elif what.startswith("SEND"):
            sent.append(dist.isend(torch.zeros(1), 1 - rank, tag=tag))
        else:
            time.sleep(seconds[what])
    for handle in sent:
        handle.wait()
    return time.monotonic() - begin


# ---- The two halves of a backward as torch cuts them.


def torch_halves(
    output: Tensor, x: Tensor, weights: Sequence[Any]
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return torch's I and W for a stage with this output, input and weights; W once, and after I.

    They are not public: torch's engine calls them when it does an I and a W of its tables.
    """
    from torch.distributed.pipelining import _backward

    groups: list[Any] = []

    def for_the_input() -> Any:
        found, groups[:] = _backward.stage_backward_input([output], None, [x], iter(weights))
        return found

    def for_the_weights() -> Any:
        return _backward.stage_backward_weight(iter(weights), groups)

    return for_the_input, for_the_weights
