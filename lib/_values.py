"""Values that every module of `lib` checks or writes in the same way: numbers, ranks, times, sizes, files."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PER_SECOND = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}
BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}


def _three_digits(value: float) -> str:
    # rounded first, so that 0.9996 counts as 1 and gets as many decimals as 1
    rounded = float(f"{value:.2e}")
    digits = 2 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:.{max(digits, 0)}f}" if digits >= 0 else f"{value:.0f}"


def unit_for(seconds: float) -> str:
    """Return the unit in which a time has one to three digits before the point: "s", "ms", "µs" or "ns"."""
    fits = (unit for unit, per_second in PER_SECOND.items() if abs(seconds) * per_second >= 0.9995)
    return next(fits, "ns" if seconds else "s")


def format_time(seconds: float, unit: str | None = None) -> str:
    """Write a time: "1.25 s", "80.0 ms". A unit that is no part of a second ("clock") takes it as it is."""
    unit = unit or unit_for(seconds)
    if unit not in PER_SECOND:
        return plural(float(seconds), unit)
    return f"{_three_digits(seconds * PER_SECOND[unit])} {unit}"


def format_share(share: float) -> str:
    """Write a share of one: 0.2 is "20 %"."""
    return f"{100 * share:.0f} %"


def format_bytes(size: float) -> str:
    """Write a number of bytes in decimal units: "1.25 GB"."""
    unit = next((unit for unit, factor in BYTES.items() if abs(size) >= 0.9995 * factor), "B")
    return f"{size:.0f} B" if unit == "B" else f"{_three_digits(size / BYTES[unit])} {unit}"


def plural(count: float, noun: str, many: str | None = None) -> str:
    """Write a number of things: "1 rank", "2 ranks", "1.5 clocks"; `many` where it is not the noun with an s."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun if count == 1 else many or f'{noun}s'}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Write rows of equal length as aligned columns: the first to the left, the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    return "\n".join("  ".join(line).rstrip() for line in lines)


@contextlib.contextmanager
def whole_or_not_at_all(path: str | os.PathLike[str], mark: str | None = None) -> Iterator[Path]:
    """Yield a name beside `path`; what is written there gets the name `path` if all goes well, and is removed if not.

    mark: makes the name one that no other writer has; by default that of this process and thread.
    """
    path, mark = Path(path), mark or f"{os.getpid()}.{threading.get_ident()}"
    unfinished = path.with_name(f".{path.name}.{mark}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


# ---- Argument checks that every module of `lib` shares: the value, what is wrong with it, and the way out.


class NotAnIntegerError(TypeError, ValueError):
    """A size, rank or count that is no integer.

    Python itself raises TypeError for such a value (`range(2.5)`), torch's samplers raise ValueError
    (`BatchSampler(…, batch_size=2.5)`); this is both, so either habit of catching it works.
    """


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
        raise NotAnIntegerError(f"{name} must be an integer, not {value!r} of type {type(value).__name__}") from None
    if at_least is not None and number < at_least:
        raise ValueError(f"{name} must be at least {at_least}, not {number}")
    if below is not None and number >= below:
        raise ValueError(f"{name} must be below {below}, not {number}")
    return number


def integers(name: str, values: Any) -> npt.NDArray[Any]:
    """Return a list, a CPU tensor or an array as an array of integers; raises NotAnIntegerError if it holds others."""
    array = np.asarray(values)
    if array.size and array.dtype.kind not in "iu":
        raise NotAnIntegerError(f"{name} must be integers, not {array.dtype}")
    return array if array.size else array.astype(np.int64)


def seconds_above_zero(name: str, value: float) -> float:
    """Return `value` as a float; raises ValueError for what is no finite number of seconds above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")
    return float(value)


def rank_of(rank: object, world_size: int, *, world: str = "world_size") -> int:
    """Return `rank` as an int in 0..world_size-1; raises ValueError that names both (as torch does: "Invalid rank")."""
    number = integer("rank", rank)
    if not 0 <= number < world_size:
        raise ValueError(
            f"Invalid rank: rank {number} is out of range for {world} {world_size}; ranks are 0..{world_size - 1}"
        )
    return number
