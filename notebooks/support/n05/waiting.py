"""Pictures of who waits for the disk: an epoch by demand, for each way to read rows cold, and a live run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from lib.show import style
from lib.show.explore import choice, steps
from lib.show.style import BLUE, GREEN, INK, MUTED, ORANGE, describe, new_figure, pale, styled, title
from support.n05.border import COLD_WAYS, DISKS, ROWS, epoch_seconds, keeps_up_to
from support.n05.cold import ColdRun

LOOKS: dict[str, tuple[str, Any]] = {
    "row by row": (ORANGE, "-"),
    "own rows, read first": (BLUE, ":"),
    "own rows, read ahead": (BLUE, "-"),
    "shards, shuffle buffer": (GREEN, "--"),
}
BORDER_CONTROLS = {
    "disk": choice(tuple(DISKS), "network volume", "disk"),
    "demand": steps((1_000, 8_000, 40_000, 200_000, 1_000_000), 8_000, "demand · rows/s"),
    "mini_epochs": steps((1, 8, 64), 8, "E · mini-epochs"),
    "cached": steps((0, 50, 90), 0, "cached %"),
    "images": choice(("elsewhere", "same disk"), "elsewhere", "images"),
}


def rate(rows: float) -> str:
    """Write a number of rows a second with two digits that count: 890, 16 k, 5.7 M."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if rows >= size:
            return f"{float(f'{rows / size:.2g}'):g}{unit}"
    return f"{float(f'{rows:.2g}'):g}"


@styled
def draw_border(*, disk: str, demand: int, mini_epochs: int, cached: int, images: str) -> Figure:
    """Draw how long an epoch takes by what training asks for, and where each way begins to hold training up."""
    told: Any = {"mini_epochs": mini_epochs, "cached": cached / 100, "images": images == "same disk"}
    limits = DISKS[disk]
    demands = np.geomspace(300, 5e6, 300)
    figure, axes = new_figure(9, 4.2)
    axes.plot(demands, ROWS / demands / 3600, color=MUTED, linewidth=5, alpha=0.35, label="training alone")
    hours = {}
    for way in COLD_WAYS:
        color, line = LOOKS[way]
        taken = [epoch_seconds(way, asked, limits, **told) / 3600 for asked in demands]
        axes.plot(demands, taken, line, color=color, linewidth=2, label=way)
        hours[way] = epoch_seconds(way, demand, limits, **told) / 3600
    axes.axvline(demand, color=INK, linewidth=1)
    for way, taken_here in hours.items():
        axes.plot(demand, taken_here, "o", color=LOOKS[way][0], markersize=6)
    axes.set(xscale="log", yscale="log", xlim=(demands[0], demands[-1]))
    axes.set(xlabel="demand: rows a second that training could take", ylabel="hours for an epoch")
    axes.legend(loc="lower left", fontsize=9)  # no way is quicker than training alone: nothing is drawn there
    keeps = {way: keeps_up_to(way, limits, **told) for way in COLD_WAYS}
    up_to = ", ".join(f"{name} {rate(keeps[way])}" for name, way in _SHORT.items())
    title(axes, f"Reading keeps up to: {up_to} rows/s")  # from the second load on
    here = "; ".join(f"{way} {taken_here:.2f} h" for way, taken_here in hours.items())
    where = f"{disk}, E = {mini_epochs}, {cached} % cached, images {images}"
    alone = f"training alone {ROWS / demand / 3600:.2f} h"
    return describe(
        figure, f"{where}. At {demand:,} rows/s: {alone}; {here}. Reading keeps up to: {up_to} rows/s."
    )


_SHORT: dict[str, Any] = {
    "row by row": "row by row",
    "own rows": "own rows, read ahead",
    "shards": "shards, shuffle buffer",
}


_BARS = {"row by row": ORANGE, "own rows": BLUE, "shards": GREEN}


@styled
def draw_cold(runs: Mapping[str, ColdRun], predicted: Mapping[str, float], demand: float) -> Figure:
    """Draw how long each run took, filled, and what was predicted, as an outline."""
    figure, axes = new_figure(9, 1.2 + 0.45 * len(runs))
    for y, (name, run) in enumerate(runs.items()):
        color = next((color for begin, color in _BARS.items() if name.startswith(begin)), MUTED)
        axes.barh(y, run.seconds, height=0.5, color=pale(color), edgecolor="none")
        if name in predicted:
            axes.barh(y, predicted[name], height=0.5, color="none", edgecolor=color, linewidth=1.6)
        style_text = f"{run.seconds:.1f} s, {run.reads:,} reads"
        axes.text(max(run.seconds, predicted.get(name, 0)) + 0.03, y, style_text, va="center", color=INK)
    longest = max([*predicted.values(), *(run.seconds for run in runs.values())])
    axes.set(xlim=(0, 1.3 * longest), ylim=(len(runs) - 0.5, -0.6))
    axes.set_yticks(range(len(runs)), [*runs], color=INK)
    axes.set_xlabel("seconds; filled: measured, outline: predicted from reads, bytes and steps")
    asked = "row by row"
    other = "own rows, read ahead"
    longer = runs[asked].seconds / runs[other].seconds
    style.headline(figure, f"{demand:,.0f} rows/s asked for: {asked} takes {longer:.1f} × as long as {other}")
    rows = "; ".join(f"{name} {run.seconds:.1f} s with {run.reads:,} reads" for name, run in runs.items())
    return describe(figure, f"A demand of {demand:,.0f} rows/s: {rows}.")
