"""Predictions and exercises of notebook 09, streams, tasks, workers.

A reader's code runs in a daemon thread that is given up after PATIENCE: whatever it does, a check ends, and ends what
it left behind.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import zip_longest
from queue import Empty, SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread, current_thread
from typing import Any, TypeAlias, cast
from unittest import mock

import torch

from lib.pipeline import clock_cycles
from support.checks import Exercise, Guess, Tried, Verdict, letter
from support.n09.figures import simulate_streams

PATIENCE = 1.5  # seconds until a thread that has nothing to wait for counts as stuck
FALSY, SHARED = "works, but bool(task) is False", "all partitions share a queue"

Worker: TypeAlias = Callable[["SimpleQueue[Any]", "SimpleQueue[Any]"], None]
Queues: TypeAlias = Sequence["SimpleQueue[Any]"]
Scheduler: TypeAlias = Callable[[Mapping[int, Any], Queues, Queues], Mapping[int, object]]


# ---- watching: the exercises are judged by what one sees of them, from another thread


class _Probe:
    """A task that notes what is done with it."""

    def __init__(self, label: str, kind: str, meeting: Barrier | None = None) -> None:
        self.label, self.kind, self.meeting, self.alone, self.ran_in = label, kind, meeting, False, ""
        self.computed = 0
        self.finalized: list[tuple[_Probe, object]] = []  # run_clock: one list for all tasks of a clock
        self.error = {"ValueError": ValueError, "SystemExit": SystemExit}.get(kind, RuntimeError)(label)

    def compute(self) -> str:
        """Wait for the tasks that should run at the same time; then return the name of the batch, or raise."""
        self.computed, self.ran_in = self.computed + 1, current_thread().name
        try:
            if self.meeting is not None:
                self.meeting.wait()
        except BrokenBarrierError:
            self.alone = True
        if self.kind not in ("works", "late", FALSY):
            raise self.error
        if self.kind == "late":  # somebody who does not wait for the worker is gone before this returns
            threading.Event().wait(0.05)
        return f"batch of {self.label}"

    def __bool__(self) -> bool:
        return self.kind != FALSY

    def finalize(self, batch: object) -> None:
        """Note the call."""
        self.finalized.append((self, batch))


class _Aside:
    """Runs a reader's code in a thread, keeps what came of it as a sentence, and the threads that it starts."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.end, self.error, self.started = "", cast(BaseException | None, None), list[Thread]()
        self._thread = Thread(target=self._run, args=(work,), daemon=True)
        begin = Thread.start

        def start(thread: Thread) -> None:
            if current_thread() is self._thread:
                thread.daemon = True
                self.started.append(thread)
            begin(thread)

        self._patches = (
            mock.patch.object(Thread, "start", start),
            mock.patch.object(threading, "excepthook"),  # what matters is seen in the queues
        )

    def _run(self, work: Callable[[], object]) -> None:
        try:
            self.end = f"returned {work()}"
        except BaseException as error:
            self.end, self.error = f"raised {type(error).__name__}: {error}", error

    def over(self, seconds: float) -> bool:
        """Wait at most so long for the end."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def __enter__(self) -> _Aside:
        for patch in self._patches:
            patch.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            _dismiss([self._thread, *self.started])
        finally:
            for patch in self._patches:
                patch.stop()


def _dismiss(threads: Sequence[Thread]) -> None:
    """End threads: a None into every queue that one of them knows, SystemExit for one that never waits."""
    for _ in range(10):
        alive = [thread for thread in threads if thread.is_alive()]
        if not alive:
            return
        frames = sys._current_frames()
        for thread in alive:
            frame = frames.get(thread.ident or 0)
            while frame is not None:
                for queue in [value for value in frame.f_locals.values() if isinstance(value, SimpleQueue)]:
                    queue.put(None)
                frame = frame.f_back
            raising = ctypes.py_object(SystemExit)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), raising)
        alive[0].join(0.03)


def _watched(*cases: Sequence[str]) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares what `view` shows of answer and reference; a case says what each task does.

    Mistakes are tried only behind a wrong answer: some of them keep one waiting.
    """

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        shown = dict[Sequence[str], list[str]]()
        for case in cases:
            wanted, shown[case] = _known(exercise, exercise.reference, case), exercise.view(answer)(case)
            for expected, got in zip_longest(wanted, shown[case], fillvalue="nothing more"):
                if expected != got:
                    known = (
                        why
                        for why, wrong in exercise.mistakes.items()
                        if all(_known(exercise, wrong, each) == seen for each, seen in shown.items())
                    )
                    said = f"{_told(case)}. Expected: {expected}; seen: {got}. {next(known, '')}"
                    return exercise.wrong(said.strip())
        return exercise.right(f"{exercise.praise.format(count=len(cases))}.")

    return judge


@cache
def _known(exercise: Exercise, known: Any, case: Sequence[str]) -> list[str]:
    seen: list[str] = exercise.view(known)(case)  # the same each time, and some of these wait for long
    return seen


def _told(case: Sequence[str]) -> str:
    """Say on which devices workers are wanted, or what the tasks of a case do."""
    if ":" in case[0] or case[0] == "cpu":
        return "for " + ", ".join(case)
    words = ("works", "idle", FALSY, SHARED)
    return "tasks that do this: " + ", ".join(k if k in words else f"raises {k}" for k in case)


def _next(queue: SimpleQueue[Any], alive: Callable[[], bool] = lambda: True) -> object:
    """Return the next answer; the queue itself if there is none."""
    for _ in range(max(1, round(PATIENCE / 0.02))):
        try:
            return queue.get(timeout=0.02)
        except Empty:
            if not alive() and queue.empty():
                break
    return queue


def _describe(answer: object, task: _Probe) -> str:
    if isinstance(answer, SimpleQueue):
        return f"no answer to {task.label}"
    if answer == (False, None):
        return "the last answer, (False, None), although tasks are left"
    try:
        ok, payload = cast(tuple[bool, Any], answer)
        if ok:
            whose, batch = payload
            extra = " (finalized in the worker)" if task.finalized else ""
            extra += f" (computed {task.computed} times)" * (task.computed > 1)
            known = whose is task and batch == f"batch of {task.label}"
            return f"True, {task.label} and its batch{extra}" if known else f"True, {batch!r} of another task"
        kind, error, trace = payload
        whose = "its" if error is task.error and kind is type(error) else "another"
        return f"False, {whose} {kind.__name__}" + " without a traceback" * (trace is None)
    except (TypeError, ValueError, AttributeError):
        return f"an answer of another form: {_form(answer)}"


def _form(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_form, value))})"
    return f"{value}" if value is None or isinstance(value, bool) else type(value).__name__


# ---- exercise 1: worker


def ask_worker(worker: Worker, tasks: Sequence[str]) -> list[str]:
    """Let a worker serve tasks of these kinds, then None; return what it answered, task by task, and how it ended."""
    in_queue, out_queue = SimpleQueue[Any](), SimpleQueue[Any]()
    said = []
    with _Aside(partial(worker, in_queue, out_queue)) as aside:
        for number, kind in enumerate(tasks):
            task = _Probe(f"task {number}", kind)
            in_queue.put(task)
            said.append(_describe(_next(out_queue, lambda: not aside.over(0)), task))
            if said[-1].startswith("no answer"):
                why = f" (the worker {aside.end})" if aside.end else ""
                if not why:
                    in_queue.put(None)
                    belated = _describe(_next(out_queue, lambda: not aside.over(0)), task)
                    why = " until None came" * belated.startswith("True")
                return [*said[:-1], said[-1] + why]
        in_queue.put(None)
        last = _next(out_queue, lambda: not aside.over(0)) if aside.over(PATIENCE) else out_queue
        if not aside.over(0):
            return [*said, "still running after None"]
    said.append("last answer (False, None)" if last == (False, None) else "no last answer (False, None)")
    said[-1] += f", and {out_queue.qsize()} more behind it" * (not out_queue.empty())
    return [*said, aside.end if aside.error else "ended"]


def _serving(
    compute: Callable[[Any], Any] = lambda task: (task, task.compute()),
    *,
    caught: Any = BaseException,
    silent: bool = False,
    told: Callable[[], Any] = sys.exc_info,
    over: Callable[[Any], bool] = lambda task: task is None,
    done: int = 1,
    goes_on: Callable[[bool], bool] = lambda ok: True,
) -> Worker:
    """Make a worker: as it is, right. Wrong are others, by what they answer and catch, and when they end."""

    def serve(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
        while not over(task := in_queue.get()):
            ok = False
            try:
                out_queue.put((True, compute(task)))
                ok = True
            except caught:
                if not silent:
                    out_queue.put((False, told()))
            if not goes_on(ok):
                break
        for _ in range(done):
            out_queue.put((False, None))

    return serve


_serve = _serving()


def _finalized(task: Any) -> tuple[Any, object]:
    batch = task.compute()
    task.finalize(batch)
    return task, batch


def _at_the_end(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    held = SimpleQueue[Any]()
    _serve(in_queue, held)
    while not held.empty():
        out_queue.put(held.get())


check_worker = Exercise(
    "worker",
    reference=_serve,
    view=lambda worker: partial(ask_worker, worker),
    judge=_watched(
        ("works",), ("works", "ValueError", "works"), ("SystemExit", "works"), ("works", FALSY, "works")
    ),
    praise="every answer, every error and the end are right in {count} runs",
    mistakes={
        "The error is swallowed: the scheduler waits for an answer for ever.": _serving(silent=True),
        "The error ends the thread: nobody answers, the scheduler waits for ever.": _serving(caught=()),
        "The error is answered, then the worker stops: the next task waits.": _serving(goes_on=lambda ok: ok),
        "SystemExit is no Exception, but a BaseException: the worker dies.": _serving(caught=Exception),
        "None is no task: without this rule the thread never ends.": _serving(over=lambda task: False),
        "One task and gone: a worker is a loop.": _serving(goes_on=lambda ok: False),
        "finalize belongs to the scheduler's thread: there it happens in order.": _serving(_finalized),
        "The scheduler needs the task as well: (True, (task, batch)).": _serving(lambda task: task.compute()),
        "Say goodbye after the loop: who asks a worker that has gone gets this answer.": _serving(done=0),
        "One goodbye is enough: behind it nobody expects an answer.": _serving(done=2),
        "A task may count as false: compare with None, by `is not None`.": _serving(over=lambda t: not t),
        "Answer each task before you take the next: the scheduler may put no more until then.": _at_the_end,
        "The payload is all of sys.exc_info(), not only the error.": _serving(told=lambda: sys.exc_info()[1]),
        "Call sys.exc_info() inside the except, not behind it.": _serving(told=lambda: (None, None, None)),
        "Without the traceback nobody finds the layer.": _serving(told=lambda: (*sys.exc_info()[:2], None)),
    },
)


# ---- exercise 2: spawn_workers


def ask_spawn(spawn: Callable[..., Any], case: Sequence[str]) -> list[str]:
    """Spawn workers for these devices, use them, leave, perhaps by an error (the last word), and say what one sees."""
    devices = [torch.device(name) for name in case if ":" in name or name == "cpu"]
    keys = [j if device.type == "cpu" else device for j, device in enumerate(devices)]
    meeting = Barrier(len(set(keys)), timeout=PATIENCE / 2)
    first = [meeting if j == keys.index(key) else None for j, key in enumerate(keys)]
    probes = [_Probe(f"task {j}", "works", each) for j, each in enumerate(first)]
    waiting = [_Probe(f"last task {number}", "late") for number in range(2 * len(keys))]
    said: list[str] = []

    def body(in_queues: Queues, out_queues: Queues) -> None:
        many = [(len(queues), len({id(queue) for queue in queues})) for queues in (in_queues, out_queues)]
        said.append("{} in_queues, {} different; {} out_queues, {} different".format(*many[0], *many[1]))
        if many != [(len(keys), len(set(keys)))] * 2:
            return
        said.append(f"threads started: {len(aside.started)}")
        for probe, in_queue in zip(probes, in_queues, strict=False):
            in_queue.put(probe)
        for probe, out_queue in zip(probes, out_queues, strict=False):
            said.append(_describe(_next(out_queue), probe))
            if said[-1].startswith("no answer"):
                return
        said.append("computed " + ("one at a time" if any(p.alone for p in probes) else "at the same time"))
        for probe, in_queue in zip(waiting, [*in_queues, *in_queues], strict=True):
            in_queue.put(probe)  # nobody takes the answers: leaving must not depend on it

    def work() -> None:
        try:
            with spawn(devices) as queues:
                if isinstance(queues, Sequence) and len(queues) == 2:
                    body(*queues)
                else:
                    said.append("handed out something else than two lists of queues")
                if case[-1] == "leaves by an error":
                    raise KeyError("of the body")
        except KeyError as error:
            said.append(f"the body's {type(error).__name__} got out")
        left = sum(thread.is_alive() for thread in aside.started)
        for thread in aside.started:
            thread.join(0.2)
        later = sum(thread.is_alive() for thread in aside.started)
        said.append(f"threads alive after the with: {left}{f', and for good: {later}' if left else ''}")
        said.append(f"tasks that waited are computed: {all(probe.computed for probe in waiting)}")

    aside = _Aside(work)
    with aside:
        if not aside.over(2 * PATIENCE):
            return [*said, "the with never ended"]
    return [*said, aside.end] if aside.error else said


def _lists(pairs: Iterable[Any]) -> tuple[list[Any], ...]:
    return tuple(map(list, zip(*pairs, strict=True)))


def _spawning(
    key: Callable[[int, torch.device], object] = lambda j, device: j if device.type == "cpu" else device,
    *,
    start: bool = True,
    none: bool = True,
    join: bool = True,
    always: bool = True,
    crossed: bool = False,
    empties: bool = False,
    hand: Callable[[list[Any]], Any] = _lists,
) -> Callable[..., Any]:
    """Make a spawn_workers: as it is, right. Wrong are others, by what they leave out or mix up."""

    @contextmanager
    def spawn(devices: Sequence[torch.device]) -> Iterator[Any]:
        keys = [key(j, device) for j, device in enumerate(devices)]
        pairs = {each: (SimpleQueue[Any](), SimpleQueue[Any]()) for each in keys}
        threads = [
            Thread(target=_serve, args=pair[::-1] if crossed else pair, daemon=True)
            for pair in pairs.values()
        ]
        for thread in threads if start else ():
            thread.start()
        leaving = always
        try:
            yield hand([pairs[each] for each in keys])
            leaving = True
        finally:
            for in_queue, _ in pairs.values() if leaving and none else ():
                with suppress(Empty):
                    while empties:
                        in_queue.get_nowait()
                in_queue.put(None)
            for thread in threads if leaving and start and join else ():
                thread.join()

    return spawn


check_spawn_workers = Exercise(
    "spawn_workers",
    reference=_spawning(),
    view=lambda spawn: partial(ask_spawn, spawn),
    judge=_watched(
        ("cpu", "cpu", "cpu"), ("cpu", "cpu", "leaves by an error"), ("cuda:0", "cuda:1", "cuda:0")
    ),
    praise="threads, queues and the end are right for {count} lists of devices",
    mistakes={
        "A thread works only after its start().": _spawning(start=False),
        "The threads are never told to end: put a None for each.": _spawning(none=False, join=False),
        "You do not wait for the threads: they still work when the caller goes on.": _spawning(join=False),
        "An error in the body skips what stands after the yield: try … finally.": _spawning(always=False),
        "One worker for all CPU partitions: nothing overlaps on a CPU.": _spawning(lambda j, device: device),
        "Two partitions on one CUDA device share a worker and its queues.": _spawning(lambda j, device: j),
        "Hand out two lists, not a pair for each partition.": _spawning(hand=lambda pairs: pairs),
        "You wait for threads that nobody has told to end: None first, then join().": _spawning(none=False),
        "The queues are crossed: workers take tasks from where answers belong.": _spawning(crossed=True),
        "Yield an entry per partition, not per worker.": _spawning(hand=lambda x: _lists(dict.fromkeys(x))),
        "cuda:0 and cuda:1 are two devices: a worker each.": _spawning(lambda j, d: d.index is None and j),
        "You throw away tasks that wait: a None behind them lets them be done.": _spawning(empties=True),
    },
)


# ---- exercise 3: run_clock


def ask_scheduler(scheduler: Scheduler, case: Sequence[str]) -> list[str]:
    """Let a scheduler run a clock in which partition j has the task `case[j]` ("idle": none); say what one sees."""
    finalized: list[tuple[_Probe, object]] = []
    shared, kinds = SHARED in case, [kind for kind in case if kind != SHARED]
    meeting = None if shared else Barrier(sum(kind != "idle" for kind in kinds), timeout=PATIENCE / 2)
    tasks = {j: _Probe(f"task {j}", kind, meeting) for j, kind in enumerate(kinds) if kind != "idle"}
    for task in tasks.values():
        task.finalized = finalized
    own = [0 if shared else j for j in range(len(kinds))]  # by partition: its worker
    queues = {number: (SimpleQueue[Any](), SimpleQueue[Any]()) for number in own}
    in_queues, out_queues = ([queues[number][side] for number in own] for side in (0, 1))
    workers = [
        Thread(target=_serving(done=0), args=pair, daemon=True, name=f"worker {number}")
        for number, pair in queues.items()
    ]
    for worker in workers:
        worker.start()

    def work() -> object:
        batches = scheduler(dict(tasks), in_queues, out_queues)
        return dict(sorted(batches.items(), key=str)) if isinstance(batches, dict) else batches

    with _Aside(work) as aside:
        over = aside.end if aside.over(2 * PATIENCE) else "still waiting for an answer"
    for (in_queue, _), worker in zip(queues.values(), workers, strict=True):
        in_queue.put(None)
        worker.join(PATIENCE)  # a scheduler that raises early leaves tasks at work: look when they are done
    for task in tasks.values():
        of_it, error = f"the {task.kind} of {task.label}", aside.error
        if error is task.error:
            over = f"raised {of_it}"
        elif error and (
            task.error in (error.__cause__, error.__context__) or repr(error) == repr(task.error)
        ):
            over = f"raised a new exception in place of {of_it}"
    met = "one at a time" if any(task.alone for task in tasks.values()) else "together"
    there = sum(task.ran_in == f"worker {own[j]}" for j, task in tasks.items())
    left = sum(not out_queue.empty() for out_queue in out_queues)
    said = [f"computed {met}", over, f"tasks computed by their own worker: {there}", f"answers left: {left}"]
    if all(kind in ("works", "idle") for kind in kinds):  # after an error the run is over, finalized or not
        right = [task.label for task, batch in finalized if batch == f"batch of {task.label}"]
        said.append(f"finalized: {', '.join(right) or 'none'}")
    return said


def _take(
    out_queues: Iterable[tuple[int, SimpleQueue[Any]]],
    *,
    finalize: bool = True,
    at_once: bool = False,
    raised: int | None = 0,
    new: bool = False,
) -> dict[int, object]:
    """Take all answers and raise error number `raised`, or a `new` one; or `at_once`, before the rest is taken."""
    batches: dict[int, object] = {}
    errors: list[BaseException] = []
    for j, out_queue in out_queues:
        ok, payload = out_queue.get()
        if ok:
            task, batches[j] = payload
            if finalize:
                task.finalize(batches[j])
        else:
            errors.append(payload[1])
        if errors and at_once:
            break
    if errors and raised is not None:
        if new:
            raise RuntimeError("a task failed") from errors[raised]
        raise errors[raised]
    return batches


def _putting(take: Callable[[list[tuple[int, SimpleQueue[Any]]]], dict[int, object]]) -> Scheduler:
    """Make a scheduler that puts all tasks and has its own way of taking answers."""

    def run(tasks: Mapping[int, Any], in_queues: Queues, out_queues: Queues) -> dict[int, object]:
        for j, task in tasks.items():
            in_queues[j].put(task)
        return take([(j, out_queues[j]) for j in tasks])

    return run


def _from_the_last(out_queues: list[tuple[int, SimpleQueue[Any]]]) -> dict[int, object]:
    answers = [(out_queue, out_queue.get()) for _, out_queue in reversed(out_queues)]
    for out_queue, answer in reversed(answers):
        out_queue.put(answer)
    return _take(out_queues)


check_run_clock = Exercise(
    "run_clock",
    reference=_putting(_take),  # put all, take all, finalize in order, then raise the first error
    view=lambda scheduler: partial(ask_scheduler, scheduler),
    judge=_watched(
        ("works", "works", "works"),
        ("idle", "works", "works"),
        ("works", "ValueError", "works"),
        ("ValueError", "RuntimeError"),
        ("works", "works", SHARED),
    ),
    praise="what ran at the same time, what came back and what was raised are right in {count} clocks",
    mistakes={
        "You wait for each answer before you put the next task, so nothing overlaps.": (
            lambda tasks, in_queues, out_queues: _take(
                (j, out_queues[j]) for j, task in tasks.items() if in_queues[j].put(task) is None
            )
        ),
        "You call compute yourself: put the task into its queue, so that a worker does.": (
            lambda tasks, *queues: {j: _finalized(task)[1] for j, task in tasks.items()}
        ),
        "Nothing was put, so nobody will ever answer: a deadlock.": (
            lambda tasks, in_queues, out_queues: _take((j, out_queues[j]) for j in tasks)
        ),
        "Raised too early: the next clock will take an old answer.": _putting(partial(_take, at_once=True)),
        "Nobody calls task.finalize(batch).": _putting(partial(_take, finalize=False)),
        "The errors are dropped: the caller never hears of them.": _putting(partial(_take, raised=None)),
        "Of several errors, raise that of the first partition.": _putting(partial(_take, raised=-1)),
        "Raise the very exception: a new one has lost the traceback.": _putting(partial(_take, new=True)),
        "finalize must go from the first partition to the last.": _putting(lambda out: _take(out[::-1])),
        "The keys of `tasks` say which queues to use: a partition may be idle.": (
            lambda tasks, *queues: dict(
                zip(tasks, _putting(_take)(dict(enumerate(tasks.values())), *queues).values(), strict=True)
            )
        ),
        "Two partitions share a queue: its first answer belongs to the task that you put first.": _putting(
            _from_the_last
        ),
    },
)


# ---- predictions, one a section: 2 (with what was measured), 5, 6, 8, 9, 11


def makespan(micro_batches: int, seconds: Sequence[float]) -> float:
    """Return the time of a forward pass, clock by clock: each clock lasts as long as its slowest task."""
    return sum(max(seconds[j] for _, j in clock) for clock in clock_cycles(micro_batches, len(seconds)))


def _exactly(my_guess: object) -> object:
    """Turn a number into a text: in these predictions a close one is another mechanism, not nearly right."""
    return f"{my_guess:g}" if isinstance(my_guess, (int, float)) else my_guess


def _first_that_gains(gains: Mapping[int, float]) -> int | str:
    enough = [size for size, factor in sorted(gains.items()) if factor >= 1.2]
    return enough[0] if enough else "none of these (is a second core free?)"


def _in_a_new_thread(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def _grad_in_a_new_thread() -> str:
    with torch.no_grad():
        return "YES" if _in_a_new_thread(torch.is_grad_enabled) else "NO"


def _threads_of_backward() -> str:
    ran: set[str] = set()
    leaf = torch.ones(1, requires_grad=True)
    leaf.register_hook(lambda gradient: ran.add(current_thread().name))  # type: ignore[no-untyped-call]
    outputs = [_in_a_new_thread(lambda: leaf * 2) for _ in range(2)]
    torch.cat(outputs).sum().backward()  # type: ignore[no-untyped-call]
    return f"{len(ran)}"


def _right_though_late() -> list[int]:
    values: list[tuple[int, ...]] = [(i,) for i in range(6)]
    for clock in clock_cycles(6, 2):
        i, j = clock[
            -1
        ]  # what every task of the clock computes, if it looks its pair up when the loop has ended
        values = [(*values[i], j) if k in dict(clock) else value for k, value in enumerate(values)]
    return [i for i, value in enumerate(values) if value == (i, 0, 1)]


guess_size = Guess(
    "the first size that gains 1.2 here",
    _first_that_gains,
    tried=Tried(right=64, wrong=512, known=({8: 0.8, 64: 1.3, 512: 1.9},)),
)
guess_streams = Guess(
    "the end in ticks",
    lambda: f"{simulate_streams(2, kernel=3, launch=1).end:g}",
    read=_exactly,
    tried=Tried(right=17, wrong=13),
)
guess_grad = Guess(
    "whether gradients are on in the new thread",
    _grad_in_a_new_thread,
    read=letter,
    tried=Tried(right="yes", wrong="no"),
)
guess_clocks = Guess(
    "the time in ticks, clock by clock",
    lambda m, ticks: f"{makespan(m, ticks):g}",
    read=_exactly,
    tried=Tried(right=16, wrong=15, known=(4, [3, 1, 2])),
)
guess_backward = Guess(
    "the number of threads that ran backward",
    _threads_of_backward,
    read=_exactly,
    tried=Tried(right=1, wrong=2),
)
guess_late = Guess(
    "the micro-batches that come out right",
    _right_though_late,
    read=lambda my_guess: sorted(my_guess) if isinstance(my_guess, (list, tuple, set)) else my_guess,
    tried=Tried(right=[0], wrong=[0, 1, 2, 3, 4, 5]),
)
