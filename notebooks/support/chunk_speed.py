"""How fast a step is in micro-batches of several sizes, on a CPU or a GPU (notebooks 07, 08).

`python -m support.recordings chunk_speed_gpu`, on a GPU, writes notebooks/recorded/chunk_speed_gpu.json.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from lib.measure import compare, measure
from lib.runtime.device import device_name
from lib.runtime.microbatch import gather, scatter
from support.recordings import measured_or_recorded, origin_of


def chunk_speed(
    device: str = "cpu",
    *,
    rows: int = 512,
    width: int = 128,
    layers: int = 4,
    step: int = 2,
    repeats: int = 7,
    smallest: int = 1,
) -> dict[str, Any]:
    """Measure forward and backward of a mini-batch in micro-batches of rows, rows / step, … `smallest` rows.

    The gradient is that of the whole batch, for every size. Returns "size" and "rows_per_second" (lists), and the
    seconds of scatter into 8 and of gather of the same data ("scatter", "gather"). rows must be a multiple of each.
    """
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
    model.to(device)
    x = torch.randn(rows, width, generator=generator).to(device)
    sizes = [rows]
    while sizes[-1] > smallest:
        sizes.append(max(smallest, sizes[-1] // step))
    steps: dict[str, Callable[[], None]] = {
        str(size): partial(_step, model, x, rows // size) for size in sizes
    }
    times = compare(steps, repeats=repeats, device=device)
    batches = scatter(x, min(8, rows))
    return {
        "device": device_name(torch.device(device)),
        "rows": rows,
        "width": width,
        "layers": layers,
        "size": sizes,
        # The fastest round of each: a busy machine adds time, and adds more to short steps; it never takes any away.
        "rows_per_second": [rows / min(times[str(size)].samples) for size in sizes],
        "scatter": measure(lambda: scatter(x, min(8, rows)), device=device).median,
        "gather": measure(lambda: gather(batches), device=device).median,
    }


def _step(model: nn.Module, x: torch.Tensor, chunks: int) -> None:
    for batch in scatter(x, chunks):
        part = batch.tensor
        (model(part).square().mean() * (len(part) / len(x))).backward()


def gpu_speed() -> dict[str, Any]:
    """Measure on the GPU with a model that is large enough to keep it busy."""
    return chunk_speed("cuda", rows=16384, width=1024, step=4, smallest=16)


def find_gpu_speed() -> tuple[dict[str, Any] | None, str]:
    """Return gpu_speed(), measured here or recorded, or None; and a note for the figure, "" if measured here."""
    data, source = measured_or_recorded("chunk_speed_gpu", gpu_speed)
    if data is None:
        return None, f"{source} (python -m support.recordings chunk_speed_gpu, on a GPU)."
    return data, origin_of(data) or ""
