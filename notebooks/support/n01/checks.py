"""Predictions and exercises of notebook 01, the loading pipeline."""

from __future__ import annotations

import math
from collections.abc import Sequence

from support.checks import Exercise, Guess, cases
from support.n01.runs import simulate_loading, simulate_path

# ---- predictions


def _pipeline_time(batches: int, hops: Sequence[float]) -> float:
    return simulate_path(batches, {str(number): seconds for number, seconds in enumerate(hops)}).makespan


def _deeper_queue() -> float:
    two, eight = (simulate_loading(16, 20, 12, 2, prefetch).makespan for prefetch in (2, 8))
    return two / eight


def _who_gains() -> str:
    serial = simulate_loading(12, 24, 12).makespan
    gains = {
        name: serial / simulate_loading(12, 24, 12, 2, waiting=waiting, cores=2).makespan
        for name, waiting in (("heavy", 0), ("slow", 16))
    }
    return max(gains, key=lambda name: gains[name])


guess_pipeline = Guess(
    lambda batches, hops: f"the time of {batches} batches as a pipeline", _pipeline_time, unit="ms"
)
"""The time of a pipeline."""
guess_faster_device = Guess(
    lambda load, step, factor: f"the gain of a device {factor} × as fast",
    lambda load, step, factor: (load + step) / (load + step / factor),
    unit="×",
    tolerance=0.05,
)
"""The gain of a device that is `factor` times as fast."""
guess_one_worker = Guess(
    "the predicted epoch with one worker",
    lambda batches, load, step: round(1e3 * simulate_loading(batches, load, step, num_workers=1).makespan),
    unit="ms",
    tolerance=0.05,
)
"""Milliseconds of an epoch with one worker; load and step in seconds."""
guess_deeper_queue = Guess("the gain of prefetch_factor 8 over 2 with even batches", _deeper_queue, unit="×")
"""The gain of prefetch_factor 8 over 2, where every batch takes the same time."""
guess_who_gains = Guess("the one that gains more", _who_gains)
"""Which dataset gains more from two workers on two cores: "slow", "heavy" or "same"."""

# ---- exercises

check_pipeline_time = Exercise(
    "pipeline time",
    reference=_pipeline_time,  # of the simulated path
    cases=cases(
        "batches hops",
        [
            (1, [6, 1, 2, 4]),
            (6, [6, 1, 2, 4]),
            (6, [2, 1, 2, 4]),
            (10, [3]),
            (4, [5, 5, 5]),
            (100, [1, 9, 2]),
        ],
    ),
    mistakes={
        "That is one batch after the other: nothing overlaps.": lambda batches, hops: batches * sum(hops),
        "You forgot that the first batch has to make every hop before the pipeline is full.": (
            lambda batches, hops: batches * max(hops)
        ),
        "The first batch's time in the slowest hop is in the sum already.": lambda batches, hops: (
            sum(hops) + batches * max(hops)
        ),
    },
)
"""Exercise 1."""

check_fewest_workers = Exercise(
    "fewest workers",
    reference=lambda load, step: next(n for n in range(1, math.ceil(load) + 2) if load <= n * step),
    cases=cases("load step", [(20, 12), (24, 12), (12, 24), (10, 3), (7, 7), (30, 4), (100, 1)]),
    mistakes={
        "Rounded down: these workers are too slow, and the trainer waits.": lambda load, step: load // step,
        "One more than needed where load is a whole multiple of step: it only costs memory.": (
            lambda load, step: load // step + 1
        ),
        "The step is the trainer's work: workers load while it runs.": lambda load, step: math.ceil(
            (load + step) / step
        ),
    },
)
"""Exercise 2: the smallest number of workers that keeps up with the trainer."""

check_pace = Exercise(
    "pace",
    reference=lambda load, waiting, step, num_workers, cores: max(
        step, load / num_workers, (load - waiting + step) / cores
    ),
    cases=[
        dict(load=24, waiting=0, step=12, num_workers=1, cores=8),
        dict(load=24, waiting=0, step=12, num_workers=4, cores=8),
        dict(load=50, waiting=0, step=5, num_workers=16, cores=4),
        dict(load=24, waiting=0, step=12, num_workers=2, cores=2),
        dict(load=24, waiting=16, step=12, num_workers=4, cores=2),
        dict(load=50, waiting=40, step=5, num_workers=5, cores=2),
        dict(load=9, waiting=9, step=1, num_workers=3, cores=1),
    ],
    mistakes={
        "You forgot the cores: workers and trainer share them.": lambda load, step, num_workers, **_: max(
            step, load / num_workers
        ),
        "You let the waiting take a core: a worker that waits for storage needs none.": (
            lambda load, step, num_workers, cores, **_: max(step, load / num_workers, (load + step) / cores)
        ),
        "You forgot the trainer among those that need a core.": lambda load, waiting, step, num_workers, cores: (
            max(step, load / num_workers, (load - waiting) / cores)
        ),
        "You added what overlaps: the slowest decides.": lambda load, step, num_workers, **_: (
            step + load / num_workers
        ),
    },
)
"""Exercise 3: the time between two batches is the largest of what the trainer, the workers and the cores need."""
