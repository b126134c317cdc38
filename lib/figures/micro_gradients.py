"""Figures of notebook 07: the gradient of micro-batches against that of the whole batch.

draw_path     the gradients of micro-batches, put head to tail: where the sum ends
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lib.pipeline.microbatch import scatter
from lib.show.explore import choice, whole
from lib.show.sheet import arrow
from lib.show.style import (
    GREY,
    INK,
    MUTED,
    PAPER,
    RED,
    describe,
    headline,
    ink_on,
    new_figure,
    rank_color,
    styled,
)

BY_ROWS, BY_PARTS, NOTHING = "rows / all rows", "1 / m", "1 (forgot to divide)"
HOW = (BY_ROWS, BY_PARTS, NOTHING)


def factors(sizes: Sequence[int], how: str) -> list[float]:
    """Return what the mean loss of each micro-batch is multiplied by. Raises ValueError for an unknown `how`."""
    if how not in HOW:
        raise ValueError(f"how must be one of {', '.join(HOW)}, not {how!r}")
    if how == BY_ROWS:
        return [size / sum(sizes) for size in sizes]
    return [1 / len(sizes) if how == BY_PARTS else 1.0] * len(sizes)


def rows_of_line(rows: int) -> tuple[Tensor, Tensor]:
    """Return x (rows × 2) and y (rows): points of a noisy plane, the same rows first whatever their number."""
    generator = torch.Generator().manual_seed(1902)
    x = torch.randn(64, 2, dtype=torch.float64, generator=generator)
    y = x @ torch.tensor([1.0, -0.6], dtype=torch.float64) + torch.randn(64, generator=generator).double()
    return x[:rows], y[:rows]


def mean_gradient(x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean squared error of y = x @ w at w = 0: one number a weight."""
    w = torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad((x @ w - y).square().mean(), w)
    return gradient


PATH_CONTROLS = {
    "rows": whole(2, 16, 7, "rows"),
    "chunks": whole(1, 8, 3, "m · chunks"),
    "how": choice(HOW, BY_ROWS, "factor"),
}


@styled
def draw_path(*, rows: int, chunks: int, how: str) -> Figure:
    """Draw the scaled gradients of the micro-batches of a model with two weights, head to tail, and the target."""
    x, y = rows_of_line(rows)
    target = mean_gradient(x, y)
    parts = [tuple(batch) for batch in scatter((x, y), chunks)]
    scale = factors([len(part[0]) for part in parts], how)
    steps = [factor * mean_gradient(*part) for factor, part in zip(scale, parts, strict=True)]
    points = torch.stack([torch.zeros(2, dtype=x.dtype), *steps]).cumsum(0)
    figure, (axes, table) = new_figure(9, 4.3, cols=2, width_ratios=(2.1, 1))
    _axes_around(axes, torch.cat([points, target[None]]))
    for i, (start, end) in enumerate(zip(points[:-1].tolist(), points[1:].tolist(), strict=True)):
        arrow(axes, start, end, color=rank_color(i), width=3, head=11)
        middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
        label = axes.text(
            *middle, str(i), fontsize=9.5, ha="center", va="center", color=ink_on(rank_color(i))
        )
        label.set_bbox({"boxstyle": "circle,pad=0.22", "facecolor": rank_color(i), "edgecolor": PAPER})
    axes.plot(
        *target.tolist(), "o", markersize=17, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=2
    )
    _label_target(axes, points, target)
    axes.plot(0, 0, "o", markersize=6, color=INK)
    axes.text(0, 0, "  0", va="top", fontsize=10, color=MUTED)
    axes.set_xlabel("gradient of weight 0")
    axes.set_ylabel("gradient of weight 1")
    _table(table, parts, scale)
    off = float((points[-1] - target).norm() / target.norm())
    length = float(points[-1].norm() / target.norm())
    hit = off < 1e-9
    if hit:
        many = f"{len(parts)} micro-batch{'es' * (len(parts) > 1)}"
        finding = f"{many}: the arrows end in the gradient of the whole batch"
    elif how == NOTHING and off > 0.5:
        finding = f"Not divided: the gradient is {length:.1f} times as long as it should be"
    else:
        finding = f"Factor {how}: the gradient is {100 * off:.0f} % off"
    headline(figure, finding)
    return describe(
        figure,
        f"{rows} rows in {len(parts)} micro-batches, each mean loss times {how}. The sum of the gradients is "
        f"{'equal to the whole gradient' if hit else f'{100 * off:.0f} % off the whole gradient'}, "
        f"its length {length:.2f} times.",
    )


def _label_target(axes: Axes, points: Tensor, target: Tensor) -> None:
    """Write "whole batch" beside the ring, on the side where the arrows are not."""
    away = target - points[-1]
    if float(away.norm()) < 1e-9:
        away = target - points[-2]
    right = bool(away[0] > 0)
    place, align = (14 if right else -14, 0), "left" if right else "right"
    label = axes.annotate(
        "whole batch",
        (float(target[0]), float(target[1])),
        place,
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize=10,
    )
    label.set_bbox({"facecolor": PAPER, "alpha": 0.8, "edgecolor": "none", "pad": 1.5})


def _axes_around(axes: Axes, points: Tensor) -> None:
    """Set equal axes with a margin around the points, so that an arrow of the same length looks the same."""
    low, high = points.min(0).values, points.max(0).values
    centre, half = (low + high) / 2, 0.62 * float((high - low).max())
    axes.set(
        xlim=(float(centre[0]) - 1.5 * half, float(centre[0]) + 1.5 * half),
        ylim=(float(centre[1]) - half, float(centre[1]) + half),
    )
    axes.set_aspect("equal")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)


def _table(axes: Axes, parts: Sequence[tuple[Tensor, ...]], scale: Sequence[float]) -> None:
    """Write for each micro-batch its colour, its rows, and its factor."""
    axes.set(xlim=(0, 10), ylim=(9.4, -1.2))
    axes.axis("off")
    axes.text(2.2, -0.6, "rows", fontsize=10, color=MUTED, ha="center")
    axes.text(5.2, -0.6, "factor", fontsize=10, color=MUTED, ha="center")
    axes.text(8.4, -0.6, "of one row", fontsize=10, color=MUTED, ha="center")
    rows = sum(len(part[0]) for part in parts)
    for i, (part, factor) in enumerate(zip(parts, scale, strict=True)):
        box = {"boxstyle": "circle,pad=0.22", "facecolor": rank_color(i), "edgecolor": PAPER}
        axes.text(
            0.5,
            i + 0.2,
            str(i),
            fontsize=9.5,
            color=ink_on(rank_color(i)),
            ha="center",
            va="center",
            bbox=box,
        )
        weight = factor / len(part[0])
        fair = abs(weight * rows - 1) < 1e-9
        axes.text(2.2, i + 0.2, str(len(part[0])), fontsize=10.5, ha="center", va="center")
        axes.text(5.2, i + 0.2, f"{factor:.3f}", fontsize=10.5, ha="center", va="center")
        axes.text(
            8.4, i + 0.2, f"{weight:.3f}", fontsize=10.5, ha="center", va="center", color=INK if fair else RED
        )
    axes.text(
        0,
        len(parts) + 0.35,
        f"fair: 1 / {rows} = {1 / rows:.3f} a row",
        fontsize=10,
        color=MUTED,
        va="center",
    )
