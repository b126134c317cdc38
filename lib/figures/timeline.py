"""The picture of a Trace: a row per lane, time to the right; measured spans are filled, predicted ones are outlines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib._units import PER_SECOND
from lib.figures import style
from lib.figures.style import HATCH, INK, MUTED, PALETTE, PAPER
from lib.figures.timeline_layout import TRACK, Layout, labels_for, lay_out, mixed, ticks
from lib.timeline import Span, Trace, union

WIDTH, FONT = 9.0, 9.0  # inches, points
DOTS = "#b9c1ca"  # on a lane that does nothing
LANE = (-0.42, 0.84)  # bottom and height of a lane around its row's number; the axis points down
BARS = {"predicted": (-0.39, 0.35), "measured": (0.0, 0.39)}  # when both are drawn; one alone takes the lane


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
    count, both = max(1, len(layout.rows)), len(layout.traces) > 1
    row_height = min(max(9 / count, 0.2), 0.7 if both else 0.46)  # inches; nine of them make a tall figure
    figure, axes = style.new_figure(WIDTH, 1.6 + row_height * count + 0.35 * bool(recorded))

    names = 6.6 * max(map(len, layout.rows), default=0)
    points = (72 * WIDTH - names - 90) / (
        layout.end - layout.start
    )  # about how wide one unit of time comes out
    for row, lane in enumerate(layout.rows):
        bottom, height = row + LANE[0], LANE[1]
        axes.broken_barh([(layout.start, layout.end - layout.start)], (bottom, height), color=TRACK, lw=0)
        if bubbles:
            _draw_bubbles(axes, layout, lane, (bottom, height))
        for name, trace in layout.traces.items():
            offset, tall = BARS[name] if both else (LANE[0] + 0.03, LANE[1] - 0.06)
            spans, place = trace.only(lane=lane).spans, (row + offset, tall)
            _draw_bars(axes, layout, spans, place, name, points)
            share, middle = f"{layout.busy_share(lane, name)} busy", (1.0, row + offset + tall / 2)
            _beside(axes, share, middle, ("axes fraction", "data"), (8, 0), va="center", color=MUTED)
            if tall * row_height * 72 > FONT + 1:
                _write_labels(axes, layout, spans, row + offset + tall / 2, name, points)

    axes.set_ylim(count - 0.5, -0.5)
    axes.set_yticks(range(len(layout.rows)), layout.rows, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    margin = 0.004 * (layout.end - layout.start)
    axes.set_xlim(layout.start - margin, layout.end + margin)
    marks = ticks(layout.start, layout.end, whole=layout.unit not in PER_SECOND)
    axes.set_xticks([value for value, _ in marks], [text for _, text in marks])
    axes.set_xlabel(layout.axis_label)
    lines = _draw_legend(axes, layout, bubbles)
    with matplotlib.rc_context(
        {"axes.titlepad": 12.0 + 18 * lines}
    ):  # the legend stands between title and lanes
        style.title(axes, title or layout.finding)
    if recorded:
        color = PALETTE["recorded"]
        box = dict(boxstyle="round,pad=0.4", facecolor=color + "2b", edgecolor=color)
        text = f"Recorded on another machine: {recorded}"
        _beside(axes, text, (0, 0), "axes fraction", (4, -46), va="top", bbox=box)
    said = (title and title.rstrip(".") + ".", layout.words, recorded and f"Recorded: {recorded}.")
    return style.describe(figure, " ".join(part for part in said if part))


def _draw_bars(
    axes: Axes, layout: Layout, spans: Sequence[Span], place: tuple[float, float], name: str, points: float
) -> None:
    """Draw the spans of one lane: all of a kind at once, since a trace may hold thousands."""
    for kind in dict.fromkeys(span.kind for span in spans):
        chosen, color = [span for span in spans if span.kind == kind], layout.colors[kind]
        extents = [(span.start * layout.per_second, span.duration * layout.per_second) for span in chosen]
        wide = [width * points > 4 for _, width in extents]
        if name == "predicted":
            line = [1.4 if is_wide else 0.6 for is_wide in wide]
            axes.broken_barh(
                extents, place, facecolors=mixed(color, PAPER, 0.88), edgecolors=color, linewidths=line
            )
        else:
            # a gap of paper parts neighbours; a bar that is as thin as the gap keeps its own colour instead
            edges = [PAPER if is_wide else color for is_wide in wide]
            axes.broken_barh(extents, place, facecolors=color, edgecolors=edges, linewidths=0.7)


def _write_labels(
    axes: Axes, layout: Layout, spans: Sequence[Span], middle: float, name: str, points: float
) -> None:
    """Write the longest label that fits into each span, or none."""
    for span in spans:
        room = span.duration * layout.per_second * points - 3
        fitting = (
            text for text in labels_for(span, layout.letters[span.kind]) if len(text) * FONT * 0.66 <= room
        )
        if text := next(fitting, ""):
            center = (span.start + span.end) / 2 * layout.per_second
            ink = INK if name == "predicted" else style.ink_on(layout.colors[span.kind])
            axes.text(
                center,
                middle,
                text,
                ha="center",
                va="center_baseline",
                fontsize=FONT,
                color=ink,
                clip_on=True,
            )


def _draw_bubbles(axes: Axes, layout: Layout, lane: str, place: tuple[float, float]) -> None:
    trace, scale = layout.shown, layout.per_second
    edges = [trace.start, *(t for interval in union(trace.only(lane=lane)) for t in interval), trace.end]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    idle = [(start * scale, (end - start) * scale) for start, end in gaps if end > start]
    axes.broken_barh(idle, place, facecolors="none", edgecolors=DOTS, hatch=HATCH["bubble"], linewidths=0)


def _draw_legend(axes: Axes, layout: Layout, bubbles: bool) -> int:
    """Draw the legend above the lanes, and return how many lines it takes."""
    patches = [
        Patch(facecolor=layout.colors[kind], label=f"{kind} ({letter})")
        for kind, letter in layout.letters.items()
    ]
    if "predicted" in layout.traces:
        patches.append(Patch(facecolor=PAPER, edgecolor=MUTED, linewidth=1.4, label="predicted"))
    if len(layout.traces) > 1:
        patches.append(Patch(facecolor=MUTED, label="measured"))
    if bubbles:
        patches.append(
            Patch(facecolor=TRACK, edgecolor=DOTS, hatch=HATCH["bubble"], linewidth=0, label="idle")
        )
    columns = min(len(patches), 6)
    if patches:
        look = dict(
            borderaxespad=0.0, handlelength=1.1, handleheight=1.1, columnspacing=1.4, handletextpad=0.5
        )
        axes.legend(handles=patches, loc="lower left", bbox_to_anchor=(0, 1.01), ncols=columns, **look)
    return -(-len(patches) // columns) if patches else 0


def _beside(
    axes: Axes, text: str, at: tuple[float, float], coords: Any, offset: tuple[float, float], **look: Any
) -> None:
    axes.annotate(
        text, at, xycoords=coords, xytext=offset, textcoords="offset points", fontsize=FONT + 0.5, **look
    )
