"""The threads of a reader: run aside with a limit of time, ended at the end; a deadlock is named, not waited for.

Aside      runs a reader's code in daemon threads, keeps what came of it, and ends them and all that they started
Waits      who waits for what: where nobody can go on any more, everybody learns it at once, with all names
dismiss    ends threads: whoever waits at a queue gets None, whoever computes for ever gets SystemExit
"""

from __future__ import annotations

import ctypes
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any
from unittest import mock

PATIENCE = 20.0  # seconds without any change; who waits for nobody is found at once


class StuckError(RuntimeError):
    """All would wait for ever; the message says who waits for what."""


class EndedError(BaseException):
    """Ends a thread that still waits when the check is over. No `except Exception` of a reader catches it."""


def raised(error: BaseException) -> str:
    """Say that it was raised."""
    return f"raised {type(error).__name__}: {error}"


class ThreadRun:
    """What came of one function of an Aside."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.result: object = None
        self.error: BaseException | None = None
        self.thread = Thread(target=self._live, daemon=True)

    @property
    def end(self) -> str:
        """Say how it ended: "returned 3", "raised KeyError: 3", "" while it is still running."""
        if self.error is not None:
            return raised(self.error)
        return "" if self.thread.is_alive() else f"returned {self.result}"

    def _live(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:
            self.error = error
        finally:
            _let_go_of_logging()


class Aside(AbstractContextManager["Aside"]):
    """Runs functions, each in a daemon thread, while its `with` lasts; then ends them and the threads they started.

    runs: what came of each function, in order. started: threads that the functions themselves have started. Nothing
    of them is printed: what matters is seen in `runs`, in the reader's queues, and in `died`, the errors by which
    threads that they started have ended.
    """

    def __init__(self, *works: Callable[[], object]) -> None:
        self.runs = [ThreadRun(work) for work in works]
        self.started: list[Thread] = []
        self.died: list[BaseException] = []
        own = {run.thread for run in self.runs}
        begin = Thread.start

        def start(thread: Thread) -> None:
            if current_thread() in own:
                thread.daemon = True
                thread.run = partial(_run_and_let_go, thread.run)  # type: ignore[method-assign]
                self.started.append(thread)
            begin(thread)

        self._patches = (
            mock.patch.object(Thread, "start", start),
            mock.patch.object(threading, "excepthook", self._note),
        )

    @property
    def end(self) -> str:
        """Say how the first function ended, "" while it is still running."""
        return self.runs[0].end

    @property
    def error(self) -> BaseException | None:
        """Return what the first function raised."""
        return self.runs[0].error

    def over(self, seconds: float) -> bool:
        """Wait at most so long, in all, until every function has ended; say whether they have."""
        deadline = time.monotonic() + seconds
        for run in self.runs:
            run.thread.join(max(0.0, deadline - time.monotonic()))
        return not any(run.thread.is_alive() for run in self.runs)

    def left(self, seconds: float) -> list[Thread]:
        """Return the threads that they started and that are still alive after so many seconds, each."""
        for thread in self.started:
            thread.join(seconds)
        return [thread for thread in self.started if thread.is_alive()]

    def _note(self, ended: threading.ExceptHookArgs) -> None:
        if ended.thread in self.started and isinstance(ended.exc_value, Exception):
            self.died.append(ended.exc_value)

    def __enter__(self) -> Aside:
        # Python collects circles in whatever thread makes objects just then. What others have left, a loader with its
        # workers, may take seconds to end, and its end must not be met by what ends this reader's threads.
        self._collects = gc.isenabled()
        gc.disable()
        for patch in self._patches:
            patch.start()
        for run in self.runs:
            run.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            dismiss([*(run.thread for run in self.runs), *self.started])
        finally:
            for patch in self._patches:
                patch.stop()
            if self._collects:
                gc.enable()


def _run_and_let_go(run: Callable[[], None]) -> None:
    try:
        run()
    finally:
        _let_go_of_logging()


def _let_go_of_logging() -> None:
    """Release logging's lock where this thread, which ends, still holds it.

    Python takes that lock in Python code, between whose lines the exception of `dismiss` may arrive; it takes it
    around each fork, too, where an exception is printed and forgotten. Left behind, the lock stops whoever logs next
    in another thread: torch.compile, say, long after the check.
    """
    lock: Any = logging._lock  # type: ignore[attr-defined]
    while lock._is_owned():
        lock.release()


class _WokenError(BaseException):
    """Raised and caught by `_take_back` alone."""


def dismiss(threads: Sequence[Thread]) -> None:
    """End threads: a None into every queue that one of them knows, SystemExit for one that never waits.

    Who waits for something that is no queue lives on, as a daemon; nothing is left behind for it.
    """
    for _ in range(10):
        alive = [thread for thread in threads if thread.is_alive()]
        if not alive:
            break
        frames = sys._current_frames()
        for thread in alive:
            frame = frames.get(thread.ident or 0)
            while frame is not None:
                for queue in [value for value in frame.f_locals.values() if isinstance(value, SimpleQueue)]:
                    queue.put(None)
                frame = frame.f_back
            _raise_in(thread, SystemExit)
        alive[0].join(0.03)
    _take_back(threads)


def _raise_in(thread: Thread, error: type[BaseException] | None) -> None:
    """Have `error` raised in a thread as soon as it runs Python again; with None, take that back."""
    raising = ctypes.py_object(error) if error else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raising)


def _take_back(threads: Sequence[Thread]) -> None:
    """Take back what a thread has not received: Python 3.11 hangs over it when a traced function is called.

    There the whole interpreter is marked until somebody receives an exception of this kind; while it is marked, a
    traced function never gets beyond its first instruction (sys.settrace: debuggers, coverage, checks of this
    course). So we take back what is still due, and receive one ourselves.
    """
    for thread in threads:
        if thread.is_alive():
            _raise_in(thread, None)
    with suppress(_WokenError):
        _raise_in(current_thread(), _WokenError)
        while True:  # until it is here, which is at once
            time.sleep(0)


class Waits:
    """Who waits for what, in one place, so that a deadlock is seen at once and named.

    Whoever would wait calls `wait` instead, holding `changed`; whoever changes anything holds it, too, and notifies
    all. everybody: how many threads there are now that could still do something.
    """

    def __init__(self, everybody: Callable[[], int]) -> None:
        self.changed = threading.Condition()
        self.waiting: dict[Any, tuple[str, Callable[[], bool]]] = {}
        self.deadlock = ""
        self.closed = False
        self._everybody = everybody

    def wait(self, who: Hashable, what: str, ready: Callable[[], bool]) -> None:
        """Wait until `ready`. Raises StuckError as soon as nobody can go on, EndedError after `close`."""
        self.waiting[who] = what, ready
        try:
            self.look()
            while not ready():
                if self.closed:
                    raise EndedError
                if self.deadlock:
                    self.stuck(who)
                if not self.changed.wait(PATIENCE):
                    self.deadlock = f"nothing has happened for {PATIENCE:g} s"
        finally:
            del self.waiting[who]

    def look(self) -> None:
        """Find out whether anybody can go on, and wake all. With `changed` held; also when a thread has ended."""
        if not self.deadlock and self.nobody_can_go_on():
            self.deadlock = self.told()
        self.changed.notify_all()

    def nobody_can_go_on(self) -> bool:
        """Say whether all wait for what nobody will do."""
        everybody_waits = len(self.waiting) >= self._everybody() > 0
        return everybody_waits and not any(ready() for _, ready in self.waiting.values())

    def told(self) -> str:
        """Say who waits for what."""
        return ", ".join(f"{who} waits in {what}" for who, (what, _) in self.waiting.items())

    def stuck(self, who: Hashable) -> None:
        """Tell one who waits of the deadlock: raises StuckError."""
        raise StuckError(self.deadlock)

    def close(self) -> None:
        """End all that still wait."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()
