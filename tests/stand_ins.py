"""What stands for measurements where only their figures are tried: in the generic test and in the browser."""

from typing import Any

from support.n01.runs import simulate_loading
from support.n05.runs import Run


def stand_ins() -> dict[str, dict[str, Any]]:
    """By notebook: names that it measures, and what stands for them, so that a test is fast and repeats exactly."""
    epochs = {  # 01 measures for 40 s; here 24 ms of load, computed or waited for, and 12 ms a step, simulated
        name: {w: [simulate_loading(12, 0.024, 0.012, w, waiting=waiting, cores=2)] for w in range(5)}
        for name, waiting in (("heavy", 0.0), ("slow", 0.016))
    }
    # 05 holds rows in processes for 12 s
    held = {"ranks": [0, 250e6], "workers": [0, 250e6], "server": [0, 0], "shared": [0, 0]}
    run = Run("naive", 2_000_000, 44, 2, 2, 1, times=[0.0, 1.0], **held)
    return {"01": {"traces": epochs, "cores": 1.8}, "05": {"runs": {"2 ranks": run}}}
