"""Figure of notebook 06: the loss of one training run on one rank and on several, over the same global batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from lib.show.style import BLUE, INK, MUTED, ORANGE, describe, headline, new_figure, styled


@styled
def draw_curves(losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw two loss curves over each other, and below how far apart they are in each step.

    losses: two names, each with its loss per step, of equal length. Raises ValueError otherwise.
    """
    if len(losses) != 2 or len({len(values) for values in losses.values()}) != 1:
        raise ValueError(f"two curves of one length, not { ({name: len(v) for name, v in losses.items()}) }")
    (one, first), (other, second) = ((name, np.array(values)) for name, values in losses.items())
    figure, (upper, lower) = new_figure(9, 4.6, rows=2, sharex=True, height_ratios=(2.2, 1))
    steps = np.arange(len(first))
    upper.plot(steps, first, color=ORANGE, linewidth=6, alpha=0.6, solid_capstyle="round", label=one)
    upper.plot(steps, second, color=BLUE, linewidth=1.6, linestyle=(0, (4, 2)), label=other)
    upper.legend(loc="upper right")
    upper.set(ylabel="loss of the\nglobal batch", ylim=(0, None))
    apart = np.abs(first - second)
    floor = 1e-9
    lower.vlines(steps, floor, np.maximum(apart, floor), color=INK, linewidth=1.6)
    lower.set_yscale("log")
    lower.set(ylim=(floor, 10), xlabel="step", ylabel="how far apart")
    lower.axhline(float(np.mean(first)), color=MUTED, linestyle="--", linewidth=1.2)
    lower.text(len(first) - 1, float(np.mean(first)) * 1.5, "mean loss", ha="right", fontsize=9, color=MUTED)
    most = 10.0 ** np.ceil(np.log10(max(float(apart.max()), 1e-4)))
    headline(figure, f"{one} and {other}: the same curve, never {most:.0e} apart".replace("e-0", "e-"))
    return describe(
        figure,
        f"Loss in {len(first)} steps, {one} and {other}: from {first[0]:.2f} to {first[-1]:.2f}, "
        f"never {most:.0e} apart.",
    )
