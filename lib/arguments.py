"""Checks of arguments that modules share: each raises with the value, what is wrong with it, and the way out."""

from __future__ import annotations

import math
import operator
import reprlib
from typing import Any, SupportsFloat

import numpy as np
import numpy.typing as npt


class NotAnIntegerError(TypeError, ValueError):
    """A size, rank or count that is no integer.

    Python itself raises TypeError for such a value (`range(2.5)`), torch's samplers raise ValueError
    (`BatchSampler(…, batch_size=2.5)`); this is both, so either habit of catching it works.
    """


_short = reprlib.Repr()  # the whole of a dataset would be a message of megabytes
_short.maxstring = _short.maxother = 80


def integer(name: str, value: object, *, at_least: int | None = None, below: int | None = None) -> int:
    """Return `value` as an int, or raise with the value and the bounds.

    Accepts whatever has `__index__` (int, numpy and torch integers), but not bool: `rank=True` is a mistake.
    Raises NotAnIntegerError (a TypeError and a ValueError) or ValueError.
    """
    if isinstance(value, bool):
        raise NotAnIntegerError(f"{name} must be an integer, not {value!r}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        kind = type(value).__name__
        raise NotAnIntegerError(f"{name} must be an integer, not {_short.repr(value)} of type {kind}") from None
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {number}")
    if below is not None and number >= below:
        raise ValueError(f"{name} must be below {below}, not {number}")
    return number


def integers(name: str, values: Any) -> npt.NDArray[Any]:
    """Return a list, a CPU tensor or an array as an array of integers; raises NotAnIntegerError if it holds others."""
    array = np.asarray(values)
    if not array.size:  # an empty list would make an array of floats
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise NotAnIntegerError(f"{name} must be integers, not {array.dtype}")
    return array


def seconds_above_zero(name: str, value: float) -> float:
    """Return `value` as a float; raises ValueError for what is no finite number of seconds above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")
    return float(value)


LONGEST_SLEEP = 86_400
"""Seconds, a day: far beyond what a program means, and far below where a clock in nanoseconds overflows."""


def seconds_to_sleep(value: object) -> float:
    """Return `value` as a float; raises TypeError for what is no number, ValueError for none of 0 to LONGEST_SLEEP."""
    if isinstance(value, bool) or not isinstance(value, SupportsFloat):
        raise TypeError(f"seconds must be a number, such as 0.5, not {value!r}")
    if not 0 <= float(value) <= LONGEST_SLEEP:  # NaN is neither
        raise ValueError(f"seconds must be 0 or more, and at most {LONGEST_SLEEP}, not {value!r}")
    return float(value)


def rank_of(rank: object, world_size: int, *, world: str = "world_size") -> int:
    """Return `rank` as an int in 0..world_size-1; raises ValueError that names both (as torch does: "Invalid rank")."""
    number = integer("rank", rank)
    if not 0 <= number < world_size:
        raise ValueError(
            f"Invalid rank: rank {number} is out of range for {world} {world_size}; ranks are 0..{world_size - 1}"
        )
    return number
