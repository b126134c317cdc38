"""Training with and without GPipe: the losses of every step, the accuracy of every seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lib.show.style import INK, MUTED, describe, headline, new_figure, rank_color, styled


def differences(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return, for each seed, how many points of accuracy GPipe has more than the plain model."""
    return [100 * (run["gpipe"][1] - run["plain"][1]) for run in runs]


@styled
def draw_training(runs: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw losses and accuracies in pairs.

    runs: one a seed, with "seed", "partitions", and "plain" and "gpipe": (losses, accuracy from 0 to 1).
    """
    figure, (left, right) = new_figure(9, 3.9, cols=2, width_ratios=[1.5, 1])
    for run in runs:
        color = rank_color(run["seed"])
        left.plot(run["plain"][0], color=color, lw=1.4)
        left.plot(run["gpipe"][0], color=color, lw=2.2, ls=":")
    left.plot([], [], color=INK, lw=1.4, label="plain")
    left.plot([], [], color=INK, lw=2.2, ls=":", label="GPipe")
    left.legend(loc="upper right", title="a colour is a seed")
    left.set(xlabel="step", ylabel="loss", ylim=(0, None))
    for x, run in enumerate(runs):
        color = rank_color(run["seed"])
        plain, piped = 100 * run["plain"][1], 100 * run["gpipe"][1]
        right.plot([x - 0.12, x + 0.12], [plain, piped], color=color, lw=1.5)
        right.plot(x - 0.12, plain, "o", mfc="white", mec=color, mew=2, ms=9)
        right.plot(x + 0.12, piped, "o", color=color, ms=9)
        right.annotate(
            f"n = {run['partitions']}",
            (x + 0.12, piped),
            (8, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    right.plot([], [], "o", mfc="white", mec=INK, mew=2, label="plain")
    right.plot([], [], "o", color=INK, label="GPipe, n partitions")
    right.legend(loc="lower right")
    values = [100 * run[way][1] for run in runs for way in ("plain", "gpipe")]
    right.set(xlim=(-0.5, len(runs) - 0.2), ylim=(min(values) - 4, max(values) + 1.5), ylabel="accuracy (%)")
    right.set_xticks(range(len(runs)), [f"seed {run['seed']}" for run in runs])
    right.yaxis.set_major_locator(MaxNLocator(6))
    apart = mean(differences(runs))
    plains = [100 * run["plain"][1] for run in runs]
    finding = (
        f"GPipe differs by {apart:+.1f} points in the mean; seeds differ by {max(plains) - min(plains):.1f}"
    )
    headline(figure, finding)
    figure.supxlabel("test set: 360 digits of other hands", x=0.99, ha="right", fontsize=9.5, color=MUTED)
    said = "; ".join(
        f"seed {run['seed']}: plain {100 * run['plain'][1]:.1f} %, GPipe with {run['partitions']} partitions "
        f"{100 * run['gpipe'][1]:.1f} %"
        for run in runs
    )
    return describe(figure, f"{finding}. {said}.")
