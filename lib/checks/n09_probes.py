"""How notebook 09's checks look at a worker or a scheduler: through real queues and threads, and without a clock.

Tasks that must overlap wait for each other, so nothing depends on how fast they are, and every wait has an end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any, TypeAlias, cast

from lib.checks import n09_answers as answers
from lib.checks.base import Verdict, not_attempted, untouched

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
