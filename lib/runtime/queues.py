"""Wait for a queue's next item, so that the thread that waits can still be interrupted."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")

SECONDS_ASLEEP = 0.1


def next_answer(queue: SimpleQueue[Item]) -> Item:
    """Return what comes next, however long it takes; Ctrl-C ends the wait with KeyboardInterrupt.

    A signal that arrives just before a thread falls asleep on a lock does not wake it. So no sleep is long: after each
    one Python looks for signals.
    """
    while True:
        try:
            return queue.get(timeout=SECONDS_ASLEEP)
        except Empty:
            continue
