"""Figures of notebook 08, forward only: why micro-batches, which pair runs when.

draw_three_ways  one device, model parallelism and micro-batches on one time axis
draw_diagonals   pairs (micro-batch, partition) and the clock table made of their diagonals
draw_clocks      any list of clocks as a table; what runs before its input is there is red
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib._units import format_share
from lib.pipeline import clock_cycles
from lib.show.explore import whole
from lib.show.sheet import Cell, Mark, arrow, cell_axes, draw_cell
from lib.show.style import (
    INK,
    MUTED,
    RED,
    describe,
    headline,
    new_figure,
    rank_color,
    styled,
    title,
)
from lib.show.timeline import bar, idle, lane_rows
from lib.timeline import Span, Trace

THREE_WAYS_CONTROLS = {
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
}
DIAGONALS_CONTROLS = {
    "micro_batches": whole(1, 7, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 3, "n · partitions"),
    "clock": whole(0, 9, 2, "k · clock"),
}


# ---- three ways


def three_ways(micro_batches: int, partitions: int) -> dict[str, Trace]:
    """Return the forward pass of one batch as a Trace for each way; a micro-batch takes a tick in a partition."""
    m, n = micro_batches, partitions
    names = [f"device {j}" for j in range(n)]
    alone = [Span("device 0", "all", j * m, (j + 1) * m, str(j)) for j in range(n)]
    parallel = [Span(names[j], "all", j * m, (j + 1) * m, str(j)) for j in range(n)]
    piped = [
        Span(names[j], str(i), k, k + 1, str(j))
        for k, clock in enumerate(clock_cycles(m, n))
        for i, j in clock
    ]
    return {
        "One device": Trace(alone),
        "Model parallelism": Trace(parallel, names),
        "Micro-batches": Trace(piped, names),
    }


@styled
def draw_three_ways(micro_batches: int, partitions: int) -> Figure:
    """Draw the three ways below each other: colour is the piece of the model, the number the micro-batch."""
    ways = three_ways(micro_batches, partitions)
    ticks = micro_batches * partitions
    lanes = [len(trace.lanes) for trace in ways.values()]
    figure, panels = new_figure(
        9, 1.7 + 0.34 * sum(lanes), rows=3, sharex=True, height_ratios=[n + 0.9 for n in lanes]
    )
    said = []
    for axes, (way, trace) in zip(panels, ways.items(), strict=True):
        _way(axes, trace, ticks)
        facts = f"{trace.makespan:g} tick{'s' * (trace.makespan != 1)}, {format_share(trace.bubble)} idle"
        axes.set_title(f"{way}: {facts}", fontsize=11, pad=5)
        said.append(f"{way}: {facts}")
    panels[-1].set_xlabel("time (ticks: one micro-batch in one piece of the model)")
    speed = ticks / ways["Micro-batches"].makespan
    devices = f"{partitions} device{'s' * (partitions > 1)}"
    parts = f"{micro_batches} micro-batch{'es' * (micro_batches > 1)}"
    finding = f"{devices}, {parts}: {speed:.2f} × as fast as one device"
    if partitions > 1:
        finding += "; model parallelism: 1.00 ×"
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")


def _way(axes: Axes, trace: Trace, ticks: int) -> None:
    for row, lane in enumerate(trace.lanes):
        idle(axes, row, [(0, trace.makespan)])
        for span in trace.only(lane=lane):
            color = rank_color(int(span.kind))
            text = (
                "the whole batch" if span.label == "all" and span.duration * 7.4 / ticks > 1.3 else span.label
            )
            bar(axes, row, span.start, span.duration, color, text, size=10, linewidth=1.5)
    lane_rows(axes, trace.lanes, 0, ticks)
    axes.set_xticks(range(0, ticks + 1, 1 if ticks <= 16 else 4))


# ---- the clock table


@styled
def draw_diagonals(micro_batches: int, partitions: int, clock: int) -> Figure:
    """Draw all pairs with their earliest clock, and the table by clock; `clock` stands out (at most the last)."""
    m, n = micro_batches, partitions
    clock = min(clock, m + n - 2)
    now = [(clock - j, j) for j in range(n) if 0 <= clock - j < m]
    rows = max(m, n)
    figure, (left, right) = new_figure(9, 1.75 + 0.5 * rows, cols=2, width_ratios=[n + 1.4, m + n + 0.7])
    cell_axes(left, columns=n, rows=rows, left=1.3, top=1.2)
    cell_axes(right, columns=m + n - 1, rows=rows, left=1.3, top=1.2)
    for axes, across, down in ((left, "partition j", "micro-batch i"), (right, "clock k", "partition j")):
        columns, lines = (n, m) if axes is left else (m + n - 1, n)
        axes.text((columns - 1) / 2, -1.3, across, ha="center", va="center", fontsize=11, color=MUTED)
        axes.text(
            -1.45, (lines - 1) / 2, down, rotation=90, ha="center", va="center", fontsize=11, color=MUTED
        )
        for x in range(columns):
            axes.text(x, -0.75, str(x), ha="center", va="center", fontsize=10, color=MUTED)
        for y in range(lines):
            axes.text(-0.85, y, str(y), ha="center", va="center", fontsize=10, color=MUTED)
    for i, j in _pairs(m, n):
        hue = rank_color(j)
        mark: Mark = "plain" if (i, j) in now else "faded"
        draw_cell(left, j, i, Cell(i + j, color=hue, mark=mark))
        draw_cell(right, i + j, j, Cell(i, color=hue, mark=mark))
    for i, j in now:
        for di, dj in ((0, -1), (-1, 0)):  # the input; the device, which is busy with the one before
            if i + di >= 0 and j + dj >= 0:
                arrow(left, (j + dj, i + di), (j, i), gap=(15, 14), zorder=5)
    right.add_patch(Rectangle((clock - 0.5, -0.5), 1, n, facecolor="none", edgecolor=INK, lw=1.6, zorder=4))
    left.set_title("earliest clock of each pair", fontsize=11, pad=4)
    right.set_title("who computes which micro-batch", fontsize=11, pad=4)
    pairs = ", ".join(f"({i}, {j})" for i, j in now)
    finding = f"Clock {clock} of 0 … {m + n - 2}: pairs (i, j) with i + j = {clock}: {pairs}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}. A grid of {m} micro-batches by {n} partitions, each with its earliest clock i + j, and a table "
        f"of {m + n - 1} clocks. Arrows lead to a pair from the partition before and from the micro-batch before.",
    )


def _pairs(m: int, n: int) -> Iterator[tuple[int, int]]:
    return ((i, j) for i in range(m) for j in range(n))


def early(clocks: Sequence[Iterable[tuple[int, int]]]) -> set[tuple[int, int, int]]:
    """Return (clock, i, j) of each pair that runs before its input (i, j - 1) has been there for a whole clock."""
    done: set[tuple[int, int]] = set()
    found = set()
    for k, clock in enumerate(clocks):
        pairs = list(clock)
        found |= {(k, i, j) for i, j in pairs if j and (i, j - 1) not in done}
        done.update(pairs)
    return found


@styled
def draw_clocks(clocks: Iterable[Iterable[tuple[int, int]]]) -> Figure:
    """Draw a list of clocks, each a list of pairs (micro-batch, partition), as a table: a row a partition."""
    table = [list(clock) for clock in clocks]
    wrong = early(table)
    partitions = 1 + max((j for clock in table for _, j in clock), default=0)
    figure, axes = new_figure(9, 1.25 + 0.5 * partitions)
    cell_axes(axes, columns=max(len(table), 8), rows=partitions, left=2.2, top=0.6)
    axes.set_anchor("W")
    axes.text(-0.85, -0.75, "clock", ha="right", va="center", fontsize=10, color=MUTED)
    for j in range(partitions):
        axes.text(-0.85, j, f"partition {j}", ha="right", va="center_baseline", fontsize=10, color=INK)
    for k, clock in enumerate(table):
        axes.text(k, -0.75, str(k), ha="center", va="center", fontsize=10, color=MUTED)
        for i, j in clock:
            is_early = (k, i, j) in wrong
            draw_cell(axes, k, j, Cell(f"{i}!" if is_early else i, color=RED if is_early else rank_color(j)))
    pairs = sum(map(len, table))
    finding = f"{len(table)} clocks, {pairs} pairs: " + (
        f"{len(wrong)} of them run before their input is there"
        if wrong
        else "each runs after its input is there"
    )
    title(axes, finding)
    said = [f"clock {k}: " + ", ".join(f"({i}, {j})" for i, j in clock) for k, clock in enumerate(table)]
    return describe(figure, f"{finding}. Pairs (micro-batch, partition) by clock: {'; '.join(said)}.")
