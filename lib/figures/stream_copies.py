"""Copies to a GPU: bandwidth by size, the loop with and without a prefetcher, preprocessing here or there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_bytes
from lib.experiments.bandwidth import DIRECTIONS, SIZES, COPY_WAYS
from lib.show.charts import log2_axis
from lib.show.explore import steps, switch, whole
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    describe,
    headline,
    new_figure,
    styled,
    title,
)
from lib.show.timeline import bar, lane_rows
from lib.timeline import Span, Trace

BANDWIDTH_CONTROLS = {
    "link": steps((6, 12, 25, 50), 25, "the link, GB/s"),
    "latency": steps((2, 5, 10, 20, 50), 10, "before it starts, µs"),
    "staging": steps((4, 8, 12, 20), 8, "host copies, GB/s"),
}
ORIGIN: dict[str, Any] = {"x": 0.01, "ha": "left", "fontsize": 9.5, "color": PINK}  # of where it was measured
LOOKS = dict(zip(COPY_WAYS, ((GREY, "s"), (ORANGE, "^"), (BLUE, "o")), strict=True))


def rates(bytes_: float, link: float, latency: float, staging: float) -> tuple[float, float]:
    """Return the GB/s of a copy from pinned and from pageable memory in the model: bytes over the seconds they take.

    A pageable copy goes through a pinned buffer first. link, staging: GB/s; latency: µs.
    """
    pinned = latency * 1e-6 + bytes_ / (link * 1e9)
    return bytes_ / pinned / 1e9, bytes_ / (pinned + bytes_ / (staging * 1e9)) / 1e9


@styled
def draw_bandwidth(link: float, latency: float, staging: float) -> Figure:
    """Draw the model: GB/s by the size of the copy, and the link's limit as a line."""
    figure, axes = new_figure(9, 3.7)
    pairs = [rates(size, link, latency, staging) for size in SIZES]
    for k, (way, color) in enumerate((("pinned", BLUE), ("pageable: copied twice", ORANGE))):
        values = [pair[k] for pair in pairs]
        axes.plot(SIZES, values, color=color, linestyle="--", marker="os"[k], markerfacecolor=PAPER)
        note = {"textcoords": "offset points", "ha": "right", "va": "top", "color": color}
        axes.annotate(way, (SIZES[-1], values[-1]), (0, -8), **note)
    half = latency * 1e-6 * link * 1e9
    _sizes(axes, link * 1.15)
    _limit(axes, link, "the copy engine's limit")
    axes.axvline(half, color=MUTED, linewidth=1, linestyle=":")
    axes.text(half * 1.08, 0.4, format_bytes(half), color=MUTED, fontsize=9.5, va="bottom")
    pageable = pairs[-1][1] / link
    finding = f"Half the speed needs {format_bytes(half)} a copy; pageable memory reaches {pageable:.0%}"
    title(axes, finding)
    told = f"A model. Link {link} GB/s, {latency} µs, staging {staging} GB/s. 256 KiB pinned: {pairs[3][0]:.1f} GB/s"
    return describe(figure, f"{finding}. {told}, pageable {pairs[3][1]:.1f}.")


def _sizes(axes: Axes, top: float) -> None:
    log2_axis(axes, SIZES[::2], _binary)
    axes.set(xlabel="size of the copy", ylabel="GB/s", ylim=(0, top), xlim=(SIZES[0] / 1.5, SIZES[-1] * 1.5))


def _binary(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def _limit(axes: Axes, rate: float, text: str) -> None:
    axes.axhline(rate, color=RED, linewidth=1.4)
    axes.annotate(
        text, (SIZES[0], rate), (0, -3), textcoords="offset points", va="top", color=RED, fontsize=10
    )


@styled
def draw_bandwidth_measured(data: Mapping[str, Any], origin: str) -> Figure:
    """Draw the GB/s that a GPU was measured at, both directions; the best of them is the limit line."""
    figure, both = new_figure(9, 4.1, cols=2, sharey=True)
    rows = data["rows"]
    best = {d: max(_rate(row) for row in rows if row["direction"] == d) for d in DIRECTIONS}
    for axes, direction in zip(both, DIRECTIONS, strict=True):
        for way, (color, marker) in LOOKS.items():
            points = [row for row in rows if row["direction"] == direction and row["way"] == way]
            axes.plot(
                [r["bytes"] for r in points],
                [_rate(r) for r in points],
                color=color,
                marker=marker,
                label=way,
            )
        _sizes(axes, 1.15 * max(best.values()))
        _limit(axes, best[direction], f"{best[direction]:.1f} GB/s")
        axes.set_title(direction, fontsize=11, weight="normal", loc="left")
    both[1].legend(loc="center right", fontsize=9)
    largest = [row for row in rows if row["direction"] == DIRECTIONS[0] and row["bytes"] == max(SIZES)]
    speed = {row["way"]: _rate(row) for row in largest}
    finding = f"Pinned {speed[COPY_WAYS[2]]:.0f} GB/s, pageable {speed[COPY_WAYS[0]]:.0f}, and non_blocking changes nothing there"
    headline(figure, finding)
    figure.supxlabel(origin, **ORIGIN)
    return describe(figure, f"{finding}. {origin}.")


def _rate(row: Mapping[str, Any]) -> float:
    return float(row["bytes"] / row["done"] / 1e9)


# ---- from the loader to the step

PREFETCH_CONTROLS = {
    "ahead": switch(True, "copy ahead, on a stream of its own"),
    "load": whole(1, 8, 2, "load and pin, ticks"),
    "copy": whole(1, 8, 3, "copy, ticks"),
    "compute": whole(1, 8, 6, "compute, ticks"),
    "depth": whole(1, 3, 2, "depth"),
}
HOPS = ("load", "copy", "compute")
HOP_COLORS = dict(zip(HOPS, (GREEN, ORANGE, BLUE), strict=True))
BATCHES = 8


def chain(load: float, copy: float, compute: float, depth: int, ahead: bool, batches: int = BATCHES) -> Trace:
    """Return the model's trace: a loader, then the copy (ahead, or in the computing stream), then the step."""
    spans: list[Span] = []
    loaded, copied, computed = 0.0, 0.0, [0.0] * (2 * depth)
    for i in range(batches):
        spans.append(Span("load", f"L{i}", loaded, loaded + load, "load"))
        loaded += load
        start = max(loaded, copied, computed[-2 * depth] if ahead else computed[-1])
        copied = start + copy
        spans.append(Span("copy", f"C{i}", start, copied, "copy"))
        start = max(copied, computed[-1])
        computed.append(start + compute)
        spans.append(Span("compute", f"F{i}", start, computed[-1], "compute"))
    return Trace(spans, HOPS)


def step_of(trace: Trace) -> float:
    """Return the time between the ends of the last two steps."""
    *_, before, last = (span.end for span in trace.only(lane="compute"))
    return last - before


@styled
def draw_prefetch(ahead: bool, load: float, copy: float, compute: float, depth: int) -> Figure:
    """Draw the three lanes of an epoch's first batches, with the copy ahead or in the loop."""
    trace = chain(load, copy, compute, depth, ahead)
    figure, axes = new_figure(9, 3.3)
    for row, lane in enumerate(HOPS):
        for span in trace.only(lane=lane):
            text = span.label if span.duration > 1 else span.label[1:]
            bar(axes, row, span.start, span.duration, HOP_COLORS[lane], text, size=9.5, height=0.78)
    lane_rows(axes, ("loader → pinned", "copy", "compute"), 0, trace.end + 0.3, track=True)
    axes.set_xlabel("ticks (a model: nothing here is measured)")
    how = f"max({load:g}, {copy:g}, {compute:g})" if ahead else f"max({load:g}, {copy:g} + {compute:g})"
    finding = (
        f"{'Copied ahead' if ahead else 'Copied in the loop'}: a step every {step_of(trace):g} ticks = {how}"
    )
    title(axes, finding)
    starts = ", ".join(f"{span.start:g}" for span in trace.only(lane="copy"))
    return describe(figure, f"{finding}. Depth {depth}. Copies start at {starts}. All done at {trace.end:g}.")


@styled
def draw_prefetch_measured(data: Mapping[str, Any] | None, origin: str) -> Figure:
    """Draw the time of a step over copy:compute, in units of the copy; without data the two rules only, said so."""
    figure, axes = new_figure(9, 3.7)
    ratios: Sequence[float] = [row["ratio"] for row in data["rows"]] if data else [0.25, 0.5, 1, 2, 4]
    axes.plot(ratios, [1 + r for r in ratios], "--", color=ORANGE, label="copy + compute")
    axes.plot(ratios, [max(1, r) for r in ratios], "--", color=BLUE, label="max(copy, compute)")
    if data:
        for name, color in (("plain", ORANGE), ("prefetched", BLUE)):
            places = [(row["compute"] / row["copy"], row[name] / row["copy"]) for row in data["rows"]]
            axes.plot(*zip(*places, strict=True), "o", color=color, markersize=8, label=f"measured, {name}")
        off = [row["prefetched"] / max(row["copy"], row["compute"]) - 1 for row in data["rows"]]
        finding = f"A prefetched step takes max(copy, compute), {max(off):.0%} more at most"
        figure.supxlabel(origin, **ORIGIN)
    else:
        finding = f"{origin}: the two rules only"
    axes.set_xscale("log", base=2)
    axes.set_xticks(ratios, [f"{r:g}" for r in ratios])
    axes.set(xlabel="compute / copy", ylabel="step / copy", ylim=(0, None))
    axes.legend(loc="upper left")
    title(axes, finding)
    return describe(figure, f"{finding}. For ratio 1 the rules say 2 and 1 copies a step. {origin}.")


# ---- preprocessing


@styled
def draw_preprocess(data: Mapping[str, Any] | None, cpu: Mapping[str, Any], origin: str) -> Figure:
    """Draw what travels and how long it takes, made ready on the CPU or on the GPU; without data the CPU's part."""
    figure, (left, right) = new_figure(9, 2.9, cols=2, sharey=True, width_ratios=[1, 1.3])
    ways = ("ready on the CPU,\nfloats travel", "bytes travel,\nready on the GPU")
    megabytes = [cpu[name] / 1e6 for name in ("float_bytes", "byte_bytes")]
    left.barh(ways, megabytes, color=ORANGE, height=0.55)
    for row, value in enumerate(megabytes):
        left.annotate(
            f"{value:.0f} MB", (value, row), (-4, 0), textcoords="offset points", ha="right", va="center"
        )
    left.set(xlabel="over the link, MB")
    left.invert_yaxis()
    parts = [("CPU", [(data or cpu)["cpu"], 0.0], GREEN)]
    if data:
        parts += [
            ("copy", [data["copy_floats"], data["copy_bytes"]], ORANGE),
            ("GPU", [0.0, data["gpu"]], BLUE),
        ]
    begin = [0.0, 0.0]
    for name, seconds, color in parts:
        milliseconds = [1e3 * value for value in seconds]
        right.barh(ways, milliseconds, left=begin, color=color, height=0.55, label=name)
        begin = [a + b for a, b in zip(begin, milliseconds, strict=True)]
    if data:
        figure.supxlabel(origin, **ORIGIN)
    else:
        for row, value in enumerate(begin):
            note = "+ copy: not known without a GPU" if value else "copy, GPU: not known without a GPU"
            look: dict[str, Any] = {
                "textcoords": "offset points",
                "va": "center",
                "color": MUTED,
                "fontsize": 9.5,
            }
            right.annotate(note, (value, row), (6, 0), **look)
        right.set_xlim(0, 2.1 * max(begin))
    right.set(xlabel="ms a batch")
    right.legend(loc="lower right", fontsize=9.5)
    saved = megabytes[0] / megabytes[1]
    finding = f"Made ready on the GPU: {saved:.0f} × fewer bytes travel, and the CPU is free of it"
    headline(figure, finding)
    known = (
        f"Together {begin[0]:.1f} ms and {begin[1]:.1f} ms" if data else "Times of a GPU are not known here"
    )
    return describe(figure, f"{finding}: {megabytes[0]:.0f} MB and {megabytes[1]:.0f} MB. {known}. {origin}.")
