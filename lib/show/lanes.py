"""The picture of a Trace: a row per lane, time to the right; measured spans are filled, predicted ones are outlines."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib.show import style
from lib.show.charts import beside
from lib.show.sheet import INSIDE, write
from lib.show.style import IDLE, INK, MUTED, PAPER, RECORDED, TRACK, color_of, ink_on, mixed
from lib.text import PER_SECOND, format_share, format_time, plural, unit_for
from lib.timeline import Span, Trace, union

WIDTH = 9.0  # inches
FONT = 9.0  # points
LANE = (-0.42, 0.84)  # bottom and height of a lane around its row's number; the axis points down
BARS = {"predicted": (-0.39, 0.35), "measured": (0.0, 0.39)}  # when both are drawn; one alone takes the lane


def lane_rows(axes: Axes, names: Sequence[str], start: float, end: float, *, track: bool = False) -> None:
    """Prepare axes for a row a lane: names at the left, the first on top; `track`: pale where a lane does nothing."""
    if track:
        for row in range(len(names)):
            axes.broken_barh([(start, end - start)], (row + LANE[0], LANE[1]), color=TRACK, lw=0, zorder=0)
    axes.set(xlim=(start, end), ylim=(max(1, len(names)) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), names, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def bar(axes: Axes, row: float, start: float, width: float, color: str, text: str = "", **look: Any) -> None:
    """Draw what a lane does from `start` on, with a text in the middle; `look`: as `lane_bars` takes it."""
    lane_bars(axes, row, [(start, width)], [color], [text], **look)


def lane_bars(
    axes: Axes,
    row: float,
    places: Sequence[tuple[float, float]],
    colors: Sequence[str],
    texts: Sequence[str] = (),
    *,
    size: float = FONT,
    height: float = LANE[1],
    ink: str | None = None,
    **look: Any,
) -> None:
    """Draw a lane's bars (start, width), each with its colour and a text in its middle: together they are one artist.

    look: edgecolor, hatch … of the bars.
    """
    look = {"facecolor": colors, "edgecolor": PAPER, "linewidth": 0.7, **look}
    bottom = row - height / 2
    top = bottom + height
    corners = [
        [(start, bottom), (start, top), (start + width, top), (start + width, bottom)] for start, width in places
    ]
    axes.add_collection(PolyCollection(corners, **look), autolim=False)  # lane_rows sets the limits
    above: Any = {"va": "center_baseline", "zorder": look.get("zorder", 1) + 2, **INSIDE}
    for (start, width), color, text in zip(places, colors, texts, strict=False):
        if text:
            write(axes, start + width / 2, row, text, size=size, color=ink or ink_on(color), **above)


def idle(axes: Axes, row: float, gaps: Sequence[tuple[float, float]], *, height: float = LANE[1]) -> None:
    """Draw the sign for idle on a lane in each gap (start, width)."""
    axes.broken_barh(gaps, (row - height / 2, height), **IDLE)


@style.styled
@matplotlib.rc_context({"text.parse_math": False})  # a label is a name, also with dollar signs in it
def draw_timeline(
    measured: Trace | None = None,
    predicted: Trace | None = None,
    *,
    title: str | None = None,
    unit: str | None = None,
    recorded: str | None = None,
    lanes: Sequence[str] | None = None,
    bubbles: bool = False,
) -> Figure:
    """Draw one trace, or what was predicted (outlines) above what was measured (filled), lane by lane.

    title: the finding; by default makespan and idle share. unit: of the time axis, chosen to fit; "clock" for a
    model's ticks. recorded: where and when it was measured, if not here and now. lanes: the rows to show, the first
    on top. bubbles: hatch the idle time between the first start and the last end.
    Raises ValueError when there is nothing to draw, KeyError for a lane that neither trace has.
    """
    layout = lay_out(measured, predicted, lanes, unit)
    count = max(1, len(layout.rows))
    both = len(layout.traces) > 1
    row_height = min(max(9 / count, 0.2), 0.7 if both else 0.46)  # inches; nine of them make a tall figure
    figure, axes = style.new_figure(WIDTH, 1.6 + row_height * count + 0.35 * bool(recorded))

    for row, lane in enumerate(layout.rows):
        for name, trace in layout.traces.items():
            bottom, tall = BARS[name] if both else (LANE[0] + 0.03, LANE[1] - 0.06)
            middle = row + bottom + tall / 2
            if bubbles:
                gaps = _gaps(trace, lane, layout.per_second)
                idle(axes, middle, gaps, height=tall if both else LANE[1])
            spans = trace.only(lane=lane).spans
            _draw_bars(axes, layout, spans, (row + bottom, tall), name)
            _write_share(axes, layout, lane, name, middle)
            if tall * row_height * 72 > FONT + 1:
                _write_labels(axes, layout, spans, middle, name)

    lane_rows(axes, layout.rows, layout.start, layout.end, track=True)
    _draw_time_axis(axes, layout)
    lines = _draw_legend(axes, layout, bubbles)
    with matplotlib.rc_context({"axes.titlepad": 12.0 + 18 * lines}):  # the legend stands between title and lanes
        style.title(axes, title or layout.finding)
    words = [layout.words]
    if title:
        words.insert(0, f"{title.rstrip('.')}.")
    if recorded:
        look: Any = {"xycoords": "axes fraction", "va": "top", "fontsize": FONT + 0.5, "bbox": RECORDED}
        beside(axes, (0, 0), f"Recorded on another machine: {recorded}", (4, -46), **look)
        words.append(f"Recorded: {recorded}.")
    return style.describe(figure, " ".join(words))


def _write_share(axes: Axes, layout: Layout, lane: str, name: str, middle: float) -> None:
    """Write beside a lane's right end how much of the makespan it is busy."""
    share = f"{layout.busy_share(lane, name)} busy"
    beside(axes, (1.0, middle), share, xycoords=("axes fraction", "data"), fontsize=FONT + 0.5, color=MUTED)


def _draw_time_axis(axes: Axes, layout: Layout) -> None:
    margin = 0.004 * (layout.end - layout.start)
    axes.set_xlim(layout.start - margin, layout.end + margin)
    marks = ticks(layout.start, layout.end, whole=layout.unit not in PER_SECOND)
    axes.set_xticks([value for value, _ in marks], [text for _, text in marks])
    axes.set_xlabel(layout.axis_label)


def _draw_bars(axes: Axes, layout: Layout, spans: Sequence[Span], place: tuple[float, float], name: str) -> None:
    """Draw the spans of one lane: all of a kind at once, since a trace may hold thousands."""
    points = layout.points
    colors = layout.colors
    for kind in dict.fromkeys(span.kind for span in spans):
        chosen = [span for span in spans if span.kind == kind]
        color = colors[kind]
        extents = [(span.start * layout.per_second, span.duration * layout.per_second) for span in chosen]
        wide = [width * points > 4 for _, width in extents]
        if name == "predicted":
            line = [1.4 if is_wide else 0.6 for is_wide in wide]
            axes.broken_barh(extents, place, facecolors=mixed(color, PAPER, 0.88), edgecolors=color, linewidths=line)
        else:
            # a gap of paper parts neighbours; a bar that is as thin as the gap keeps its own colour instead
            edges = [PAPER if is_wide else color for is_wide in wide]
            axes.broken_barh(extents, place, facecolors=color, edgecolors=edges, linewidths=0.7)


def _write_labels(axes: Axes, layout: Layout, spans: Sequence[Span], middle: float, name: str) -> None:
    """Write the longest label that fits into each span, or none."""
    points = layout.points
    letters = layout.letters
    colors = layout.colors
    for span in spans:
        room = span.duration * layout.per_second * points - 3
        fitting = (text for text in labels_for(span, letters[span.kind]) if len(text) * FONT * 0.66 <= room)
        text = next(fitting, "")
        if text:
            center = (span.start + span.end) / 2 * layout.per_second
            ink = INK if name == "predicted" else ink_on(colors[span.kind])
            write(axes, center, middle, text, size=FONT, color=ink, va="center_baseline", clip_on=True)


def _gaps(trace: Trace, lane: str, scale: float) -> list[tuple[float, float]]:
    """Return (start, width) of the times between the first start and the last end in which a lane does nothing."""
    edges = [trace.start, *(t for interval in union(trace.only(lane=lane)) for t in interval), trace.end]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(start * scale, (end - start) * scale) for start, end in gaps if end > start]


def _draw_legend(axes: Axes, layout: Layout, bubbles: bool) -> int:
    """Draw the legend above the lanes, and return how many lines it takes."""
    named = layout.letters.items()
    patches = [Patch(facecolor=layout.colors[kind], label=f"{kind} ({letter})") for kind, letter in named]
    if "predicted" in layout.traces:
        patches.append(Patch(facecolor=PAPER, edgecolor=MUTED, linewidth=1.4, label="predicted"))
    if len(layout.traces) > 1:
        patches.append(Patch(facecolor=MUTED, label="measured"))
    if bubbles:
        patches.append(Patch(**IDLE, label="idle"))
    if not patches:
        return 0
    columns = min(len(patches), 6)
    look = dict(borderaxespad=0.0, handlelength=1.1, handleheight=1.1, columnspacing=1.4, handletextpad=0.5)
    rowwise = [patch for column in range(columns) for patch in patches[column::columns]]  # matplotlib fills columns
    axes.legend(handles=rowwise, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, **look)
    return math.ceil(len(patches) / columns)


# --- what any picture of traces needs: rows, unit, letters, words


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

    @property
    def points(self) -> float:
        """About how many points wide one unit of time comes out, beside the names of the rows."""
        names = 6.6 * max(map(len, self.rows), default=0)
        return (72 * WIDTH - names - 90) / (self.end - self.start)

    @property
    def axis_label(self) -> str:
        """The name of the time axis, with its unit."""
        if self.unit in PER_SECOND:
            return f"time ({self.unit})"
        return "time (ticks)" if self.unit == "tick" else f"time ({self.unit} ticks)"

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
        if not trace.makespan:
            return format_share(0.0)
        return format_share(trace.busy(lane) / trace.makespan)

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
        said = [f"Timeline of {plural(len(self.rows), 'lane')}."]
        for name, trace in self.traces.items():
            kinds = f" ({', '.join(trace.kinds)})" if trace else ""
            times = f"makespan {format_time(trace.makespan, self.unit)}, bubble {format_share(trace.bubble)}"
            said.append(f"{name.capitalize()}: {plural(len(trace), 'span')}{kinds}, {times}.")
            shares = [f"{lane} {self.busy_share(lane, name)}" for lane in self.rows[:8]]
            if len(self.rows) > 8:
                shares.append(f"and {len(self.rows) - 8} more")
            if shares:
                said.append(f"Busy: {', '.join(shares)}.")
        return " ".join(said)

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


def lay_out(measured: Trace | None, predicted: Trace | None, lanes: Iterable[str] | None, unit: str | None) -> Layout:
    """Choose rows and unit. Raises ValueError when nothing is given, KeyError for a lane that neither trace has."""
    named = (("predicted", predicted), ("measured", measured))
    given = {name: trace for name, trace in named if trace is not None}
    if not given:
        raise ValueError("there is nothing to draw: give a measured trace, a predicted one, or both")
    known = tuple(dict.fromkeys(lane for trace in given.values() for lane in trace.lanes))
    rows = known if lanes is None else tuple(lanes)
    unknown = [lane for lane in rows if lane not in known]
    if unknown:
        raise KeyError(f"no lane {unknown[0]!r} in what is drawn; its lanes are {', '.join(known) or 'none'}")
    traces = {name: Trace((span for span in trace if span.lane in rows), rows) for name, trace in given.items()}
    if not unit:
        unit = unit_for(max(trace.makespan for trace in traces.values()))
    return Layout(rows, traces, unit)


def labels_for(span: Span, letter: str) -> tuple[str, str, str]:
    """Return what may be written into a span, longest first: ("load 3", "L3", "L")."""
    number = re.search(r"(?:^|[a-zA-Z]\W*)(\d{1,6})$", span.label)  # in "2,1" neither number is the one
    short = f"{letter}{number.group(1)}" if number else letter
    return span.label, short, letter


def ticks(start: float, end: float, whole: bool = False, at_most: int = 10) -> list[tuple[float, str]]:
    """Return round numbers from start to end, and how to write them: steps of 1, 2 or 5 (`whole`: at least 1)."""
    rough = (end - start) / at_most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999999)
    if whole:
        step = max(step, 1.0)
    # the hair's breadths let a start or an end that lies on a mark, but for rounding, have it
    first = math.ceil(start / step - 1e-9)
    last = math.floor(end / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return [(k * step, f"{k * step:.{digits}f}") for k in range(first, last + 1)]
