"""Figure of notebook 06: test accuracy by the way that rows are dealt, in pairs of equal seeds, and what that says.

draw_accuracy  every seed of every deal, and the differences to the full shuffle with their 95 % interval
statements     the same in sentences, computed
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure

from lib.show.style import BLUE, GREY, INK, MUTED, ORANGE, describe, headline, new_figure, styled
from lib.training.comparison import Comparison, against_first

Results: TypeAlias = Mapping[str, Sequence[Mapping[str, float]]]
"""By name of the deal, the first one being what all others are compared with: a result for each seed."""


def points(share: float) -> str:
    """Return a difference of shares in percentage points, signed: +0.31, −0.05."""
    text = f"{100 * share:+.2f}".replace("-", "−")
    return "0.00" if text in ("+0.00", "−0.00") else text


def statement(row: Comparison, seeds: int) -> str:
    """Say what one comparison allows to say, and no more."""
    interval = f"{points(row.difference)} points ({points(row.low)} … {points(row.high)})"
    if not row.settled:
        worst = f"{100 * max(0.0, -row.low):.2f}"
        return f"{row.name}: {interval}, {seeds} seeds show no difference; a loss above {worst} is ruled out"
    kind = "better" if row.difference > 0 else "worse"
    sure = min(abs(row.low), abs(row.high))
    return f"{row.name}: {interval}, {kind} by {100 * sure:.2f} or more"


def statements(results: Results) -> list[str]:
    """Return a statement for each deal but the first."""
    seeds = len(next(iter(results.values())))
    return [statement(row, seeds) for row in against_first(results)[1:]]


def finding(results: Results) -> str:
    """Return the title: what differs from the first deal, and by how much at most."""
    first, *others = against_first(results)
    seeds = len(next(iter(results.values())))
    apart = [row for row in others if row.settled]
    if not apart:
        return f"{seeds} seeds: no difference to {first.name} is shown"
    far = max(apart, key=lambda row: abs(row.difference))
    how = "loses" if far.difference < 0 else "gains"
    return f"{seeds} seeds: {far.name}, {how} {100 * abs(far.difference):.2f} points"


@styled
def draw_accuracy(results: Results, *, source: str = "") -> Figure:
    """Draw a row for each deal: accuracy of every seed, and beside it the paired differences to the first deal.

    A diamond is the mean, a bar the 95 % interval of the mean difference. source: where it was measured, if not here.
    """
    table = against_first(results)
    seeds = len(next(iter(results.values())))
    first = np.array([row["accuracy"] for row in next(iter(results.values()))])
    figure, (left, right) = new_figure(
        9, 1.5 + 0.5 * len(table) + 0.25 * bool(source), cols=2, sharey=True, width_ratios=(1, 1.25)
    )
    for place, row in enumerate(table):
        values = np.array([result["accuracy"] for result in results[row.name]])
        rank = row.name.startswith("rank, E")
        color, marker = (GREY, "s") if not place else (BLUE, "o") if rank else (ORANGE, "^")
        jitter = place + 0.24 * np.linspace(-1, 1, len(values))
        dots = dict(color=color, marker=marker, alpha=0.55, linewidths=0, zorder=2)
        left.scatter(100 * values, jitter, s=16, **dots)
        left.plot(100 * row.mean, place, "D", color=INK, markersize=6, zorder=4)
        if not place:
            continue
        right.scatter(100 * (values - first), jitter, s=16, **dots)
        right.plot([100 * row.low, 100 * row.high], [place, place], color=INK, linewidth=3, zorder=3)
        right.plot(100 * row.difference, place, "D", color=INK, markersize=6, zorder=4)
        at, where = (1.01, place), right.get_yaxis_transform()
        text = f"{points(row.difference)}\n({points(row.low)} … {points(row.high)})"
        right.text(*at, text, transform=where, va="center", fontsize=9, color=INK if row.settled else MUTED)
    right.axvline(0, color=MUTED, linestyle="--", linewidth=1.3, zorder=1)
    left.set_yticks(range(len(table)), [row.name for row in table], color=INK)
    left.set_ylim(len(table) - 0.5, -0.6)
    for axes in (left, right):
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    left.set_xlabel("test accuracy, %")
    right.set_xlabel(f"difference to {table[0].name}, same seed, points" + (f"\n{source}" if source else ""))
    headline(figure, finding(results))
    said = "; ".join(
        f"{row.name} {100 * row.mean:.2f} %, {points(row.difference)} ({points(row.low)} to {points(row.high)})"
        for row in table
    )
    return describe(
        figure, f"Test accuracy of {seeds} seeds, mean, difference and 95 % interval: {said}. {source}"
    )
