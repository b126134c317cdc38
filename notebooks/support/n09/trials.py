"""What one sees of an answer of notebook 09: it runs aside, on tasks that note what is done with them.

A reader's code runs in a daemon thread that is given up after some patience: whatever it does, a trial ends, and ends
what it left behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from queue import Empty, Full, Queue, SimpleQueue
from threading import Barrier, BrokenBarrierError, Condition, Event, Thread, current_thread
from types import TracebackType
from typing import Any, cast
from unittest import mock

import torch

from support.kit.raised import place
from support.kit.threads import Aside, raised
from support.kit.values import NO_RETURN
from support.n09.answers import Queues

FALSY = "works, but bool(task) is False"
BLANK = "an error of which bool is False"
NONE = "works and returns None"
FALSE = "works and returns False"
TENSOR = "works and returns a tensor"
TUPLE = "works and returns a tuple of three"
ERROR = "works and returns a ValueError"
FAILS_LATER = "works, but its finalize raises KeyError"
SHARED = "all partitions share a queue"
TWO_SHARE = "partitions 0 and 3 share a queue"
GOOD = ("works", "late", FALSY, NONE, FALSE, TENSOR, TUPLE, ERROR, FAILS_LATER)
BATCHES: dict[str, Callable[[], object]] = {
    NONE: lambda: None,
    FALSE: lambda: False,
    TENSOR: lambda: torch.zeros(2),
    TUPLE: lambda: (ValueError, ValueError("a batch"), None),  # as sys.exc_info() is
    ERROR: lambda: ValueError("a batch"),
}


class Escape(BaseException):
    """What is no Exception, nor one of Python's own that are none."""


class FalsyEscape(Escape):
    """One that counts as false, too."""

    def __bool__(self) -> bool:
        return False


class Blank(Exception):
    """An error that counts as false."""

    def __bool__(self) -> bool:
        return False


BY_AN_ERROR: dict[str, type[BaseException]] = {
    "leaves by an error": KeyError,
    "leaves by Ctrl-C": KeyboardInterrupt,
    "leaves by sys.exit": SystemExit,
    "leaves by a FalsyEscape(BaseException), of which bool is False": FalsyEscape,
}
ERRORS: dict[str, type[BaseException]] = {
    "ValueError": ValueError,
    "ValueError late": ValueError,
    "AttributeError": AttributeError,
    "StopIteration": StopIteration,
    "Empty": Empty,
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "Escape(BaseException)": Escape,
    BLANK: Blank,
}


class ProbeTask:
    """A task that notes what is done with it."""

    def __init__(self, label: str, kind: str, meeting: Barrier | None = None) -> None:
        self.label = label
        self.kind = kind
        self.meeting = meeting
        self.alone = False
        self.ran_in = ""
        self.computed = 0
        self.finalized: list[tuple[ProbeTask, object]] = []  # run_clock: one list for all tasks of a clock
        self.finalized_by: Thread | None = None
        self.error = ERRORS.get(kind, RuntimeError)(label)
        self.until: Event | None = None  # what compute waits for besides
        self.early: Callable[[], bool] = bool  # worker: says whether another has been taken
        self.taken = False  # it had
        self.thread: Thread | None = None  # the one that computed it
        self.worker: Thread | None = None  # worker: the one that should
        self.batch = BATCHES.get(kind, f"batch of {label}".__str__)()

    def compute(self) -> object:
        """Wait for the tasks that should run at the same time; then return the batch, or raise."""
        self.computed += 1
        self.thread = current_thread()
        self.taken |= self.early()
        again = self.ran_in == current_thread().name  # the others have met it, and are gone
        self.ran_in = current_thread().name
        try:
            if self.meeting is not None and not again:
                self.meeting.wait()
        except BrokenBarrierError:
            self.alone = True
        if self.kind.endswith("late"):
            Event().wait(0.1)  # somebody who does not wait for the worker is gone before this returns
        if self.kind not in GOOD:
            raise self.error
        if self.until is not None:
            self.until.wait()
        return self.batch

    def __bool__(self) -> bool:
        return self.kind != FALSY

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ProbeTask)  # it has no hash for it: only `is` tells whose answer it is

    def __repr__(self) -> str:
        return self.label

    def finalize(self, batch: object) -> None:
        """Note the call."""
        self.finalized.append((self, batch))
        self.finalized_by = current_thread()
        if self.kind == FAILS_LATER:
            raise KeyError(self.label)


class Sight:
    """What one has seen of an answer, sentence by sentence, and where in the reader's code an error was raised."""

    def __init__(self, said: list[str], aside: Aside) -> None:
        self.said = said
        error = next((each for each in (aside.error, *aside.died) if each is not None), None)
        self._raised = raised(error) if error is not None else ""
        self._where = place(error) if error is not None else ""

    def with_place(self, sentence: str) -> str:
        """Return a sentence with the line of the reader's code behind the error that it tells of."""
        if not self._where:
            return sentence
        return sentence.replace(self._raised, f"{self._raised} ({self._where})")


def awaited_answer(
    queue: SimpleQueue[Any] | Queue[Any], patience: float, alive: Callable[[], bool] = lambda: True
) -> object:
    """Return the next answer; the queue itself if there is none."""
    for _ in range(max(1, round(patience / 0.02))):
        try:
            return queue.get(timeout=0.02)
        except Empty:
            if not alive() and queue.empty():
                break
    return queue


def describe_answer(answer: object, task: ProbeTask) -> str:
    """Say what came as the answer to a task."""
    if isinstance(answer, SimpleQueue | Queue):
        return f"no answer to {task.label}"
    if answer == (False, None):
        return "the last answer, (False, None), although tasks are left"
    try:
        ok, payload = cast(tuple[bool, Any], answer)
        if not isinstance(ok, bool) or not all(isinstance(each, tuple) for each in (answer, payload)):
            return f"an answer of another form: {form_of(answer)}"
        if ok:
            whose, batch = payload
            if whose is task and batch is task.batch:
                return f"True, {task.label} and its batch{_beyond(task)}"
            copied = isinstance(whose, ProbeTask) and whose is not task and whose.label == task.label
            return f"True, {'a copy of ' * copied}{_of(whose)} and {_of(batch)}{_beyond(whose)}"
        kind, error, trace = payload
        if not isinstance(trace, TracebackType | None):
            return f"an answer of another form: {form_of(answer)}"
        if error is not task.error and error.args != task.error.args:
            return f"False, the {kind.__name__} of {error.args[0] if error.args else 'nobody'}, not of {task.label}"
        whose = "its" if error is task.error and kind is type(error) else "another"
        return f"False, {whose} {kind.__name__}" + " without a traceback" * (trace is None) + _beyond(task)
    except (TypeError, ValueError, AttributeError):
        return f"an answer of another form: {form_of(answer)}"


def _beyond(task: object) -> str:
    """Say what else was done with a task than to compute it once, when it was its turn."""
    if not isinstance(task, ProbeTask):
        return ""
    said = " (finalized in the worker)" * bool(task.finalized)
    said += f" (computed {task.computed} times)" * (task.computed > 1)
    said += " (never computed)" * (task.computed == 0)
    if task.worker is not None and task.thread not in (None, task.worker):
        said += " (computed in another thread)"
    return said + " (another was taken before its answer)" * task.taken


def _of(value: object) -> str:
    """Name one of the two that come with True: a task, a batch, or what is neither."""
    if isinstance(value, ProbeTask):
        return value.label
    if callable(value):
        return "a function that nobody has called"
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return f"{value}" if isinstance(value, str) else repr(value)


def form_of(value: object) -> str:
    """Say of what a value is made, without its numbers."""
    if isinstance(value, tuple):
        return f"({', '.join(map(form_of, value))})"
    if isinstance(value, list):
        return f"[{', '.join(map(form_of, value))}]"
    return f"{value}" if value is None or isinstance(value, bool) else type(value).__name__


# ---- exercise 2: spawn_workers


def ask_spawn(spawn: Callable[..., Any], case: Sequence[str], patience: float) -> Sight:
    """Spawn workers for these devices, use them, leave, perhaps by an error (the last word), and say what one sees."""
    return _Spawning(spawn, case, patience).sight()


UNANSWERED = 150
"""Tasks that are left to each partition at the end: more than a queue with a limit of 100 holds."""
LONGER_THAN_A_LIMIT = 0.05
"""Seconds that the last tasks take: no join with a limit lasts so long here."""
WITHOUT_A_JOIN = 0.25
"""Seconds that a thread which nobody joins goes on: longer than one who leaves without it needs to be seen to."""
ROOM = 0.02
"""Seconds that a full queue has for its worker to take a task."""
A_LOOP = 0.1
"""Seconds that a thread waits for the body of the with: on a busy machine the reader's loop may take as long."""


def _run_late(run: Callable[[], None], entered: Event, joined: Event) -> None:
    entered.wait(A_LOOP)
    run()
    joined.wait(WITHOUT_A_JOIN)


def _filled(queue: Any, tasks: Iterable[ProbeTask]) -> list[ProbeTask]:
    """Put tasks until a queue has no more room; return those that are in."""
    limit = {"timeout": ROOM} if getattr(queue, "maxsize", 0) > 0 else {}
    put = []
    with suppress(Full):
        for task in tasks:
            queue.put(task, **limit)
            put.append(task)
    return put


class _Spawning:
    """One use of a spawn_workers, and what is seen of it."""

    def __init__(self, spawn: Callable[..., Any], case: Sequence[str], patience: float) -> None:
        self.spawn = spawn
        self.patience = patience
        self.by_an_error = case[-1] in BY_AN_ERROR
        self.error = BY_AN_ERROR.get(case[-1], KeyError)("of the body")
        self.entered = Event()
        # one object for all CPU partitions, as in [cpu] * 2
        cpus = {name: torch.device(name) for name in case if name.startswith("cpu")}
        self.devices = [cpus.get(name) or torch.device(name) for name in case if name not in BY_AN_ERROR]
        # partitions on one device that is not the CPU share a worker
        self.keys = [
            j if device.type == "cpu" else (device.type, device.index or 0)
            for j, device in enumerate(self.devices)
        ]
        self.leaves = Event()
        self.may_end = Event()  # the last tasks wait for it
        self.me: Thread | None = None  # the reader's
        self.limited = False  # a join ran out
        self.joined: dict[Thread, Event] = {}  # whether anybody has waited for a thread of the reader's
        self.slowly = all(device.type == "cpu" for device in self.devices)
        meeting = Barrier(len(set(self.keys)), timeout=patience / 2)
        self.probes = [
            ProbeTask(f"task {j}", "works", meeting if j == self.keys.index(key) else None)
            for j, key in enumerate(self.keys)
        ]
        last = range(UNANSWERED * len(self.keys))
        self.waiting = [ProbeTask(f"last task {number}", "works") for number in last]
        for task in self.waiting:
            task.until = self.may_end
        self.said: list[str] = []
        self.left: int | None = None  # threads that are alive just behind the with
        self.aside: Aside

    def sight(self) -> Sight:
        """Run it; it may take twice the patience."""
        with self._slow_threads():
            return self._seen()

    @contextmanager
    def _slow_threads(self) -> Iterator[None]:
        """Let the reader's threads begin late and end when joined; a limit and a sleep of the leaving are over at once.

        So who does not wait for each of them is seen to leave too early, however fast or busy the machine is, and a
        limit is too short, however long it is. Who waits in another way than by join only waits longer. The limit of
        a SimpleQueue can't be shortened, nor can a time that the reader's code reads from a clock.
        """
        begin = Thread.start
        join = Thread.join
        rest = time.sleep
        wait = Condition.wait  # an Event's, too
        get = Queue.get

        def start(thread: Thread) -> None:
            if current_thread() is self.me and self.slowly:
                joined = self.joined[thread] = Event()
                thread.run = partial(_run_late, thread.run, self.entered, joined)  # type: ignore[method-assign]
            begin(thread)

        def join_without_a_limit(thread: Thread, timeout: float | None = None) -> None:
            if thread in self.joined:
                self.joined[thread].set()
            self.limited |= self._hurries(timeout)
            join(thread, 0.0 if self._hurries(timeout) else timeout)

        def sleep(seconds: float) -> None:
            rest(0.0 if self._hurries(seconds) else seconds)

        def wait_without_a_limit(condition: Condition, timeout: float | None = None) -> bool:
            return wait(condition, 0.0 if self._hurries(timeout) else timeout)

        def get_without_a_limit(queue: Any, block: bool = True, timeout: float | None = None) -> Any:
            return get(queue, block, 0.0 if self._hurries(timeout) else timeout)

        with (
            mock.patch.object(Thread, "start", start),
            mock.patch.object(Thread, "join", join_without_a_limit),
            mock.patch.object(time, "sleep", sleep),
            mock.patch.object(Condition, "wait", wait_without_a_limit),
            mock.patch.object(Queue, "get", get_without_a_limit),
        ):
            self.aside = Aside(self._work)
            yield

    def _hurries(self, seconds: float | None) -> bool:
        """Say whether this is a wait with a limit by which the reader leaves."""
        if seconds is None or current_thread() is not self.me:
            return False
        return self.leaves.is_set() and not self.may_end.is_set()

    def _seen(self) -> Sight:
        with self.aside:
            for _ in range(max(1, round(2 * self.patience / 0.02))):
                if self.leaves.wait(0.02) or self.aside.over(0):
                    break
            self.aside.over(LONGER_THAN_A_LIMIT if self.slowly else 0)
            self.may_end.set()
            if not self.aside.over(2 * self.patience if self.entered.is_set() else 0):
                return Sight(
                    [*self.said, f"the with never {'ended' if self.entered.is_set() else 'began'}"],
                    self.aside,
                )
            if self.left is not None:
                self._look_at_the_end(self.left)
        if self.aside.error is not None:
            self.said.append(self.aside.end)
        return Sight(self.said, self.aside)

    def _work(self) -> None:
        self.me = current_thread()
        try:
            context = self.spawn(self.devices)
            if context is None:
                self.said.append(NO_RETURN)
                return
            with context as queues:
                self.entered.set()
                is_a_pair = isinstance(queues, Sequence) and len(queues) == 2
                if is_a_pair and all(isinstance(side, Sequence) for side in queues):
                    self._use(*queues)
                else:
                    self.said.append(f"handed out something else than two lists of queues: {form_of(queues)}")
                self.leaves.set()
                if self.by_an_error:
                    raise self.error
            if self.by_an_error:
                self.said.append(f"the body's {type(self.error).__name__} is swallowed")
        except BaseException as error:
            if error is not self.error:
                raise
            self.said.append(f"the body's {type(error).__name__} got out")
        self.left = sum(thread.is_alive() for thread in self.aside.started)
        for joined in self.joined.values():
            joined.set()

    def _use(self, in_queues: Queues, out_queues: Queues) -> None:
        many = [(len(queues), len({id(queue) for queue in queues})) for queues in (in_queues, out_queues)]
        self.said.append("{} in_queues, {} different; {} out_queues, {} different".format(*many[0], *many[1]))
        self.said.append(f"threads started: {len(self.aside.started)}")
        workers = len(set(self.keys))
        if many != [(len(self.keys), workers)] * 2 or len(self.aside.started) != workers:
            return
        pairs = zip(self.probes, in_queues, strict=False)
        for probe, in_queue in sorted(pairs, key=lambda pair: pair[0].meeting is None):
            in_queue.put(probe)  # those that meet come first: behind them a put may wait for room
        patience = self.patience
        for probe, out_queue in zip(self.probes, out_queues, strict=False):
            self.said.append(describe_answer(awaited_answer(out_queue, patience), probe))
            if self.said[-1].startswith("no answer"):
                patience = 0.05  # the others have had their time, too
                self.said[-1] += "".join(f" (a thread {raised(error)})" for error in self.aside.died[:1])
        if patience < self.patience:
            return
        alone = any(probe.alone for probe in self.probes)
        self.said.append(f"computed {'one at a time' if alone else 'at the same time'}")
        # nobody takes the answers: leaving must not depend on it
        unasked = iter(self.waiting)
        self.waiting = [task for queue in in_queues for task in _filled(queue, islice(unasked, UNANSWERED))]

    def _look_at_the_end(self, left: int) -> None:
        # Not in the reader's own time: on a busy machine a thread may need long to end.
        later = len(self.aside.left(0.5))
        for_good = f", and for good: {later}" if left else ""
        for_good += ", as a limit of a join was over" if left and self.limited else ""
        self.said.append(f"threads alive after the with: {left}{for_good}")
        computed = all(probe.computed for probe in self.waiting)
        self.said.append(f"tasks that waited are computed: {computed}")
