"""A sequential model cut into partitions: who holds which layer, where input, target and skip tensor go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from lib.show.style import INK, MUTED, ORANGE, describe, ink_on, new_figure, pale, rank_color, styled, title


@styled
def draw_cut(names: Sequence[str], balance: Sequence[int], skip: tuple[int, int] | None = None) -> Figure:
    """Draw the layers by name in their partitions; skip: the layers that stash and pop.

    Raises ValueError if the balance does not fit the layers.
    """
    if sum(balance) != len(names):
        raise ValueError(f"balance {list(balance)} is for {sum(balance)} layers, there are {len(names)}")
    owner = [j for j, size in enumerate(balance) for _ in range(size)]
    last, gap = len(balance) - 1, 0.8
    x = [k + gap * j for k, j in enumerate(owner)]
    figure, axes = new_figure(9, 3.6)
    ends = [0, *accumulate(balance)]
    for j, (a, b) in enumerate(pairwise(ends)):
        left, width, color = x[a] - 0.55, x[b - 1] - x[a] + 1.1, rank_color(j)
        look: Any = dict(
            boxstyle="round,pad=0,rounding_size=0.2", facecolor=pale(color), edgecolor=color, linewidth=1.6
        )
        axes.add_patch(FancyBboxPatch((left, -0.4), width, 3.3, **look))
        for y, text in ((-0.75, f"partition {j}"), (-1.2, f"devices[{j}]")):
            axes.text(left + width / 2, y, text, ha="center", va="center", fontsize=10)
        if j < last:
            _arrow(axes, (left + width, 1.25), (left + width + 0.5, 1.25), INK)
    for k, (name, j) in enumerate(zip(names, owner, strict=True)):
        color = rank_color(j)
        box = FancyBboxPatch(
            (x[k] - 0.4, -0.2), 0.8, 2.9, boxstyle="round,pad=0,rounding_size=0.12", fc=color, lw=0
        )
        axes.add_patch(box)
        axes.text(x[k], 1.25, name, rotation=90, ha="center", va="center", fontsize=10.5, color=ink_on(color))
    end = x[-1] + 0.55
    _arrow(axes, (-1.6, 1.25), (-0.57, 1.25), INK)
    axes.text(-1.7, 1.25, "input", ha="right", va="center")
    _arrow(axes, (end, 1.25), (end + 0.9, 1.25), INK)
    axes.text(end + 1.0, 1.25, "loss", ha="left", va="center", weight="bold")
    _arrow(axes, (end + 1.6, -0.55), (end + 1.6, 0.95), INK)
    axes.text(end + 1.6, -0.75, "target", ha="center", va="center")
    axes.text(end + 1.6, -1.2, f"devices[{last}]", ha="center", va="center", fontsize=10, color=MUTED)
    axes.text(-1.7, 0.8, "devices[0]", ha="right", va="center", fontsize=10, color=MUTED)
    finding = f"{len(names)} layers, {last + 1} partition{'s' * (last > 0)}"
    if skip is not None:
        finding += _draw_skip(axes, x, owner, *skip)
    axes.set(xlim=(-4.2, end + 3.2), ylim=(-1.5, 4.35))
    axes.set_axis_off()
    title(axes, finding)
    held = "; ".join(
        f"partition {j}: {', '.join(n for n, o in zip(names, owner, strict=True) if o == j)}"
        for j in range(last + 1)
    )
    return describe(
        figure, f"{finding}. {held}. The input goes to devices[0], the target to devices[{last}]."
    )


def _draw_skip(axes: Axes, x: Sequence[float], owner: Sequence[int], start: int, stop: int) -> str:
    arc = FancyArrowPatch(
        (x[start], 2.75), (x[stop], 2.75), connectionstyle="arc3,rad=-0.28",
        arrowstyle="-|>", mutation_scale=16, color=ORANGE, linewidth=2.4,
    )  # fmt: skip
    axes.add_patch(arc)
    middle = (x[start] + x[stop]) / 2
    axes.text(middle, 4.05, "skip tensor", ha="center", va="center", fontsize=10.5)
    a, b = owner[start], owner[stop]
    between = [str(j) for j in range(a + 1, b)]
    if a == b:
        return f"; the skip tensor stays in partition {a}"
    over = f", past {' and '.join(between)}" if between else ""
    return f"; the skip tensor goes from {a} straight to {b}{over}"


def _arrow(axes: Axes, start: tuple[float, float], stop: tuple[float, float], color: str) -> None:
    arrow = FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=13, color=color, linewidth=1.6)
    axes.add_patch(arrow)
