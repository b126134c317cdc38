"""Span and Trace: pieces of work in lanes, and what can be asked of them; a Chrome trace is the file of one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from lib.files import whole_or_not_at_all
from lib.text import format_share, format_time, plural, table, unit_for

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Span:
    """Name one piece of work: `label` ran in `lane` from `start` to `end`, in seconds (or ticks of a model's clock).

    `kind` says what sort of work it was ("load", "copy", "forward", …): the colour, and what `Trace.overlap` compares.
    Raises TypeError for a lane, label or kind that is no str, ValueError unless start <= end, both finite.
    """

    lane: str
    label: str
    start: float
    end: float
    kind: str = "compute"

    def __post_init__(self) -> None:
        if not (isinstance(self.lane, str) and isinstance(self.label, str) and isinstance(self.kind, str)):
            raise TypeError(f"lane, label and kind of a span are str, not {self.lane!r}, {self.label!r}, {self.kind!r}")
        # plain floats: a numpy or torch scalar would print differently, and JSON does not know it
        object.__setattr__(self, "start", float(self.start))
        object.__setattr__(self, "end", float(self.end))
        if not -math.inf < self.start <= self.end < math.inf:
            raise ValueError(
                f"span {self.label!r} in lane {self.lane!r} must have finite times with start <= end, "
                f"not start {self.start} and end {self.end}"
            )

    @property
    def duration(self) -> float:
        """Seconds from start to end."""
        return self.end - self.start


def union(spans: Iterable[Span]) -> list[Interval]:
    """Return the times at which any of the spans runs, as disjoint intervals in ascending order."""
    merged: list[Interval] = []
    for start, end in sorted((span.start, span.end) for span in spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _length(intervals: Iterable[Interval]) -> float:
    return math.fsum(end - start for start, end in intervals)


def _both(a: list[Interval], b: list[Interval]) -> Iterator[Interval]:
    """Yield the times that lie in both unions; whichever interval ends first is done with."""
    i = j = 0
    while i < len(a) and j < len(b):
        start = max(a[i][0], b[j][0])
        end = min(a[i][1], b[j][1])
        if start < end:
            yield start, end
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1


@dataclass(frozen=True, init=False, repr=False)
class Trace(Sequence[Span]):
    """Hold spans in order of their start (spans that start together keep the order given). Immutable.

    lanes: the rows, first to last. Those that are not named follow in order of first appearance; a lane may be named
    that has no span: a rank that never ran counts as idle. Raises ValueError for a lane that is named twice.
    """

    spans: tuple[Span, ...] = ()
    lanes: tuple[str, ...] = ()

    def __init__(self, spans: Iterable[Span] = (), lanes: Iterable[str] = ()) -> None:
        if isinstance(lanes, str):
            raise TypeError(f"lanes is a sequence of names, not the one string {lanes!r}")
        named = tuple(lanes)
        ordered = tuple(sorted(spans, key=lambda span: span.start))
        if len(set(named)) < len(named):
            raise ValueError(f"lanes must differ: {', '.join(named)}")
        object.__setattr__(self, "spans", ordered)
        object.__setattr__(self, "lanes", tuple(dict.fromkeys((*named, *(span.lane for span in ordered)))))

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> Trace: ...
    def __getitem__(self, index: int | slice) -> Span | Trace:
        if isinstance(index, slice):  # a trace of some spans keeps all lanes: who does nothing in it is idle
            return Trace(self.spans[index], self.lanes)
        return self.spans[index]

    def __len__(self) -> int:
        return len(self.spans)

    @property
    def start(self) -> float:
        """When the first span starts; 0.0 if there is none."""
        return self.spans[0].start if self.spans else 0.0

    @property
    def end(self) -> float:
        """When the last span ends; 0.0 if there is none."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return self.end - self.start

    @property
    def bubble(self) -> float:
        """Idle share of all lanes between the first start and the last end: 0.0 to 1.0, and 0.0 for an empty trace."""
        area = self.makespan * len(self.lanes)
        if not area:
            return 0.0
        busy = math.fsum(map(self.busy, self.lanes))
        return max(0.0, 1 - busy / area)  # rounding could leave a full trace just below 0

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of work, in order of first appearance."""
        return tuple(dict.fromkeys(span.kind for span in self.spans))

    def busy(self, lane: str) -> float:
        """Return the seconds in which `lane` does anything; spans that overlap in it count once. Raises KeyError."""
        return _length(union(self.only(lane=lane)))

    def active(self, kind: str) -> float:
        """Return the seconds in which any lane does work of this kind; 0.0 if none ever does."""
        return _length(union(self.only(kind=kind)))

    def overlap(self, kind_a: str, kind_b: str) -> float:
        """Return the seconds in which both kinds of work go on somewhere at the same time."""
        return _length(_both(union(self.only(kind=kind_a)), union(self.only(kind=kind_b))))

    def only(self, *, kind: str | Collection[str] | None = None, lane: str | Collection[str] | None = None) -> Trace:
        """Return the spans of some kinds, or of some lanes. With kinds all lanes stay: what is left out is idle there.

        Raises KeyError for a lane that the trace does not have.
        """
        kinds = _names(kind, self.kinds)
        lanes = _names(lane, self.lanes)
        unknown = [name for name in lanes if name not in self.lanes]
        if unknown:
            raise KeyError(f"no lane {unknown[0]!r} in this trace; its lanes are {', '.join(self.lanes) or 'none'}")
        return Trace((span for span in self.spans if span.kind in kinds and span.lane in lanes), lanes)

    def _moved(self, factor: float, seconds: float) -> Trace:
        def moved(span: Span) -> Span:
            return Span(span.lane, span.label, factor * span.start + seconds, factor * span.end + seconds, span.kind)

        return Trace(map(moved, self.spans), self.lanes)

    def shift(self, seconds: float) -> Trace:
        """Return the trace moved along by `seconds`."""
        return self._moved(1.0, seconds)

    def scale(self, factor: float) -> Trace:
        """Return the trace with all times multiplied: from ticks of a model's clock to seconds. Raises ValueError."""
        if not 0 < factor < math.inf:
            raise ValueError(f"factor must be a positive number, not {factor!r}")
        return self._moved(factor, 0.0)

    def from_zero(self) -> Trace:
        """Return the trace moved so that its first span starts at 0."""
        return self.shift(-self.start)

    def merge(self, *others: Trace) -> Trace:
        """Return the spans and lanes of all these traces together; their times must be of one clock."""
        every = (self, *others)
        lanes = dict.fromkeys(lane for trace in every for lane in trace.lanes)
        return Trace((span for trace in every for span in trace), lanes)

    def headline(self, unit: str | None = None) -> str:
        """Say it in one line: "2 lanes, 1.25 s, 20 % idle"."""
        lanes = plural(len(self.lanes), "lane")
        return f"{lanes}, {format_time(self.makespan, unit)}, {format_share(self.bubble)} idle"

    def to_text(self, unit: str | None = None) -> str:
        """Return the headline and a row per lane: spans, busy time, idle share. `unit="clock"` for a model's ticks."""
        if not unit:
            unit = unit_for(self.makespan)
        rows = [("lane", "spans", "busy", "idle")]
        for lane in self.lanes:
            busy = self.busy(lane)
            count = len(self.only(lane=lane))
            idle = max(0.0, 1 - busy / self.makespan) if self.makespan else 0.0
            rows.append((lane, str(count), format_time(busy, unit), format_share(idle)))
        return f"{self.headline(unit)}\n{table(rows)}"

    __str__ = to_text

    def __repr__(self) -> str:
        return f"<Trace of {len(self)} spans: {self.headline()}>"

    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as Chrome trace JSON, which ui.perfetto.dev and chrome://tracing open.

        Times go in whole nanoseconds. The file appears whole or not at all.
        Raises FileNotFoundError if the folder does not exist.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise FileNotFoundError(f"the folder of {str(path)!r} does not exist: make it first")
        rows = {lane: {"pid": 0, "tid": row} for row, lane in enumerate(self.lanes)}
        events: list[dict[str, Any]] = []
        # ph "M" is metadata: what a row is called, and where it stands
        for lane, row in rows.items():
            events.append({"name": "thread_name", "ph": "M", **row, "args": {"name": lane}})
            events.append({"name": "thread_sort_index", "ph": "M", **row, "args": {"sort_index": row["tid"]}})
        # ph "X" is a complete event; its times are in microseconds
        for span in self.spans:
            # both ends are rounded, not start and duration: so spans that touch still touch
            start = round(span.start * 1e9)
            end = round(span.end * 1e9)
            times = {"ts": start / 1e3, "dur": (end - start) / 1e3}
            events.append({"name": span.label, "cat": span.kind, "ph": "X", **rows[span.lane], **times})
        with whole_or_not_at_all(path) as file:
            file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")

    @classmethod
    def from_chrome(cls, path: str | os.PathLike[str]) -> Trace:
        """Read the complete events (ph "X") of a Chrome trace: ours, or one that torch.profiler exported."""
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        events = content["traceEvents"] if isinstance(content, dict) else content
        lanes: dict[tuple[Any, Any], str] = {}
        for event in events:
            if event.get("ph") == "M" and event.get("name") == "thread_name":
                lanes[event.get("pid"), event.get("tid")] = str(event["args"]["name"])
        spans = []
        for event in events:
            if event.get("ph") != "X":
                continue
            process = event.get("pid")
            thread = event.get("tid")
            lane = lanes.get((process, thread), f"{process} / {thread}")
            start = round(event["ts"] * 1e3)  # whole nanoseconds, as to_chrome writes them
            end = start + round(event.get("dur", 0) * 1e3)
            spans.append(Span(lane, str(event["name"]), start / 1e9, end / 1e9, event.get("cat", "compute")))
        return cls(spans, dict.fromkeys(lanes.values()))


def _names(chosen: str | Collection[str] | None, every: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that a caller means by None (every one), by one name, or by several."""
    if chosen is None:
        return every
    if isinstance(chosen, str):
        return (chosen,)
    return tuple(chosen)


def overlap_share(trace: Trace, kind_a: str = "copy", kind_b: str = "compute") -> float:
    """Return the overlapped time / the smaller of the two: 1.0 if the shorter kind of work is hidden wholly.

    0.0 where one of the kinds takes no time.
    """
    smaller = min(trace.active(kind_a), trace.active(kind_b))
    return trace.overlap(kind_a, kind_b) / smaller if smaller else 0.0
