"""Predictions and exercises of notebook 09, streams, tasks, workers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any, TypeAlias, cast

import torch

from lib.pipeline import clock_cycles
from lib.pipeline.streams import CPUStream
from lib.pipeline.worker import Task, spawn_workers
from support.checks import Exercise, Guess, Verdict
from support.n09.figures import simulate_streams

PATIENCE = 2.0  # seconds until a thread that has nothing to wait for counts as stuck

Worker: TypeAlias = Callable[["SimpleQueue[Any]", "SimpleQueue[Any]"], None]
Queues: TypeAlias = Sequence["SimpleQueue[Any]"]
Scheduler: TypeAlias = Callable[[Sequence[Any], Queues, Queues], Sequence[object]]


# ---- exercise 1: makespan


def _makespan(micro_batches: int, seconds: Sequence[float]) -> float:
    return sum(max(seconds[j] for _, j in clock) for clock in clock_cycles(micro_batches, len(seconds)))


check_makespan = Exercise(
    "makespan",
    reference=_makespan,
    cases=[
        {"micro_batches": m, "seconds": seconds}
        for seconds in ([1, 1], [1, 3], [3, 1, 2], [1, 2, 5, 2], [4], [2, 2, 2])
        for m in (4, 1, 2, 7)
    ],
    mistakes={
        "Not every clock has a task of the slowest partition: look at the first and the last.": (
            lambda micro_batches, seconds: (micro_batches + len(seconds) - 1) * max(seconds)
        ),
        "That is the loop: tasks of a clock run at the same time.": lambda micro_batches, seconds: (
            micro_batches * sum(seconds)
        ),
        "Here a clock begins when all answers of the last one are there; nobody starts early.": (
            lambda micro_batches, seconds: (
                sum(seconds) + (micro_batches - 1) * max(seconds)
            )  # right for a GPU
        ),
        "Before and after the slowest partition works, the others do.": lambda micro_batches, seconds: (
            micro_batches * max(seconds)
        ),
        "A clock waits for its slowest task, not for the mean.": lambda micro_batches, seconds: (
            (micro_batches + len(seconds) - 1) * sum(seconds) / len(seconds)
        ),
    },
)
"""Exercise 1 for equal and unequal partitions, and fewer micro-batches than partitions."""


# ---- watching: both exercises that follow are judged by what one sees of them


class _Probe:
    """A task that notes what is done with it."""

    def __init__(self, label: str, kind: str) -> None:
        self.label, self.kind = label, kind
        self.computed = self.finalized = 0
        self.error = {"ValueError": ValueError, "SystemExit": SystemExit}.get(kind, RuntimeError)(label)

    def compute(self) -> str:
        """Return the name of the batch, or raise."""
        self.computed += 1
        if self.kind != "works":
            raise self.error
        return f"batch of {self.label}"

    def finalize(self, batch: object) -> None:
        """Note the call."""
        self.finalized += 1


def _watched(*cases: Sequence[str]) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares what `view` shows of answer and reference; a case says what each task does.

    Mistakes are tried only behind a wrong answer: some of them keep one waiting.
    """

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        watch, seen = exercise.view, dict[Sequence[str], list[str]]()
        for tasks in cases:
            seen = {tasks: watch(answer)(tasks), **seen}  # the last first: there mistakes differ most
            pairs = zip(watch(exercise.reference)(tasks), seen[tasks], strict=True)
            expected, got = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
            if expected:
                where = ", ".join(kind if kind == "works" else f"raises {kind}" for kind in tasks)
                known = (
                    why
                    for why, wrong in exercise.mistakes.items()
                    if all(watch(wrong)(case) == shown for case, shown in seen.items())
                )
                why = next(known, "")
                said = f"tasks that do this: {where}. Expected: {expected}; seen: {got}. {why}"
                return exercise.wrong(said.strip())
        return exercise.right(f"{exercise.praise.format(count=len(cases))}.")

    return judge


# ---- exercise 2: worker


def ask_worker(worker: Worker, tasks: Sequence[str]) -> list[str]:
    """Let a worker serve tasks of these kinds, then None; return what it answered, task by task, and how it ended."""
    in_queue, out_queue = SimpleQueue[Any](), SimpleQueue[Any]()
    end: list[str] = []

    def thread() -> None:
        try:
            worker(in_queue, out_queue)
            end.append("ended")
        except BaseException as error:
            end.append(f"died of {type(error).__name__}")

    serving = Thread(target=thread, daemon=True)
    serving.start()
    said = []
    for number, kind in enumerate(tasks):
        task = _Probe(f"task {number}", kind)
        in_queue.put(task)
        said.append(_describe(_wait_for(out_queue, serving), task))
    if not end:
        in_queue.put(None)
        serving.join(PATIENCE)
    while not out_queue.empty():
        out_queue.get()  # a last answer, as lib's worker gives one, is welcome
    return [*said, end[0] if end else "still running after None"]


def _wait_for(out_queue: SimpleQueue[Any], serving: Thread) -> object:
    """Return the next answer; the queue itself if there is none."""
    for _ in range(max(1, round(PATIENCE / 0.02))):
        try:
            return out_queue.get(timeout=0.02)
        except Empty:
            if not serving.is_alive() and out_queue.empty():
                break
    return out_queue


def _describe(answer: object, task: _Probe) -> str:
    if isinstance(answer, SimpleQueue):
        return f"no answer to {task.label}"
    try:
        ok, payload = cast(tuple[bool, Any], answer)
        if ok:
            whose, batch = payload
            extra = " (finalized in the worker)" if task.finalized else ""
            extra += f" (computed {task.computed} times)" * (task.computed > 1)
            known = whose is task and batch == f"batch of {task.label}"
            return f"True, {task.label} and its batch{extra}" if known else f"True, {batch!r} of another task"
        kind, error, trace = payload
        same = error is task.error and kind is type(error) and trace is not None
        return f"False, its {kind.__name__}" if same else f"False, another {kind.__name__}"
    except (TypeError, ValueError, AttributeError):
        return f"an answer of another form: {type(answer).__name__}"


def _serving(
    compute: Callable[[Any], Any] = lambda task: (task, task.compute()),
    *,
    caught: Any = BaseException,
    silent: bool = False,
    none_ends: bool = True,
    goes_on: Callable[[bool], bool] = lambda ok: True,
) -> Worker:
    """Make a worker: as it is, right: it serves until None, and whatever a task raises is an answer.

    Wrong are others: by what they answer and catch, and after which answer they go on.
    """

    def serve(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
        while (task := in_queue.get()) is not None or not none_ends:
            ok = False
            try:
                out_queue.put((True, compute(task)))
                ok = True
            except caught:
                if not silent:
                    out_queue.put((False, sys.exc_info()))
            if not goes_on(ok):
                return

    return serve


_serve = _serving()


def _finalized(task: Any) -> tuple[Any, object]:
    batch = task.compute()
    task.finalize(batch)
    return task, batch


check_worker = Exercise(
    "worker",
    reference=_serve,
    view=lambda worker: partial(ask_worker, worker),
    judge=_watched(
        ("works",),
        ("works", "works", "works"),
        ("works", "ValueError", "works"),
        ("SystemExit", "works"),
    ),
    mistakes={
        "The error is swallowed: the scheduler waits for an answer for ever.": _serving(silent=True),
        "The error ends the thread: nobody answers, the scheduler waits for ever.": _serving(caught=()),
        "The error is answered, but then the worker stops: the next task waits for ever.": _serving(
            goes_on=lambda ok: ok
        ),
        "SystemExit is no Exception, only a BaseException: so the worker dies of it.": _serving(
            caught=Exception
        ),
        "None is no task: it says that work is over, and without it the thread never ends.": _serving(
            none_ends=False
        ),
        "One task and gone: a worker is a loop.": _serving(goes_on=lambda ok: False),
        "finalize belongs to the scheduler's thread: there it happens in order.": _serving(_finalized),
        "The scheduler needs the task as well, to finalize it: (True, (task, batch)).": _serving(
            lambda task: task.compute()
        ),
    },
)
"""Exercise 2 with tasks that work and tasks that raise."""


# ---- exercise 3: run_clock


class _MeetingProbe(_Probe):
    """A task that works only while all others of its clock run, and notes when it is finalized, and where."""

    def __init__(self, number: int, kind: str, meeting: Barrier, finalized: list[str]) -> None:
        super().__init__(f"task {number}", kind)
        self.meeting, self.notes, self.alone = meeting, finalized, False

    def compute(self) -> str:
        """Wait for the others first."""
        try:
            self.meeting.wait()
        except BrokenBarrierError:
            self.alone = True
        return super().compute()

    def finalize(self, batch: object) -> None:
        """Note the call."""
        known = batch == f"batch of {self.label}"
        self.notes.append(self.label if known else f"{self.label} with {batch!r}")


def ask_scheduler(scheduler: Scheduler, tasks: Sequence[str]) -> list[str]:
    """Let a scheduler run one clock of these tasks; return what one sees of it, in sentences."""
    finalized: list[str] = []
    meeting = Barrier(len(tasks), timeout=PATIENCE / 2)
    made = [_MeetingProbe(number, kind, meeting, finalized) for number, kind in enumerate(tasks)]
    queues = [(SimpleQueue[Any](), SimpleQueue[Any]()) for _ in made]
    in_queues, out_queues = ([pair[side] for pair in queues] for side in (0, 1))
    end: list[str] = []

    def thread() -> None:
        try:
            batches = scheduler(made, in_queues, out_queues)
            end.append(f"returned {batches if batches is None else list(batches)}")
        except BaseException as error:
            whose = next((task.label for task in made if task.error is error), "nobody")
            end.append(f"raised the {type(error).__name__} of {whose}")

    workers = [Thread(target=_serve, args=pair, daemon=True) for pair in queues]
    scheduling = Thread(target=thread, daemon=True)
    for started in (*workers, scheduling):
        started.start()
    scheduling.join(2 * PATIENCE)
    over = end[0] if end else "still waiting for an answer"
    for in_queue, serving in zip(in_queues, workers, strict=True):
        in_queue.put(None)
        serving.join(PATIENCE)  # a scheduler that raises early leaves tasks at work: look when they are done
    met = "one at a time" if any(task.alone for task in made) else "together"
    computed = "every task once" if all(task.computed == 1 for task in made) else "not every task"
    left = sum(not out_queue.empty() for out_queue in out_queues)
    done = f"finalized: {', '.join(finalized) or 'none'}"
    return [f"computed {met}", f"computed {computed}", over, f"answers left in the queues: {left}", done]


def _take(
    out_queues: Iterable[SimpleQueue[Any]],
    *,
    finalize: bool = True,
    at_once: bool = False,
    raised: int | None = 0,
) -> list[object]:
    """Take all answers and raise error number `raised`; or raise `at_once`, before the rest is taken."""
    batches: list[object] = []
    errors: list[BaseException] = []
    for out_queue in out_queues:
        ok, payload = out_queue.get()
        if not ok:
            errors.append(payload[1])
            if at_once:
                break
            continue
        task, batch = payload
        if finalize:
            task.finalize(batch)
        batches.append(batch)
    if errors and raised is not None:
        raise errors[raised]
    return batches


def _putting(take: Callable[[Queues], list[object]]) -> Scheduler:
    """Make a scheduler that puts all tasks and has its own way of taking answers."""

    def run(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
        for task, in_queue in zip(tasks, in_queues, strict=True):
            in_queue.put(task)
        return take(out_queues)

    return run


check_run_clock = Exercise(
    "run_clock",
    reference=_putting(_take),  # put all, take all, finalize in order, then raise the first error
    view=lambda scheduler: partial(ask_scheduler, scheduler),
    judge=_watched(
        ("works", "works"),
        ("works",),
        ("works", "works", "works"),
        ("works", "ValueError", "works"),
        ("ValueError", "RuntimeError"),
    ),
    mistakes={
        "You wait for each answer before you put the next task, so nothing overlaps.": (
            lambda tasks, in_queues, out_queues: _take(
                out_queue
                for task, in_queue, out_queue in zip(tasks, in_queues, out_queues, strict=True)
                if in_queue.put(task) is None  # put each just before its answer is taken
            )
        ),
        "Raised too early: the next clock will take an answer of this one for its own.": _putting(
            partial(_take, at_once=True)
        ),
        "Nobody calls task.finalize(batch).": _putting(partial(_take, finalize=False)),
        "The errors are dropped: the caller never hears of them.": _putting(partial(_take, raised=None)),
        "Of several errors, raise that of the first partition: it is the cause more often.": _putting(
            partial(_take, raised=-1)
        ),
        "Nothing was put, so nobody will ever answer: a deadlock.": (
            lambda tasks, in_queues, out_queues: _take(out_queues)  # whatever it would put later
        ),
        "finalize must go from the first partition to the last.": _putting(
            lambda out_queues: _take(out_queues[::-1], raised=-1)[::-1]
        ),
    },
)
"""Exercise 3 with clocks of one to three tasks, some of which raise; overlap is seen, not timed."""


# ---- predictions


def _speed_up(micro_batches: int, partitions: int) -> float:
    alone = _makespan(micro_batches, [1]) * partitions
    return alone / _makespan(micro_batches, [1] * partitions)


def _first_that_gains(gains: Mapping[int, float]) -> int | str:
    enough = [size for size, factor in sorted(gains.items()) if factor >= 1.2]
    return enough[0] if enough else "none of these (is a second core free?)"


def _where_finalize_runs() -> str:
    ran: list[int] = []
    with spawn_workers([torch.device("cpu")]) as (in_queues, out_queues):
        compute: Any = lambda: ran.append(threading.get_ident())  # noqa: E731
        finalize: Any = lambda batch: ran.append(threading.get_ident())  # noqa: E731
        in_queues[0].put(Task(CPUStream, compute=compute, finalize=finalize))
        answer: Any = out_queues[0].get(timeout=PATIENCE)[1]
        answer[0].finalize(answer[1])
    return "worker" if ran[0] == ran[1] else "scheduler"


def _answers() -> int:
    said = ask_worker(_serve, ("works", "ValueError", "works"))
    return sum(line.startswith(("True", "False")) for line in said)


guess_speed_up = Guess("the speed-up at best", _speed_up, tolerance=0.03)
"""Section 1: all tasks in a loop against clocks, in which they run together."""
guess_size = Guess("the first size that gains 1.2 here", _first_that_gains)
"""Section 3, with what was measured: gain of two threads by size of a matrix."""
guess_streams = Guess(
    "the end with two streams", lambda: int(simulate_streams(2, kernel=3, launch=1).end), unit="ticks"
)
"""Section 4: when the kernels of two streams are done."""
guess_finalize = Guess("the thread of finalize", _where_finalize_runs)
"""Section 5: where finalize runs, found out by a real task."""
guess_answers = Guess("the number of answers", _answers)
"""Section 7: answers of a clock of three tasks, one of which raises."""
guess_shared_worker = Guess("the speed-up with a shared worker", lambda: 1, tolerance=0.05)
""" "Break it": one worker computes one task at a time, as the loop does."""
