"""Predictions and exercises of notebook 09, streams, tasks, workers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import zip_longest
from typing import Any

from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.kit.verdict import Verdict
from support.n09.answers import (
    at_the_end,
    finalized,
    from_the_last,
    lists,
    putting,
    run_plan,
    serve,
    spawning,
    take,
    worker_that,
)
from support.n09.guesses import guess_arrival as guess_arrival
from support.n09.guesses import guess_backward as guess_backward
from support.n09.guesses import guess_grad as guess_grad
from support.n09.guesses import guess_late as guess_late
from support.n09.guesses import guess_size as guess_size
from support.n09.guesses import guess_streams as guess_streams
from support.n09.plans import fault_of_devices, fault_of_plan
from support.n09.trials import FALSY, SHARED, Sight, ask_scheduler, ask_spawn, ask_worker

PATIENCE = 1.5  # seconds until a thread that has nothing to wait for counts as stuck


def watched(*cases: Sequence[str]) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares what `view` shows of answer and reference; a case says what each task does.

    It is no `judged` of the kit: a mistake is recognised by all that is seen of it, not by the first difference.
    Mistakes are tried only behind a wrong answer: some of them keep one waiting.
    """

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        shown: dict[Sequence[str], list[str]] = {}
        for case in cases:
            wanted = _known(exercise, exercise.reference, case)
            seen: Sight = exercise.view(answer)(case)
            shown[case] = seen.said
            for expected, got in zip_longest(wanted, seen.said, fillvalue="nothing more"):
                if expected != got:
                    told = f"{_told(case)}. Expected: {expected}; seen: {seen.with_place(got)}."
                    return exercise.wrong(f"{told} {_recognised(exercise, shown)}".strip())
        return exercise.right(f"{exercise.praise.format(count=len(cases))}.")

    return judge


def _recognised(exercise: Exercise, shown: dict[Sequence[str], list[str]]) -> str:
    """Return the sentence of the mistake that shows the same in all cases, "" if there is none."""
    for sentence, mistake in exercise.mistakes.items():
        if all(_known(exercise, mistake, case) == said for case, said in shown.items()):
            return sentence
    return ""


@cache
def _known(exercise: Exercise, known: Any, case: Sequence[str]) -> list[str]:
    seen: Sight = exercise.view(known)(case)  # the same each time, and some of these wait for long
    return seen.said


def _told(case: Sequence[str]) -> str:
    """Say on which devices workers are wanted, or what the tasks of a case do."""
    if case[0].startswith(("cpu", "cuda")):
        return "for " + ", ".join(case)
    words = ("works", "late", "idle", FALSY, SHARED)
    return "tasks that do this: " + ", ".join(k if k in words else f"raises {k}" for k in case)


check_worker = Exercise(
    "worker",
    reference=serve,
    view=lambda worker: lambda case: ask_worker(worker, case, PATIENCE),
    judge=watched(
        ("works",),
        ("works", "ValueError", "works"),
        ("SystemExit", "works"),
        ("KeyboardInterrupt", "works"),
        ("works", FALSY, "works"),
    ),
    praise="every answer, every error and the end are right in {count} runs",
    mistakes={
        "The error is swallowed: the scheduler waits for an answer for ever.": worker_that(silent=True),
        "The error ends the thread: nobody answers, the scheduler waits for ever.": worker_that(caught=()),
        "The error is answered, then the worker stops: the next task waits.": worker_that(
            goes_on=lambda ok: ok
        ),
        "SystemExit is no Exception, but a BaseException: the worker dies.": worker_that(caught=Exception),
        "Ctrl-C, KeyboardInterrupt, is no Exception either: catch what both have in common, BaseException.": (
            worker_that(caught=(Exception, SystemExit))
        ),
        "None is no task: without this rule the thread never ends.": worker_that(over=lambda task: False),
        "One task and gone: a worker is a loop.": worker_that(goes_on=lambda ok: False),
        "finalize belongs to the scheduler's thread: there it happens in order.": worker_that(finalized),
        "The scheduler needs the task as well: (True, (task, batch)).": worker_that(
            lambda task: task.compute()
        ),
        "Say goodbye after the loop: who asks a worker that has gone gets this answer.": worker_that(done=0),
        "One goodbye is enough: behind it nobody expects an answer.": worker_that(done=2),
        "A task may count as false: compare with None, by `is not None`.": worker_that(over=lambda t: not t),
        "Answer each task before you take the next: the scheduler may put no more until then.": at_the_end,
        "The payload is all of sys.exc_info(), not only the error.": worker_that(
            told=lambda: sys.exc_info()[1]
        ),
        "Call sys.exc_info() inside the except, not behind it.": worker_that(told=lambda: (None, None, None)),
        "Without the traceback nobody finds the layer.": worker_that(
            told=lambda: (*sys.exc_info()[:2], None)
        ),
    },
)


check_spawn_workers = Exercise(
    "spawn_workers",
    reference=spawning(),
    view=lambda spawn: lambda case: ask_spawn(spawn, case, PATIENCE),
    judge=watched(
        ("cpu", "cpu", "cpu"),
        ("cpu", "cpu", "leaves by an error"),
        ("cpu", "cpu", "leaves by Ctrl-C"),
        ("cuda:0", "cuda:1", "cuda:0"),
        ("cuda", "cuda:0", "cuda:1"),
    ),
    praise="threads, queues and the end are right for {count} lists of devices",
    mistakes={
        "A thread works only after its start().": spawning(start=False),
        "The threads are never told to end: put a None for each.": spawning(none=False, join=False),
        "You do not wait for the threads: they still work when the caller goes on.": spawning(join=False),
        "An error in the body skips what stands after the yield: try … finally.": spawning(always=False),
        "Ctrl-C is no Exception: whatever leaves the body, the workers must end.": spawning(
            always=False, ends_after=Exception
        ),
        "One worker for all CPU partitions: nothing overlaps on a CPU.": spawning(lambda j, device: device),
        "Two partitions on one CUDA device share a worker and its queues.": spawning(lambda j, device: j),
        "Hand out two lists, not a pair for each partition.": spawning(hand=lambda pairs: pairs),
        "You wait for threads that nobody has told to end: None first, then join().": spawning(none=False),
        "The queues are crossed: workers take tasks from where answers belong.": spawning(crossed=True),
        "Yield an entry per partition, not per worker.": spawning(hand=lambda x: lists(dict.fromkeys(x))),
        "cuda and cuda:0 are one device: one worker.": spawning(
            lambda j, device: j if device.type == "cpu" else device
        ),
        "cuda:0 and cuda:1 are two devices: a worker each.": spawning(lambda j, d: d.index is None and j),
        "You throw away tasks that wait: a None behind them lets them be done.": spawning(empties=True),
    },
)


check_run_clock = Exercise(
    "run_clock",
    reference=putting(take),  # put all, take all, finalize in order, then raise the first error
    view=lambda scheduler: lambda case: ask_scheduler(scheduler, case, PATIENCE),
    judge=watched(
        ("works", "works", "works"),
        ("idle", "works", "works"),
        ("works", "ValueError", "works"),
        ("ValueError", "RuntimeError"),
        ("works", "works", SHARED),
        ("late", "works", "works"),
    ),
    praise="what ran at the same time, what came back and what was raised are right in {count} clocks",
    mistakes={
        "You wait for each answer before you put the next task, so nothing overlaps.": (
            lambda tasks, in_queues, out_queues: take(
                (j, out_queues[j]) for j, task in tasks.items() if in_queues[j].put(task) is None
            )
        ),
        "You call compute yourself: put the task into its queue, so that a worker does.": (
            lambda tasks, *queues: {j: finalized(task)[1] for j, task in tasks.items()}
        ),
        "Nothing was put, so nobody will ever answer: a deadlock.": (
            lambda tasks, in_queues, out_queues: take((j, out_queues[j]) for j in tasks)
        ),
        "Raised too early: the next clock will take an old answer.": putting(partial(take, at_once=True)),
        "Nobody calls task.finalize(batch).": putting(partial(take, finalize=False)),
        "The errors are dropped: the caller never hears of them.": putting(partial(take, raised=None)),
        "Of several errors, raise that of the first partition.": putting(partial(take, raised=-1)),
        "Raise the very exception: a new one has lost the traceback.": putting(partial(take, new=True)),
        "finalize must go from the first partition to the last.": putting(lambda out: take(out[::-1])),
        "The keys of `tasks` say which queues to use: a partition may be idle.": (
            lambda tasks, *queues: dict(
                zip(tasks, putting(take)(dict(enumerate(tasks.values())), *queues).values(), strict=True)
            )
        ),
        "Two partitions share a queue: its first answer belongs to the task that you put first.": putting(
            from_the_last
        ),
    },
)


check_run_plan = Exercise(
    "run_plan",
    reference=run_plan,
    judge=judged(
        lambda answer: fault_of_plan(answer, PATIENCE),
        "outputs, meetings and threads are right in all plans, also on devices that share a worker.",
    ),
    mistakes=famous(
        run_plan,
        {
            "The names i and j are looked up when the task runs: by then the loop has gone on.": (
                "partial(compute, values[i], i, j)",
                "lambda: compute(values[i], i, j)",
            ),
            "A clock is handed over as a whole: only then do its tasks meet.": (
                "done = run_clock(tasks, in_queues, out_queues)",
                "done = {j: run_clock({j: task}, in_queues, out_queues)[j] for j, task in tasks.items()}",
            ),
            "Work on a copy of the list: the caller still has a use for the inputs.": (
                "list(batches)",
                "batches",
            ),
            "Partition j takes what partition j - 1 has made, not the input of the model.": (
                "compute, values[i]",
                "compute, batches[i]",
            ),
            "Put it into a task: what you call yourself runs in the scheduler's thread.": (
                "done = run_clock(tasks, in_queues, out_queues)",
                "done = {j: task.compute() for j, task in tasks.items()}",
            ),
        },
    ),
)


check_devices = Exercise(
    "my_devices",
    reference=["cuda:0", "cuda:0"],
    judge=judged(fault_of_devices, "backwards gives the partitions on one device each other's answers."),
    mistakes={
        "Every partition has queues of its own there: the order of the answers doesn't matter.": [
            "cpu",
            "cpu",
        ]
    },
)
