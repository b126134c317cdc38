"""What one sees of a scheduler of notebook 09: it runs aside, on tasks that note what is done with them."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from queue import Empty, SimpleQueue
from threading import Barrier, Event, Thread
from typing import Any

from support.kit.threads import Aside
from support.n09.answers import Scheduler, worker_that
from support.n09.trials import ERRORS, FAILS_LATER, SHARED, TWO_SHARE, ProbeTask, Sight
from support.n09.worker_trials import Hasty


class Missed(SimpleQueue[Any]):
    """A queue in which the first item comes just behind the first look that doesn't wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = False

    def empty(self) -> bool:
        """Say whether nothing is there; the first time wait until something is, and say that nothing was."""
        if self.looked:
            return super().empty()
        self.looked = True
        for _ in range(50):
            if not super().empty():
                break
            Event().wait(0.01)
        return True

    def qsize(self) -> int:
        """Return how many items are there; the first time as `empty`."""
        return 0 if self.empty() else super().qsize()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item, or raise Empty."""
        if not block and not self.looked and self.empty():
            raise Empty
        return super().get(block, timeout)

    def get_nowait(self) -> Any:
        """Return the next item, or raise Empty."""
        return self.get(block=False)


def ask_scheduler(scheduler: Scheduler, case: Sequence[str], patience: float) -> Sight:
    """Let a scheduler run a clock in which partition j has the task `case[j]` ("idle": none); say what one sees."""
    finalized: list[tuple[ProbeTask, object]] = []
    shared = SHARED in case
    kinds = [kind for kind in case if kind not in (SHARED, TWO_SHARE)]
    apart = TWO_SHARE in case
    own = [0 if shared or (apart and j == 3) else j for j in range(len(kinds))]  # by partition: its worker
    busy = [j for j, kind in enumerate(kinds) if kind != "idle"]
    meets = {own[j]: j for j in busy}.values()  # the last task of each worker
    meeting = Barrier(len(meets), timeout=patience / 2)
    tasks = {j: ProbeTask(f"task {j}", kinds[j], meeting if j in meets else None) for j in busy}
    for task in tasks.values():
        task.finalized = finalized
    own_queue = Hasty if "late" in kinds else SimpleQueue[Any]
    answers = Missed if shared else own_queue
    queues = {number: (SimpleQueue[Any](), answers()) for number in own}
    in_queues, out_queues = ([queues[number][side] for number in own] for side in (0, 1))
    workers = [
        Thread(target=worker_that(done=0), args=pair, daemon=True, name=f"worker {number}")
        for number, pair in queues.items()
    ]
    for worker in workers:
        worker.start()

    def work() -> object:
        batches = scheduler(dict(tasks), in_queues, out_queues)
        return dict(sorted(batches.items(), key=str)) if isinstance(batches, dict) else batches

    def answers_left() -> int:
        return sum(SimpleQueue.qsize(out_queue) > 0 for out_queue in out_queues)

    left: int | None = None
    with Aside(work) as aside:
        if aside.over(2 * patience):
            over = _whose_error(aside.error, tasks.values()) or aside.end
        else:
            over = "still waiting for an answer"
            left = answers_left()  # now: what ends the thread puts something into every queue that it knows
    for (in_queue, _), worker in zip(queues.values(), workers, strict=True):
        in_queue.put(None)
        worker.join(patience)  # a scheduler that raises early leaves tasks at work: look when they are done
    # Where our None is left, another one came first.
    home = sum(not in_queue.empty() for in_queue, _ in queues.values())
    met = "not all computed" if any(task.alone for task in tasks.values()) else "computed"
    there = sum(task.computed for j, task in tasks.items() if task.ran_in == f"worker {own[j]}")
    if left is None:
        left = answers_left()
    said = [f"{met} together", over, f"tasks computed by their own worker: {there}", f"answers left: {left}"]
    # after an error the run is over
    if not any(kind in (*ERRORS, "RuntimeError", FAILS_LATER) for kind in kinds):
        told = [_how_finalized(task, batch, aside.runs[0].thread) for task, batch in finalized]
        said.append(f"finalized: {', '.join(told) or 'none'}")
    said += [f"workers sent home: {home}"] * (home > 0)
    batches = aside.runs[0].result
    if isinstance(batches, dict):
        copies = sum(j in batches and batches[j] is not task.batch for j, task in tasks.items())
        said += [f"returned copies of batches: {copies}"] * (copies > 0)
    return Sight(said, aside)


def _how_finalized(task: ProbeTask, batch: object, scheduler: Thread) -> str:
    other_batch = " with another batch" * (batch is not task.batch)
    return task.label + other_batch + " in another thread" * (task.finalized_by is not scheduler)


def _whose_error(error: BaseException | None, tasks: Iterable[ProbeTask]) -> str:
    """Say which task's error a scheduler has raised, itself or in another one; "" if it is no task's."""
    if error is None:
        return ""
    found = ""
    for task in tasks:
        if error is task.error:
            found = f"raised the {type(error).__name__} of {task.label}"
            if "compute" not in [frame.name for frame in traceback.extract_tb(error.__traceback__)]:
                found += " without its traceback"
        elif task.error in (error.__cause__, error.__context__) or repr(error) == repr(task.error):
            found = f"raised another exception in place of the {type(task.error).__name__} of {task.label}"
    return found
