"""The bubble of the clock table: its idle cells, counted, and their share over m and n."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_share
from lib.pipeline import clock_cycles
from lib.show.charts import log2_axis
from lib.show.explore import whole
from lib.show.sheet import Cell, cell_axes, draw_cell
from lib.show.style import GREY, INK, MUTED, describe, headline, new_figure, rank_color, styled
from lib.show.timeline import idle

BUBBLE_CONTROLS = {
    "micro_batches": whole(1, 12, 4, "m · micro-batches"),
    "partitions": whole(1, 6, 4, "n · partitions"),
}


def idle_share(micro_batches: int, partitions: int) -> float:
    """Count the share of idle cells in the clock table."""
    busy = sum(len(clock) for clock in clock_cycles(micro_batches, partitions))
    clocks = sum(1 for _ in clock_cycles(micro_batches, partitions))
    return 1 - busy / (clocks * partitions)


@styled
def draw_bubble(micro_batches: int, partitions: int) -> Figure:
    """Draw the clock table with its idle cells hatched, and the idle share over m for several n."""
    m, n = micro_batches, partitions
    figure, (table, plot) = new_figure(9, 4.1, cols=2, width_ratios=[1.15, 1])
    clocks = m + n - 1
    cell_axes(table, columns=clocks, rows=max(n, 3) + 0.6, left=1.0, top=0.6)
    for k in range(clocks):
        for j in range(n):
            if 0 <= k - j < m:
                draw_cell(table, k, j, Cell(k - j, color=rank_color(j)), font=11 if clocks < 12 else 9)
            else:
                idle(table, j, [(k - 0.44, 0.88)], height=0.88)
    table.text((clocks - 1) / 2, -0.95, "clock", ha="center", va="center", fontsize=10, color=MUTED)
    table.text(
        -1.15, (n - 1) / 2, "partition", rotation=90, ha="center", va="center", fontsize=10, color=MUTED
    )
    for j in range(n):
        table.text(-0.75, j, f"{j}", ha="center", va="center", fontsize=10, color=MUTED)
    waits = f"each partition waits {n - 1} of {clocks} clocks"
    formula = f"idle: (n − 1) / (m + n − 1) = {n - 1} / {clocks}"
    table.text((clocks - 1) / 2, max(n, 3) - 0.1, formula, ha="center", va="center", fontsize=11)
    _curves(plot, m, n)
    share = idle_share(m, n)
    finding = f"m = {m}, n = {n}: {n * (n - 1)} of {n * clocks} cells are idle, {format_share(share)}"
    headline(figure, finding)
    return describe(
        figure,
        f"{finding}; {waits}: two triangles, before the first and after the last micro-batch. Beside it the idle share "
        f"over m from 1 to 64 for n = 2, 4, 8, 16: it falls with m and rises with n.",
    )


def _curves(axes: Axes, m: int, n: int) -> None:
    several = [2**k for k in range(7)]
    for partitions in sorted({2, 4, 8, 16, n}):
        shares = [100 * idle_share(count, partitions) for count in several]
        chosen = partitions == n
        axes.plot(several, shares, "o-", color=INK if chosen else GREY, lw=2.2 if chosen else 1.2, ms=3.5)
        axes.annotate(
            f"n = {partitions}",
            (1, shares[0]),
            (-9, 0),
            textcoords="offset points",
            va="center",
            ha="right",
            fontsize=9.5,
            color=INK if chosen else MUTED,
            weight="bold" if chosen else "normal",
        )
    axes.plot([m], [100 * idle_share(m, n)], "o", color=rank_color(5), ms=10, zorder=5)
    log2_axis(axes, several)
    axes.set(ylim=(-3, 100), xlim=(0.42, 75), xlabel="m · micro-batches", ylabel="idle, %")
