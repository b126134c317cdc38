"""What notebook 14, schedules, runs and measures: torch's own orders, a GPU, stages that sleep."""

from __future__ import annotations

import statistics
import time
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib import schedules
from lib.measure import cuda_peak
from lib.schedules import Schedule, live_activations
from lib.schedules.costs import measure_costs
from lib.schedules.executor import Executor
from lib.schedules.simulate import simulate
from support import recordings

# ---- The orders that torch.distributed.pipelining builds, without a process group: to be compared with ours.

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


# ---- Schedules on one GPU or several: time, bubble and peak memory; predicted without a GPU.
#
# To record them:   python -m support.recordings executor_gpu

RANKS, MICRO_BATCHES, LAYERS, WIDTH, ROWS = 4, 8, 4, 2048, 4096
MIB = 2**20


def tables() -> list[Schedule]:
    """Return the schedules that are compared: one stage a rank."""
    makers = schedules.gpipe, schedules.one_f_one_b, schedules.zero_bubble_h1
    return [make(MICRO_BATCHES, RANKS) for make in makers]


def predicted_rows() -> list[dict[str, Any]]:
    """Return schedule, live (sum of the ranks' peaks), predicted_mib (all ranks) and predicted_idle.

    A layer, Linear and GELU, keeps two tensors for backward; weights and their gradients come on top. That all ranks
    have their peak at the same time is the worst case, so the memory is an upper bound. With a split backward the
    gradients that I wrote down wait for W as well, one tensor a layer: they are left out.
    """
    inside = 2 * LAYERS * (ROWS / MICRO_BATCHES) * WIDTH * 4 / MIB
    weights = 2 * RANKS * LAYERS * (WIDTH * WIDTH + WIDTH) * 4 / MIB
    rows: list[dict[str, Any]] = []
    for table in tables():
        live = sum(live_activations(table))
        idle = simulate(table).bubble
        rows.append(
            {
                "schedule": table.name,
                "live": live,
                "predicted_mib": weights + live * inside,
                "predicted_idle": idle,
            }
        )
    return rows


def measure_rows() -> dict[str, Any]:
    """Return {"rows": …}: the same with mib (the peak, all GPUs), ms and idle (medians), predicted_idle by costs."""
    count = min(torch.cuda.device_count(), RANKS)
    devices = [f"cuda:{r * count // RANKS}" for r in range(RANKS)]
    stages = [
        nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)])
        for _ in range(RANKS)
    ]
    x, target = (torch.randn(ROWS, WIDTH, device=devices[k]) for k in (0, -1))
    rows = predicted_rows()
    for row, table in zip(rows, tables(), strict=True):
        executor = Executor(table, stages, devices=devices)
        for _ in range(3):
            executor.run(x, target, nn.functional.mse_loss)
        costs = measure_costs(table, stages, x, target, nn.functional.mse_loss, devices=devices)
        row["predicted_idle"] = simulate(table, *costs).bubble
        peaks = []
        for k in range(count):
            with cuda_peak(f"cuda:{k}") as used:
                executor.run(x, target, nn.functional.mse_loss)
            assert used.allocated is not None
            peaks.append(used.allocated / MIB)
        traces = [executor.run(x, target, nn.functional.mse_loss)[1] for _ in range(5)]
        row["mib"], row["counted"] = sum(peaks), sum(executor.live)
        row["ms"] = 1e3 * statistics.median(trace.makespan for trace in traces)
        row["idle"] = statistics.median(trace.bubble for trace in traces)
        row["gpus"] = count
    return {"rows": rows}


def rows_and_source() -> tuple[list[dict[str, Any]], str]:
    """Return the best rows there are, measured, recorded or predicted, and a sentence that says which."""
    return recordings.rows_and_source("executor_gpu", measure_rows, predicted_rows)


# ---- Stages that take their time without computing: they sleep, as a thread does while its GPU computes.
#
# So a run of the executor shows what a schedule does with any number of ranks, also where there is one core.


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return grads[0], None, None


class WaitingStage(nn.Module):
    """A small linear layer; forward sleeps for `forward` seconds, its gradients for `input` and `weight`."""

    def __init__(self, width: int, forward: float, input: float, weight: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.seconds = forward, input, weight

    def forward(self, x: Tensor) -> Tensor:
        """Compute, and sleep."""
        forward, input, weight = self.seconds
        late = _Sleep.apply(self.linear.weight, 0.0, weight)  # type: ignore[no-untyped-call]
        return F.linear(_Sleep.apply(x, forward, input), late, self.linear.bias)  # type: ignore[no-untyped-call]


def waiting_stages(
    count: int, tick: float, *, per_rank: int = 1, forward: float = 1, backward: float = 2, seed: int = 0
) -> list[nn.Module]:
    """Make `count` stages; forward takes so many ticks, backward half of its own for the input, half for the weights.

    tick: in seconds. per_rank: v stages share the time of one. Give them an input that requires a gradient, else stage
    0 has none to compute and is faster than the others.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        each = tick / per_rank
        return [
            WaitingStage(4, forward * each, backward * each / 2, backward * each / 2) for _ in range(count)
        ]
