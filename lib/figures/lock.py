"""How much two threads gain, by the length of one operation: short ones spend their time at the interpreter's lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_time
from lib.show.style import BLUE, GREY, INK, MUTED, RED, describe, new_figure, styled, title

ENOUGH = 1.2  # what the longest operation gains if there is a second core, at least


@dataclass(frozen=True)
class Gain:
    """Say what two threads gained: `op` seconds an operation, `factor` times as fast as one thread, by name."""

    name: str
    op: float
    factor: float


@styled
def draw_lock(torch_gains: Sequence[Gain], python: Gain) -> Figure:
    """Draw gain over seconds an operation (logarithmic): torch's operations, and a Python loop for comparison."""
    figure, axes = new_figure(9, 4.0)
    gains = sorted(torch_gains, key=lambda gain: gain.op)
    times = [1e6 * gain.op for gain in gains]
    top = max(2.25, *(gain.factor + 0.25 for gain in gains))
    axes.fill_between([1e-9, 1e9], 0, 1, color=RED, alpha=0.07, linewidth=0)
    for level in (1, 2):
        axes.axhline(level, color=GREY, linewidth=1.2, linestyle=(0, (4, 3)))
    _write(axes, "two cores, twice as fast", (0, 2), (6, 4), ha="left", color=MUTED)
    _write(axes, "slower than one thread", (0, 0), (6, 6), ha="left", color=RED)
    axes.plot(times, [gain.factor for gain in gains], color=BLUE, marker="o", markersize=7, zorder=3)
    for gain, x in zip(gains, times, strict=True):
        look = {"ha": "center", "color": BLUE, "weight": "bold"}
        _write(axes, gain.name, (x, gain.factor), (0, -20 if gain.factor > 1.7 else 9), "data", **look)
    axes.axhline(python.factor, color=RED, linewidth=2)
    label = f"red line, {python.name}: {python.factor:.2f}"  # far from the curve, wherever that runs
    _write(axes, label, (1, 0), (-4, 6), ha="right", color=RED, weight="bold")
    axes.set_xscale("log")
    axes.set(xlim=(times[0] / 1.6, times[-1] * 1.6), ylim=(0, top))
    marks = [mark for mark in (1, 10, 100, 1000, 10000) if times[0] / 1.6 <= mark <= times[-1] * 1.6]
    axes.set_xticks(marks, [format_time(mark / 1e6) for mark in marks])
    axes.minorticks_off()
    axes.set(xlabel="time of one operation, alone", ylabel="two threads: times as fast")
    axes.tick_params(colors=INK)
    found = [f"{gain.factor:.1f} × for {gain.name}" for gain in (gains[0], gains[-1])]
    finding = f"Two threads: {', '.join(found)}, {python.factor:.1f} × for a {python.name}"
    title(axes, finding if gains[-1].factor >= ENOUGH else f"No second core is free just now. {finding}")
    said = "; ".join(f"{gain.name}, {format_time(gain.op)} an operation: {gain.factor:.2f}" for gain in gains)
    return describe(
        figure, f"Times as fast with two threads instead of one. {said}. {python.name}: {python.factor:.2f}."
    )


def _write(
    axes: Axes, text: str, at: tuple[float, float], offset: tuple[float, float], coords: Any = "", **look: Any
) -> None:
    where = coords or ("axes fraction", "data")
    axes.annotate(text, at, xycoords=where, xytext=offset, textcoords="offset points", fontsize=10, **look)
