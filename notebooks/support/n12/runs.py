"""What notebook 12, GPipe, runs and measures, and its small models."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import nn

from lib.measure import cuda_peak, measure
from lib.pipeline import GPipe
from support import recordings

LAYERS, WIDTH, ROWS, PARTITIONS = 16, 2048, 4096, 4
CHUNKS = (1, 2, 4, 8)
MODES = ("never", "except_last", "always")
MIB = 2**20


def predicted_rows(devices: int = 1) -> list[dict[str, Any]]:
    """Return chunks, mode, devices, predicted_mib (on the first device) and predicted_ratio (time, × plain).

    A layer, Linear and GELU, saves two tensors: its insides. A checkpointed micro-batch keeps the inputs of the
    partitions, and the inside of one partition at a time. Weights and gradients come on top. Backward = two forwards.
    """
    tensor = ROWS * WIDTH * 4 / MIB
    weights = 2 * LAYERS * (WIDTH * WIDTH + WIDTH) * 4 / MIB
    rows: list[dict[str, Any]] = []
    for mode, m in product(MODES, CHUNKS):
        again = {"never": 0, "except_last": m - 1, "always": m}[mode]
        whole = 2 * LAYERS * tensor  # the insides of the whole batch
        inside = whole * (m - again) / m
        if again:
            inside = max(inside + PARTITIONS * tensor, PARTITIONS * tensor + whole / PARTITIONS / m)
        clocks = (m + devices - 1) / (m * devices)
        ratio = clocks * (1 + again / m / 3)
        predicted = {"predicted_mib": (weights + inside) / devices, "predicted_ratio": ratio}
        rows.append({"mode": mode, "chunks": m, "devices": devices, **predicted})
    return rows


def measure_rows() -> dict[str, Any]:
    """Return {"rows": …}: the same with mib (the peak of the first device), ms of a step (median of 5) and plain_ms."""
    count = min(torch.cuda.device_count(), 2)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).cuda(0)
    x = torch.randn(ROWS, WIDTH, device="cuda:0")

    def step(of: nn.Module) -> None:
        of(x).sum().backward()

    plain = 1e3 * measure(lambda: step(model), device="cuda").median
    devices = [f"cuda:{j * count // PARTITIONS}" for j in range(PARTITIONS)]
    rows = predicted_rows(count)
    for row in rows:
        balance = [LAYERS // PARTITIONS] * PARTITIONS
        piped = GPipe(model, balance, devices=devices, chunks=row["chunks"], checkpoint=row["mode"])
        step(piped)  # the gradients are there from now on
        with cuda_peak("cuda:0") as used:
            step(piped)
        assert used.allocated is not None
        row["mib"], row["plain_ms"] = used.allocated / MIB, plain
        row["ms"] = 1e3 * measure(lambda: step(piped), device="cuda").median  # noqa: B023
    return {"rows": rows}


def rows_and_source() -> tuple[list[dict[str, Any]], str]:
    """Return the best rows there are, measured, recorded or predicted, and a sentence that says which."""
    return recordings.rows_and_source("gpipe_gpu", measure_rows, predicted_rows)
