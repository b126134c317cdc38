"""Figures of notebook 07: what micro-batches save in memory and cost in time.

draw_live    bytes that autograd keeps during one step, for several ways of doing it
draw_speed   rows per second against the size of the micro-batch, beside a two-number prediction
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_share
from lib.show.style import (
    BLUE,
    GREY,
    INK,
    PINK,
    describe,
    headline,
    new_figure,
    rank_color,
    source_note,
    styled,
)


@styled
def draw_live(histories: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the live bytes of saved tensors over one step, a panel a way; histories[way] in bytes."""
    figure, grid = new_figure(9, 3.2, cols=len(histories), squeeze=False, sharey=True)
    peaks = {way: max(history) for way, history in histories.items()}
    first = next(iter(peaks.values()))
    shares = {way: peak / first for way, peak in peaks.items()}
    for number, (axes, (way, history)) in enumerate(zip(grid[0], histories.items(), strict=True)):
        kilobytes = [value / 1e3 for value in history]
        axes.fill_between(range(len(history)), kilobytes, step="post", color=rank_color(number), alpha=0.35)
        axes.step(range(len(history)), kilobytes, where="post", color=rank_color(number), linewidth=1.5)
        axes.axhline(first / 1e3, color=GREY, linewidth=1, linestyle="--")
        axes.set_title(f"{way}\npeak {peaks[way] / 1e3:.0f} kB", fontsize=11)
        axes.set_xticks([])
        axes.set_xlabel("one step →")
        axes.set_ylim(0, 1.08 * max(peaks.values()) / 1e3)
    grid[0][0].set_ylabel("saved for backward, kB")
    least = min(shares, key=lambda way: shares[way])
    headline(figure, f"{least}: {format_share(shares[least])} of the peak of the {next(iter(peaks))}")
    said = "; ".join(f"{way} {peak / 1e3:.0f} kB" for way, peak in peaks.items())
    return describe(figure, f"Peak of the tensors saved for backward in one step: {said}.")


def fixed_rows(record: Mapping[str, Any]) -> float:
    """Return how many rows take as long as what a micro-batch costs besides its rows, from the ends of a measurement.

    record: "size" and "rows_per_second", as `chunk_speed` returns them. The model: a micro-batch of s rows takes a
    fixed time plus s times a row's time.
    """
    sizes, speeds = record["size"], record["rows_per_second"]
    ends = (min(sizes), max(sizes))
    small, large = (size / speeds[sizes.index(size)] for size in ends)
    row = (large - small) / (ends[1] - ends[0])
    return max(0.0, small / row - ends[0]) if row > 0 else float("inf")


def predicted_share(size: float, fixed: float) -> float:
    """Return the share of the best speed that micro-batches of `size` rows reach; 1/2 where size = fixed."""
    return size / (size + fixed)


def half_speed(record: Mapping[str, Any]) -> float:
    """Return the micro-batch size from which on the measured speed is half of the best, interpolated."""
    points = sorted(zip(record["size"], record["rows_per_second"], strict=True))
    half = max(speed for _, speed in points) / 2
    above = next(number for number, (_, speed) in enumerate(points) if speed >= half)
    if above == 0:
        return float(points[0][0])
    (size, speed), (larger, faster) = points[above - 1], points[above]
    return float(size + (larger - size) * (half - speed) / (faster - speed))


@styled
def draw_speed(records: Mapping[str, Mapping[str, Any]], note: str = "") -> Figure:
    """Draw share of the best speed against micro-batch size; records[name] as chunk_speed returns them.

    Points are measured, the dashed line is predicted from the two ends. Without records the predicted form is drawn.
    note: a line under the figure, such as where a recording comes from.
    """
    if not records:
        return _draw_form(note)
    figure, axes = new_figure(9, 3.9 + 0.3 * bool(note))
    for number, (name, record) in enumerate(records.items()):
        sizes, speeds = record["size"], record["rows_per_second"]
        fixed, best = fixed_rows(record), max(speeds)
        scale = speeds[sizes.index(max(sizes))] / best / predicted_share(max(sizes), fixed)
        color = (BLUE, PINK)[number % 2]
        fine = [min(sizes) * (max(sizes) / min(sizes)) ** (k / 80) for k in range(81)]
        line = [100 * scale * predicted_share(size, fixed) for size in fine]
        label = f"{name}: predicted from the two ends"
        axes.plot(fine, line, color=color, linewidth=1.5, linestyle="--", label=label)
        shares = [100 * speed / best for speed in speeds]
        axes.plot(sizes, shares, "os"[number % 2], color=color, markersize=8, label=f"{name}: measured")
    _speed_axes(axes, "rows in a micro-batch")
    axes.legend(loc="lower right")
    halves = ", ".join(f"about {half_speed(record):.0f} rows on {name}" for name, record in records.items())
    headline(figure, f"Half of the best speed needs {halves}")
    if note:
        source_note(figure, note)
    falls = all(
        record["rows_per_second"][record["size"].index(min(record["size"]))]
        < 0.5 * max(record["rows_per_second"])
        for record in records.values()
    )
    fewest = "less than half" if falls else "half or more"
    return describe(
        figure,
        f"Speed against rows in a micro-batch, {', '.join(records)}: the smallest reaches {fewest} of the best.",
    )


def _draw_form(note: str) -> Figure:
    figure, axes = new_figure(9, 3.5)
    fine = [2 ** (k / 8) for k in range(-40, 57)]
    axes.plot(fine, [100 * predicted_share(s, 1) for s in fine], color=INK, linewidth=1.5, linestyle="--")
    axes.plot([1], [50], "o", markerfacecolor="none", markeredgecolor=INK, markersize=10)
    axes.annotate(
        "fixed time = time of the rows", (1, 50), (12, -14), textcoords="offset points", fontsize=10
    )
    _speed_axes(axes, "rows in a micro-batch (1: as many as take the fixed time)")
    headline(figure, "Predicted, not measured: the form of a GPU's curve")
    if note:
        source_note(figure, note)
    return describe(
        figure,
        f"Predicted form of a GPU's curve, nothing measured: half of the speed where both times are equal. {note}",
    )


def _speed_axes(axes: Axes, xlabel: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 112)
    axes.axhline(50, color=GREY, linewidth=1)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("share of the best speed, %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
