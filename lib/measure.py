"""Measure: times with their spread, memory, and the machine that was measured."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch

from lib.arguments import integer, seconds_above_zero
from lib.runtime.device import (
    accelerators,
    active_bytes,
    current_stream,
    locate,
    reset_peak,
    synchronize,
    timed_event,
    use_device,
)
from lib.text import format_bytes, format_time, plural, table

Device: TypeAlias = torch.device | int | str


@dataclass(frozen=True)
class MachineCard:
    """Describe a machine. `memory` is in bytes; what the machine does not tell is None."""

    cpu: str
    cores_usable: int
    cores_logical: int
    cores_physical: int | None
    memory: int | None
    torch: str
    threads: int
    python: str
    system: str
    gpu: str | None = None
    gpu_memory: int | None = None
    driver: str | None = None
    cuda: str | None = None

    @property
    def device(self) -> str:
        """The name of the GPU, or of the CPU where there is none."""
        return self.gpu or self.cpu

    def __str__(self) -> str:
        cores = f"{self.cores_usable} of {self.cores_logical} logical cores usable"
        cpu = [self.cpu, cores]
        if self.cores_physical:
            cpu.append(f"{self.cores_physical} physical")
        if self.memory:
            cpu.append(format_bytes(self.memory))
        gpu = ["none"]
        if self.gpu:
            gpu = [self.gpu, format_bytes(self.gpu_memory or 0)]
            if self.driver:
                gpu.append(f"driver {self.driver}")
            if self.cuda:
                gpu.append(f"CUDA {self.cuda}")
        software = [self.torch, f"{plural(self.threads, 'thread')} an operator", f"Python {self.python}", self.system]
        rows = {"cpu": cpu, "gpu": gpu, "torch": software}
        return "\n".join(f"{name:<6} {', '.join(said)}" for name, said in rows.items())


def machine_card() -> MachineCard:
    """Return the card of this machine. CUDA is not initialised where torch sees no GPU."""
    physical, total = _physical_cores_and_memory()
    gpu: dict[str, Any] = {}
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        gpu = dict(gpu=found.name, gpu_memory=found.total_memory, driver=_driver(), cuda=torch.version.cuda)
    return MachineCard(
        cpu=_cpu_name(),
        cores_usable=usable_cores(),
        cores_logical=os.cpu_count() or 1,
        cores_physical=physical,
        memory=total,
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        **gpu,
    )


def _cpu_name() -> str:
    with contextlib.suppress(OSError):  # Linux; on Arm it has no such line
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "unknown CPU"


def usable_cores() -> int:
    """Return how many cores this process may use: a container or taskset may allow fewer than there are."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # "200000 100000" is a quota of two cores, "max 100000" is none
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _physical_cores_and_memory() -> tuple[int | None, int | None]:
    with contextlib.suppress(ImportError):
        psutil = import_psutil("the machine card")
        return psutil.cpu_count(logical=False), psutil.virtual_memory().total
    with contextlib.suppress(AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None, None


def _driver() -> str | None:
    """Return the version of NVIDIA's driver, which torch does not know."""
    with contextlib.suppress(subprocess.SubprocessError, OSError):  # also where there is no such program
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        shown = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
        return shown.stdout.split("\n")[0].strip() or None
    return None


# ---- Measure memory: of a process and its children (RSS, PSS, USS), over time, and of a GPU.
#
# RSS  every page that a process sees, shared ones in full: eight forked workers count the same page eight times
# PSS  a shared page counts for each process in equal parts: this is what may be summed
# USS  the pages that no other process shares: what ends with the process
#
# Report PSS or USS. A summed RSS is no amount of memory that any machine ever used.


@dataclass(frozen=True)
class Memory:
    """Hold an amount of memory in bytes. `pss` is None where the system does not tell (Linux does)."""

    rss: int = 0
    pss: int | None = 0
    uss: int | None = 0

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, _sum(self.pss, other.pss), _sum(self.uss, other.uss))

    def __sub__(self, other: Memory) -> Memory:
        return Memory(self.rss - other.rss, _sum(self.pss, other.pss, -1), _sum(self.uss, other.uss, -1))

    def __str__(self) -> str:
        parts = {"PSS": self.pss, "USS": self.uss, "RSS": self.rss}
        written = {name: "unknown" if size is None else format_bytes(size) for name, size in parts.items()}
        return ", ".join(f"{name} {size}" for name, size in written.items())


def _sum(one: int | None, other: int | None, sign: int = 1) -> int | None:
    """Add, or with sign -1 subtract; what is unknown in one of them is unknown in the sum."""
    if one is None or other is None:
        return None
    return one + sign * other


def memory(pid: int | None = None, *, children: bool = True) -> Memory:
    """Return the memory of a process (this one by default), summed with that of its children and theirs.

    Take `pss` or `uss` of it, never the summed `rss`. Costs some milliseconds for each large process.
    Raises ImportError without psutil, ProcessLookupError if there is no such process.
    """
    psutil = import_psutil("measuring memory")
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)] if children else [process]
    except psutil.NoSuchProcess:
        raise ProcessLookupError(f"there is no process {pid}") from None
    total = Memory()
    for member in family:
        try:
            full = member.memory_full_info()
            total += Memory(full.rss, getattr(full, "pss", None), getattr(full, "uss", None))
        except psutil.NoSuchProcess:  # it ended while we were asking
            continue
        except psutil.AccessDenied:
            total += Memory(member.memory_info().rss, None, None)
    return total


class MemoryWatch:
    """Sample the memory of this process (and its children) in a thread, while the body of a `with` runs.

        with MemoryWatch() as watch:
            rows = load()
        watch.peak.pss, watch.extra.pss

    interval: seconds between samples; reading one takes milliseconds itself, so a short peak can be missed.
    samples: (seconds since the start, Memory), one before the body, one after it, and those between.
    Raises ImportError without psutil, ValueError for an interval that is not positive.
    """

    def __init__(self, interval: float = 0.01, children: bool = True) -> None:
        import_psutil("measuring memory")
        self.interval = seconds_above_zero("interval", interval)
        self.children = children
        self.samples: list[tuple[float, Memory]] = []
        self._done = threading.Event()

    def _sample(self) -> None:
        self.samples.append((time.perf_counter() - self._start, memory(children=self.children)))

    def _run(self) -> None:
        while not self._done.wait(self.interval):
            self._sample()

    def __enter__(self) -> MemoryWatch:
        self._start = time.perf_counter()
        self.samples.clear()
        self._done.clear()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="memory watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()
        self._sample()

    @property
    def peak(self) -> Memory:
        """The largest RSS, PSS and USS seen, each by itself."""
        seen = [sample for _, sample in self.samples]
        pss = [sample.pss for sample in seen if sample.pss is not None]
        uss = [sample.uss for sample in seen if sample.uss is not None]
        return Memory(max(sample.rss for sample in seen), max(pss, default=None), max(uss, default=None))

    @property
    def extra(self) -> Memory:
        """The peak, less what was there before the body."""
        return self.peak - self.samples[0][1]


@dataclass
class DevicePeak:
    """Hold the most bytes that torch's tensors took on a GPU, and how many of them were not there before.

    Both are None until the body has ended, and for good on a machine without a GPU.
    """

    allocated: int | None = None
    extra: int | None = None


@contextlib.contextmanager
def device_peak(device: Device | None = None) -> Iterator[DevicePeak]:
    """Measure the peak of torch's memory on a GPU in the body of a `with`; nothing where there is none.

    device: the current GPU by default. What counts are torch's active bytes, whose peak is reset; the driver's own
    memory and cached blocks come on top. A block that Python has let go counts as long as a stream still uses it,
    unlike in torch.cuda.max_memory_allocated. Raises what `compare` raises for a device that is not there.
    """
    peak = DevicePeak()
    here = accelerators()
    if not here:
        yield peak
        return
    gpu = locate(torch.device(here[0].type if device is None else device))
    synchronize(gpu)
    reset_peak(gpu)
    before = active_bytes(gpu, "current")
    try:
        yield peak
    finally:
        synchronize(gpu)
        peak.allocated = active_bytes(gpu, "peak")
        peak.extra = peak.allocated - before


def return_freed() -> None:
    """Give memory that was freed, but is kept by C's allocator for later, back to the system; where glibc is used.

    glibc learns from large arrays that come and go: it stops giving them back, and the arrays that follow find no room
    between those that stay. Source: mallopt(3), M_MMAP_THRESHOLD; malloc_trim(3).
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library: nothing to do
        ctypes.CDLL(None).malloc_trim(0)


def import_psutil(purpose: str) -> Any:
    """Return the module psutil, which `import lib` does without; raises ImportError that says what needs it."""
    try:
        import psutil
    except ImportError as error:
        raise ImportError(f"{purpose} needs psutil: pip install psutil") from error
    return psutil


# ---- Measure time: warm up, repeat, give the median and its spread, and name the clock.
#
# Comparisons are ratios of functions that took turns in one run: on a shared machine a time alone says little.


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
