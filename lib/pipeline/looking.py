"""Who has looked at its partition in which call of backward: what changes while it runs is the work of hooks."""

from __future__ import annotations

from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch

from lib.pipeline.structure import Change, Structure


class _Backward:
    """One call of backward, and who has looked in it; the engine holds it as long as it lasts."""

    def __init__(self) -> None:
        self.looked: list[Structure] = []
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(self.end)

    def end(self) -> None:
        """Take what has changed meanwhile for the work of hooks."""
        for structure in self.looked:
            structure.learn()


_backwards: WeakValueDictionary[int, _Backward] = WeakValueDictionary()
"""Those that run now, by torch's number."""

_lock = Lock()  # of it: each device has a thread of its own in a backward


def look_in_backward(structure: Structure, number: int) -> list[Change]:
    """Let it look in the call of backward that runs, which has this number; return what has changed before."""
    with _lock:
        now = _backwards.get(number)
        if now is None:
            now = _Backward()
            _backwards[number] = now
        found = structure.look(now.looked)
        now.looked.append(structure)
    return found
