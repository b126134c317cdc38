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
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lib._units import format_bytes

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Memory:
    """Hold an amount of memory in bytes. `pss` is None where the system does not tell (Linux does)."""

    rss: int = 0
    pss: int | None = 0
    uss: int | None = 0

    def __add__(self, other: Memory) -> Memory:
        pss = None if self.pss is None or other.pss is None else self.pss + other.pss
        uss = None if self.uss is None or other.uss is None else self.uss + other.uss
        return Memory(self.rss + other.rss, pss, uss)

    def __sub__(self, other: Memory) -> Memory:
        pss, uss = other.pss, other.uss
        return self + Memory(-other.rss, None if pss is None else -pss, None if uss is None else -uss)

    def __str__(self) -> str:
        parts = (("PSS", self.pss), ("USS", self.uss), ("RSS", self.rss))
        return ", ".join(
            f"{name} {'unknown' if size is None else format_bytes(size)}" for name, size in parts
        )


def memory(pid: int | None = None, *, children: bool = True) -> Memory:
    """Return the memory of a process (this one by default), summed with that of its children and theirs.

    Take `pss` or `uss` of it, never the summed `rss`. Costs some milliseconds for each large process.
    Raises ImportError without psutil, ProcessLookupError if there is no such process.
    """
    psutil = _psutil()
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
        if not interval > 0:
            raise ValueError(f"interval must be a positive number of seconds, not {interval!r}")
        _psutil()
        self.interval, self.children = interval, children
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
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
class CudaPeak:
    """Hold the most bytes that torch's tensors took on a GPU, and how many of them were not there before.

    Both are None until the body has ended, and for good on a machine without a GPU.
    """

    allocated: int | None = None
    extra: int | None = None

    def __str__(self) -> str:
        if self.allocated is None or self.extra is None:
            return "no GPU: nothing measured"
        return f"{format_bytes(self.allocated)} at the peak, {format_bytes(self.extra)} of it new"


@contextlib.contextmanager
def cuda_peak(device: str | int | torch.device | None = None) -> Iterator[CudaPeak]:
    """Measure the peak of torch's memory on a CUDA device in the body of a `with`; nothing without a GPU.

    It is torch.cuda.max_memory_allocated, which it resets; the CUDA context and cached blocks come on top.
    """
    import torch

    peak = CudaPeak()
    if not torch.cuda.is_available():
        yield peak
        return
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    try:
        yield peak
    finally:
        torch.cuda.synchronize(device)
        peak.allocated = torch.cuda.max_memory_allocated(device)
        peak.extra = peak.allocated - before


def return_freed() -> None:
    """Give memory that was freed, but is kept by C's allocator for later, back to the system; where glibc is used.

    glibc learns from large arrays that come and go: it stops giving them back, and the arrays that follow find no room
    between those that stay. Source: mallopt(3), M_MMAP_THRESHOLD; malloc_trim(3).
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library: nothing to do
        ctypes.CDLL(None).malloc_trim(0)


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise ImportError("measuring memory needs psutil: pip install psutil") from error
    return psutil
