"""Pinned memory: how long a batch takes to a GPU from pageable and from pinned memory, and when the CPU is free again.

    pageable   an ordinary tensor; the system may move its pages, so CUDA first copies it to a pinned buffer of its own
    pinned     its pages stay where they are: the GPU's copy engine reads them by itself, and the CPU goes on

`python -m lib.data.copies` measures on this machine's GPU and writes notebooks/recorded/pinned_copies.json.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from lib._arguments import integer

RECORDING = "pinned_copies"


def measure_copies(
    megabytes: Sequence[int] = (1, 4, 16, 64, 256), repeats: int = 20
) -> list[dict[str, float]]:
    """Return, for each size, the seconds until `.to("cuda", non_blocking=True)` returns and until the copy is done.

    Rows are {"megabytes", "pageable_call", "pageable_done", "pinned_call", "pinned_done"}: medians of `repeats` runs
    that take turns, after one that does not count. Raises RuntimeError without a GPU, ValueError for sizes below 1.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(
            "measure_copies needs a CUDA device; without one, show the recording or the prediction"
        )
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


def main() -> None:
    """Measure, and write the recording that notebook 01 shows on machines without a GPU."""
    from lib import recorded
    from lib.machine import machine_card

    card, rows = machine_card(), measure_copies()
    gpu: dict[str, Any] = {"gpu": card.gpu or "unknown", "driver": card.driver or "unknown"}
    print(recorded.save(RECORDING, {"rows": rows}, command="python -m lib.data.copies", **gpu))


if __name__ == "__main__":
    main()
