"""Right and wrong answers to the exercises of notebook 09: each is made by switches that say what is otherwise."""

# mypy: allow-untyped-calls

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias

import torch

from support.built import Task, clock_cycles, run_clock

Worker: TypeAlias = Callable[["SimpleQueue[Any]", "SimpleQueue[Any]"], None]
Queues: TypeAlias = Sequence["SimpleQueue[Any]"]
Scheduler: TypeAlias = Callable[[Mapping[int, Any], Queues, Queues], Mapping[int, object]]
_LOCK = Lock()


# ---- exercise 1: worker


def worker_that(
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


serve = worker_that()


def finalized(task: Any) -> tuple[Any, object]:
    """Compute a task and finalize it at once, in the same thread."""
    batch = task.compute()
    task.finalize(batch)
    return task, batch


def under_a_lock(task: Any) -> tuple[Any, object]:
    """Compute a task while no other thread computes one."""
    with _LOCK:
        return task, task.compute()


def stale(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Keep the error of an earlier task."""
    error: Any = None
    while (task := in_queue.get()) is not None:
        batch: Any = None
        try:
            batch = task.compute()
        except BaseException:
            error = sys.exc_info()
        out_queue.put((True, (task, batch)) if error is None else (False, error))
    out_queue.put((False, None))


def asking(found: Callable[[Any], bool]) -> Worker:
    """Make a worker that asks the batch whether the task has failed."""

    def ask(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
        while (task := in_queue.get()) is not None:
            batch: Any = None
            error: Any = None
            try:
                batch = task.compute()
            except BaseException:
                error = sys.exc_info()
            out_queue.put((True, (task, batch)) if found(batch) else (False, error))
        out_queue.put((False, None))

    return ask


def asking_the_error(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Ask the error itself whether there is one."""
    while (task := in_queue.get()) is not None:
        batch: Any = None
        error: Any = None
        try:
            batch = task.compute()
        except BaseException as raised:
            error = raised
            told = sys.exc_info()
        out_queue.put((False, told) if error else (True, (task, batch)))
    out_queue.put((False, None))


def one_answer(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Put the same list for every task."""
    answer: list[Any] = [None, None]
    while (task := in_queue.get()) is not None:
        try:
            answer[:] = True, (task, task.compute())
        except BaseException:
            answer[:] = False, sys.exc_info()
        out_queue.put(answer)
    out_queue.put((False, None))


def last_come_first(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Serve what waits from the end of the queue."""
    going = True
    while going:
        waiting = [in_queue.get()]
        with suppress(Empty):
            while True:
                waiting.append(in_queue.get_nowait())
        going = None not in [None if task is None else 0 for task in waiting]
        inner: SimpleQueue[Any] = SimpleQueue()
        for task in [task for task in waiting if task is not None][::-1]:
            inner.put(task)
        inner.put(None)
        worker_that(done=0)(inner, out_queue)
    out_queue.put((False, None))


def again(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Serve on, behind an error, by calling itself."""
    while (task := in_queue.get()) is not None:
        try:
            answer: Any = True, (task, task.compute())
        except BaseException:
            out_queue.put((False, sys.exc_info()))
            again(in_queue, out_queue)
            return
        out_queue.put(answer)
    out_queue.put((False, None))


def at_the_end(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Serve all tasks before the first answer goes out."""
    held: SimpleQueue[Any] = SimpleQueue()
    serve(in_queue, held)
    while not held.empty():
        out_queue.put(held.get())


def thread_for_each(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Start a thread for every task."""
    threads: list[Thread] = []
    while (task := in_queue.get()) is not None:
        one: SimpleQueue[Any] = SimpleQueue()
        one.put(task)
        one.put(None)
        threads.append(Thread(target=worker_that(done=0), args=(one, out_queue)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    out_queue.put((False, None))


def with_a_limit(limit: float, *, last_word: bool) -> Worker:
    """Make a worker that ends when no task has come for a while."""

    def serve(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
        with suppress(Empty):
            while (task := in_queue.get(timeout=limit)) is not None:
                one: SimpleQueue[Any] = SimpleQueue()
                one.put(task)
                one.put(None)
                worker_that(done=0)(one, out_queue)
            out_queue.put((False, None))
            return
        if last_word:
            out_queue.put((False, None))

    return serve


def told_by_its_type(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Take a batch that is a tuple for an error."""
    while (task := in_queue.get()) is not None:
        try:
            batch = task.compute()
        except BaseException:
            batch = sys.exc_info()
        out_queue.put((False, batch) if isinstance(batch, tuple) else (True, (task, batch)))
    out_queue.put((False, None))


def told_by_being_an_error(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Take a batch that is an exception for an error."""
    while (task := in_queue.get()) is not None:
        try:
            batch = task.compute()
        except BaseException as error:
            batch = error
        failed = isinstance(batch, BaseException)
        out_queue.put((False, (type(batch), batch, batch.__traceback__)) if failed else (True, (task, batch)))
    out_queue.put((False, None))


def until_none_fails(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Take the AttributeError of None.compute() for the end."""
    while True:
        try:
            task = in_queue.get()
            out_queue.put((True, (task, task.compute())))
        except AttributeError:
            out_queue.put((False, None))
            return
        except BaseException:
            out_queue.put((False, sys.exc_info()))


def twice(in_queue: SimpleQueue[Any], out_queue: SimpleQueue[Any]) -> None:
    """Compute a task that has raised once more."""
    while (task := in_queue.get()) is not None:
        for _ in range(2):
            try:
                answer: Any = True, (task, task.compute())
                break
            except BaseException:
                answer = False, sys.exc_info()
        out_queue.put(answer)
    out_queue.put((False, None))


# ---- exercise 2: spawn_workers


def lists(pairs: Iterable[Any]) -> tuple[list[Any], ...]:
    """Return the first of each pair in a list, and the second in another."""
    return tuple(map(list, zip(*pairs, strict=True)))


def spawning(
    key: Callable[[int, torch.device], object] = lambda j, device: (
        j if device.type == "cpu" else (device.type, device.index or 0)
    ),
    *,
    start: bool = True,
    none: bool = True,
    join: Callable[[list[Thread]], Iterable[Thread]] = lambda threads: threads,
    limit: float | None = None,
    late: bool = False,
    always: bool = True,
    ends_after: type[BaseException] | tuple[type[BaseException], ...] | None = None,
    crossed: bool = False,
    empties: bool = False,
    hand: Callable[[list[Any]], Any] = lists,
) -> Callable[..., Any]:
    """Make a spawn_workers: as it is, right. Wrong are others, by what they leave out or mix up."""

    @contextmanager
    def spawn(devices: Sequence[torch.device]) -> Iterator[Any]:
        keys = [key(j, device) for j, device in enumerate(devices)]
        pairs = {each: (SimpleQueue[Any](), SimpleQueue[Any]()) for each in keys}
        threads = []
        last: list[Any] = []
        for pair in pairs.values():
            last[:] = pair
            ends = last if late else pair
            target = partial(lambda ends: serve(*ends[::-1] if crossed else ends), ends)
            threads.append(Thread(target=target, daemon=True))
            if start:
                threads[-1].start()
        leaving = always
        try:
            yield hand([pairs[each] for each in keys])
            leaving = True
        except BaseException as error:
            leaving = always or (ends_after is not None and isinstance(error, ends_after))
            raise
        finally:
            for in_queue, _ in pairs.values() if leaving and none else ():
                with suppress(Empty):
                    while empties:
                        in_queue.get_nowait()
                in_queue.put(None)
            for thread in join(threads) if leaving and start else ():
                thread.join(limit)

    return spawn


def spawning_by_the_first(devices: Sequence[torch.device]) -> Any:
    """Look at the first device only, to see whether workers are shared."""
    shared = devices[0].type != "cpu"
    return spawning(lambda j, device: (device.type, device.index or 0) if shared else j)(devices)


# ---- exercise 3: run_clock


def take(
    out_queues: Iterable[tuple[int, SimpleQueue[Any]]],
    *,
    finalize: bool = True,
    at_once: bool = False,
    while_taking: bool = False,
    raised: int | None = 0,
    new: bool = False,
    bare: bool = False,
    skips_none: bool = False,
    asks_bool: bool = False,
    limit: float | None = None,
) -> dict[int, object]:
    """Take all answers and raise error number `raised`, or a `new` one; or `at_once`, before the rest is taken."""
    answers: dict[int, Any] = {}
    errors: list[BaseException] = []
    for j, out_queue in out_queues:
        ok, payload = out_queue.get(timeout=limit)
        if ok:
            answers[j] = payload
            if finalize and while_taking:
                payload[0].finalize(payload[1])
        else:
            errors.append(payload[1].with_traceback(None) if bare else payload[1])
        if errors and at_once:
            break
    if asks_bool:
        errors = [error for error in errors if error]
    if errors and raised is not None:
        if new:
            raise RuntimeError("a task failed") from errors[raised]
        raise errors[raised]
    for task, batch in answers.values() if finalize and not while_taking else ():
        task.finalize(batch)
    return {j: batch for j, (_, batch) in answers.items() if batch is not None or not skips_none}


def putting(take: Callable[[list[tuple[int, SimpleQueue[Any]]]], dict[int, object]]) -> Scheduler:
    """Make a scheduler that puts all tasks and has its own way of taking answers."""

    def run(tasks: Mapping[int, Any], in_queues: Queues, out_queues: Queues) -> dict[int, object]:
        for j, task in tasks.items():
            in_queues[j].put(task)
        return take([(j, out_queues[j]) for j in tasks])

    return run


def raising_what_is_an_exception(out_queues: list[tuple[int, SimpleQueue[Any]]]) -> dict[int, object]:
    """Tell from a batch whether its task has failed."""
    answers = {j: out_queue.get() for j, out_queue in out_queues}
    batches = {j: payload[1] for j, (_, payload) in answers.items()}
    for batch in batches.values():
        if isinstance(batch, Exception):
            raise batch
    for _, payload in answers.values():
        if isinstance(payload[0], type):
            continue  # sys.exc_info() of what is no Exception
        payload[0].finalize(payload[1])
    return batches


def from_the_last(out_queues: list[tuple[int, SimpleQueue[Any]]]) -> dict[int, object]:
    """Take the answer of the last partition first, as if each had a queue of its own."""
    answers = [(out_queue, out_queue.get()) for _, out_queue in reversed(out_queues)]
    for out_queue, answer in reversed(answers):
        out_queue.put(answer)
    return take(out_queues)


def emptying(tasks: Mapping[int, Any], in_queues: Queues, out_queues: Queues) -> Mapping[int, object]:
    """Raise at once, and take what lies in the queues just then, as somebody repairs an error that is raised early."""
    try:
        return putting(partial(take, at_once=True))(tasks, in_queues, out_queues)
    finally:
        for j in tasks:
            while not out_queues[j].empty():
                out_queues[j].get()


def by_arrival(out_queues: list[tuple[int, SimpleQueue[Any]]]) -> dict[int, object]:
    """Take and finalize whatever is there first."""
    waiting = dict(out_queues)
    batches: dict[int, object] = {}
    while waiting:
        for j, out_queue in list(waiting.items()):
            with suppress(Empty):
                ok, payload = out_queue.get(timeout=0.001)
                del waiting[j]
                if not ok:
                    raise payload[1]
                task, batches[j] = payload
                task.finalize(batches[j])
    return batches


# ---- exercise 4: run_plan


def run_plan(compute, batches, n, in_queues, out_queues):  # type: ignore[no-untyped-def]  # as the solution has it
    """Send all micro-batches through n partitions, clock by clock; return the outputs."""
    values = list(batches)
    for clock in clock_cycles(len(batches), n):
        tasks = {}
        for i, j in clock:
            tasks[j] = Task(None, compute=partial(compute, values[i], i, j))
        done = run_clock(tasks, in_queues, out_queues)
        for i, j in clock:
            values[i] = done[j]
    return values
