"""What one sees of a worker of notebook 09: it runs aside, on tasks that note what is done with them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Barrier, Event
from typing import Any

from support.kit.threads import Aside
from support.n09.answers import Worker
from support.n09.trials import ERRORS, ProbeTask, Sight, awaited_answer, describe_answer, form_of

AHEAD = "all are put before the first answer is taken"
IDLE = "the first comes after a moment without tasks"
OFTEN = "this more often than Python lets a function call itself"
NO_TASK = "nothing, only None comes"
TWO_WORKERS = "two workers do one each at the same time"


class Hasty(SimpleQueue[Any]):
    """A queue on which a limit of time runs out at once, however long it is."""

    def __init__(self) -> None:
        super().__init__()
        self.ran_out = Event()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item, or raise Empty."""
        try:
            return super().get(block, None if timeout is None else min(timeout, 0.001))
        except Empty:
            self.ran_out.set()
            raise


def ask_worker(worker: Worker, case: Sequence[str], patience: float) -> Sight:
    """Let a worker serve tasks of these kinds, then None; return what it answered, task by task, and how it ended.

    The case may end in AHEAD (two and more tasks wait before the first answer is taken), in IDLE, OFTEN or TWO_WORKERS,
    or be NO_TASK alone.
    """
    if TWO_WORKERS in case:
        return _ask_two(worker, case[:2], patience)
    kinds = [kind for kind in case if kind not in (AHEAD, IDLE, OFTEN, NO_TASK)]
    if OFTEN in case:
        kinds *= sys.getrecursionlimit() + 100
    tasks = [ProbeTask(f"task {number}", kind) for number, kind in enumerate(kinds)]
    idle = Hasty()
    in_queue: SimpleQueue[Any] = idle if IDLE in case else SimpleQueue()
    out_queue: SimpleQueue[Any] = SimpleQueue()
    for behind, task in enumerate(reversed(tasks) if AHEAD in case else ()):
        task.early = partial(lambda many: in_queue.qsize() < many, behind)
    for task in tasks if AHEAD in case or OFTEN in case else ():
        in_queue.put(task)
    with Aside(partial(worker, in_queue, out_queue)) as aside:
        for task in tasks:
            task.worker = aside.runs[0].thread
        if IDLE in case and idle.ran_out.wait(0.05):
            aside.over(0.05)

        def answer() -> object:
            return awaited_answer(out_queue, patience, lambda: not aside.over(0))

        if AHEAD in case:
            answers = [answer() for _ in tasks]  # described when all are here: none may have become another
            said = [describe_answer(*pair) for pair in zip(answers, tasks, strict=True)]
            if any(told.startswith("no answer") for told in said):
                return Sight(said, aside)
        else:
            said = []
            for task in tasks:
                if OFTEN not in case:
                    in_queue.put(task)
                said.append(describe_answer(answer(), task))
                if said[-1].startswith("no answer"):
                    return Sight([*said[:-1], said[-1] + _why_none(in_queue, answer, task, aside)], aside)
        in_queue.put(None)
        last = answer() if aside.over(patience) else out_queue
        if not aside.over(0):
            return Sight([*said, "still running after None"], aside)
    said.append(f"last answer {form_of(last)}" if last is not out_queue else "no last answer (False, None)")
    if aside.error:
        said[-1] += f" (the worker {aside.end})"
    said[-1] += f", and {out_queue.qsize()} more behind it" * (not out_queue.empty())
    return Sight([*said, aside.end if aside.error else "ended"], aside)


def _why_none(in_queue: SimpleQueue[Any], answer: Callable[[], object], task: ProbeTask, aside: Aside) -> str:
    """Say why a task has no answer: the worker has ended, or answers only when None has come."""
    if aside.end:
        return f" (the worker {aside.end})"
    in_queue.put(None)
    return " until None came" * describe_answer(answer(), task).startswith("True")


def _ask_two(worker: Worker, kinds: Sequence[str], patience: float) -> Sight:
    """Let two workers serve a task each, which wait for each other; if the first fails, the second ends behind it."""
    meeting = Barrier(2, timeout=patience / 2)
    tasks = [ProbeTask(f"task {number}", kind, meeting) for number, kind in enumerate(kinds)]
    answered = Event()
    if kinds[0] in ERRORS:
        tasks[1].until = answered
    queues: list[tuple[SimpleQueue[Any], SimpleQueue[Any]]] = [(SimpleQueue(), SimpleQueue()) for _ in tasks]
    with Aside(*(partial(worker, *pair) for pair in queues)) as aside:
        for task, (in_queue, _) in zip(tasks, queues, strict=True):
            in_queue.put(task)
        answers = []
        for _, out_queue in queues:
            answers.append(awaited_answer(out_queue, patience))
            answered.set()
        for in_queue, _ in queues:
            in_queue.put(None)
        aside.over(patience)
    said = [describe_answer(*pair) for pair in zip(answers, tasks, strict=True)]
    alone = any(task.alone for task in tasks)
    return Sight([*said, f"computed {'one at a time' if alone else 'at the same time'}"], aside)
