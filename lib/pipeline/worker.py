"""Workers: threads that compute tasks from a queue, so that partitions run at the same time.

    scheduler ── task ─> in_queue ─> worker: task.compute() ─> out_queue ── (ok, payload) ─> scheduler: task.finalize()

Launches of CUDA kernels and operations on a CPU release the interpreter's lock, so several workers really overlap. A
CUDA device has one worker, which all partitions on it share: what runs there runs in one order. On a CPU every
partition has a worker of its own. An operation there may use several threads by itself: torch.set_num_threads is the
caller's choice, and workers follow it (one each overlaps best: partitions × threads should not exceed the cores).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias

import torch

from lib.pipeline.microbatch import Batch
from lib.pipeline.modes import Modes
from lib.pipeline.stream import AbstractStream, use_device, use_stream


class Task:
    """Say how a partition computes a micro-batch: `compute` in a worker, then `finalize` in the scheduler's thread.

    Both run on `stream`; compute also in the modes (grad, inference, autocast) of the thread that made the task.
    """

    def __init__(
        self,
        stream: AbstractStream,
        *,
        compute: Callable[[], Batch],
        finalize: Callable[[Batch], None] | None,
        modes: Modes | None = None,
    ) -> None:
        self.stream, self.modes = stream, modes or Modes.current()
        self._compute, self._finalize = compute, finalize

    def compute(self) -> Batch:
        """Return what the partition makes of the micro-batch."""
        with self.modes.use(), use_stream(self.stream):
            return self._compute()

    def finalize(self, batch: Batch) -> None:
        """Do what must follow once the result is there, if anything."""
        if self._finalize is not None:
            with use_stream(self.stream):
                self._finalize(batch)


Result: TypeAlias = tuple[bool, Any]  # (True, (task, batch)), (False, exc_info), or at the end (False, None)
InQueue: TypeAlias = "SimpleQueue[Task | None]"
OutQueue: TypeAlias = "SimpleQueue[Result]"


def worker(in_queue: InQueue, out_queue: OutQueue, device: torch.device) -> None:
    """Compute tasks until None comes; answer each with (True, (task, batch)) or (False, exc_info).

    Whatever a task raises is an answer, SystemExit and KeyboardInterrupt as well: the scheduler raises it in the
    caller's thread. The last answer is (False, None), also should the worker itself die: nobody waits in vain.
    """
    try:
        with use_device(device):
            while (task := in_queue.get()) is not None:
                out_queue.put(_attempt(task))
                del task  # else it would keep its micro-batch alive until the next one comes
    finally:
        out_queue.put((False, None))


def _attempt(task: Task) -> Result:
    try:
        return True, (task, task.compute())
    except BaseException:
        return False, sys.exc_info()


class Workers:
    """Hold running workers for these devices: in_queues[j] and out_queues[j] belong to partition j."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.in_queues: list[InQueue] = []
        self.out_queues: list[OutQueue] = []
        self.threads: list[Thread] = []
        self._process = os.getpid()
        by_device: dict[object, tuple[InQueue, OutQueue]] = {}
        for j, device in enumerate(devices):
            if device.type == "cuda" and device.index is None:
                device = torch.device("cuda", torch.cuda.current_device())
            queues = None if device.type == "cpu" else by_device.get(device)
            if queues is None:
                queues = by_device[device] = SimpleQueue(), SimpleQueue()
                thread = Thread(target=worker, args=(*queues, device), name=f"partition {j}", daemon=True)
                self.threads.append(thread)
                thread.start()
            self.in_queues.append(queues[0])
            self.out_queues.append(queues[1])

    @property
    def alive(self) -> bool:
        """Whether the threads are those of this process: a fork leaves them behind."""
        return self._process == os.getpid()

    def stop(self) -> None:
        """Let every worker end after what is in its queue; does not wait."""
        if self.alive:
            for in_queue in set(self.in_queues):
                in_queue.put(None)

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
