"""Is the loader the bottleneck at all? `headspace` measures how much faster training could be if batches cost nothing.

    print(headspace(loader, step))        step: what training does with one batch

Three times, in seconds a batch, decide it: the step on batches that are kept (no loader can make training faster than
that), the loader with nobody to use its batches, and both together as in training. Workers that run beside the step
give max(step, loader), no workers give step + loader, and what is above that is what the two take from each other.

Pattern: the headspace analysis of SPDL's guide to the performance of data loading.
"""

from __future__ import annotations

import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from lib.arguments import integer, seconds_above_zero
from lib.machine import usable_cores
from lib.runtime.device import synchronize_used
from lib.text import format_time, plural, unit_for

SLACK = 1.1  # a gain below this factor is within what two measurements of the same thing differ by


@dataclass(frozen=True)
class Headspace:
    """Hold seconds a batch of the `step`, the `loader` and `both`, and say what follows; `print` it.

    workers: those of the loader that was measured; 0 if it loads in the process of the step.
    ranks, cores: how many such processes share a node, and how many cores it has in all.
    measured_on: the cores of the loader and the step that were measured; None: cores / ranks.
    """

    step: float
    loader: float
    both: float
    workers: int
    ranks: int
    cores: int
    measured_on: int | None = None

    @property
    def gain(self) -> float:
        """How many times as fast training would be if batches cost nothing."""
        return max(1.0, self.both / self.step)

    @property
    def undisturbed(self) -> float:
        """Seconds a batch as in training if step and loader took nothing from each other."""
        return max(self.step, self.loader) if self.workers else self.step + self.loader

    @property
    def limits(self) -> Literal["step", "loader", "sharing"]:
        """What to work on: whatever has the larger part in the time that a batch takes beyond its step.

        "sharing": what step and loader take from each other, or other programs from both, or what batches cost that
        differ, is more than what the loader would cost by itself.
        """
        if self.gain <= SLACK:
            return "step"
        if self.workers == 0:
            return "loader"
        by_the_loader = self.undisturbed - self.step
        by_sharing = self.both - self.undisturbed
        return "loader" if by_the_loader > by_sharing else "sharing"

    @property
    def workers_needed(self) -> int:
        """How many workers, each with a core, make batches as fast as the step takes them: ceil(load / step).

        A loader without workers counts as one, whose batches come for nothing: what it takes to send them isn't known.
        Where the step limits, no more than there are: they are enough.
        """
        # rounded before ceil: with floats 2 · 0.3 / 0.1 is a little more than 6, which would ask for a seventh worker
        batches_of_one = round(self.load / self.step, 6)
        asked = max(1, math.ceil(batches_of_one))
        if self.limits == "step":
            return min(asked, self.workers)
        return asked

    @property
    def workers_that_fit(self) -> int:
        """The fewest workers with which a batch is as fast as `within_reach`; 0 where a rank has no second core."""
        if self.cores <= self.ranks:
            return 0
        paying = math.ceil(round(self.load / self.within_reach, 6))
        return max(0, min(self.workers_needed, paying))

    @property
    def within_reach(self) -> float:
        """Seconds a batch with as many workers as pay, where load and step compute: they share a rank's cores."""
        return max(self.step, (self.load + self.step) * self.ranks / self.cores)

    @property
    def load(self) -> float:
        """Seconds of one core for a batch, if loading computes: no more workers than cores load at the same time."""
        cores = self.measured_on or max(1, self.cores // self.ranks)
        return max(1, min(self.workers, cores)) * self.loader

    def __str__(self) -> str:
        def of(seconds: float) -> str:
            return format_time(seconds, unit_for(self.both))

        limit = f"the {self.limits}"
        if self.limits == "sharing":
            limit = "neither alone: disturbed, maybe as they share cores, memory or disk, or as batches differ"
        taken = f"{of(self.undisturbed)} if they took nothing from each other"
        rows = [
            ("step", f"{of(self.step)} a batch, on batches that are kept"),
            ("loader", f"{of(self.loader)} a batch, alone"),
            ("both", f"{of(self.both)} a batch, as in training; {taken}"),
            ("limit", f"{limit}; {self.gain:.2f} times as fast at most, if batches cost nothing"),
        ]
        if self.workers_needed:
            there = self.workers or "none: step and loader take turns, so their times add up"
            asked = f"load {of(self.load)} / step {of(self.step)} asks for {self.workers_needed}"
            node = f"{plural(self.ranks, 'rank')} on {plural(self.cores, 'core')}"
            pay = f"of {plural(self.workers_needed, 'worker')} {self.workers_that_fit} can pay"
            rows += [
                ("workers", f"{asked}, the loader has {there}"),
                ("node", f"{node}, for a rank's load and step: {pay}"),
                ("at best", f"{of(self.within_reach)} a batch by the cores, if loader and step compute and never wait"),
            ]
        return "\n".join(f"{name:<8} {text}" for name, text in rows)


def headspace(
    loader: Iterable[Any],
    step: Callable[[Any], object],
    *,
    batches: int = 50,
    cached: int = 8,
    ranks: int = 1,
    cores: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Headspace:
    """Measure the step on cached batches, the loader alone, and both; the result says what limits.

    step: called with one batch. It really trains, about 2 · batches times: measure before training, or on a copy of the
    model. It must leave the batch as it is. Work on a GPU is waited for where a time is taken, if one is in use.
    batches: how many each of the three times is the mean of; fewer where an epoch has fewer. One a worker goes before
    and isn't counted, so neither are the start of workers and what the first steps set up. cached: how many are kept.
    ranks, cores: for the arithmetic of a node; cores are those of all ranks, by default the ones this process may use.
    That ranks slow each other down is in the times only if all of them measure at once.

    The loader is iterated twice: files that fit in memory are in the page cache the second time. Iterators are closed
    and workers ended, also persistent ones and when the step raises.

    Raises TypeError for a step that can't be called or hasn't run (a generator) and for an iterator in the loader's
    place, ValueError for an epoch too short to measure; what the step raises passes through.
    """
    batches = integer("batches", batches, at_least=1)
    cached = integer("cached", cached, at_least=1)
    ranks = integer("ranks", ranks, at_least=1)
    cores = integer("cores", usable_cores() if cores is None else cores, at_least=1)
    if not callable(step):
        raise TypeError(f"step must be a function of one batch, not {step!r}")
    if isinstance(loader, Iterator):
        raise TypeError(f"loader is iterated twice, so it can't be an iterator ({loader!r}); pass the loader itself")
    workers = int(getattr(loader, "num_workers", 0))
    warm = max(1, workers)  # the first batches of all workers come at once
    kept: list[Any] = []

    def keep(batch: Any) -> None:
        if len(kept) < cached:
            kept.append(batch)

    def train(batch: Any) -> None:
        done = step(batch)
        if inspect.isgenerator(done) or inspect.iscoroutine(done):
            done.close()
            raise TypeError(f"step returned a {type(done).__name__}: it hasn't run; write it without yield or async")

    alone = _seconds_a_batch(loader, keep, warm, batches, clock)
    trained = _seconds_a_batch(itertools.cycle(kept), train, warm, batches, clock)
    seconds_above_zero("the time of a step", trained)
    both = _seconds_a_batch(loader, train, warm, batches, clock)
    return Headspace(trained, alone, both, workers, ranks, cores, usable_cores())


def _seconds_a_batch(
    source: Any, use: Callable[[Any], None], warm: int, batches: int, clock: Callable[[], float]
) -> float:
    """Return the mean over some batches of the source, each of them used; those that come first warm up."""

    def now() -> float:
        synchronize_used()  # a step returns before a GPU has done it
        return clock()

    seen = 0
    start = 0.0
    iterator = iter(source)
    try:
        for batch in itertools.islice(iterator, warm + batches):
            use(batch)
            seen += 1
            if seen == warm:
                start = now()
        end = now()
    finally:
        _close(source, iterator)
    if seen <= warm:
        raise ValueError(
            f"the loader gives {plural(seen, 'batch', 'batches')}, and {warm + 1} are needed, the first {warm} to "
            "warm up: pass one with a longer epoch (drop_last=True leaves none of a dataset smaller than a batch)"
        )
    return (end - start) / (seen - warm)


def _close(loader: Any, iterator: Any) -> None:
    """End an iterator now: torch ends its workers when it is collected, and persistent ones never."""
    end = getattr(iterator, "_shutdown_workers", None) or getattr(iterator, "close", None)
    if end:
        end()
    if getattr(loader, "_iterator", None) is iterator:
        loader._iterator = None
