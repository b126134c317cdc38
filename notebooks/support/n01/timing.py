"""How a reader's three times are tried, exercise 5 of notebook 01: on a clock that only loaders and steps move."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from support.kit.raised import in_case
from support.kit.values import near

STARTS = "What starts only once is in the means: the clock begins to count behind the first batch."
ONE_TOO_MANY = (
    "Divide by the batches that lie between the two looks at the clock: the first isn't one of them."
)
TOTAL = "Those are the seconds of all batches, not of one."
SWAPPED = "The order is step, loader, both."
NOT_BOTH = (
    "The third time is measured, not the longer of the other two: together they may disturb each other."
)
SUM = "The third time is measured, not the sum of the other two: a loader with workers runs beside the step."
EMPTY_STEP = "The first time is that of the step, and the step was not run."
OTHER_CLOCK = "The time is that of the `clock` that it is given."
HOLDS = "More batches are kept than 8: an epoch of a real job does not fit into memory."
WAITS = "The second time is not what the trainer waits for: iterate over the loader with nobody who trains."

MOST_KEPT = 8


class Job(NamedTuple):
    """A loader and a step, in seconds; friction is what a batch takes longer when both run."""

    loader: float
    step: float
    friction: float = 0.0
    workers: bool = True
    batches: int = 20

    def __str__(self) -> str:
        how = "with workers" if self.workers else "without workers"
        return f"a loader {how} that takes {self.loader:g} s a batch, a step that takes {self.step:g} s"

    @property
    def times(self) -> tuple[float, float, float]:
        """Return what is right: step, loader, both."""
        together = max(self.loader, self.step) if self.workers else self.loader + self.step
        return self.step, self.loader, together + self.friction


JOBS = (Job(4, 1), Job(4, 1, 0.5), Job(1, 4, 2), Job(3, 2, 0.25, workers=False))
START = 100.0  # seconds until the first batch of an epoch, and of the first step


class _Made:
    """A batch."""


class TimedWorld:
    """A clock, a loader and a step."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.now = 1000.0
        self.looks = 0  # at the clock
        self.trained = 0
        self.alive: list[weakref.ref[_Made]] = []
        self.most_alive = 0

    def clock(self) -> float:
        """Say what time it is."""
        self.looks += 1
        return self.now

    def step(self, batch: object) -> None:
        """Train on a batch."""
        if not isinstance(batch, _Made):
            raise TypeError(f"a step is given one batch, not {batch!r}")
        self.now += self.job.step + START * (self.trained == 0)
        self.trained += 1

    def __len__(self) -> int:
        return self.job.batches

    def __iter__(self) -> Iterator[_Made]:
        ready = self.now + START
        self.now = ready
        for left in reversed(range(self.job.batches)):
            ready += self.job.loader
            self.now = max(self.now, ready) if self.job.workers else self.now + self.job.loader
            batch = _Made()
            self.alive = [*(one for one in self.alive if one() is not None), weakref.ref(batch)]
            self.most_alive = max(self.most_alive, len(self.alive))
            trained = self.trained
            begun = self.now
            yield batch
            if self.now - begun >= START:  # nothing is loaded while the first step of all starts
                ready = self.now - self.job.step
            if self.trained > trained and left:
                self.now += self.job.friction
                ready += self.job.friction if self.job.loader >= self.job.step else 0.0


def fault_of_times(answer: Callable[..., Any]) -> str:
    """Say what is wrong with three_times, "" if nothing."""
    for job in JOBS:
        with in_case(str(job)):
            said = _fault(answer, TimedWorld(job))
        if said:
            return f"{job}: {said}"
    return ""


def _fault(answer: Callable[..., Any], world: TimedWorld) -> str:
    got = answer(world, world.step, world.clock)
    if got is None:
        return "three_times returned None (is a `return` missing?)."
    if not isinstance(got, (tuple, list)) or len(got) != 3:
        return f"three times are due, not {got!r}."
    if not world.looks:
        return f"the clock was never looked at. {OTHER_CLOCK}"
    right = world.job.times
    if all(near(mine, due, 1e-6) for mine, due in zip(got, right, strict=True)):
        if world.most_alive > MOST_KEPT + 2:
            return f"{world.most_alive} batches are in memory at the same time. {HOLDS}"
        return ""
    names = ("step", "loader", "both")
    told = ", ".join(f"{name} {_text(mine)}" for name, mine in zip(names, got, strict=True))
    due = ", ".join(f"{name} {_text(value)}" for name, value in zip(names, right, strict=True))
    return f"you give {told}; due are {due} seconds a batch."


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
