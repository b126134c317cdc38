"""Measure memory: of a process and its children (RSS, PSS, USS), over time, and of a GPU.

    RSS  every page that a process sees, shared ones in full: eight forked workers count the same page eight times
    PSS  a shared page counts for each process in equal parts: this is what may be summed
    USS  the pages that no other process shares: what ends with the process

Report PSS or USS. A summed RSS is no amount of memory that any machine ever used.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from lib.arguments import seconds_above_zero
from lib.runtime.device import Device, accelerators, active_bytes, locate, reset_peak, synchronize
from lib.text import format_bytes


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
    finally:  # what is still to run takes no memory: the host gave it away when it launched that
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
