"""Pinned memory: how long a batch takes to a GPU from pageable and from pinned memory, and when the CPU is free again.

    pageable   an ordinary tensor; the system may move its pages, so CUDA first copies it to a pinned buffer of its own
    pinned     its pages stay where they are: the GPU's copy engine reads them by itself, and the CPU goes on

`python -m lib.recordings pinned_copies`, on a GPU, writes notebooks/recorded/pinned_copies.json.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from lib._arguments import integer
from lib.recordings import measured_or_recorded, need_gpu, origin_of


def measure_copies(
    megabytes: Sequence[int] = (1, 4, 16, 64, 256), repeats: int = 20
) -> list[dict[str, float]]:
    """Return, for each size, the seconds until `.to("cuda", non_blocking=True)` returns and until the copy is done.

    Rows are {"megabytes", "pageable_call", "pageable_done", "pinned_call", "pinned_done"}: medians of `repeats` runs
    that take turns, after one that does not count. Raises RuntimeError without a GPU, ValueError for sizes below 1.
    """
    need_gpu("measure_copies")
    rows = []
    for size in megabytes:
        shape = integer("megabytes", size, at_least=1) * 250_000
        sources = {"pageable": torch.zeros(shape), "pinned": torch.zeros(shape, pin_memory=True)}
        times: dict[str, list[float]] = {f"{name}_{end}": [] for name in sources for end in ("call", "done")}
        for turn in range(repeats + 1):
            for name, source in sources.items():
                torch.cuda.synchronize()
                start = time.perf_counter()
                source.to("cuda", non_blocking=True)
                called = time.perf_counter()
                torch.cuda.synchronize()
                if turn:
                    times[f"{name}_call"].append(called - start)
                    times[f"{name}_done"].append(time.perf_counter() - start)
        rows.append({"megabytes": float(size), **{name: median(values) for name, values in times.items()}})
    return rows


def measure_rows() -> dict[str, Any]:
    """Return {"rows": …}, what measure_copies measures."""
    return {"rows": measure_copies()}


def find_copies() -> tuple[list[dict[str, float]], str | None]:
    """Return the rows, measured here, with None as provenance; else recorded; else ([], None)."""
    data, _ = measured_or_recorded("pinned_copies", measure_rows)
    return (data["rows"] if data else []), origin_of(data)
