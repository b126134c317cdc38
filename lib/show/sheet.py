"""Sheets to draw on, and what lies on them: index cells, boxes, arrows, names of rows, writing.

The index cell, a small rounded square with an index in it, is the sign of the data notebooks:

    plain      a full colour: this rank (batch, worker) gets this index; white where the cell has no colour
    faded      a pale colour: it is there, but the eye should look elsewhere
    padding    hatched: handed out a second time, to make the shares equal
    dropped    no colour, a cross through it: nobody gets it

(x, y) is always the centre of what is drawn, y downwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.patheffects import withStroke

from lib.show.style import GREY, HATCH, INK, MUTED, PAPER, ink_on, new_figure, pale, rank_color

# Inches: the width of a sheet, where titles and names of rows begin, and where cells begin.
WIDTH = 9.0
EDGE = 0.06
LEFT = 1.35

INSIDE: Any = {"in_layout": False}
"""Of a text that lies inside a cell, a box or a bar: it moves no axes, and need not be measured to lay them out."""

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
        if self.color:
            return self.color
        return None if self.rank is None else rank_color(self.rank)


class CellPatch(FancyBboxPatch):
    """The square on the canvas, which remembers its cell and where it lies: what a test looks at."""

    cell: Cell
    at: tuple[float, float]


# --- sheets


def cell_sheet(columns: float, rows: float, *, labels: float = 0.9) -> tuple[Figure, Axes]:
    """Make a figure for `columns` × `rows` cells, with `labels` inches to their left and room for a title."""
    columns = max(columns, 16)  # cells of half an inch at most
    left = labels * columns / (8.8 - labels)
    figure, axes = new_figure(WIDTH, 0.65 + 8.8 * rows / (columns + left))
    return figure, cell_axes(axes, columns=columns, rows=rows, left=left)


def inch_sheet(height: float) -> tuple[Figure, Axes]:
    """Make a figure as wide as the text whose axes count inches, y downwards from 0 to `height`, under a title."""
    figure, axes = new_figure(WIDTH, height + 0.5)
    figure.set_layout_engine("none")
    axes.set_position((EDGE / WIDTH, 0, 1 - EDGE / WIDTH, height / (height + 0.5)))
    axes.set(xlim=(EDGE, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def cell_axes(axes: Axes, *, columns: float, rows: float, left: float = 0, top: float = 0) -> Axes:
    """Prepare axes for columns × rows cells, with room of `left` columns and `top` rows; return them."""
    axes.set(xlim=(-0.5 - left, columns - 0.5), ylim=(rows - 0.5, -0.5 - top), aspect="equal")
    axes.axis("off")
    return axes


# --- writing, boxes, arrows


def write(axes: Axes, x: float, y: float, text: str, *, size: float = 10, color: str = INK, **look: Any) -> None:
    """Write a text with its middle at (x, y); further keywords (ha, va, weight …) go to `Axes.text`."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": size, "color": color, **look})


def box(
    axes: Axes,
    x: float,
    y: float,
    width: float,
    height: float,
    text: str = "",
    *,
    face: str = PAPER,
    edge: str = GREY,
    line: float = 1.4,
    radius: float = 0.08,
    size: float = 10,
    ink: str | None = None,
    zorder: float = 2,
    writing: Mapping[str, Any] | None = None,
    **look: Any,
) -> FancyBboxPatch:
    """Draw a rounded box around a text, its centre at (x, y); return it, for arrows between boxes.

    line: width of the edge, in points. ink: colour of the text, by default what can be read on `face`. writing: more
    about the text, as `write` takes it; further keywords (hatch, linestyle …) are the box's.
    """
    shape = FancyBboxPatch(
        (x - width / 2, y - height / 2),
        width,
        height,
        boxstyle=f"round,pad=0,rounding_size={radius}",
        facecolor=face,
        edgecolor=edge,
        linewidth=line,
        zorder=zorder,
        **look,
    )
    axes.add_patch(shape)
    if text:
        if not ink:
            ink = INK if face == "none" else ink_on(face)
        above = {"zorder": zorder + 1, **INSIDE, **(writing or {})}
        write(axes, x, y, text, size=size, color=ink, **above)
    return shape


def arrow(
    axes: Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    *,
    color: str = INK,
    width: float = 1.6,
    head: float = 13,
    bend: float = 0.0,
    style: str = "-|>",
    gap: float | tuple[float, float] = 0.0,
    **look: Any,
) -> FancyArrowPatch:
    """Draw an arrow; bend: of the line, 0 is straight. gap: points left free at both ends, or at (start, end).

    width and head in points. Further keywords (linestyle, alpha, zorder, patchA …) are the patch's.
    """
    if not isinstance(gap, tuple):
        gap = (gap, gap)
    before, after = gap
    patch = FancyArrowPatch(
        start,
        end,
        arrowstyle=style,
        connectionstyle=f"arc3,rad={bend}",
        mutation_scale=head,
        color=color,
        linewidth=width,
        shrinkA=before,
        shrinkB=after,
        **look,
    )
    axes.add_patch(patch)
    return patch


def label_row(axes: Axes, y: float, text: str, *, color: str = INK) -> None:
    """Write the name of a row of cells to its left."""
    write(axes, -0.75, y, text, color=color, ha="right", va="center_baseline")


def name_rank(axes: Axes, y: float, rank: int, detail: str = "") -> None:
    """Write "rank r" beside a bar of its colour, and a smaller detail under it."""
    axes.plot([0.1, 0.1], [y - 0.13, y + 0.13], color=rank_color(rank), linewidth=5, solid_capstyle="butt")
    write(axes, 0.22, y - 0.08 if detail else y, f"rank {rank}", size=10.5, ha="left", weight="bold")
    write(axes, 0.22, y + 0.11, detail, size=9, color=MUTED, ha="left", family="monospace")


def note(axes: Axes, x: float, y: float, text: str, align: str = "center") -> None:
    """Write a remark into the drawing, from x on."""
    write(axes, x, y, text, size=9.5, color=MUTED, ha="left", va=align, linespacing=1.35)


# --- cells


def cell_font(axes: Axes, largest: float = 12) -> float:
    """Return the size of type, 9 points at least, that fits two digits into one cell of these axes."""
    figure = axes.get_figure()
    inches = figure.get_size_inches() if isinstance(figure, Figure) else (9.0, 3.0)
    x0, x1 = axes.get_xlim()
    y0, y1 = axes.get_ylim()
    points = 72 * min(inches[0] / abs(x1 - x0), inches[1] / abs(y1 - y0))
    return max(9.0, min(largest, 0.42 * points))


def draw_cell(axes: Axes, x: float, y: float, cell: Cell, *, size: float = 0.88, font: float = 12) -> CellPatch:
    """Draw one cell with its centre at (x, y); `size` is the side of the square, `font` in points."""
    hue = cell.hue
    dropped = cell.mark == "dropped"
    patch = CellPatch(
        (x - size / 2, y - size / 2),
        size,
        size,
        boxstyle=f"round,pad=0,rounding_size={0.18 * size}",
        facecolor=_face(cell),
        edgecolor=GREY if dropped else hue or MUTED,
        linestyle=(0, (2, 1.5)) if dropped else "solid",
        linewidth=1.2,
        hatch=HATCH["padding"] if cell.mark == "padding" else None,
        zorder=2,
    )
    patch.cell = cell
    patch.at = (x, y)
    axes.add_artist(patch)  # not add_patch, which looks whether the limits must grow: a sheet has its own
    if dropped:
        arms = np.array([-0.4, 0.4]) * size
        for sign in (1, -1):
            axes.plot(x + arms, y + sign * arms, color=GREY, linewidth=1.2, zorder=2.5)
    if cell.index != "":
        bold = hue and cell.mark == "plain"
        look: Any = {"va": "center_baseline", "zorder": 3, "fontweight": "bold" if bold else "normal", **INSIDE}
        if cell.mark in ("padding", "dropped"):  # the text stays readable on the hatch, and the hatch visible
            look["path_effects"] = [withStroke(linewidth=2.6, foreground=PAPER)]
        write(axes, x, y, str(cell.index), size=font, color=_ink(cell), **look)
    return patch


def _face(cell: Cell) -> str:
    """Return the colour that fills a cell: the whole hue is for those that are plainly somebody's."""
    if not cell.hue or cell.mark == "dropped":
        return PAPER
    if cell.mark == "plain":
        return cell.hue
    return pale(cell.hue, 0.15 if cell.mark == "faded" else 0.22)


def _ink(cell: Cell) -> str:
    """Return the colour of what is written in a cell."""
    if cell.mark == "dropped":
        return MUTED
    if cell.mark == "plain":
        return ink_on(_face(cell))
    return INK


def draw_strip(axes: Axes, x: float, y: float, cells: Iterable[Cell], side: float = 0.34) -> None:
    """Draw cells side by side on a sheet of inches, each `side` wide; the first one begins at x."""
    font = max(9.0, min(11.0, 31 * side))
    for place, cell in enumerate(cells):
        draw_cell(axes, x + (place + 0.5) * side, y, cell, size=0.88 * side, font=font)


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
    if font is None:
        font = cell_font(axes)
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
        draw_cell(axes, x + number * step, y, cell, font=font)
        write(axes, x + number * step + 0.7, y, meaning, size=font, color=MUTED, ha="left", va="center_baseline")


def drawn_cells(figure: Figure) -> list[CellPatch]:
    """Return the cells of a figure in the order of drawing, those of its legend included."""
    return [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, CellPatch)]
