"""Threads under the names of multiprocessing, as multiprocessing.dummy has them; all of them can be closed, too."""

from __future__ import annotations

import queue
from multiprocessing import dummy
from typing import Any


class _Queue(queue.Queue[Any]):
    """A queue between threads that can be told what one between processes is told at its end."""

    def close(self) -> None:
        """Do nothing: no pipe is open."""

    join_thread = close
    cancel_join_thread = close


class _Process(dummy.DummyProcess):
    """A thread that can be told what a process is told that begins as a daemon, and one that has ended."""

    def __init__(self, *given: Any, daemon: bool | None = None, **named: Any) -> None:
        super().__init__(*given, **named)
        if daemon is not None:
            self.daemon = daemon

    def close(self) -> None:
        """Do nothing: whoever has ended holds nothing."""

    terminate = close
    kill = close


class _Threads:
    """In place of the module multiprocessing: its processes are threads of this one."""

    Process = _Process
    Queue = _Queue
    SimpleQueue = _Queue


threads = _Threads()
