"""A stand-in for multiprocessing, of threads whose queues are watched, with data to load; and real processes."""

from __future__ import annotations

import multiprocessing
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from support.ranks import in_a_process

PIPES_PATIENCE = 10.0  # seconds on real processes, where a right loader needs milliseconds
PATIENCE = 20.0  # seconds without any change; who waits for nobody is found at once


class Stuck(BaseException):
    """Everybody waits for everybody: raised in the training process."""


class Ended(BaseException):
    """Ends a worker's thread that nobody ended."""


class _Queue:
    """A queue of which the team knows who waits."""

    def __init__(self, team: Team) -> None:
        self.team, self.items = team, list[Any]()

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        with self.team.changed:
            self.items.append(item)
            if threading.get_ident() == self.team.trainer and item is not None:
                self.team.handed.append(self)
            elif threading.get_ident() != self.team.trainer:
                self.team.results += 1
            self.team.changed.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self.team.changed:
            if not self.items and (not block or timeout is not None):
                self.team.changed.wait(min(timeout or 0.0, 0.05))
                if not self.items:
                    raise queue.Empty
            self.team.wait(lambda: bool(self.items))
            return self.items.pop(0)

    def close(self) -> None: ...

    put_nowait, cancel_join_thread, join_thread = put, close, close

    def empty(self) -> bool:
        return not self.items


class Team:
    """In place of the module multiprocessing: what is started, handed out, put, and who waits for whom."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.trainer = threading.get_ident()
        self.workers: list[Any] = []
        self.handed: list[_Queue] = []
        self.results, self.gates, self.closed, self.stuck = 0, 0, False, False
        self.blocked: dict[int, Callable[[], bool]] = {}
        team = self

        class Process(threading.Thread):
            def __init__(self, *given: Any, daemon: Any = True, **named: Any) -> None:
                super().__init__(*given, **named, daemon=True)
                self.error: BaseException | None = None
                self.over = self.joined = False

            def start(self) -> None:
                team.workers.append(self)
                super().start()

            def run(self) -> None:
                try:
                    super().run()
                except BaseException as error:
                    self.error = None if isinstance(error, Ended) else error
                with team.changed:
                    self.over = True
                    team.changed.notify_all()

            def join(self, timeout: float | None = None) -> None:
                self.joined = True
                if timeout is None:
                    with team.changed:
                        team.wait(lambda: self.over)

        self.Process = Process

    def Queue(self, maxsize: int = 0) -> _Queue:
        """Make a queue, under the name that multiprocessing has."""
        return _Queue(self)

    def alive(self) -> int:
        """Return how many workers are not over."""
        return sum(not worker.over for worker in self.workers)

    def wait(self, ready: Callable[[], bool], gate: bool = False) -> None:
        """Wait until `ready`, holding `changed`; where everybody waits, gates open, or else it is Stuck."""
        me = threading.get_ident()
        self.blocked[me] = ready
        self.gates += gate
        try:
            while not ready():
                if self.closed and me != self.trainer:
                    raise Ended
                if self.still():
                    if gate:
                        return
                    self.stuck = self.stuck or not self.gates
                    self.changed.notify_all()
                if self.stuck and me == self.trainer:
                    raise Stuck
                if not self.changed.wait(PATIENCE):
                    raise Stuck if me == self.trainer else Ended
        finally:
            del self.blocked[me]
            self.gates -= gate

    def still(self) -> bool:
        """Say whether all wait for what nobody will do; the training process counts as waiting once it does."""
        return len(self.blocked) > self.alive() and not any(ready() for ready in self.blocked.values())

    def settle(self) -> bool:
        """Wait until every worker is over or waits for ever; say whether all are over."""

        def settled() -> bool:
            waits = [self.blocked.get(worker.ident or 0) for worker in self.workers if not worker.over]
            return all(ready is not None and not ready() for ready in waits)

        with self.changed:
            self.changed.wait_for(settled, PATIENCE)
            return not self.alive()

    def end(self) -> None:
        """End the workers that nobody ended."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()


class Items:
    """Item i is i, loaded by whom? Batches in `late` are ready only after `late[b]` results; item `bad` raises."""

    def __init__(self, team: Team, size: int, batch: int, late: dict[int, int], bad: int) -> None:
        self.team, self.size, self.batch, self.late, self.bad = team, size, batch, late, bad
        self.by: set[int] = set()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.by.add(threading.get_ident())
        if index == self.bad:
            raise KeyError(f"item {index} has no file")
        after = self.late.get(index // self.batch, 0)
        if after and index % self.batch == 0 and threading.get_ident() != self.team.trainer:
            with self.team.changed:
                self.team.wait(lambda: self.team.results >= after, gate=True)
        return index


class Batches:
    """Lists of indices; as a shuffling sampler, it gives another order each time it is iterated over."""

    def __init__(self, size: int, batch: int, shuffled: bool) -> None:
        self.size, self.batch, self.shuffled, self.passes, self.drawn = size, batch, shuffled, 0, 0

    def lists(self, turn: int) -> list[list[int]]:
        """Return all lists of a pass."""
        order = [(index + turn * self.shuffled) % self.size for index in range(self.size)]
        return [order[k : k + self.batch] for k in range(0, self.size, self.batch)]

    def __iter__(self) -> Iterator[list[int]]:
        self.passes, self.drawn = self.passes + 1, 0
        for indices in self.lists(self.passes):
            self.drawn += 1
            yield indices

    def __len__(self) -> int:
        return -(-self.size // self.batch)


def _trainer(work: Any, load: Any, tell: Any) -> None:
    """Break off, and meet an error: tell what comes next."""
    context = multiprocessing.get_context("fork")
    for bad, moment in enumerate(("after a `break`", "after an error")):
        tell(f"with large batches, {moment}")
        items = {i: bytes(200_000) for i in range(bad, 8)}  # item 0 raises KeyError, the second time
        iterator = load(work, items, [[i] for i in range(8)], list, workers=2, context=context)
        with suppress(KeyError):
            next(iterator)
            iterator.close()
    tell("right")


def on_processes(work: Any, load: Any) -> str:
    """Try a loader on processes, with large batches; return what is wrong, "" if nothing."""
    if "fork" not in multiprocessing.get_all_start_methods():
        return ""
    last = ["at the start", *in_a_process(partial(_trainer, work, load), PIPES_PATIENCE)][-1]
    return "" if last == "right" else last if "raised" in last else f"{last}, all wait for ever"
