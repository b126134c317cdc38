"""The index cell: a small rounded square with an index in it, the sign that the data notebooks share.

    plain      a full colour: this rank (batch, worker) gets this index; white where the cell has no colour
    faded      a pale colour: it is there, but the eye should look elsewhere
    padding    hatched: handed out a second time, to make the shares equal
    dropped    no colour, a cross through it: nobody gets it

One unit of the axes is one cell; (x, y) is the centre of a cell, counted from the upper left one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.patheffects import withStroke

from lib.figures.style import GREY, HATCH, INK, MUTED, PAPER, ink_on, rank_color

Mark: TypeAlias = Literal["plain", "padding", "dropped", "faded"]
MARKS: tuple[Mark, ...] = get_args(Mark)


@dataclass(frozen=True)
class Cell:
    """Describe one cell: the text in it, whose it is (its colour), its mark. `color` overrides the rank's."""

    index: int | str
    rank: int | None = None
    mark: Mark = "plain"
    color: str | None = None

    def __post_init__(self) -> None:
        if self.mark not in MARKS:
            raise ValueError(f"mark must be one of {', '.join(MARKS)}, not {self.mark!r}")

    @property
    def hue(self) -> str | None:
        """The colour, or None for a white cell."""
        return self.color or (None if self.rank is None else rank_color(self.rank))


class CellPatch(FancyBboxPatch):
    """The square on the canvas, which remembers its cell and where it lies: what a test looks at."""

    cell: Cell
    at: tuple[float, float]


def pale(color: str, share: float = 0.15) -> str:
    """Mix `share` of a colour into white."""
    channels = (round(255 - share * (255 - int(color[i : i + 2], 16))) for i in (1, 3, 5))
    return "#" + "".join(f"{channel:02x}" for channel in channels)


def cell_axes(axes: Axes, *, columns: float, rows: float, left: float = 0, top: float = 0) -> Axes:
    """Prepare axes for columns × rows cells, with room of `left` columns and `top` rows; return them."""
    axes.set(xlim=(-0.5 - left, columns - 0.5), ylim=(rows - 0.5, -0.5 - top), aspect="equal")
    axes.axis("off")
    return axes


def cell_font(axes: Axes, largest: float = 12) -> float:
    """Return the size of type, 9 points at least, that fits two digits into one cell of these axes."""
    figure = axes.get_figure()
    inches = figure.get_size_inches() if isinstance(figure, Figure) else (9.0, 3.0)
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    points = 72 * min(inches[0] / abs(x1 - x0), inches[1] / abs(y1 - y0))
    return max(9.0, min(largest, 0.42 * points))


def draw_cell(
    axes: Axes, x: float, y: float, cell: Cell, *, size: float = 0.88, font: float = 12
) -> CellPatch:
    """Draw one cell with its centre at (x, y); `size` is the side of the square, `font` in points."""
    hue = cell.hue
    face = PAPER
    if hue is not None and cell.mark != "dropped":
        face = {"plain": hue, "faded": pale(hue)}.get(cell.mark, pale(hue, 0.22))
    patch = CellPatch(
        (x - size / 2, y - size / 2),
        size,
        size,
        boxstyle=f"round,pad=0,rounding_size={0.18 * size}",
        facecolor=face,
        edgecolor=GREY if cell.mark == "dropped" else hue or MUTED,
        linestyle=(0, (2, 1.5)) if cell.mark == "dropped" else "-",
        linewidth=1.2,
        hatch=HATCH["padding"] if cell.mark == "padding" else None,
        zorder=2,
    )
    patch.cell, patch.at = cell, (x, y)
    axes.add_patch(patch)
    if cell.mark == "dropped":
        arms = np.array([-0.4, 0.4]) * size
        for sign in (1, -1):
            axes.plot(x + arms, y + sign * arms, color=GREY, linewidth=1.2, zorder=2.5)
    if cell.index != "":
        outline = [
            withStroke(linewidth=2.6, foreground=PAPER)
        ]  # keeps the text readable on a hatch, and the hatch visible
        ink = MUTED if cell.mark == "dropped" else ink_on(hue) if hue and cell.mark == "plain" else INK
        axes.text(
            x,
            y,
            str(cell.index),
            ha="center",
            va="center_baseline",
            fontsize=font,
            fontweight="bold" if hue and cell.mark == "plain" else "normal",
            color=ink,
            path_effects=outline if cell.mark in ("padding", "dropped") else [],
            zorder=3,
        )
    return patch


def draw_cells(
    axes: Axes,
    cells: Iterable[Cell],
    *,
    x: float = 0,
    y: float = 0,
    columns: int | None = None,
    size: float = 0.88,
    font: float | None = None,
) -> list[CellPatch]:
    """Draw cells side by side from (x, y) on; with `columns` a new row begins after so many."""
    font = cell_font(axes) if font is None else font
    drawn = []
    for number, cell in enumerate(cells):
        row, column = divmod(number, columns) if columns else (0, number)
        drawn.append(draw_cell(axes, x + column, y + row, cell, size=size, font=font))
    return drawn


def draw_legend(
    axes: Axes, entries: Sequence[tuple[Cell, str]], *, x: float, y: float, step: float, font: float = 10
) -> None:
    """Draw a sample cell and its meaning for each entry, `step` columns apart."""
    for number, (cell, meaning) in enumerate(entries):
        left = x + number * step
        draw_cell(axes, left, y, cell, font=font)
        axes.text(left + 0.7, y, meaning, va="center_baseline", fontsize=font, color=MUTED)


def drawn_cells(figure: Figure) -> list[CellPatch]:
    """Return the cells of a figure in the order of drawing, those of its legend included."""
    return [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, CellPatch)]
