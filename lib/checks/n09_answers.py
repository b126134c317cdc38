"""The reference answers of notebook 09's exercises, and the famous wrong ones that its checks know by name."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, TypeAlias

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
