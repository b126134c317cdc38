"""What both drawings of a timeline share: which rows, what is in them, the unit of time, and the words for it all."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from lib._units import PER_SECOND, format_share, format_time, unit_for
from lib.figures.style import INK, PAPER, color_of
from lib.timeline import Span, Trace

TRACK = "#f1f3f6"  # the colour of a lane while it does nothing


@dataclass(frozen=True)
class Layout:
    """Hold the rows of a timeline and the traces by name: "predicted" and "measured", those that were given."""

    rows: tuple[str, ...]
    traces: dict[str, Trace]
    unit: str

    @property
    def per_second(self) -> float:
        """How many of the unit make a second; 1 for the ticks of a model's clock, which are drawn as they are."""
        return PER_SECOND.get(self.unit, 1.0)

    @property
    def start(self) -> float:
        """When the first span of either trace starts, in the unit."""
        return min((trace.start for trace in self.traces.values() if trace), default=0.0) * self.per_second

    @property
    def end(self) -> float:
        """When the last span of either trace ends, in the unit; always after the start."""
        end = max((trace.end for trace in self.traces.values() if trace), default=0.0) * self.per_second
        return end if end > self.start else self.start + 1.0

    def rounded(self, time: float) -> float:
        """Round a time to a millionth of what is shown, so that the same run prints the same everywhere."""
        return round(time, 6 - math.floor(math.log10(self.end - self.start)))

    @property
    def axis_label(self) -> str:
        """The name of the time axis, with its unit."""
        return f"time ({self.unit})" if self.unit in PER_SECOND else f"time ({self.unit} ticks)"

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of work, in order of first appearance."""
        return tuple(dict.fromkeys(kind for trace in self.traces.values() for kind in trace.kinds))

    @property
    def shown(self) -> Trace:
        """The trace whose busy shares and bubbles are shown: what was measured, if anything was."""
        return self.traces.get("measured", self.traces.get("predicted", Trace()))

    def busy_share(self, lane: str, name: str) -> str:
        """Say which share of its trace's makespan a lane is busy."""
        trace = self.traces[name]
        return format_share(trace.busy(lane) / trace.makespan if trace.makespan else 0.0)

    @property
    def finding(self) -> str:
        """The title of a timeline that was given none."""
        if len(self.traces) < 2:
            return self.shown.headline(self.unit)
        predicted, measured = (format_time(self.traces[name].makespan, self.unit) for name in self.traces)
        return f"Predicted {predicted}, measured {measured}, {format_share(self.shown.bubble)} idle"

    @property
    def words(self) -> str:
        """The alt text: what the picture says, from the data that it draws."""
        parts = [f"Timeline of {len(self.rows)} lane{'s' * (len(self.rows) != 1)}."]
        for name, trace in self.traces.items():
            kinds = f" ({', '.join(trace.kinds)})" if trace else ""
            parts.append(
                f"{name.capitalize()}: {len(trace)} span{'s' * (len(trace) != 1)}{kinds}, makespan "
                f"{format_time(trace.makespan, self.unit)}, bubble {format_share(trace.bubble)}."
            )
            shares = [f"{lane} {self.busy_share(lane, name)}" for lane in self.rows[:8]]
            more = [f"and {len(self.rows) - 8} more"] * (len(self.rows) > 8)
            parts += [f"Busy: {', '.join(shares + more)}."] * bool(shares)
        return " ".join(parts)

    @property
    def colors(self) -> dict[str, str]:
        """A colour for each kind: the house's, made darker or lighter where an earlier kind here has the same."""
        chosen: dict[str, str] = {}
        for kind in self.kinds:
            color = color_of(kind)
            shades = (color, mixed(color, INK, 0.45), mixed(color, PAPER, 0.5))
            chosen[kind] = next((shade for shade in shades if shade not in chosen.values()), color)
        return chosen

    @property
    def letters(self) -> dict[str, str]:
        """A letter for each kind, so that hue is never the only sign: the first of its letters that is still free."""
        chosen: dict[str, str] = {}
        for kind in self.kinds:
            choices = (c for c in [*kind.upper(), *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"] if c.isalnum())
            chosen[kind] = next((c for c in choices if c not in chosen.values()), "?")
        return chosen


def lay_out(
    measured: Trace | None, predicted: Trace | None, lanes: Iterable[str] | None, unit: str | None
) -> Layout:
    """Choose rows and unit. Raises ValueError when nothing is given, KeyError for a lane that neither trace has."""
    named = (("predicted", predicted), ("measured", measured))
    given = {name: trace for name, trace in named if trace is not None}
    if not given:
        raise ValueError("there is nothing to draw: give a measured trace, a predicted one, or both")
    known = tuple(dict.fromkeys(lane for trace in given.values() for lane in trace.lanes))
    rows = known if lanes is None else tuple(lanes)
    if unknown := [lane for lane in rows if lane not in known]:
        raise KeyError(f"no lane {unknown[0]!r} in what is drawn; its lanes are {', '.join(known) or 'none'}")
    traces = {name: Trace((s for s in trace if s.lane in rows), rows) for name, trace in given.items()}
    return Layout(rows, traces, unit or unit_for(max(trace.makespan for trace in traces.values())))


def mixed(color: str, other: str, share: float) -> str:
    """Return `color` with a share of another in it; both as "#rrggbb"."""
    pairs = ((int(color[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(mine + (its - mine) * share):02x}" for mine, its in pairs)


def labels_for(span: Span, letter: str) -> tuple[str, str, str]:
    """Return what may be written into a span, longest first: ("load 3", "L3", "L")."""
    number = re.search(r"\d{1,6}$", span.label)
    return span.label, letter + (number.group() if number else ""), letter


def ticks(start: float, end: float, whole: bool = False, at_most: int = 10) -> list[tuple[float, str]]:
    """Return round numbers from start to end, and how to write them: steps of 1, 2 or 5 (`whole`: at least 1)."""
    rough = (end - start) / at_most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999999)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(start / step - 1e-9), math.floor(end / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(k * step, f"{k * step:.{digits}f}") for k in range(first, last + 1)]
