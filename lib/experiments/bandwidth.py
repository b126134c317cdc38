"""How fast copies to and from a GPU are, by size, from pageable and from pinned memory: notebook 13.

`python -m lib.recordings bandwidth`, on a GPU, writes notebooks/recorded/bandwidth.json.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import torch

from lib._arguments import integer
from lib.recordings import measured_or_recorded, need_gpu

COPY_WAYS = ("pageable", "pageable, non_blocking", "pinned, non_blocking")
DIRECTIONS = ("to the device", "to the host")
SIZES = tuple(4**k * 4096 for k in range(9))  # 4 KiB to 256 MiB


def measure_bandwidth(sizes: Sequence[int] = SIZES, repeats: int = 9) -> dict[str, Any]:
    """Return {"rows": …}, each {"bytes", "direction", "way", "call", "done"}.

    call: seconds until copy_ returns; done: until the copy has arrived. Medians of runs that take turns, after one
    that does not count. Raises RuntimeError without a GPU, ValueError for sizes below 1.
    """
    need_gpu("measure_bandwidth")
    rows = []
    for size in sizes:
        bytes_ = integer("size", size, at_least=1)
        on_device = torch.zeros(bytes_, dtype=torch.uint8, device="cuda")
        hosts = [torch.zeros(bytes_, dtype=torch.uint8, pin_memory="pinned" in way) for way in COPY_WAYS]
        cases = [(direction, k) for direction in DIRECTIONS for k in range(len(COPY_WAYS))]
        times: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
        for turn in range(repeats + 1):
            for direction, k in cases:
                pair = (on_device, hosts[k]) if direction == DIRECTIONS[0] else (hosts[k], on_device)
                torch.cuda.synchronize()
                start = time.perf_counter()
                pair[0].copy_(pair[1], non_blocking="non_blocking" in COPY_WAYS[k])
                called = time.perf_counter()
                torch.cuda.synchronize()
                if turn:
                    times[direction, k].append((called - start, time.perf_counter() - start))
        for (direction, k), taken in times.items():
            call, done = (median(column) for column in zip(*taken, strict=True))
            rows.append({"bytes": bytes_, "direction": direction, "way": COPY_WAYS[k], "call": call, "done": done})
    return {"rows": rows}


def find_bandwidth() -> tuple[dict[str, Any] | None, str]:
    """Return the measurement or the recording, and which it is."""
    return measured_or_recorded("bandwidth", measure_bandwidth)
