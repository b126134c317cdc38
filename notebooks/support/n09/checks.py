"""Predictions and exercises of notebook 09, streams, tasks, workers."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any, TypeAlias, cast

from support.checks import Verdict, check_function, guess, not_attempted, untouched
from support.n09 import checks as answers

# ---- The reference answers of notebook 09's exercises, and the famous wrong ones that its checks know by name.

Queues: TypeAlias = Sequence["SimpleQueue[Any]"]


# ---- exercise 1: makespan


def clocks(micro_batches: int, partitions: int) -> list[list[tuple[int, int]]]:
    """Return the pairs (i, j) of every clock."""
    return [
        [(k - j, j) for j in range(partitions) if 0 <= k - j < micro_batches]
        for k in range(micro_batches + partitions - 1)
    ]


def true_makespan(micro_batches: int, seconds: Sequence[float]) -> float:
    """Return the sum over the clocks of the slowest task."""
    return sum(max(seconds[j] for _, j in clock) for clock in clocks(micro_batches, len(seconds)))


def always_slowest(micro_batches: int, seconds: Sequence[float]) -> float:
    """Let every clock last as long as the slowest partition of all (wrong)."""
    return (micro_batches + len(seconds) - 1) * max(seconds)


def no_overlap(micro_batches: int, seconds: Sequence[float]) -> float:
    """Add all tasks up (wrong)."""
    return micro_batches * sum(seconds)


def no_clock(micro_batches: int, seconds: Sequence[float]) -> float:
    """Let every partition start as soon as it can (right for a GPU, wrong clock by clock)."""
    return sum(seconds) + (micro_batches - 1) * max(seconds)


def no_ramp(micro_batches: int, seconds: Sequence[float]) -> float:
    """Count the slowest partition's own tasks only (wrong)."""
    return micro_batches * max(seconds)


def mean_task(micro_batches: int, seconds: Sequence[float]) -> float:
    """Take the mean task for every clock (wrong)."""
    return (micro_batches + len(seconds) - 1) * sum(seconds) / len(seconds)


# ---- exercise 2: worker


def true_worker(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Serve until None; whatever a task raises is an answer."""
    while (task := in_queue.get()) is not None:
        try:
            batch = task.compute()
        except BaseException:
            out_queue.put((False, sys.exc_info()))
        else:
            out_queue.put((True, (task, batch)))


def swallows(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Catch the error and say nothing (wrong)."""
    while (task := in_queue.get()) is not None:
        with contextlib.suppress(BaseException):
            out_queue.put((True, (task, task.compute())))


def dies(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Let the error end the thread (wrong)."""
    while (task := in_queue.get()) is not None:
        out_queue.put((True, (task, task.compute())))


def answers_and_stops(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Answer the error, then stop serving (wrong)."""
    try:
        while (task := in_queue.get()) is not None:
            out_queue.put((True, (task, task.compute())))
    except BaseException:
        out_queue.put((False, sys.exc_info()))


def only_exception(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Catch Exception, which SystemExit is not (wrong)."""
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put((True, (task, task.compute())))
        except Exception:
            out_queue.put((False, sys.exc_info()))


def no_sentinel(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Take None for a task (wrong)."""
    while True:
        task = in_queue.get()
        try:
            out_queue.put((True, (task, task.compute())))
        except BaseException:
            out_queue.put((False, sys.exc_info()))


def one_task(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Serve one task and go (wrong)."""
    task = in_queue.get()
    try:
        out_queue.put((True, (task, task.compute())))
    except BaseException:
        out_queue.put((False, sys.exc_info()))


def finalizes(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Finalize in the worker (wrong)."""
    while (task := in_queue.get()) is not None:
        try:
            batch = task.compute()
            task.finalize(batch)
            out_queue.put((True, (task, batch)))
        except BaseException:
            out_queue.put((False, sys.exc_info()))


def only_the_batch(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Leave the task out of the answer (wrong)."""
    while (task := in_queue.get()) is not None:
        try:
            out_queue.put((True, task.compute()))
        except BaseException:
            out_queue.put((False, sys.exc_info()))


# ---- exercise 3: run_clock


def true_run_clock(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Put all, take all, finalize in order, then raise the first error."""
    for task, in_queue in zip(tasks, in_queues, strict=True):
        in_queue.put(task)
    batches: list[object] = []
    first: BaseException | None = None
    for out_queue in out_queues:
        ok, payload = out_queue.get()
        if ok:
            task, batch = payload
            task.finalize(batch)
            batches.append(batch)
        elif first is None:
            first = payload[1]
    if first is not None:
        raise first
    return batches


def one_by_one(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Wait for each answer before the next put (wrong: nothing overlaps)."""
    batches, errors = [], []
    for task, in_queue, out_queue in zip(tasks, in_queues, out_queues, strict=True):
        in_queue.put(task)
        ok, payload = out_queue.get()
        if ok:
            payload[0].finalize(payload[1])
            batches.append(payload[1])
        else:
            errors.append(payload[1])
    if errors:
        raise errors[0]
    return batches


def raises_at_once(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Raise before the other answers are taken (wrong: the next clock finds them)."""
    for task, in_queue in zip(tasks, in_queues, strict=True):
        in_queue.put(task)
    batches = []
    for out_queue in out_queues:
        ok, payload = out_queue.get()
        if not ok:
            raise payload[1]
        payload[0].finalize(payload[1])
        batches.append(payload[1])
    return batches


def never_finalizes(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Forget finalize (wrong)."""
    for task, in_queue in zip(tasks, in_queues, strict=True):
        in_queue.put(task)
    answers = [out_queue.get() for out_queue in out_queues]
    for ok, payload in answers:
        if not ok:
            raise payload[1]
    return [payload[1] for _, payload in answers]


def never_raises(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Drop the errors (wrong)."""
    for task, in_queue in zip(tasks, in_queues, strict=True):
        in_queue.put(task)
    answers = [out_queue.get() for out_queue in out_queues]
    for ok, payload in answers:
        if ok:
            payload[0].finalize(payload[1])
    return [payload[1] for ok, payload in answers if ok]


def last_error(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Raise the last error instead of the first (wrong)."""
    for task, in_queue in zip(tasks, in_queues, strict=True):
        in_queue.put(task)
    batches, error = [], None
    for out_queue in out_queues:
        ok, payload = out_queue.get()
        if ok:
            payload[0].finalize(payload[1])
            batches.append(payload[1])
        else:
            error = payload[1]
    if error is not None:
        raise error
    return batches


def takes_first(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Ask for answers before anything was put (wrong: a deadlock)."""
    batches = []
    for task, in_queue, out_queue in zip(tasks, in_queues, out_queues, strict=True):
        _, payload = out_queue.get()
        batches.append(payload[1])
        in_queue.put(task)
    return batches


def backwards(tasks: Sequence[Any], in_queues: Queues, out_queues: Queues) -> list[object]:
    """Take the answers from the last partition to the first (wrong: finalize in the wrong order)."""
    for task, in_queue in zip(tasks, in_queues, strict=True):
        in_queue.put(task)
    batches, error = [], None
    for out_queue in reversed(out_queues):
        ok, payload = out_queue.get()
        if ok:
            payload[0].finalize(payload[1])
            batches.append(payload[1])
        else:
            error = payload[1]
    if error is not None:
        raise error
    return batches[::-1]


# ---- How notebook 09's checks look at a worker or a scheduler: through real queues and threads, and without a clock.
#
# Tasks that must overlap wait for each other, so nothing depends on how fast they are, and every wait has an end.

PATIENCE = 2.0  # seconds until a thread that has nothing to wait for counts as stuck


class ProbeTask:
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


Worker: TypeAlias = Callable[["SimpleQueue[Any]", "SimpleQueue[Any]"], None]


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
        task = ProbeTask(f"task {number}", kind)
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


def _describe(answer: object, task: ProbeTask) -> str:
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


Scheduler: TypeAlias = Callable[[Sequence[Any], answers.Queues, answers.Queues], Sequence[object]]


class MeetingTask(ProbeTask):
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
    made = [MeetingTask(number, kind, meeting, finalized) for number, kind in enumerate(tasks)]
    queues = [(SimpleQueue[Any](), SimpleQueue[Any]()) for _ in made]
    for pair in queues:
        Thread(target=answers.true_worker, args=pair, daemon=True).start()
    in_queues, out_queues = ([pair[side] for pair in queues] for side in (0, 1))
    end: list[str] = []

    def thread() -> None:
        try:
            batches = scheduler(made, in_queues, out_queues)
            end.append(f"returned {batches if batches is None else list(batches)}")
        except BaseException as error:
            whose = next((task.label for task in made if task.error is error), "nobody")
            end.append(f"raised the {type(error).__name__} of {whose}")

    scheduling = Thread(target=thread, daemon=True)
    scheduling.start()
    scheduling.join(2 * PATIENCE)
    over = end[0] if end else "still waiting for an answer"
    for in_queue in in_queues:
        in_queue.put(None)
    met = "one at a time" if any(task.alone for task in made) else "together"
    computed = "every task once" if all(task.computed == 1 for task in made) else "not every task"
    left = sum(not out_queue.empty() for out_queue in out_queues)
    done = f"finalized: {', '.join(finalized) or 'none'}"
    return [f"computed {met}", f"computed {computed}", over, f"answers left in the queues: {left}", done]


def diagnosed(
    answer: Any,
    ask: Callable[[Any, Sequence[str]], list[str]],
    reference: Any,
    cases: Sequence[Sequence[str]],
    what: str,
    mistakes: Mapping[str, Any],
) -> Verdict:
    """Compare what one sees of answer and reference, case by case; mistakes are tried only behind a wrong answer."""
    if untouched(answer):
        return not_attempted(what)
    seen: list[list[str]] = []
    for tasks in cases:
        seen.append(ask(answer, tasks))
        pairs = zip(ask(reference, tasks), seen[-1], strict=True)
        expected, got = next((pair for pair in pairs if pair[0] != pair[1]), ("", ""))
        if not expected:
            continue
        # the mistake that shows the same in this case, and in those before
        same = (why for why, wrong in mistakes.items() if ask(wrong, tasks) == seen[-1])
        same = (
            why
            for why in same
            if [ask(mistakes[why], before) for before in cases[: len(seen) - 1]] == seen[:-1]
        )
        where = ", ".join(kind if kind == "works" else f"raises {kind}" for kind in tasks)
        message = f"{what}: tasks that do this: {where}. Expected: {expected}; seen: {got}. {next(same, '')}"
        return Verdict("wrong", message.strip())
    return Verdict("right", f"{what}: the same as the reference in all {len(cases)} cases.")


# ---- Checks of notebook 09: predictions of a pipeline's runtime, its makespan, a worker, one clock of a scheduler.

# ---- predictions


def guess_speed_up(my_guess: object, micro_batches: int, partitions: int) -> Verdict:
    """Comment on the guess of section 1: all tasks in a loop against clocks, in which they run together."""
    alone = answers.true_makespan(micro_batches, [1]) * partitions
    truth = alone / answers.true_makespan(micro_batches, [1] * partitions)
    return guess(my_guess, truth, what="the speed-up at best", tolerance=0.03)


def guess_size(my_guess: object, gains: Mapping[int, float]) -> Verdict:
    """Comment on the guess of section 3 with what was measured: gain of two threads by size of a matrix."""
    enough = [size for size, factor in sorted(gains.items()) if factor >= 1.2]
    truth = enough[0] if enough else "none of these (is a second core free?)"
    return guess(my_guess, truth, what="the first size that gains 1.2 here")


def guess_streams(my_guess: object) -> Verdict:
    """Comment on the guess of section 4: when the kernels of two streams are done."""
    from support.n09.figures import simulate_streams

    truth = simulate_streams(2, kernel=3, launch=1).end
    return guess(my_guess, int(truth), what="the end with two streams", unit="ticks")


def guess_finalize(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: where finalize runs, found out by a real task."""
    import torch
    from lib.pipeline.streams import CPUStream
    from lib.pipeline.worker import Task, spawn_workers

    ran: list[int] = []
    with spawn_workers([torch.device("cpu")]) as (in_queues, out_queues):
        compute: Any = lambda: ran.append(threading.get_ident())  # noqa: E731
        finalize: Any = lambda batch: ran.append(threading.get_ident())  # noqa: E731
        in_queues[0].put(Task(CPUStream, compute=compute, finalize=finalize))
        answer: Any = out_queues[0].get(timeout=PATIENCE)[1]
        answer[0].finalize(answer[1])
    truth = "worker" if ran[0] == ran[1] else "scheduler"
    return guess(my_guess, truth, what="the thread of finalize")


def guess_answers(my_guess: object) -> Verdict:
    """Comment on the guess of section 7: answers of a clock of three tasks, one of which raises."""
    said = ask_worker(answers.true_worker, ("works", "ValueError", "works"))
    count = sum(line.startswith(("True", "False")) for line in said)
    return guess(my_guess, count, what="the number of answers")


def guess_shared_worker(my_guess: object) -> Verdict:
    """Comment on the guess of "Break it": one worker computes one task at a time, as the loop does."""
    return guess(my_guess, 1, what="the speed-up with a shared worker", tolerance=0.05)


# ---- exercise 1: makespan


def check_makespan(answer: Callable[[int, Sequence[float]], float]) -> Verdict:
    """Check exercise 1 for equal and unequal partitions, and fewer micro-batches than partitions."""
    mistakes = {
        "Not every clock has a task of the slowest partition: look at the first and the last.": answers.always_slowest,
        "That is the loop: tasks of a clock run at the same time.": answers.no_overlap,
        "Here a clock begins when all answers of the last one are there; nobody starts early.": answers.no_clock,
        "Before and after the slowest partition works, the others do.": answers.no_ramp,
        "A clock waits for its slowest task, not for the mean.": answers.mean_task,
    }
    cases = [
        {"micro_batches": m, "seconds": seconds}
        for seconds in ([1, 1], [1, 3], [3, 1, 2], [1, 2, 5, 2], [4], [2, 2, 2])
        for m in (4, 1, 2, 7)
    ]
    return check_function(answer, answers.true_makespan, cases, what="makespan", mistakes=mistakes)


# ---- exercise 2: worker


def check_worker(answer: Worker) -> Verdict:
    """Check exercise 2 with tasks that work and tasks that raise."""
    mistakes = {
        "The error is swallowed: the scheduler waits for an answer for ever.": answers.swallows,
        "The error ends the thread: nobody answers, the scheduler waits for ever.": answers.dies,
        "The error is answered, but then the worker stops: the next task waits for ever.": answers.answers_and_stops,
        "SystemExit is no Exception, only a BaseException: so the worker answers.dies of it.": answers.only_exception,
        "None is no task: it says that work is over, and without it the thread never ends.": answers.no_sentinel,
        "One task and gone: a worker is a loop.": answers.one_task,
        "finalize belongs to the scheduler's thread: there it happens in order.": answers.finalizes,
        "The scheduler needs the task as well, to finalize it: (True, (task, batch)).": answers.only_the_batch,
    }
    cases = [
        ("works",),
        ("works", "works", "works"),
        ("works", "ValueError", "works"),
        ("SystemExit", "works"),
    ]
    return diagnosed(answer, ask_worker, answers.true_worker, cases, "worker", mistakes)


# ---- exercise 3: run_clock


def check_run_clock(answer: Scheduler) -> Verdict:
    """Check exercise 3 with clocks of one to three tasks, some of which raise; overlap is seen, not timed."""
    mistakes = {
        "You wait for each answer before you put the next task, so nothing overlaps.": answers.one_by_one,
        "Raised too early: the next clock will take an answer of this one for its own.": answers.raises_at_once,
        "Nobody calls task.finalize(batch).": answers.never_finalizes,
        "The errors are dropped: the caller never hears of them.": answers.never_raises,
        "Of several errors, raise that of the first partition: it is the cause more often.": answers.last_error,
        "Nothing was put, so nobody will ever answer: a deadlock.": answers.takes_first,
        "finalize must go from the first partition to the last.": answers.backwards,
    }
    cases = [
        ("works", "works"),
        ("works",),
        ("works", "works", "works"),
        ("works", "ValueError", "works"),
        ("ValueError", "RuntimeError"),
    ]
    return diagnosed(answer, ask_scheduler, answers.true_run_clock, cases, "run_clock", mistakes)
