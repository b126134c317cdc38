"""How numbers are written, everywhere alike: times, sizes, shares, counts of things, tables of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

PER_SECOND = {"s": 1.0, "ms": 1e3, "µs": 1e6, "ns": 1e9}
BYTES = {"GB": 1e9, "MB": 1e6, "kB": 1e3, "B": 1.0}

# A number is written in the largest unit in which it does not round to less than one: 0.9996 ms is "1.00 ms".
_ROUNDS_TO_ONE = 0.9995


def unit_for(seconds: float) -> str:
    """Return the unit in which a time has one to three digits before the point: "s", "ms", "µs" or "ns"."""
    if not seconds:
        return "s"
    for unit, per_second in PER_SECOND.items():
        if abs(seconds) * per_second >= _ROUNDS_TO_ONE:
            return unit
    return "ns"


def format_time(seconds: float, unit: str | None = None) -> str:
    """Write a time: "1.25 s", "80.0 ms". A unit that is no part of a second ("clock") takes it as it is."""
    if not unit:
        unit = unit_for(seconds)
    if unit not in PER_SECOND:
        return plural(float(seconds), unit)
    return f"{_three_digits(seconds * PER_SECOND[unit])} {unit}"


def format_share(share: float) -> str:
    """Write a share of one: 0.2 is "20 %"."""
    return f"{100 * share:.0f} %"


def format_bytes(size: float) -> str:
    """Write a number of bytes in decimal units: "1.25 GB"."""
    for unit, factor in BYTES.items():
        if unit != "B" and abs(size) >= _ROUNDS_TO_ONE * factor:
            return f"{_three_digits(size / factor)} {unit}"
    return f"{size:.0f} B"


def _three_digits(value: float) -> str:
    # rounded first, so that 0.9996 counts as 1 and gets as many decimals as 1
    rounded = float(f"{value:.2e}")
    if not rounded:
        return "0"
    decimals = 2 - math.floor(math.log10(abs(rounded)))
    if decimals < 0:  # 1234 keeps its last digit
        return f"{value:.0f}"
    return f"{rounded:.{decimals}f}"


def plural(count: float, noun: str, many: str | None = None) -> str:
    """Write a number of things: "1 rank", "2 ranks", "1.5 clocks"; `many` where it is not the noun with an s."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    if count == 1:
        return f"{number} {noun}"
    return f"{number} {many or f'{noun}s'}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """Write rows of equal length as aligned columns: the first to the left, the others to the right."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        columns = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
        lines.append("  ".join(columns).rstrip())
    return "\n".join(lines)
