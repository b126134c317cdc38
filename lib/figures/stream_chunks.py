"""A tensor in chunks over three streams: the timeline of the model, and the time by the number of chunks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.figures.stream_copies import ORIGIN
from lib.show.charts import log2_axis
from lib.show.explore import steps, whole
from lib.show.style import (
    BLUE,
    GREY,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SKY,
    describe,
    new_figure,
    styled,
    title,
)
from lib.show.timeline import bar, lane_rows
from lib.streams.model import LANES, overlap_share, predict_chunks
from lib.timeline import Trace

NOTE: dict[str, Any] = {"textcoords": "offset points", "color": BLUE, "fontsize": 9.5}
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LANE_COLORS = dict(zip(LANES, (ORANGE, BLUE, SKY), strict=True))
CHUNK_CONTROLS = {
    "chunks": steps(COUNTS, 4, "chunks"),
    "copy": steps((25, 50, 75, 100, 150, 200), 75, "copy in, and out, ticks"),
    "compute": steps((25, 50, 75, 100, 150, 200), 100, "compute, ticks"),
    "overhead": steps((0.0, 0.5, 1.0, 2.0, 4.0), 1.0, "ticks of a launch"),
    "depth": whole(1, 3, 2, "depth"),
}


@styled
def draw_chunks(chunks: int, copy: float, compute: float, overhead: float, depth: int) -> Figure:
    """Draw the model's three lanes for one number of chunks, and below its time for all of them."""
    times = {
        count: predict_chunks(count, copy, compute, copy, depth=depth, overhead=overhead) for count in COUNTS
    }
    trace = times[chunks]
    figure, (axes, curve) = new_figure(9, 5.4, rows=2, height_ratios=[1, 1])
    draw_lanes(axes, trace, limit=2 * copy + compute + 3 * overhead)
    axes.set_xlabel("ticks (a model: nothing here is measured)")
    best = min(COUNTS, key=lambda count: times[count].makespan)
    least = times[best].makespan
    _draw_curve(curve, {count: t.makespan for count, t in times.items()}, chunks, max(copy, compute))
    share = overlap_share(trace)
    finding = (
        f"{chunks} chunk{'s' * (chunks != 1)}: {trace.makespan:.0f} ticks, {share:.0%} of the shorter work hidden; "
        f"best {best}: {least:.0f}"
    )
    title(axes, finding)
    words = f"Copy in {copy:g}, compute {compute:g}, copy out {copy:g} ticks, {overhead:g} a launch, depth {depth}"
    ends = ", ".join(f"{lane} ends at {max(s.end for s in trace.only(lane=lane)):.1f}" for lane in LANES)
    return describe(figure, f"{finding}. {words}. {ends}.")


def draw_lanes(axes: Axes, trace: Trace, limit: float, scale: float = 1.0) -> None:
    """Draw a bar for each span; its label where there is room."""
    for row, lane in enumerate(LANES):
        spans, color = trace.only(lane=lane), LANE_COLORS[lane]
        thin = min(span.duration for span in spans) * scale < limit / 150
        for span in spans:
            start, width = span.start * scale, span.duration * scale
            text = span.label if width > limit / 28 else ""
            bar(
                axes,
                row,
                start,
                width,
                color,
                text,
                size=9.5,
                edgecolor=color if thin else PAPER,
                height=0.78,
            )
    lane_rows(axes, LANES, 0, limit * 1.01, track=True)


def _draw_curve(axes: Axes, seconds: Mapping[int, float], now: int, floor: float) -> None:
    counts = list(seconds)
    axes.plot(counts, list(seconds.values()), color=GREY, marker="o", markersize=4, zorder=2)
    axes.plot([now], [seconds[now]], "o", color=RED, markersize=11, zorder=3)
    axes.axhline(floor, color=BLUE, linestyle="--", linewidth=1.2)
    note = "the longest lane alone: no pipeline is faster"
    axes.annotate(note, (64, floor), (0, -4), **NOTE, ha="right", va="top")
    log2_axis(axes, (1, 2, 4, 8, 16, 32, 64))
    axes.set_xlim(0.9, 72)
    axes.set(xlabel="chunks", ylabel="ticks", ylim=(0, max(*seconds.values(), floor) * 1.12))


@styled
def draw_chunks_measured(data: Mapping[str, Any] | None, origin: str) -> Figure:
    """Draw a GPU's times by chunk count over their prediction; without data the model for equal lanes, said so."""
    figure, axes = new_figure(9, 3.7)
    if data is None:
        counts = [2**k for k in range(8)]
        times = [predict_chunks(c, 1, 1, 1, overhead=0.005).makespan / 3 for c in counts]
        axes.plot(counts, times, "o--", color=MUTED, markerfacecolor=PAPER, label="the model")
        finding = f"{origin}: only the model, for three equal lanes"
        axes.set_ylabel("time / time of one chunk")
        words = f"Least at {counts[times.index(min(times))]} chunks: {min(times):.2f} of the time of one"
    else:
        rows = data["rows"]
        counts = [row["chunks"] for row in rows]
        axes.plot(
            counts,
            [1e3 * r["predicted"] for r in rows],
            "o--",
            color=MUTED,
            markerfacecolor=PAPER,
            label="predicted",
        )
        axes.plot(counts, [1e3 * r["seconds"] for r in rows], "o-", color=BLUE, label="measured")
        best = min(rows, key=lambda row: row["seconds"])
        for row in rows:
            place = (row["chunks"], 1e3 * row["seconds"])
            axes.annotate(f"{row['overlap']:.0%}", place, (0, 8), **NOTE, ha="center")
        ratio = best["seconds"] / rows[0]["seconds"]
        finding = f"{best['chunks']} chunks take {ratio:.2f} of the time of one, {best['overlap']:.0%} hidden"
        axes.set_ylabel("ms (and share hidden)")
        words = origin
        figure.supxlabel(origin, **ORIGIN)
    log2_axis(axes, counts)
    axes.set(xlabel="chunks", ylim=(0, 1.12 * axes.get_ylim()[1]))
    axes.legend(loc="lower left")
    title(axes, finding)
    return describe(figure, f"{finding}. {words}.")
