"""Predictions and exercises of notebook 09, streams, tasks, workers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import combinations, combinations_with_replacement, zip_longest
from random import Random
from typing import Any

import torch

from support.built import spawn_workers
from support.kit.exercise import Exercise
from support.kit.judged import judged
from support.kit.mistakes import famous
from support.kit.verdict import Verdict
from support.n09.answers import (
    again,
    asking,
    asking_the_error,
    at_the_end,
    emptying,
    finalized,
    from_the_last,
    last_come_first,
    lists,
    one_answer,
    putting,
    raising_what_is_an_exception,
    run_plan,
    serve,
    spawning,
    spawning_by_the_first,
    stale,
    take,
    thread_for_each,
    told_by_being_an_error,
    told_by_its_type,
    twice,
    under_a_lock,
    until_none_fails,
    with_a_limit,
    worker_that,
)
from support.n09.clock_trials import ask_scheduler
from support.n09.guesses import guess_arrival as guess_arrival
from support.n09.guesses import guess_backward as guess_backward
from support.n09.guesses import guess_grad as guess_grad
from support.n09.guesses import guess_late as guess_late
from support.n09.guesses import guess_size as guess_size
from support.n09.guesses import guess_streams as guess_streams
from support.n09.plans import fault_of_devices, fault_of_plan
from support.n09.trials import (
    BLANK,
    BY_AN_ERROR,
    ERROR,
    ERRORS,
    FAILS_LATER,
    FALSE,
    FALSY,
    NONE,
    SHARED,
    TENSOR,
    TUPLE,
    TWO_SHARE,
    Sight,
    ask_spawn,
)
from support.n09.worker_trials import AHEAD, IDLE, NO_TASK, OFTEN, TWO_WORKERS, ask_worker

PATIENCE = 1.5  # seconds until a thread that has nothing to wait for counts as stuck
SOON = 0.5  # and of a famous mistake: on a busy machine one may not be recognised then
KINDS = ("cpu", "cpu:0", "cuda", "cuda:0", "cuda:1", "xpu:0")


def mixed_devices(count: int) -> list[tuple[str, ...]]:
    """Return random lists of devices, the same each time, in which every two kinds meet, each also itself."""
    chance = Random(0)
    missing = set(combinations_with_replacement(sorted(KINDS), 2))
    lists = []
    while missing:
        names = tuple(chance.choices(chance.sample(KINDS, 3), k=count))
        met = missing & set(combinations(sorted(names), 2))
        if met:
            lists.append(names)
            missing -= met
    return lists


def watched(*cases: Sequence[str]) -> Callable[[Exercise, Any], Verdict]:
    """Make a judge that compares what `view` shows of answer and reference; a case says what each task does.

    It is no `judged` of the kit: a mistake is recognised by all that is seen of it, not by the first difference.
    Mistakes are tried only behind a wrong answer: some of them keep one waiting.
    """

    def judge(exercise: Exercise, answer: Any) -> Verdict:
        shown: dict[Sequence[str], list[str]] = {}
        for case in cases:
            wanted = _known(exercise, exercise.reference, case, PATIENCE)
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
    last_first = [*reversed(shown.items())]
    last_first.sort(key=lambda seen: len(seen[0]) > 20)  # what takes long comes behind
    for sentence, mistake in exercise.mistakes.items():
        if all(_known(exercise, mistake, case, SOON) == said for case, said in last_first):
            return sentence
    return ""


@cache
def _known(exercise: Exercise, known: Any, case: Sequence[str], most: float) -> list[str]:
    seen: Sight = exercise.view(known)(case, most)  # the same each time, and some of these wait for long
    return seen.said


def _told(case: Sequence[str]) -> str:
    """Say on which devices workers are wanted, or what the tasks of a case do."""
    if case[0] in KINDS:
        return "for " + (", ".join(case) if len(case) < 10 else f"{len(case)} × {case[0]}")
    errors = (*ERRORS, "RuntimeError")
    return "tasks that do this: " + ", ".join(f"raises {kind}" if kind in errors else kind for kind in case)


check_worker = Exercise(
    "worker",
    reference=serve,
    view=lambda worker: lambda case, most=math.inf: ask_worker(worker, case, min(most, PATIENCE)),
    judge=watched(
        ("works", "works"),
        ("works", "ValueError", "works"),
        ("SystemExit", "works"),
        ("KeyboardInterrupt", "works"),
        ("Escape(BaseException)", "works"),
        ("works", FALSY, "works"),
        *((kind, "works") for kind in (TENSOR, NONE, TUPLE, ERROR)),
        ("AttributeError", "StopIteration", "Empty", FALSE),
        (BLANK, "works"),
        ("works", IDLE),
        ("late", "works", AHEAD),
        ("works", "ValueError", "works", AHEAD),
        ("ValueError", "works", OFTEN),
        ("works", "works", TWO_WORKERS),
        ("ValueError", "works", TWO_WORKERS),
        (NO_TASK,),
    ),
    praise="every answer, every error and the end are right in {count} runs",
    mistakes={
        "Nobody is told of the error: the scheduler waits for an answer for ever.": worker_that(silent=True),
        "The error ends the thread: nobody answers, the scheduler waits for ever.": worker_that(caught=()),
        "The error is answered, then the worker stops: the next task waits.": worker_that(
            goes_on=lambda ok: ok
        ),
        "SystemExit is no Exception, but a BaseException: the worker dies.": worker_that(caught=Exception),
        "Ctrl-C, KeyboardInterrupt, is no Exception either: catch what both have in common, BaseException.": (
            worker_that(caught=(Exception, SystemExit))
        ),
        "An error of somebody's own need be no Exception: catch what all have in common, BaseException.": (
            worker_that(caught=(Exception, SystemExit, KeyboardInterrupt))
        ),
        "None is no task: when it comes, the thread must end.": worker_that(over=lambda task: False),
        "The worker has gone after its first answer: only None ends it.": worker_that(
            goes_on=lambda ok: False
        ),
        "finalize belongs to the scheduler's thread: there it happens in order.": worker_that(finalized),
        "The scheduler needs the task as well: (True, (task, batch)).": worker_that(
            lambda task: task.compute()
        ),
        "Say goodbye: who asks a worker that has gone gets this answer.": worker_that(done=0),
        "One goodbye is enough: behind it nobody expects an answer.": worker_that(done=2),
        "A task may count as false: compare with None, by `is not None`.": worker_that(over=lambda t: not t),
        "The error of an earlier task is answered again: forget it before the next.": stale,
        "An error may count as false: compare it with None.": asking_the_error,
        "The task comes first in the pair, then the batch.": worker_that(lambda task: (task.compute(), task)),
        "A batch may be None: it does not say whether the task has failed.": asking(
            lambda batch: batch is not None
        ),
        "A batch may be a tensor, which is neither true nor false: ask the try whether the task has failed.": (
            asking(bool)
        ),
        "A batch may be a tuple, as sys.exc_info() is: its type doesn't say whether the task has failed.": (
            told_by_its_type
        ),
        "A batch may be an exception: ask the try whether the task has failed.": told_by_being_an_error,
        "A layer may raise an AttributeError of its own: ask whether None has come.": until_none_fails,
        "Compute a task once, also if it raises: a layer may have counted or drawn something.": twice,
        "A while without tasks is no end: only None ends a worker.": with_a_limit(1.0, last_word=False),
        "A while without tasks is not the end: only None is.": with_a_limit(1.0, last_word=True),
        "A partition has one thread for all its tasks: compute in the worker's own.": thread_for_each,
        "Each answer is a tuple: a list may change before the scheduler reads it.": one_answer,
        "Serve tasks in the order in which they were put.": last_come_first,
        "A lock that workers share lets one of them compute at a time.": worker_that(under_a_lock),
        "A function that calls itself for each error ends when Python has enough of it: a loop doesn't.": again,
        "Answer each task before you take the next: the scheduler may put no more until then.": at_the_end,
        "With False comes all of sys.exc_info(), not only the error.": worker_that(
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
    view=lambda spawn: lambda case, most=math.inf: ask_spawn(spawn, case, min(most, PATIENCE)),
    judge=watched(
        ("cpu", "cpu", "cpu"),
        *(("cpu", "cpu", leaves) for leaves in BY_AN_ERROR),
        ("cuda:0", "cuda:1", "cuda:0"),
        ("cuda", "cuda:0", "cuda:1", "cuda:10"),
        ("cpu:0", "cpu:0"),
        *mixed_devices(count=5),
        ("cpu",) * 33,  # more threads than a pool starts that isn't told how many
    ),
    praise="threads, queues and the end are right for {count} lists of devices",
    mistakes={
        "A thread may still be alive when the caller goes on: join each of them.": spawning(
            join=lambda threads: []
        ),
        "You wait for one thread only: join each of them.": spawning(join=lambda threads: threads[-1:]),
        "A task may last longer than the limit of a join: wait without one.": spawning(limit=1.0),
        "An error in the body skips what stands after the yield: try … finally.": spawning(always=False),
        "Ctrl-C is no Exception: whatever leaves the body, the workers must end.": spawning(
            always=False, ends_after=Exception
        ),
        "sys.exit is neither: whatever leaves the body, the workers must end.": spawning(
            always=False, ends_after=(Exception, KeyboardInterrupt)
        ),
        "Nor need an error be one of Python's own: whatever leaves the body, the workers must end.": spawning(
            always=False, ends_after=(Exception, KeyboardInterrupt, SystemExit)
        ),
        "One worker for all CPU partitions: nothing overlaps on a CPU.": spawning(lambda j, device: device),
        "Two partitions on one CUDA device share a worker and its queues.": spawning(lambda j, device: j),
        "Hand out two lists, not a pair for each partition.": spawning(hand=lambda pairs: pairs),
        "Yield an entry per partition, not per worker.": spawning(hand=lambda x: lists(dict.fromkeys(x))),
        "cuda and cuda:0 are one device: one worker.": spawning(
            lambda j, device: j if device.type == "cpu" else device
        ),
        "cuda:0 and cuda:1 are two devices: a worker each.": spawning(lambda j, d: d.index is None and j),
        "A number alone is no device: cuda:0 and xpu:0 are two, and neither is partition 0 on a CPU.": spawning(
            lambda j, device: j if device.type == "cpu" else device.index or 0
        ),
        "Each partition has a device of its own: none speaks for the others.": spawning_by_the_first,
        "cpu:0 is a CPU, too: ask for the type of the device.": spawning(
            lambda j, device: j if device == torch.device("cpu") else (device.type, device.index or 0)
        ),
        "Tasks that wait are never computed: the worker must take them all, and None behind them.": spawning(
            empties=True
        ),
        # these keep one waiting, so they are tried last
        "A thread works only after its start().": spawning(start=False),
        "Nobody tells the threads to end when all went well: put a None for each.": spawning(
            none=False, join=lambda threads: []
        ),
        "Every thread serves the last pair of queues: a function looks its names up when it runs.": spawning(
            late=True
        ),
        "What you wait for never comes: a thread needs its None to end, and room for every answer.": spawning(
            none=False
        ),
        "A worker waits for tasks in another queue than the one that you hand out for them.": spawning(
            crossed=True
        ),
    },
)


check_run_clock = Exercise(
    "run_clock",
    reference=putting(take),  # put all, take all, finalize in order, then raise the first error
    view=lambda scheduler: lambda case, most=math.inf: ask_scheduler(scheduler, case, min(most, PATIENCE)),
    judge=watched(
        ("works", "works", "works"),
        ("idle", "works", "works"),
        ("idle", "works"),
        ("late", "ValueError", "works"),
        ("ValueError", "late"),
        ("ValueError late", "RuntimeError"),
        ("StopIteration", "Escape(BaseException)"),
        (FAILS_LATER, "late"),
        (FAILS_LATER, "ValueError"),
        ("works", "works", "ValueError"),  # the next clock is without partition 2
        (NONE, "works"),
        ("SystemExit", "works"),
        (ERROR, "works"),
        (BLANK, "RuntimeError"),
        ("works", "works", SHARED),
        ("SystemExit", "RuntimeError", SHARED),
        ("works", "SystemExit", "idle", "RuntimeError", TWO_SHARE),
        ("late", "late", "late", "late", SHARED),
        ("late", TENSOR, "works"),
        (FALSY, "works", "idle", "works", *["idle"] * 6, "works", TWO_SHARE),
    ),
    praise="what ran at the same time, what came back and what was raised are right in {count} clocks",
    mistakes={
        "Put all tasks of the clock before you wait for the first answer.": (
            lambda tasks, in_queues, out_queues: take(
                (j, out_queues[j]) for j, task in tasks.items() if in_queues[j].put(task) is None
            )
        ),
        "You call compute yourself: that is for the worker.": (
            lambda tasks, *queues: {j: finalized(task)[1] for j, task in tasks.items()}
        ),
        "Nothing was put, so nobody will ever answer: a deadlock.": (
            lambda tasks, in_queues, out_queues: take((j, out_queues[j]) for j in tasks)
        ),
        "Raised too early: the next clock will take an old answer.": putting(partial(take, at_once=True)),
        "A task may take longer than any limit: wait without one.": putting(partial(take, limit=1.0)),
        "Nobody calls task.finalize(batch).": putting(partial(take, finalize=False)),
        "The errors are dropped: the caller never hears of them.": putting(partial(take, raised=None)),
        "Of several errors, raise that of the first partition.": putting(partial(take, raised=-1)),
        "An error may count as false: compare it with None.": putting(partial(take, asks_bool=True)),
        "Raise the very exception that the task has raised, not a new one.": putting(partial(take, new=True)),
        "An answer that is still on its way is in no queue yet: take as many as you have put.": emptying,
        "Take all answers before you finalize the first: finalize may raise, too.": putting(
            partial(take, while_taking=True)
        ),
        "Raise the exception as it came: with_traceback(None) loses the layer.": putting(
            partial(take, bare=True)
        ),
        "A batch may be None, and its partition has an entry all the same.": putting(
            partial(take, skips_none=True)
        ),
        "The answer says whether a task has failed: a batch may be an exception, and SystemExit is no Exception.": (
            putting(raising_what_is_an_exception)
        ),
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
        "outputs, meetings and the tasks in the queues are right in all plans, also where devices share a worker.",
    ),
    mistakes=famous(
        run_plan,
        {
            "All tasks of a clock compute its last pair: a function looks i and j up when it runs.": (
                "partial(compute, values[i], i, j)",
                "lambda: compute(values[i], i, j)",
            ),
            "clock_runner takes all answers before it raises: call it.": (
                "done = run_clock(tasks, in_queues, out_queues)",
                """done = {}
        for j in tasks:
            in_queues[j].put(tasks[j])
        for j in tasks:
            ok, payload = out_queues[j].get()
            if not ok:
                raise payload[1]
            done[j] = payload[1]""",
            ),
            "The input is looked up when the task runs, too: bind it as you bind i and j.": (
                "tasks[j] = Task(None, compute=partial(compute, values[i], i, j))",
                "x = values[i]; tasks[j] = Task(None, compute=lambda i=i, j=j: compute(x, i, j))",
            ),
            "An index is beyond its list: which are the partitions of this call, which its micro-batches?": (
                "clock_cycles(len(batches), n)",
                "clock_cycles(6, 2)",
            ),
            "A task that is handed to workers of your own is in no queue that you were given.": (
                "done = run_clock(tasks, in_queues, out_queues)",
                """with spawn_workers([torch.device("cpu")] * n) as queues:
            done = run_clock(tasks, *queues)""",
            ),
            "Put the tasks of a clock in the order of the partitions: errors and finalize go by it.": (
                "for i, j in clock:\n            tasks",
                "for i, j in reversed(list(clock)):\n            tasks",
            ),
            "Return a list, as it is asked for: the caller may go on writing into it.": (
                "return values",
                "return tuple(values)",
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
            # these keep one waiting, so they are tried last
            "The name j is looked up when the task runs: by then the loop has gone on.": (
                "partial(compute, values[i], i, j)",
                "lambda i=i: compute(values[i], i, j)",
            ),
            "The name i is looked up when the task runs: by then the loop has gone on.": (
                "partial(compute, values[i], i, j)",
                "lambda j=j: compute(values[i], i, j)",
            ),
            "The number of partitions is the n of this call.": (
                "clock_cycles(len(batches), n)",
                "clock_cycles(len(batches), 2)",
            ),
            "A clock is handed over as a whole: only then do its tasks meet.": (
                "done = run_clock(tasks, in_queues, out_queues)",
                "done = {j: run_clock({j: task}, in_queues, out_queues)[j] for j, task in tasks.items()}",
            ),
        },
        names={"spawn_workers": spawn_workers, "torch": torch},
    ),
)


check_devices = Exercise(
    "my_devices",
    reference=["cuda:0", "cuda", "cpu", "cuda:1", "cuda:1"],
    judge=judged(
        fault_of_devices, "backwards turns the answers of each device round; only one stays in its place."
    ),
    mistakes={
        "Every partition has queues of its own there: the order of the answers doesn't matter.": ["cpu"] * 5,
        "Two that share queues have exchanged their answers: which others can?": ["cuda:0"] * 2 + ["cpu"] * 3,
    },
)
