"""The same tasks in several processes, with a span for each (notebook 09)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from lib.arguments import integer
from lib.timeline import Recorder, Trace

START_LIMIT = 60.0  # seconds for all processes to come up


def count() -> int:
    """Add numbers in a Python loop: work that holds the interpreter's lock from beginning to end."""
    total = 0
    for number in range(400_000):
        total += number
    return total


def run_in_processes(work: Callable[[], Any], processes: int, tasks: int = 8) -> Trace:
    """Run `tasks` times `work()` in new processes, process k taking tasks k, k + processes, …; returns the spans.

    work: a function that can be imported (a fresh process knows nothing that a notebook cell defined). All
    processes begin when the last is up, so their start-up time is in no span. Raises ValueError for counts below 1,
    RuntimeError if a process failed.
    """
    processes = integer("processes", processes, at_least=1)
    tasks = integer("tasks", tasks, at_least=1)
    context = multiprocessing.get_context("spawn")
    recorder = Recorder()
    everyone_is_up = context.Barrier(processes)
    lanes = [
        context.Process(target=_lane, args=(work, k, processes, tasks, recorder, everyone_is_up), daemon=True)
        for k in range(processes)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    failed = [f"process {k} (exit code {lane.exitcode})" for k, lane in enumerate(lanes) if lane.exitcode]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} failed; its error is printed above or in the terminal")
    return recorder.trace()


def _lane(
    work: Callable[[], Any], k: int, processes: int, tasks: int, recorder: Recorder, everyone_is_up: Any
) -> None:
    everyone_is_up.wait(START_LIMIT)
    for task in range(k, tasks, processes):
        with recorder.span(f"process {k}", str(task)):
            work()
