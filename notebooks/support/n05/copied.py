"""Whether what has been collected so far is copied again with every block: no time is measured, objects are compared.

An array, a list or bytes to which something is added by making a new one is another object after each block, and a
larger one. What grows in place, or is joined once at the end, is not.
"""

from __future__ import annotations

import array
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np

LARGE = 40_000  # bytes: what is made anew for each block of a trial has fewer
_PLAIN = (np.ndarray, list, tuple, bytes, bytearray, array.array, str)


@dataclass
class LocalsWatch:
    """The large objects that the functions above hold by name, looked at whenever a block is read."""

    looking: bool = False
    looks: int = 0
    anew: int = 0
    _before: dict[int, int] = field(default_factory=dict)

    def look(self) -> None:
        """Compare what the functions that called hold now with what they held at the last look."""
        if not self.looking:  # a frame's names keep what they have named: no memory can be measured then
            return
        held: dict[int, int] = {}
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not frame.f_code.co_filename.endswith(_OURS):
            for value in [*frame.f_locals.values()]:
                size = _size(value)
                if size > LARGE:
                    held[id(value)] = size
            frame = frame.f_back
        largest = max(held, key=lambda name: held[name], default=0)
        self.looks += 1
        self.anew += bool(held) and largest not in self._before
        self._before = held


_OURS = ("trials_index.py", "raised.py")


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return sys.getsizeof(value) if isinstance(value, _PLAIN) else 0
