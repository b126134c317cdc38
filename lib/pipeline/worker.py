"""Workers: threads that compute tasks from a queue, so that partitions run at the same time.

    scheduler ── task ─> in_queue ─> worker: task.compute() ─> out_queue ── (ok, payload) ─> scheduler: task.finalize()

Launches of GPU kernels and operations on a CPU release the interpreter's lock, so several workers really overlap. All
partitions on a GPU share one: what runs there runs in one order. On a CPU each has its own, with as many threads an
operation as torch.set_num_threads gives the caller (partitions × threads should not exceed the cores).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import torch

from lib.runtime.device import AbstractStream, use_device, use_stream, with_index
from lib.runtime.microbatch import Batch
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


Result: TypeAlias = tuple[bool, Any]
"""A worker's answer: (True, (task, batch)); (False, exc_info) if the task has raised; at the end (False, None)."""
InQueue: TypeAlias = "SimpleQueue[Task | None]"
OutQueue: TypeAlias = "SimpleQueue[Result]"


def worker(in_queue: InQueue, out_queue: OutQueue, device: torch.device) -> None:
    """Compute tasks until None comes; answer each with (True, (task, batch)) or (False, exc_info).

    Whatever a task raises is an answer, SystemExit and KeyboardInterrupt as well: the scheduler raises it in the
    caller's thread. The last answer is (False, None), also should the worker itself die: nobody waits in vain.
    """
    try:
        with use_device(device), listening():
            while (task := in_queue.get()) is not None:
                out_queue.put(attempt(task))  # a call, so that the error's traceback keeps nothing of this frame
                del task  # else it would keep its micro-batch alive until the next one comes
    finally:
        out_queue.put((False, None))


def attempt(task: Task) -> Result:
    """Compute the task; return the answer."""
    try:
        return True, (task, task.compute())
    except BaseException:
        return False, sys.exc_info()


def error_of(result: Result) -> BaseException:
    """Return what a task has raised; RuntimeError if its worker has ended instead of answering."""
    _, exc_info = result
    if exc_info is None:
        return RuntimeError("a worker has ended")
    error: BaseException = exc_info[1]
    return error


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

    def last_first(self, partitions: Iterable[int]) -> list[int]:
        """Return in which order to wait for the answers of these partitions, which are given in rising order.

        The last worker first: it was asked last, and when it is ready the others mostly are. So the thread that waits
        sleeps once, and takes no turn at the interpreter from a worker that is still at work. Partitions that share a
        worker keep their order (sorted does that), since a queue answers in the order in which it was asked.
        """
        return sorted(partitions, key=self._first.__getitem__, reverse=True)

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


@contextmanager
def spawn_workers(devices: Sequence[torch.device]) -> Iterator[tuple[list[InQueue], list[OutQueue]]]:
    """Start workers, hand out (in_queues, out_queues) with a pair per device, and wait for all work at the end."""
    workers = Workers(devices)
    try:
        yield workers.in_queues, workers.out_queues
    finally:
        workers.stop()
        workers.join()
