"""A clock for spans: perf_counter on a CPU; on CUDA events of the current stream, read when the work is done."""

from __future__ import annotations

import time
from typing import Any

import torch


class Clock:
    """Note what one thread does, each from `now()` until it is added. On CUDA, `zero` is where the two clocks meet."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._noted = device, []  # type: tuple[torch.device, list[tuple[str, str, Any, Any]]]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._zero = self.now()
            self._zero.synchronize()
            self._seconds = time.perf_counter()

    def now(self) -> Any:
        """Return the seconds; on CUDA an event, which has them once the stream has come to it."""
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event

    def add(self, label: str, kind: str, start: Any) -> None:
        """Note what has run from `start` until now."""
        self._noted.append((label, kind, start, self.now()))

    def read(self) -> list[tuple[str, str, float, float]]:
        """Return label, kind, start and end in seconds of perf_counter; on CUDA, wait until all are known."""
        return [(label, kind, self._read(start), self._read(end)) for label, kind, start, end in self._noted]

    def _read(self, mark: Any) -> float:
        if self.device.type != "cuda":
            return float(mark)
        mark.synchronize()
        return self._seconds + float(self._zero.elapsed_time(mark)) / 1000
