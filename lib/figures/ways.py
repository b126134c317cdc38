"""Figure of notebook 05: the memory of each way over time, by whose pages they are.

draw_ways   a panel a run: private pages of ranks, of workers, of the server, and those that several share
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib._units import format_bytes
from lib.data.ways import Run
from lib.show.style import BLUE, GREEN, GREY, ORANGE, PAPER, RED, describe, headline, new_figure, styled

LAYERS = {
    "ranks": ("private to ranks (USS)", BLUE, ""),
    "shared": ("shared (PSS − USS)", GREY, "...."),
    "workers": ("private to workers (USS)", ORANGE, "////"),
    "server": ("the server (USS)", GREEN, "\\\\\\\\"),
}


@styled
def draw_ways(runs: Mapping[str, Run], budget: float) -> Figure:
    """Draw runs by name side by side, on one scale; `budget`: bytes of a machine that is too small for some."""
    figure, axes = new_figure(9, 4.6, cols=len(runs), sharey=True, sharex=True, squeeze=False)
    longest = max(run.times[-1] for run in runs.values())
    said = []
    for place, (name, run) in zip(axes[0], runs.items(), strict=True):
        layers = [[size / 1e6 for size in getattr(run, layer)] for layer in LAYERS]
        looks = [{"facecolor": c, "hatch": h, "edgecolor": PAPER} for _, c, h in LAYERS.values()]
        low = [0.0] * len(run.times)
        for layer, look in zip(layers, looks, strict=True):
            high = [a + b for a, b in zip(low, layer, strict=True)]
            place.fill_between(run.times, low, high, linewidth=0, **look)
            low = high
        place.plot(run.times, low, color="black", linewidth=1)
        place.axhline(budget / 1e6, color=RED, linestyle=(0, (5, 3)), linewidth=1.4)
        called = name.replace("\n", " ")
        over = next((t for t, size in zip(run.times, run.totals, strict=True) if size > budget), None)
        if over is None:
            said.append(f"{called}: peak {format_bytes(run.peak)}, fits")
            verdict, color = "fits", GREEN
        else:
            place.plot(over, budget / 1e6, "X", color=RED, markersize=11, markeredgecolor=PAPER, zorder=5)
            said.append(f"{called}: peak {format_bytes(run.peak)}, over after {over:.1f} s")
            verdict, color = f"over at {over:.1f} s", RED
        place.set_title(name, fontsize=10.5, pad=32, linespacing=1.2)
        place.text(0, 1.025, verdict, transform=place.transAxes, fontsize=9.5, color=color, fontweight="bold")
        place.text(0, 1.085, f"peak {format_bytes(run.peak)}", transform=place.transAxes, fontsize=9.5)
        place.set(xlabel="time (s)")
    top = max(run.peak for run in runs.values()) / 1e6
    axes[0, 0].set(ylim=(0, 1.06 * top), xlim=(0, longest), ylabel="memory (MB)")
    paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    axes[0, 0].text(
        0.04 * longest, budget / 1e6, format_bytes(budget), va="center", color=RED, fontsize=10, bbox=paper
    )
    handles = [Patch(facecolor=c, hatch=h, edgecolor=PAPER, label=label) for label, c, h in LAYERS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    fitting = sum(run.peak <= budget for run in runs.values())
    finding = f"A machine of {format_bytes(budget)} has room for {fitting} of these {len(runs)} ways"
    headline(figure, finding)
    return describe(figure, f"{finding}. Memory over time, {'; '.join(said)}.")
