"""A stand-in for multiprocessing, of threads whose queues are watched."""

from __future__ import annotations

import pickle
import queue
import threading
from collections.abc import Callable, Hashable
from typing import Any

from support.kit.threads import PATIENCE, EndedError, Waits

MOST_LOOKS = 50  # into an empty queue, while nobody can go on
VAIN = 12  # looks of a worker with a timeout that find nothing yet: a step may take longer than any


class Stuck(BaseException):
    """Everybody waits for everybody: raised in the training process, where no `except Exception` catches it."""


class _Unreadable:
    """What stands in a queue for a message that pickle can't read again."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class _Queue:
    """A queue of which the team knows who waits. What is put arrives as pickle carries it between processes.

    What pickle can't write is lost, as there; what it can't read again raises where it is taken.
    """

    def __init__(self, team: WatchedTeam) -> None:
        self.team = team
        self.items: list[Any] = []
        self.looks = 0  # of a worker, with a timeout
        self.is_read = False  # by the trainer: what it puts back here is no order
        self.put_by: set[str] = set()
        self.read_by: set[str] = set()
        team.queues.append(self)

    def put(self, item: Any, *_: Any, **__: Any) -> None:
        self.put_by.add(self.team.role())
        from_trainer = threading.get_ident() == self.team.trainer
        if from_trainer and item is not None and not self.is_read:
            self.team.handed.append(self)
        try:
            written = pickle.dumps(item)
        except Exception:
            self.team.lost = True
            return
        try:
            item = pickle.loads(written)
        except Exception as error:
            item = _Unreadable(error)
        with self.team.changed:
            self.items.append(item)
            if not from_trainer:
                self.team.results += 1
                self.team.has_put(threading.get_ident())
            self.team.changed.notify_all()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        self.read_by.add(self.team.role())
        with self.team.changed:
            me = threading.get_ident()
            if me == self.team.trainer:
                self.is_read = True
                self.team.before_get()
            if not block or timeout is not None:
                self.look_for(PATIENCE if block else 0.02)
            self.team.wait(me, "get", lambda: bool(self.items))
            self.team.looked_in_vain.discard(me)
            item = self.items.pop(0)
            self.team.has_taken(me, item)
        if isinstance(item, _Unreadable):
            self.team.lost = True
            raise item.error
        return item

    def look_for(self, seconds: float) -> None:
        """Wait no longer than that for an item; raises Empty. In a worker the first looks find nothing yet."""
        too_early = self.too_early()
        if not (too_early or self.items):
            self.team.wait_a_while(lambda: bool(self.items), seconds)
        if too_early or not self.items:
            self.team.looked_in_vain.add(threading.get_ident())
            raise queue.Empty

    def too_early(self) -> bool:
        """Count a look of a worker; say whether it is one of the first, which find nothing yet."""
        if threading.get_ident() == self.team.trainer:
            return False
        self.looks += 1
        return self.looks <= VAIN

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def close(self) -> None: ...

    put_nowait = put
    cancel_join_thread = close
    join_thread = close

    def empty(self) -> bool:
        with self.team.changed:
            if self.too_early():
                self.team.looked_in_vain.add(threading.get_ident())
                return True
            if not self.items:
                self.team.look_in_vain()
            return not self.items

    def qsize(self) -> int:
        return len(self.items)


class _Worker(threading.Thread):
    """A thread in place of a process: the team knows when it is over, and whether anybody has waited for that."""

    team: WatchedTeam

    def __init__(self, *given: Any, daemon: Any = True, **named: Any) -> None:
        super().__init__(*given, **named, daemon=True)
        self.error: BaseException | None = None
        self.over = False
        self.gave_up = False  # because it found no order
        self.sent_home = False
        self.answered = False  # whether it has put something since it took an order
        self.joined = False
        self.left_alone = False  # by a join that came back too early
        self.killed = False

    def start(self) -> None:
        self.team.workers.append(self)
        super().start()

    def run(self) -> None:
        try:
            super().run()
        except BaseException as error:
            self.error = None if isinstance(error, EndedError) else error
        with self.team.changed:
            self.over = True
            self.gave_up = self.ident in self.team.looked_in_vain and not self.team.closed
            self.team.look()

    def is_alive(self) -> bool:
        """Say whether it has started and is not over: a thread itself lives on for a moment behind its work."""
        with self.team.changed:
            alive = self in self.team.workers and not self.over
            if alive:
                self.team.look_in_vain()
            self.joined |= self.over
            return alive

    @property
    def exitcode(self) -> int | None:
        return None if self.is_alive() else int(self.error is not None)

    def terminate(self) -> None:
        self.killed |= not self.over

    kill = terminate

    def close(self) -> None:
        if not self.over:
            raise ValueError("Cannot close a process while it is still running.")

    def join(self, timeout: float | None = None) -> None:
        if self.ident is None:
            raise AssertionError("can only join a started process")
        self.joined |= timeout is None
        self.left_alone |= timeout is not None
        if self.killed or timeout is not None:  # a worker may take longer to end than any timeout
            return
        with self.team.changed:
            self.team.wait(threading.get_ident(), "join", lambda: self.over)


class WatchedTeam(Waits):
    """In place of the module multiprocessing: what is started, handed out, put, and who waits for whom.

    A batch that is to be late waits at a gate: where nobody can go on, the gates open, one at a time. Where there is
    none, everybody waits for everybody, and the training process is told so.
    """

    def __init__(self) -> None:
        super().__init__(everybody=lambda: self.alive() + 1)
        self.trainer = threading.get_ident()
        self.workers: list[_Worker] = []
        self.queues: list[_Queue] = []
        self.handed: list[_Queue] = []
        self.results = 0
        self.lost = False  # whether a message of a worker could not be written or read
        self.looked_in_vain: set[int] = set()  # whose last look found nothing
        self.empty_handed = 0  # how often the trainer looked for a result in vain, while nobody could go on
        self.before_get: Callable[[], object] = bool  # called when the trainer asks for a result
        self.before_gate: Callable[[], object] = (
            bool  # called when a gate opens, since the trainer waits for more
        )
        self.stuck_in = ""
        self.gates: list[int] = []
        self.for_a_while: set[int] = set()  # who waits no longer than a timeout
        self.Process = type("Process", (_Worker,), {"team": self})

    def Queue(self, maxsize: int = 0) -> _Queue:
        """Make a queue, under the name that multiprocessing has."""
        return _Queue(self)

    SimpleQueue = Queue

    def role(self) -> str:
        """Say what the thread is that asks."""
        if threading.get_ident() == self.trainer:
            return "trainer"
        return "worker" if isinstance(threading.current_thread(), _Worker) else "another"

    def trains_by_threads(self) -> bool:
        """Say whether another thread takes results, or gives orders: what a worker's own threads do is neither."""
        return any(
            ("another" in queue.read_by and "worker" not in queue.read_by)
            or ("another" in queue.put_by and "trainer" not in queue.read_by)
            for queue in self.queues
        )

    def wait(self, who: Hashable, what: str, ready: Callable[[], bool]) -> None:
        """Wait as the others do; a thread that is none of the team ends without a word."""
        try:
            super().wait(who, what, ready)
        except EndedError:
            if self.role() == "another":
                raise SystemExit from None
            raise

    def has_taken(self, who: int, item: Any) -> None:
        """Note that a worker has taken an order, or None."""
        for worker in self.workers:
            if worker.ident == who:
                worker.sent_home |= item is None
                worker.answered = False

    def has_put(self, who: int) -> None:
        """Note that a worker has answered an order."""
        for worker in self.workers:
            worker.answered |= worker.ident == who

    def alive(self) -> int:
        """Return how many workers are not over."""
        return sum(not worker.over for worker in self.workers)

    def wait_at_gate(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`, or until nobody else can go on; called with `changed` held."""
        me = threading.get_ident()
        self.gates.append(me)
        try:
            self.wait(me, "a late batch", lambda: me not in self.gates or ready())
        finally:
            if me in self.gates:
                self.gates.remove(me)

    def wait_a_while(self, ready: Callable[[], bool], seconds: float) -> None:
        """Wait until `ready`, at most so long; give up at once where nobody can go on. With `changed` held."""
        me = threading.get_ident()
        self.waiting[me] = "get", ready
        self.for_a_while.add(me)
        if self.gates and self.nobody_can_go_on():
            self.gates.pop(0)
            self.changed.notify_all()
        self.changed.wait_for(lambda: ready() or self.nobody_can_go_on(), seconds)
        in_vain = self.nobody_can_go_on()
        del self.waiting[me]
        self.for_a_while.remove(me)
        self.empty_handed += in_vain
        if me == self.trainer and self.empty_handed > MOST_LOOKS:
            self.stuck_in = self.stuck_in or "get"
            raise Stuck

    def look_in_vain(self) -> None:
        """Count a look of the training process that finds nothing new, if no worker can go on; with `changed` held."""
        if threading.get_ident() != self.trainer:
            return
        waits = [self.waiting.get(worker.ident) for worker in self.workers if not worker.over]
        if not all(wait is not None and not wait[1]() for wait in waits):
            return
        if self.gates:
            self.gates.pop(0)
            self.changed.notify_all()
            return
        self.empty_handed += 1
        if self.empty_handed > MOST_LOOKS:
            self.stuck_in = self.stuck_in or "a loop that looks again and again"
            raise Stuck

    def look(self) -> None:
        """Open a gate if nobody can go on."""
        if self.gates and self.nobody_can_go_on():
            if self.waiting[self.trainer][0] == "get" and self.trainer not in self.for_a_while:
                self.before_gate()
            self.gates.pop(0)
        if self.for_a_while:  # whoever waits no longer than a timeout goes on by himself
            self.changed.notify_all()
        else:
            super().look()

    def stuck(self, who: Hashable) -> None:
        """Tell the training process; workers wait on, until they are ended."""
        if who == self.trainer:
            # the first: clearing up then gets stuck, too
            self.stuck_in = self.stuck_in or self.waiting[who][0]
            raise Stuck

    def settle(self) -> bool:
        """Wait until every worker is over or waits for ever; say whether all are over."""

        def settled() -> bool:
            waits = [self.waiting.get(worker.ident) for worker in self.workers if not worker.over]
            return all(wait is not None and not wait[1]() for wait in waits)

        with self.changed:
            self.changed.wait_for(settled, PATIENCE)
            return not self.alive()
