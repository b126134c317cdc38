"""Workers: threads that compute tasks from a queue, so that partitions run at the same time.

    scheduler ── task ─> in_queue ─> worker: task.compute() ─> out_queue ── Answer ─> scheduler: task.finalize()

Launches of GPU kernels and operations on a CPU release the interpreter's lock, so several workers really overlap. All
partitions on a GPU share one: what runs there runs in one order. On a CPU each has its own, with as many threads an
operation as torch.set_num_threads gives the caller (partitions × threads should not exceed the cores).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import NamedTuple, TypeAlias

import torch

from lib.runtime.device import AbstractStream, use_device, use_stream, with_index
from lib.runtime.microbatch import Batch
from lib.runtime.queues import next_answer
from lib.runtime.random_state import listening
from lib.runtime.thread_state import Modes


class Task:
    """Say how a partition computes a micro-batch: `compute` in a worker, then `finalize` in the scheduler's thread.

    Both run on `stream`; compute also in the modes (grad, inference, autocast) of the thread that made the task.
    """

    def __init__(
        self, stream: AbstractStream, *, compute: Callable[[], Batch], finalize: Callable[[Batch], None] | None
    ) -> None:
        self.stream = stream
        self.modes = Modes.current()
        self._compute = compute
        self._finalize = finalize

    def compute(self) -> Batch:
        """Return what the partition makes of the micro-batch."""
        with self.modes.use(), use_stream(self.stream):
            return self._compute()

    def finalize(self, batch: Batch) -> None:
        """Do what must follow once the result is there, if anything."""
        if self._finalize is not None:
            with use_stream(self.stream):
                self._finalize(batch)


class Done(NamedTuple):
    """A task, and what it has made."""

    task: Task
    batch: Batch


class Raised(NamedTuple):
    """What a task has raised, in the form of sys.exc_info()."""

    type: type[BaseException]
    error: BaseException
    traceback: TracebackType | None


class Answer(NamedTuple):
    """What a worker says of a task: whether it is done, and that or what it has raised.

    Whatever it raises is an answer, SystemExit and KeyboardInterrupt as well: the scheduler raises it in the caller's
    thread. A worker's last answer is (False, None), also should it die itself: nobody waits in vain.
    """

    ok: bool
    payload: Done | Raised | None

    @property
    def batch(self) -> Batch:
        """What the task has made; ask where `ok`."""
        assert isinstance(self.payload, Done)
        return self.payload.batch

    @property
    def error(self) -> BaseException:
        """What the task has raised; RuntimeError if its worker has ended instead of answering. Ask where not `ok`."""
        if self.payload is None:
            return RuntimeError("a worker has ended")
        assert isinstance(self.payload, Raised)
        return self.payload.error


def answer_of(task: Task) -> Answer:
    """Compute the task; return the answer."""
    try:
        return Answer(True, Done(task, task.compute()))
    except BaseException as error:
        return Answer(False, Raised(type(error), error, error.__traceback__))


InQueue: TypeAlias = "SimpleQueue[Task | None]"
OutQueue: TypeAlias = "SimpleQueue[Answer]"


def worker(in_queue: InQueue, out_queue: OutQueue, device: torch.device) -> None:
    """Compute tasks until None comes; answer each, and say at the end that there is no worker any more."""
    try:
        with use_device(device), listening():
            while (task := in_queue.get()) is not None:
                out_queue.put(answer_of(task))  # a call, so that the error's traceback keeps nothing of this frame
                del task  # else it would keep its micro-batch alive until the next one comes
    finally:
        out_queue.put(Answer(False, None))


# ---- the tasks of a clock: put each, then take the answers


class Inline:
    """Compute tasks in the thread that asks for their answers, one after the other, as if it were the workers."""

    def __init__(self) -> None:
        self._tasks: dict[int, Task] = {}

    def put(self, j: int, task: Task) -> None:
        """Keep a task of partition j."""
        self._tasks[j] = task

    def answers(self, partitions: Iterable[int]) -> dict[int, Answer]:
        """Compute the task of each of these partitions; return the answers by partition."""
        return {j: answer_of(self._tasks.pop(j)) for j in partitions}


class Workers:
    """Hold running workers for these devices: in_queues[j] and out_queues[j] belong to partition j."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        keys: list[object] = [j if device.type == "cpu" else with_index(device) for j, device in enumerate(devices)]
        self._first = [keys.index(key) for key in keys]  # by partition: the first one that has the same worker
        in_queues: dict[int, InQueue] = {j: SimpleQueue() for j in self._first}
        out_queues: dict[int, OutQueue] = {j: SimpleQueue() for j in self._first}
        self.in_queues = [in_queues[j] for j in self._first]
        self.out_queues = [out_queues[j] for j in self._first]
        self.threads = [
            Thread(target=worker, args=(in_queues[j], out_queues[j], devices[j]), name=f"partition {j}", daemon=True)
            for j in in_queues
        ]
        for thread in self.threads:
            thread.start()

    def put(self, j: int, task: Task) -> None:
        """Give a task to the worker of partition j."""
        self.in_queues[j].put(task)

    def answers(self, partitions: Iterable[int]) -> dict[int, Answer]:
        """Wait for an answer of each of these partitions, in rising order; return them by partition.

        The last worker is waited for first: it was asked last, and when it is ready the others mostly are. So the
        thread that waits sleeps once, and takes no turn at the interpreter from a worker that is still at work.
        Partitions that share a worker keep their order (sorted does that), since a queue answers in the order in which
        it was asked.
        """
        last_first = sorted(partitions, key=self._first.__getitem__, reverse=True)
        return {j: next_answer(self.out_queues[j]) for j in last_first}

    @property
    def alive(self) -> bool:
        """Whether the threads are there: a fork leaves them behind."""
        return all(thread.is_alive() for thread in self.threads)

    def stop(self) -> None:
        """Let every worker end after what is in its queue; does not wait. So ends who lets go of them."""
        for in_queue in set(vars(self).get("in_queues", ())):  # none, where __init__ has not run
            in_queue.put(None)

    __del__ = stop

    def join(self) -> None:
        """Wait until every worker has ended."""
        for thread in self.threads:
            thread.join()


Runner: TypeAlias = Workers | Inline
"""Who computes the tasks of a pipeline."""


@contextmanager
def spawn_workers(devices: Sequence[torch.device]) -> Iterator[tuple[list[InQueue], list[OutQueue]]]:
    """Start workers, hand out (in_queues, out_queues) with a pair per device, and wait for all work at the end."""
    workers = Workers(devices)
    try:
        yield workers.in_queues, workers.out_queues
    finally:
        workers.stop()
        workers.join()
