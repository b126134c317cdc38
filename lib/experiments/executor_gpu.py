"""Schedules on the streams of one GPU, or on several GPUs: time, bubble and peak memory; predicted without a GPU.

To record them:   python -m lib.recordings executor_gpu
"""

from __future__ import annotations

import statistics
from typing import Any

import torch
from torch import nn

from lib import recordings
from lib.memory import cuda_peak
from lib.pipeline import schedule as schedules
from lib.pipeline.costs import measure_costs
from lib.pipeline.executor import Executor
from lib.pipeline.schedule import Schedule, live_activations, simulate

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
