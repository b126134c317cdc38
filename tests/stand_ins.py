"""What stands for measurements where only their figures are tried: in the generic test and in the browser."""

from typing import Any

from support.n01.runs import simulate_loading


def stand_ins() -> dict[str, dict[str, Any]]:
    """By notebook: names that it measures, and what stands for them, so that a test is fast and repeats exactly."""
    epochs = {  # 01 measures for 40 s; here 24 ms of load, computed or waited for, and 12 ms a step, simulated
        name: {w: [simulate_loading(12, 0.024, 0.012, w, waiting=waiting, cores=2)] for w in range(5)}
        for name, waiting in (("heavy", 0.0), ("slow", 0.016))
    }
    return {"01": {"traces": epochs, "cores": 1.8}}
