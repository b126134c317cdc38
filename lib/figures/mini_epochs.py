"""Figures of notebook 05: epochs of a RankDataset.

draw_received   which rows came in which epoch, against those that the epoch should have given
draw_seen       how much of the data a rank has seen after so many epochs, dealt anew or once for ever
draw_cost       memory and loading time over the number of mini-epochs
draw_headline   the recorded run of 400 million rows
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lib import recorded
from lib._units import format_bytes, format_share
from lib.data.permutation import Permutation
from lib.data.ways_model import OFFSETS, predict
from lib.show.explore import whole
from lib.show.sheet import Cell, cell_axes, draw_cells, label_row
from lib.show.style import (
    BLUE,
    INK,
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


@styled
def draw_received(loops: Mapping[str, Sequence[Sequence[int]]], truth: Sequence[Sequence[int]]) -> Figure:
    """Draw epoch × rows for each loop; a row has the colour of the epoch whose deal it came from, a cross: none now."""
    epochs, most = len(truth), max(map(len, truth))
    figure, grid = new_figure(9, 1.25 + 0.46 * epochs, cols=len(loops), squeeze=False)
    words, wrong = [], {}
    for axes, (name, received) in zip(grid[0], loops.items(), strict=True):
        cell_axes(axes, columns=most, rows=epochs, left=2.2)
        source = [next((t for t in range(epochs) if list(truth[t]) == list(rows)), None) for rows in received]
        for epoch, rows in enumerate(received):
            label_row(axes, epoch, f"epoch {epoch}")
            draw_cells(
                axes,
                [Cell(row, source[epoch], "plain" if source[epoch] == epoch else "padding") for row in rows],
                y=epoch,
                font=10,
            )
        axes.set_title(name, fontsize=11)
        wrong[name] = sum(list(a) != list(b) for a, b in zip(received, truth, strict=True))
        words.append(f"{name}: rows of epochs {', '.join('?' if s is None else str(s) for s in source)}")
    parts = [f"{name}: {count} of {epochs} epochs wrong" for name, count in wrong.items()]
    headline(figure, "; ".join(parts))
    return describe(figure, f"Told epochs {', '.join(map(str, range(epochs)))}. {'; '.join(words)}.")


SEEN_CONTROLS = {
    "world_size": whole(2, 32, 8, "W · ranks", step=2),
    "epochs": whole(4, 40, 20, "epochs", step=2),
}


@styled
def draw_seen(*, world_size: int, epochs: int, size: int = 3200) -> Figure:
    """Draw the share of all rows that rank 0 has seen: dealt once, and dealt anew (counted, over 1 - (1 - 1/W)^e)."""
    seen, counted = np.zeros(size, bool), []
    for epoch in range(epochs):
        seen[Permutation(size, epoch=epoch)[np.arange(0, size, world_size)]] = True
        counted.append(100 * float(seen.mean()))
    figure, axes = new_figure(9, 3.5)
    x = range(1, epochs + 1)
    axes.plot(
        x,
        [100 * (1 - (1 - 1 / world_size) ** e) for e in x],
        color=MUTED,
        linestyle=(0, (4, 3)),
        linewidth=1.6,
    )
    axes.plot(x, counted, "o", color=BLUE, markersize=6)
    axes.plot(x, [100 / world_size] * epochs, "s", color=RED, markersize=5)
    axes.annotate(
        "dealt anew in each epoch",
        (epochs, counted[-1]),
        (0, 9),
        textcoords="offset points",
        ha="right",
        color=BLUE,
    )
    axes.annotate(
        "dealt once", (epochs, 100 / world_size), (0, 9), textcoords="offset points", ha="right", color=RED
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(
        ylim=(0, 112), xlim=(0.5, epochs + 0.5), xlabel="epochs", ylabel="seen by rank 0 (% of all rows)"
    )
    once = 100 / world_size
    finding = (
        f"{world_size} ranks, {epochs} epochs: a rank sees {counted[-1]:.0f} % of the data, not {once:.0f} %"
    )
    title(axes, finding)
    return describe(figure, f"{finding}. After one epoch it is {counted[0]:.0f} % either way.")


@styled
def draw_cost(
    costs: Mapping[int, Mapping[str, float]], rows: int, row_bytes: float, world_size: int
) -> Figure:
    """Draw what E changes; costs[E] has "bytes" held, and "seconds" that a rank loads in an epoch."""
    figure, (left, right) = new_figure(9, 3.6, cols=2)
    parts = list(costs)
    model = [
        predict("rank", rows=rows, row_bytes=row_bytes, world_size=world_size, mini_epochs=e).each / 1e6
        for e in parts
    ]
    left.plot(
        parts, model, "-", color=MUTED, marker="s", markerfacecolor=PAPER, markersize=11, label="predicted"
    )
    left.plot(parts, [costs[e]["bytes"] / 1e6 for e in parts], "o", color=BLUE, label="held")
    left.set(ylabel="memory a rank (MB)", ylim=(0, None))
    left.legend()
    right.plot(parts, [costs[e]["seconds"] for e in parts], "-o", color=ORANGE)
    right.set(ylabel="loading, a rank and epoch (s)", ylim=(0, None))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="E · mini-epochs")
        axes.set_xticks(parts, [str(e) for e in parts])
        axes.minorticks_off()
    first, last = costs[parts[0]], costs[parts[-1]]
    finding = (
        f"E = {parts[-1]} instead of {parts[0]}: {format_share(last['bytes'] / first['bytes'])} of the memory, "
        f"{last['seconds'] / first['seconds']:.1f} × the loading"
    )
    headline(figure, finding)
    held = ", ".join(f"E = {e} {costs[e]['bytes'] / 1e6:.1f} MB" for e in parts)
    return describe(figure, f"{finding}. Held by a rank of {world_size}: {held}.")


@styled
def draw_headline(record: Mapping[str, Any]) -> Figure:
    """Draw the recorded memory over time of one rank through all mini-epochs, and of all ranks together."""
    world, parts, rows = record["world_size"], record["mini_epochs"], record["rows"]
    text = record["predicted_text_bytes"]
    payload = predict(
        "rank", rows=rows, row_bytes=record["bytes"] / rows, world_size=world, mini_epochs=parts
    ).each
    figure, panels = new_figure(9, 4.4, cols=2)
    peaks = {}
    for axes, (where, ranks) in zip(panels, (("alone", 1), ("together", world)), strict=True):
        times, sizes = zip(*record[where]["pss_over_time"], strict=True)
        axes.fill_between(times, [size / 1e6 for size in sizes], color=PINK, alpha=0.35, linewidth=0)
        axes.plot(times, [size / 1e6 for size in sizes], color=PINK, linewidth=1.6)
        for value, look, label in (
            (text, (0, (1, 1.5)), "text, M / (W · E)"),
            (payload, (0, (5, 2)), f"with {OFFSETS} bytes a row"),
        ):
            axes.axhline(
                ranks * value / 1e6, color=INK, linestyle=look, linewidth=1.4, label=f"predicted: {label}"
            )
        peaks[where] = max(load["peak_bytes"] for load in record[where]["loads"])
        axes.set(xlabel="time (s)", ylim=(0, 1.45 * ranks * payload / 1e6), xlim=(0, None))
        axes.set_title(f"{'one rank alone' if ranks == 1 else f'{ranks} ranks together'}", fontsize=11)
    panels[0].set_ylabel("memory, PSS (MB)")
    panels[0].legend(loc="upper left")
    peak = format_bytes(peaks["alone"])
    finding = f"{rows / 1e6:.0f} million rows: a rank peaks at {peak}, {format_bytes(text)} of text predicted"
    headline(figure, finding)
    figure.supxlabel(recorded.provenance(record), fontsize=9, color=MUTED)
    return describe(
        figure,
        f"{finding}. Recorded, W = {world}, E = {parts}: payload predicted {format_bytes(payload)}; "
        f"{world} ranks together peak at {format_bytes(peaks['together'])} each.",
    )
