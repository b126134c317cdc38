"""Figures of notebook 08: why micro-batches, the clock table and its bubble.

A row is a device or a partition, and all of it is forward: one colour. The timelines have a file of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.show.charts import beside, log2_axis
from lib.show.explore import whole
from lib.show.lanes import bar, idle, lane_rows
from lib.show.sheet import Cell, arrow, cell_axes, draw_cell, write
from lib.show.style import (
    GREY,
    INK,
    MUTED,
    color_of,
    describe,
    headline,
    new_figure,
    styled,
)
from lib.text import format_share, plural
from lib.timeline import Trace, Work, play
from support.n08.runs import ClockCycles

FORWARD = color_of("forward")

# --- one device, model parallelism and micro-batches on one time axis

THREE_WAYS_CONTROLS = {
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
}


def three_ways(micro_batches: int, partitions: int) -> dict[str, Trace]:
    """Return the forward pass of one batch for each way; labels are micro-batch (or "all") and partition: "3 1"."""
    m = micro_batches
    pieces = range(partitions)
    devices = [f"device {j}" for j in pieces]
    alone = [Work("device 0", f"all {j}", m) for j in pieces]
    parallel = [Work(devices[j], f"all {j}", m, [f"all {j - 1}"] if j else []) for j in pieces]
    piped = [Work(devices[j], f"{i} {j}", 1, [f"{i} {j - 1}"] if j else []) for i in range(m) for j in pieces]
    return {
        "One device": play(alone),
        "Model parallelism": play(parallel, devices),
        "Micro-batches": play(piped, devices),
    }


@styled
def draw_three_ways(micro_batches: int, partitions: int) -> Figure:
    """Draw the three ways below each other: all of it is forward, the number is the micro-batch."""
    ways = three_ways(micro_batches, partitions)
    until = micro_batches * partitions
    lanes = [len(trace.lanes) for trace in ways.values()]
    shape: Any = {"rows": 3, "sharex": True, "height_ratios": [n + 0.9 for n in lanes]}
    figure, panels = new_figure(9, 1.7 + 0.34 * sum(lanes), **shape)
    said = []
    for axes, (way, trace) in zip(panels, ways.items(), strict=True):
        _draw_way(axes, trace, until)
        said.append(f"{way}: {plural(trace.makespan, 'tick')}, {format_share(trace.bubble)} idle")
        axes.set_title(said[-1], fontsize=11, pad=5)
    panels[-1].set_xlabel("time (ticks: one micro-batch in one partition)")
    speed = until / ways["Micro-batches"].makespan
    sizes = f"{plural(partitions, 'device')}, {plural(micro_batches, 'micro-batch', 'micro-batches')}"
    finding = f"{sizes}: {speed:.2f} × as fast as one device"
    if partitions > 1:
        finding += "; model parallelism: 1.00 ×"
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")


def _draw_way(axes: Axes, trace: Trace, until: int) -> None:
    for row, lane in enumerate(trace.lanes):
        idle(axes, row, [(0, trace.makespan)])
        for span in trace.only(lane=lane):
            text, piece = span.label.split()
            if text == "all" and span.duration * 7.4 / until > 1.3:  # inches
                text = f"all, partition {piece}"
            bar(axes, row, span.start, span.duration, FORWARD, text, size=10, linewidth=1.5)
    lane_rows(axes, trace.lanes, 0, until)
    axes.set_xticks(range(0, until + 1, 1 if until <= 16 else 4))


# --- pairs (micro-batch, partition), and the clock table made of their diagonals

DIAGONALS_CONTROLS = {
    "micro_batches": whole(1, 7, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
    "clock": whole(0, 9, 2, "k · clock"),
}


@styled
def draw_diagonals(clock_cycles: ClockCycles, micro_batches: int, partitions: int, clock: int) -> Figure:
    """Draw all pairs with their clock, and the table by clock; `clock` stands out (at most the last)."""
    m = micro_batches
    n = partitions
    table = [[(i, j) for i, j in pairs] for pairs in clock_cycles(m, n)]
    clocks = len(table)
    clock = min(clock, clocks - 1)
    now = sorted(table[clock], reverse=True)
    rows = max(m, n)
    figure, (left, right) = new_figure(9, 1.75 + 0.5 * rows, cols=2, width_ratios=[n + 1.4, clocks + 1.7])
    _number_grid(left, n, m, rows, "partition j", "micro-batch i")
    _number_grid(right, clocks, n, rows, "clock k", "partition j")
    for k, pairs in enumerate(table):
        for i, j in pairs:
            look: Any = {"color": FORWARD, "mark": "plain" if k == clock else "faded"}
            draw_cell(left, j, i, Cell(k, **look))
            draw_cell(right, k, j, Cell(i, **look))
    for i, j in now:
        for di, dj in ((0, -1), (-1, 0)):  # the input; the device, which is busy with the one before
            if i + di >= 0 and j + dj >= 0:
                arrow(left, (j + dj, i + di), (j, i), gap=(15, 14), zorder=5)
    right.add_patch(Rectangle((clock - 0.5, -0.5), 1, n, facecolor="none", edgecolor=INK, lw=1.6, zorder=4))
    left.set_title("number: clock k", fontsize=11, pad=4)
    right.set_title("number: micro-batch i", fontsize=11, pad=4)
    finding = f"Clock {clock} of 0 … {clocks - 1}: pairs (i, j) with i + j = {clock}: {_written(now)}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}. A grid of {m} micro-batches by {n} partitions, each with its earliest clock i + j, and a table "
        f"of {clocks} clocks. Arrows lead to a pair from the partition before and from the micro-batch before.",
    )


def _number_grid(axes: Axes, columns: int, lines: int, rows: int, across: str, down: str) -> None:
    """Prepare axes for a grid of cells with numbers along both sides, and what these count."""
    cell_axes(axes, columns=columns, rows=rows, left=1.3, top=1.2)
    write(axes, (columns - 1) / 2, -1.3, across, size=11, color=MUTED)
    write(axes, -1.45, (lines - 1) / 2, down, size=11, color=MUTED, rotation=90)
    for x in range(columns):
        write(axes, x, -0.75, str(x), color=MUTED)
    for y in range(lines):
        write(axes, -0.85, y, str(y), color=MUTED)


def _written(pairs: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"({i}, {j})" for i, j in pairs)


# --- the bubble: the idle cells of the table, counted, and their share over m and n

BUBBLE_CONTROLS = {
    "micro_batches": whole(1, 12, 4, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · partitions"),
}


def idle_share(clock_cycles: ClockCycles, micro_batches: int, partitions: int) -> float:
    """Count the share of idle cells in the clock table."""
    clocks = [len(list(clock)) for clock in clock_cycles(micro_batches, partitions)]
    return 1 - sum(clocks) / (len(clocks) * partitions)


@styled
def draw_bubble(clock_cycles: ClockCycles, micro_batches: int, partitions: int) -> Figure:
    """Draw the clock table with its idle cells hatched, and the idle share over m for several n."""
    m = micro_batches
    n = partitions
    busy = [{j: i for i, j in pairs} for pairs in clock_cycles(m, n)]
    clocks = len(busy)
    share = partial(idle_share, clock_cycles)
    figure, (table, plot) = new_figure(9, 4.1, cols=2, width_ratios=[1.15, 1])
    cell_axes(table, columns=clocks, rows=max(n, 3) + 0.6, left=1.0, top=0.6)
    for k, done in enumerate(busy):
        for j in range(n):
            if j in done:
                draw_cell(table, k, j, Cell(done[j], color=FORWARD), font=11 if clocks < 12 else 9)
            else:
                idle(table, j, [(k - 0.44, 0.88)], height=0.88)
    write(table, (clocks - 1) / 2, -0.95, "clock", color=MUTED)
    write(table, -1.15, (n - 1) / 2, "partition", color=MUTED, rotation=90)
    for j in range(n):
        write(table, -0.75, j, str(j), color=MUTED)
    formula = f"idle: (n − 1) / (m + n − 1) = {n - 1} / {clocks}"
    write(table, (clocks - 1) / 2, max(n, 3) - 0.1, formula, size=11)
    _draw_shares(plot, m, n, share)
    idle_cells = n * clocks - sum(map(len, busy))
    finding = f"m = {m}, n = {n}: {idle_cells} of {n * clocks} cells are idle, {format_share(share(m, n))}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}; each partition waits {n - 1} of {clocks} clocks, before its first and after its last micro-batch. "
        "Beside it the idle share over m from 1 to 64 for n = 2, 4, 8, 16: it falls with m and rises with n.",
    )


def _draw_shares(axes: Axes, m: int, n: int, share: Callable[[int, int], float]) -> None:
    several = [2**k for k in range(7)]
    for partitions in sorted({2, 4, 8, 16, n}):
        color, ink, width, weight = (INK, INK, 2.2, "bold") if partitions == n else (GREY, MUTED, 1.2, None)
        shares = [100 * share(count, partitions) for count in several]
        axes.plot(several, shares, "o-", color=color, lw=width, ms=3.5)
        look: Any = {"ha": "right", "fontsize": 9.5, "color": ink, "weight": weight}
        beside(axes, (1, shares[0]), f"n = {partitions}", (-9, 0), **look)
    axes.plot([m], [100 * share(m, n)], "o", color=FORWARD, ms=10, zorder=5)
    log2_axis(axes, several)
    axes.set(ylim=(-3, 100), xlim=(0.42, 75), xlabel="m · micro-batches, doubling", ylabel="idle, %")
