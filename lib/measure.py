"""Measure time: warm up, repeat, give the median and its spread, and name the clock.

Comparisons are ratios of functions that took turns in one run: on a shared machine a time alone says little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from lib.arguments import integer
from lib.runtime.device import Device, current_stream, locate, synchronize, timed_event, use_device
from lib.text import format_time, plural, table


@dataclass(frozen=True)
class Timing:
    """Hold what the runs of one function took: `samples` in seconds, on which `device`, by which `clock`."""

    samples: tuple[float, ...]
    device: str
    clock: str

    @property
    def median(self) -> float:
        """The middle of the samples, in seconds: one slow run does not move it."""
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """The interquartile range in seconds: how wide the middle half of the samples is; 0.0 for one sample."""
        if len(self.samples) < 2:
            return 0.0
        lower, _, upper = statistics.quantiles(self.samples, n=4, method="inclusive")
        return upper - lower

    def __str__(self) -> str:
        how = f"{plural(len(self.samples), 'run')}, {self.device}, {self.clock}"
        return f"{format_time(self.median)}, spread {format_time(self.spread)} ({how})"


class Comparison(dict[str, Timing]):
    """Hold what several functions took that ran in turns: a mapping from name to Timing."""

    def __missing__(self, name: str) -> Timing:
        raise KeyError(f"nothing named {name!r} was measured, only {', '.join(self)}")

    def ratio(self, a: str, b: str) -> float:
        """Return how many times as long as `b` a run of `a` takes: the median over the rounds.

        Both runs of a round lie close together in time, so what slows the machine for a while cancels out.
        Raises KeyError for a name that was not measured.
        """
        rounds = zip(self[a].samples, self[b].samples, strict=True)
        return statistics.median(first / second for first, second in rounds)

    def __str__(self) -> str:
        base = next(iter(self))
        rows = [("", "median", "spread", f"x {base}")]
        for name, timing in self.items():
            ratio = f"{self.ratio(name, base):.2f}"
            rows.append((name, format_time(timing.median), format_time(timing.spread), ratio))
        first = self[base]
        return f"{table(rows)}\n{len(first.samples)} rounds in turn, {first.device}, {first.clock}"


def measure(
    function: Callable[[], object], *, warmup: int = 1, repeats: int = 5, device: Device | None = None
) -> Timing:
    """Time `function()` for `repeats` runs, after `warmup` runs that do not count.

    device: where the work runs. On a GPU two events time it (work on other streams counts only if the current stream
    waits for it); otherwise, and by default, perf_counter. Raises what `compare` raises.
    """
    return compare({"": function}, warmup=warmup, repeats=repeats, device=device)[""]


def compare(
    functions: Mapping[str, Callable[[], object]], *, warmup: int = 1, repeats: int = 5, device: Device | None = None
) -> Comparison:
    """Time several functions in turns, A B C A B C …, so that a busy machine is unfair to none of them.

    Raises ValueError for no functions, a negative warmup, repeats below 1, a device that is no CPU and has no streams;
    TypeError for what cannot be called; RuntimeError for a device that this machine does not have.
    """
    warmup = integer("warmup", warmup, at_least=0)
    repeats = integer("repeats", repeats, at_least=1)
    if not isinstance(functions, Mapping):
        raise TypeError(
            f"functions must be a mapping from names to functions, not {type(functions).__name__}; `measure` times one"
        )
    if not functions:
        raise ValueError("there is nothing to compare: functions is empty")
    for name, function in functions.items():
        if not callable(function):
            raise TypeError(
                f"{name or 'function'} must be a function of no arguments, not {function!r}; "
                "write `lambda: work(x)` instead of `work(x)`"
            )
    where, clock, seconds = _stopwatch(device)
    samples: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warmup + repeats):
        for name, function in functions.items():
            took = seconds(function)
            if turn >= warmup:  # the turns before fill caches, and start threads
                samples[name].append(took)
    return Comparison({name: Timing(tuple(times), where, clock) for name, times in samples.items()})


def _stopwatch(device: Device | None) -> tuple[str, str, Callable[[Callable[[], object]], float]]:
    """Return the name of the device, the name of the clock, and the function that times one run by it."""

    def wall_seconds(function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    place = torch.device("cpu" if device is None else device)
    if place.type == "cpu":
        return "cpu", "perf_counter", wall_seconds
    gpu = locate(place)

    def seconds_between_events(function: Callable[[], object]) -> float:
        with use_device(gpu):
            synchronize(gpu)  # what was launched before must not count
            start = timed_event(current_stream(gpu))
            function()
            end = timed_event(current_stream(gpu))
            end.synchronize()
            return start.elapsed_time(end) / 1e3

    return str(place), f"{place.type} events", seconds_between_events
