"""What stands for measurements where only their figures are tried: in the generic test and in the browser."""

from typing import Any

from support.n05.runs import Run


def stand_ins() -> dict[str, dict[str, Any]]:
    """By notebook: names that it measures, and what stands for them, so that a test is fast and repeats exactly."""
    # 05 holds rows in processes for 12 s
    held = {"ranks": [0, 250e6], "workers": [0, 250e6], "server": [0, 0], "shared": [0, 0]}
    run = Run("naive", 2_000_000, 44, 2, 2, 1, times=[0.0, 1.0], **held)
    # 08 measures for 12 s; here a micro-batch takes 1 ms and each of its rows 10 µs
    sizes = [512 // 2**k for k in range(10)]
    speed = {"size": sizes, "rows_per_second": [s / (1e-3 + 1e-5 * s) for s in sizes], "rows": 512}
    return {"05": {"runs": {"2 ranks": run}}, "08": {"record": speed}}
