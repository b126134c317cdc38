"""Checks of notebook 09: predictions of a pipeline's runtime, its makespan, a worker, one clock of a scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lib.checks import n09_answers as answers
from lib.checks.base import Verdict, check_function, guess
from lib.checks.n09_probes import PATIENCE, Scheduler, Worker, ask_scheduler, ask_worker, diagnosed

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
    from lib.figures.streams import simulate_streams

    truth = simulate_streams(2, kernel=3, launch=1).end
    return guess(my_guess, int(truth), what="the end with two streams", unit="ticks")


def guess_finalize(my_guess: object) -> Verdict:
    """Comment on the guess of section 5: where finalize runs, found out by a real task."""
    import torch

    from lib.pipeline.stream import CPUStream
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
