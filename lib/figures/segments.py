"""The peak of held tensors for every number of segments, drawn: few segments are long, many leave many inputs."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lib.experiments.staircase import measure, peak, predict
from lib.show.explore import Control, whole
from lib.show.style import BLUE, INK, MUTED, ORANGE, describe, new_figure, pale, styled, title

SEGMENTS_CONTROLS: dict[str, Control] = {"layers": whole(2, 64, 16, "L · layers")}


@styled
def draw_segments(layers: int = 16) -> Figure:
    """Draw the peak for every number of segments: predicted line, counted points, and 2√L."""
    figure, axes = new_figure(9, 3.6)
    numbers = range(1, layers + 1)
    predicted = [peak(predict(layers, s)) for s in numbers]
    tried = sorted({*range(1, min(layers, 9) + 1), *range(10, layers + 1, 6), layers})
    counted = {s: max(n for *_, n in measure(layers, s)) for s in tried}
    least = min(predicted)
    best = [s for s, value in zip(numbers, predicted, strict=True) if value == least]
    axes.plot(numbers, predicted, color=INK, lw=1.3, label="predicted: s + ⌊L / s⌋")
    axes.plot(list(counted), list(counted.values()), "o", color=BLUE, ms=7, label="counted in a run")
    axes.fill_between(
        numbers, 0, list(numbers), color=pale(BLUE, 0.30), lw=0, label="of them inputs of segments: s"
    )
    axes.axhline(layers + 1, color=MUTED, ls="--", lw=1.2)
    axes.text(layers, layers + 1, "without checkpoint", ha="right", va="bottom", fontsize=9.5, color=MUTED)
    axes.axhline(2 * math.sqrt(layers), color=ORANGE, ls=":", lw=1.8)
    axes.text(
        layers,
        2 * math.sqrt(layers),
        f"2√L = {2 * math.sqrt(layers):.1f}",
        ha="right",
        va="bottom",
        fontsize=9.5,
    )
    axes.axvspan(best[0] - 0.3, best[-1] + 0.3, color=pale(ORANGE, 0.30), lw=0, zorder=0)
    axes.set(xlim=(0.5, layers + 0.5), ylim=(0, 1.22 * (layers + 1)))
    axes.set(xlabel="s · segments", ylabel="tensors at the peak")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper center", ncols=3)
    which = f"{best[0]} to {best[-1]}" if len(best) > 1 else f"{best[0]}"
    finding = f"{layers} layers need least, {least} tensors, in {which} segment{'s' * (best != [1])}"
    title(axes, finding)
    points = ", ".join(f"{s}: {n}" for s, n in counted.items())
    return describe(figure, f"{finding}. Counted peaks by segments: {points}.")
