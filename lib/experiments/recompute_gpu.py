"""Peak memory and time of a step on a GPU, by the number of checkpointed segments; predicted without one.

To record them:   python -m lib.recordings checkpoint_gpu
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lib import recordings
from lib.experiments.staircase import peak, predict, segments_of
from lib.measure import cuda_peak, measure as time_on_gpu
from lib.pipeline.checkpoint import checkpoint

LAYERS, WIDTH, ROWS = 16, 2048, 8192
SEGMENTS = (0, 1, 2, 4, 8, 16)  # 0: no checkpoint
MIB = 2**20


def predicted_rows() -> list[dict[str, Any]]:
    """Return segments, predicted_mib (weights and their gradients, held tensors) and predicted_ratio of time.

    One tensor more is at work on top of what is held; with a checkpoint two (as `LiveTensors` counts them).
    """
    tensor, weights = ROWS * WIDTH * 4 / MIB, 2 * LAYERS * (WIDTH * WIDTH + WIDTH) * 4 / MIB
    return [
        {
            "segments": s,
            "predicted_mib": weights + tensor * (peak(predict(LAYERS, s)) + 2 if s else LAYERS + 1 + 1),
            "predicted_ratio": 4 / 3 if s else 1.0,
        }
        for s in SEGMENTS
    ]


def measure_rows() -> dict[str, Any]:
    """Return {"rows": …}, the same rows with what this GPU needs: mib at the peak, ms of a step (median of 5)."""
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)]
    model = nn.Sequential(*layers).cuda()
    x = torch.randn(ROWS, WIDTH, device="cuda")
    rows = predicted_rows()
    for row in rows:

        def step(segments: int = row["segments"]) -> None:
            y: Any = x
            for part in segments_of(LAYERS, segments) if segments else ():
                y = checkpoint(model[part[0] - 1 : part[-1]], y)
            loss: Tensor = (y if segments else model(x)).sum()
            del y
            loss.backward()  # type: ignore[no-untyped-call]

        step()  # the gradients are there from now on
        with cuda_peak() as used:
            step()
        assert used.allocated is not None
        row["mib"] = used.allocated / MIB
        row["ms"] = 1e3 * time_on_gpu(step, device="cuda").median
    return {"rows": rows}


def rows_and_source() -> tuple[list[dict[str, Any]], str]:
    """Return the best rows there are, measured, recorded or predicted, and a sentence that says which."""
    return recordings.rows_and_source("checkpoint_gpu", measure_rows, predicted_rows)
