"""Checks of notebook 01: what a pipeline takes, how many workers are enough, which of three limits sets the pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lib.checks.base import Verdict, check_function, guess
from lib.data.loading import simulate_loading, simulate_path

HOPS: list[tuple[int, Sequence[float]]] = [
    (1, [6, 1, 2, 4]),
    (6, [6, 1, 2, 4]),
    (6, [2, 1, 2, 4]),
    (10, [3]),
    (4, [5, 5, 5]),
    (100, [1, 9, 2]),
]

TIMES: list[tuple[float, float]] = [(20, 12), (24, 12), (12, 24), (10, 3), (7, 7), (30, 4), (100, 1)]

PACES: list[dict[str, float]] = [
    dict(load=24, waiting=0, step=12, num_workers=1, cores=8),
    dict(load=24, waiting=0, step=12, num_workers=4, cores=8),
    dict(load=50, waiting=0, step=5, num_workers=16, cores=4),
    dict(load=24, waiting=0, step=12, num_workers=2, cores=2),
    dict(load=24, waiting=16, step=12, num_workers=4, cores=2),
    dict(load=50, waiting=40, step=5, num_workers=5, cores=2),
    dict(load=9, waiting=9, step=1, num_workers=3, cores=1),
]


def true_pipeline_time(batches: int, hops: Sequence[float]) -> float:
    """Return the makespan of the simulated path."""
    return simulate_path(batches, {str(number): seconds for number, seconds in enumerate(hops)}).makespan


def serial_time(batches: int, hops: Sequence[float]) -> float:
    """Add everything up (wrong: that is one batch after the other)."""
    return batches * sum(hops)


def without_fill(batches: int, hops: Sequence[float]) -> float:
    """Count the slowest hop only (wrong: the first batch makes all hops)."""
    return batches * max(hops)


def slowest_once_too_often(batches: int, hops: Sequence[float]) -> float:
    """Count the first batch twice in the slowest hop (wrong)."""
    return sum(hops) + batches * max(hops)


def true_fewest_workers(load: float, step: float) -> int:
    """Return the smallest number of workers that keeps up with the trainer: load / workers <= step."""
    return next(workers for workers in range(1, math.ceil(load) + 2) if load <= workers * step)


def rounded_down(load: float, step: float) -> int:
    """Round the ratio down (wrong)."""
    return int(load // step)


def one_to_be_safe(load: float, step: float) -> int:
    """Round down and add one (wrong when the ratio is whole)."""
    return int(load // step) + 1


def with_the_trainer(load: float, step: float) -> int:
    """Count the trainer's step as the workers' work (wrong)."""
    return math.ceil((load + step) / step)


def true_pace(load: float, waiting: float, step: float, num_workers: int, cores: int) -> float:
    """Return the time between two batches: the largest of what the trainer, the workers and the cores need."""
    return max(step, load / num_workers, (load - waiting + step) / cores)


def pace_without_cores(load: float, waiting: float, step: float, num_workers: int, cores: int) -> float:
    """Forget the cores (wrong)."""
    return max(step, load / num_workers)


def waiting_takes_cores(load: float, waiting: float, step: float, num_workers: int, cores: int) -> float:
    """Let waiting take a core (wrong)."""
    return max(step, load / num_workers, (load + step) / cores)


def trainer_takes_no_core(load: float, waiting: float, step: float, num_workers: int, cores: int) -> float:
    """Forget that the trainer needs a core as well (wrong)."""
    return max(step, load / num_workers, (load - waiting) / cores)


def added_pace(load: float, waiting: float, step: float, num_workers: int, cores: int) -> float:
    """Add what overlaps (wrong)."""
    return step + load / num_workers


def check_pipeline_time(answer: Callable[[int, Sequence[float]], float]) -> Verdict:
    """Check exercise 1."""
    mistakes = {
        "That is one batch after the other: nothing overlaps.": serial_time,
        "You forgot that the first batch has to make every hop before the pipeline is full.": without_fill,
        "The first batch's time in the slowest hop is in the sum already.": slowest_once_too_often,
    }
    cases = [{"batches": batches, "hops": list(hops)} for batches, hops in HOPS]
    return check_function(answer, true_pipeline_time, cases, what="pipeline time", mistakes=mistakes)


def check_fewest_workers(answer: Callable[[float, float], int]) -> Verdict:
    """Check exercise 2."""
    mistakes = {
        "Rounded down: these workers are too slow, and the trainer waits.": rounded_down,
        "One more than needed where load is a whole multiple of step: it only costs memory.": one_to_be_safe,
        "The step is the trainer's work: workers load while it runs.": with_the_trainer,
    }
    cases = [{"load": load, "step": step} for load, step in TIMES]
    return check_function(answer, true_fewest_workers, cases, what="fewest workers", mistakes=mistakes)


def check_pace(answer: Callable[[float, float, float, int, int], float]) -> Verdict:
    """Check exercise 3."""
    mistakes = {
        "You forgot the cores: workers and trainer share them.": pace_without_cores,
        "You let the waiting take a core: a worker that waits for storage needs none.": waiting_takes_cores,
        "You forgot the trainer among those that need a core.": trainer_takes_no_core,
        "You added what overlaps: the slowest decides.": added_pace,
    }
    return check_function(answer, true_pace, PACES, what="pace", mistakes=mistakes)


def guess_pipeline(my_guess: object, batches: int, hops: Sequence[float]) -> Verdict:
    """Comment on the guessed time of a pipeline."""
    truth = true_pipeline_time(batches, hops)
    return guess(my_guess, truth, what=f"the time of {batches} batches as a pipeline", unit="ms")


def guess_faster_device(my_guess: object, load: float, step: float, factor: int) -> Verdict:
    """Comment on the guessed gain of a device that is `factor` times as fast."""
    gain = (load + step) / (load + step / factor)
    return guess(my_guess, gain, what=f"the gain of a device {factor} × as fast", unit="×", tolerance=0.05)


def guess_one_worker(my_guess: object, batches: int, load: float, step: float) -> Verdict:
    """Comment on the guessed milliseconds of an epoch with one worker; load and step in seconds."""
    truth = 1e3 * simulate_loading(batches, load, step, num_workers=1).makespan
    return guess(
        my_guess, round(truth), what="the predicted epoch with one worker", unit="ms", tolerance=0.05
    )


def guess_deeper_queue(my_guess: object) -> Verdict:
    """Comment on the guessed gain of prefetch_factor 8 over 2, where every batch takes the same time."""
    two, eight = (simulate_loading(16, 20, 12, 2, prefetch).makespan for prefetch in (2, 8))
    return guess(
        my_guess, two / eight, what="the gain of prefetch_factor 8 over 2 with even batches", unit="×"
    )


def guess_who_gains(my_guess: object) -> Verdict:
    """Comment on the guess which dataset gains more from two workers on two cores: "slow", "heavy" or "same"."""
    serial = simulate_loading(12, 24, 12).makespan
    gains = {
        name: serial / simulate_loading(12, 24, 12, 2, waiting=waiting, cores=2).makespan
        for name, waiting in (("heavy", 0), ("slow", 16))
    }
    return guess(my_guess, max(gains, key=lambda name: gains[name]), what="the one that gains more")
