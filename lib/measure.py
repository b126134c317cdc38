"""Measure time: warm up, repeat, give the median and its spread, and name the clock.

Comparisons are ratios of functions that took turns in one run: on a shared machine a time alone says little.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lib._arguments import integer
from lib._units import format_time
from lib.machine import MachineCard, machine_card
from lib.memory import CudaPeak, Memory, MemoryWatch, cuda_peak, memory

if TYPE_CHECKING:
    import torch

__all__ = [
    "Comparison",
    "CudaPeak",
    "MachineCard",
    "Memory",
    "MemoryWatch",
    "Timing",
    "compare",
    "cuda_peak",
    "machine_card",
    "measure",
    "memory",
]


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
        runs = f"{len(self.samples)} run{'s' * (len(self.samples) != 1)}"
        how = f"{runs}, {self.device}, {self.clock}"
        return f"{format_time(self.median)}, spread {format_time(self.spread)} ({how})"


@dataclass(frozen=True)
class Comparison(Mapping[str, Timing]):
    """Hold what several functions took that ran in turns: a mapping from name to Timing."""

    timings: Mapping[str, Timing]

    def __getitem__(self, name: str) -> Timing:
        if name not in self.timings:
            raise KeyError(f"nothing named {name!r} was measured, only {', '.join(self.timings)}")
        return self.timings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.timings)

    def __len__(self) -> int:
        return len(self.timings)

    def ratio(self, a: str, b: str) -> float:
        """Return how many times as long as `b` a run of `a` takes: the median over the rounds.

        Both runs of a round lie close together in time, so what slows the machine for a while cancels out.
        Raises KeyError for a name that was not measured.
        """
        rounds = zip(self[a].samples, self[b].samples, strict=True)
        return statistics.median(first / second for first, second in rounds)

    def __str__(self) -> str:
        names = list(self.timings)
        rows = [("", "median", "spread", f"x {names[0]}")]
        for name, timing in self.timings.items():
            ratio = f"{self.ratio(name, names[0]):.2f}"
            rows.append((name, format_time(timing.median), format_time(timing.spread), ratio))
        width = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{name:<{width[0]}}  {median:>{width[1]}}  {spread:>{width[2]}}  {ratio:>{width[3]}}".rstrip()
            for name, median, spread, ratio in rows
        ]
        first = self.timings[names[0]]
        return "\n".join((*lines, f"{len(first.samples)} rounds in turn, {first.device}, {first.clock}"))


def measure(
    function: Callable[[], object],
    *,
    warmup: int = 1,
    repeats: int = 5,
    device: str | torch.device | None = None,
) -> Timing:
    """Time `function()` for `repeats` runs, after `warmup` runs that do not count.

    device: where the work runs. On a CUDA device, CUDA events time it (work on other streams counts only if
    the current stream waits for it); otherwise, and by default, perf_counter. Raises what `compare` raises.
    """
    return compare({"": function}, warmup=warmup, repeats=repeats, device=device)[""]


def compare(
    functions: Mapping[str, Callable[[], object]],
    *,
    warmup: int = 1,
    repeats: int = 5,
    device: str | torch.device | None = None,
) -> Comparison:
    """Time several functions in turns, A B C A B C …, so that a busy machine is unfair to none of them.

    Raises ValueError for no functions, a negative warmup, repeats below 1, a device that is neither cpu nor
    cuda; TypeError for what cannot be called; RuntimeError for a CUDA device that this machine does not have.
    """
    warmup = integer("warmup", warmup, at_least=0)
    repeats = integer("repeats", repeats, at_least=1)
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
            if turn >= warmup:
                samples[name].append(took)
    return Comparison({name: Timing(tuple(times), where, clock) for name, times in samples.items()})


def _stopwatch(device: str | torch.device | None) -> tuple[str, str, Callable[[Callable[[], object]], float]]:
    """Return the name of the device, the name of the clock, and the function that times one run by it."""

    def wall_seconds(function: Callable[[], object]) -> float:
        start = time.perf_counter()
        function()
        return time.perf_counter() - start

    if device is None:
        return "cpu", "perf_counter", wall_seconds
    import torch

    place = torch.device(device)
    if place.type == "cpu":
        return "cpu", "perf_counter", wall_seconds
    if place.type != "cuda":
        raise ValueError(f"device must be cpu or cuda, not {str(place)!r}")
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"torch sees no CUDA device here, so nothing can run on {str(place)!r}; leave device out"
        )

    def cuda_seconds(function: Callable[[], object]) -> float:
        with torch.cuda.device(place):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()  # what was launched before must not count
            start.record()
            function()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

    return str(place), "cuda events", cuda_seconds
