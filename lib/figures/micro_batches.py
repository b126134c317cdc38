"""Figures of notebook 07: rows, cut into micro-batches and put together again.

draw_cut     one tensor: the rows, the micro-batches that scatter makes of them, the rows that gather returns
draw_sizes   which rows torch.chunk and scatter put together, for every number of chunks
draw_tuple   three tensors of different widths cut into the same parts, or not, where one has fewer rows
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TypeAlias

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from torch import Tensor

from lib.pipeline.microbatch import gather, scatter
from lib.show.explore import choice, whole
from lib.show.sheet import Cell, Mark, cell_axes, draw_cells
from lib.show.style import INK, MUTED, RED, describe, headline, new_figure, rank_color, styled, title

GAP = 0.55  # cells between two micro-batches
ZIP, SCATTER = "zip of torch.chunk", "scatter"

Parts: TypeAlias = Sequence[Sequence[Tensor]]


def numbered(rows: int, width: int) -> Tensor:
    """Return a tensor of rows × width whose items say where they come from: 42 is row 4, column 2."""
    return 10 * torch.arange(rows)[:, None] + torch.arange(width)


def sizes_of(parts: Sequence[Tensor]) -> str:
    """Return the rows of micro-batches as a sum: "2 + 2 + 2 + 1"."""
    return " + ".join(str(len(part)) for part in parts)


def _canvas(columns: float, rows: float) -> tuple[Figure, Axes]:
    """Make axes of columns × rows cells, a cell 0.34 inches wide, and 0.9 cells above for the names of tensors."""
    figure, axes = new_figure(9, 0.6 + 0.34 * (rows + 1.3))
    cell_axes(axes, columns=columns, rows=rows + 0.4, top=0.9)
    return figure, axes


def _block(axes: Axes, x: float, y: float, tensor: Tensor, number: int | None, mark: Mark = "plain") -> None:
    """Draw the cells of a tensor from (x, y) on, in the colour of micro-batch `number`."""
    for row, items in enumerate(tensor.tolist()):
        draw_cells(axes, [Cell(f"{item:02d}", number, mark) for item in items], x=x, y=y + row, font=9.5)


def _band(axes: Axes, x0: float, x1: float, y0: float, y1: float, rows: int, number: int) -> None:
    """Draw a pale band that leads `rows` rows from height y0 at x0 to height y1 at x1."""
    corners = [
        (x0, y0 - 0.44),
        (x1, y1 - 0.44),
        (x1, y1 + rows - 0.56),
        (x0, y0 + rows - 0.56),
    ]
    axes.add_patch(Polygon(corners, closed=True, facecolor=rank_color(number), alpha=0.22, linewidth=0))


def _name(axes: Axes, x: float, width: float, text: str, y: float = -0.85, color: str = MUTED) -> None:
    axes.text(x + (width - 1) / 2, y, text, ha="center", va="center", fontsize=10, color=color)


CUT_CONTROLS = {
    "rows": whole(1, 12, 7, "rows"),
    "chunks": whole(1, 8, 4, "m · chunks"),
    "width": whole(1, 4, 3, "columns"),
}


@styled
def draw_cut(*, rows: int, chunks: int, width: int) -> Figure:
    """Draw x, the micro-batches of scatter(x, chunks), and gather of them, with bands that follow the rows."""
    x = numbered(rows, width)
    batches = scatter(x, chunks)
    parts = [batch.tensor for batch in batches]
    missing = chunks - len(parts)
    height = rows + GAP * (len(parts) - 1)
    middle, right = 9.0, 21.0
    figure, axes = _canvas(26, max(height, 4))
    top = (height - rows) / 2
    y, row = 0.0, 0
    for i, part in enumerate(parts):
        for left, to, start, end in (
            (width - 0.5, middle - 0.55, top + row, y),
            (middle + width - 0.45, right - 0.55, y, top + row),
        ):
            _band(axes, left, to, start, end, len(part), i)
        _block(axes, 0, top + row, part, i)
        _block(axes, middle, y, part, i)
        _block(axes, right, top + row, part, i)
        tall = f"{len(part)} × {width}"
        text = axes.text(
            middle + width - 0.2,
            y + (len(part) - 1) / 2,
            f"micro-batch {i}: {tall}",
            va="center",
            fontsize=9.5,
        )
        text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5})
        y, row = y + len(part) + GAP, row + len(part)
    _name(axes, 0, width, f"x: {rows} × {width}", top - 0.85)
    _name(axes, middle, width, f"scatter(x, {chunks})")
    _name(axes, right, width, "gather(…)", top - 0.85)
    same = torch.equal(gather(batches), x)  # type: ignore[arg-type]
    many = f"{len(parts)} micro-batch{'es' * (len(parts) > 1)}"
    few = f" ({chunks} asked for, none may be empty)" if missing else ""
    plus = f": {sizes_of(parts)}" if len(parts) > 1 and not missing else ""
    title(
        axes,
        f"{rows} row{'s' * (rows > 1)} in {many}{few}{plus}; gather {'restores' if same else 'changes'} x",
    )
    return describe(
        figure,
        f"x has {rows} rows of {width}. scatter(x, {chunks}) gives {many} of {sizes_of(parts)} rows; gather returns "
        f"{'the same' if same else 'another'} tensor.",
    )


SIZES_CONTROLS = {"rows": whole(2, 16, 10, "rows")}


@styled
def draw_sizes(*, rows: int) -> Figure:
    """Draw for each number of chunks 1..rows how torch.chunk and scatter group the rows."""
    x = torch.arange(rows)
    columns = max(rows, 9) + 2.4
    figure, grid = new_figure(9, 0.95 + 4.35 * rows / (columns + 2), cols=2)
    short: list[int] = []
    for axes, name in zip(grid, ("torch.chunk", SCATTER), strict=True):
        cell_axes(axes, columns=columns, rows=rows, left=2.0)
        for m in range(1, rows + 1):
            parts = x.chunk(m) if name != SCATTER else [batch.tensor for batch in scatter(x, m)]
            for i, part in enumerate(parts):
                draw_cells(axes, [Cell(row, i) for row in part.tolist()], x=int(part[0]), y=m - 1, font=9)
                if i:
                    cut = int(part[0]) - 0.5
                    axes.plot([cut, cut], [m - 1.45, m - 0.55], color=INK, linewidth=2.2, zorder=4)
            axes.text(-0.75, m - 1, f"m = {m}", ha="right", va="center_baseline", fontsize=9.5)
            if len(parts) < m:
                short.append(m)
                axes.text(
                    rows - 0.2, m - 1, f"gives {len(parts)}", va="center_baseline", fontsize=9.5, color=RED
                )
        axes.set_title(name, fontsize=11)
    found = f"gives too few in {len(short)} of {rows} cases" if short else "gives enough"
    headline(figure, f"{rows} rows: torch.chunk {found}, scatter never")
    return describe(
        figure,
        f"{rows} rows cut into m = 1 to {rows} micro-batches. torch.chunk gives too few for m = "
        f"{', '.join(map(str, short)) or 'none'}; scatter for none.",
    )


def zip_of_chunks(tensors: Sequence[Tensor], chunks: int) -> Parts:
    """Cut each tensor by torch.chunk and zip the parts, as torchgpipe does: what has no partner is lost."""
    return list(zip(*(tensor.chunk(chunks) for tensor in tensors), strict=False))


TUPLE_CONTROLS = {
    "rows": whole(1, 10, 5, "rows of x and mask"),
    "rows_y": whole(1, 10, 5, "rows of y"),
    "chunks": whole(1, 6, 4, "m · chunks"),
    "how": choice((SCATTER, ZIP), SCATTER, "cut by"),
}
WIDTHS = {"x": 3, "mask": 1, "y": 2}


@styled
def draw_tuple(*, rows: int, rows_y: int, chunks: int, how: str) -> Figure:
    """Draw (x, mask, y) and the micro-batches made of it; rows that reach no micro-batch are crossed out."""
    tensors = {name: numbered(rows_y if name == "y" else rows, width) for name, width in WIDTHS.items()}
    try:
        parts = (
            [tuple(batch) for batch in scatter(tuple(tensors.values()), chunks)]
            if how == SCATTER
            else zip_of_chunks(tuple(tensors.values()), chunks)
        )
        refusal = ""
    except ValueError as error:
        parts, refusal = [], str(error)
    tall = sum(max(map(len, part)) for part in parts) + GAP * max(0, len(parts) - 1)
    figure, axes = _canvas(26, max(tall, rows, rows_y, 4))
    places, middle = {"x": 0.0, "mask": 3.5, "y": 5.0}, 13.0
    lost: dict[str, list[int]] = {}
    for k, (name, tensor) in enumerate(tensors.items()):
        owner = {int(row[0]) // 10: i for i, part in enumerate(parts) for row in part[k]}
        lost[name] = [row for row in range(len(tensor)) if row not in owner] if parts else []
        for row in range(len(tensor)):
            mark: Mark = "dropped" if row in lost[name] else "plain"
            _block(axes, places[name], row, tensor[row : row + 1], owner.get(row), mark)
        _name(axes, places[name], WIDTHS[name], name)
    y = 0.0
    for i, part in enumerate(parts):
        for k, name in enumerate(tensors):
            _block(axes, middle + places[name], y, part[k], i)
        torn = len({len(tensor) for tensor in part}) > 1
        shapes = " / ".join(str(len(tensor)) for tensor in part) if torn else str(len(part[0]))
        axes.text(
            middle + 7.2,
            y + (max(map(len, part)) - 1) / 2,
            f"micro-batch {i}: {shapes} row{'s' * (shapes != '1')}",
            va="center",
            fontsize=9.5,
            color=RED if torn else INK,
        )
        if rows == rows_y and not any(lost.values()):
            _band(axes, 6.6, middle - 0.6, int(part[0][0, 0]) / 10, y, len(part[0]), i)
        y += max(map(len, part)) + GAP
    if refusal:
        axes.text(middle - 2.5, 1.0, "ValueError", fontsize=11, fontweight="bold", color=RED)
        axes.text(middle - 2.5, 1.6, "\n".join(textwrap.wrap(refusal, 44)), fontsize=10, color=INK, va="top")
    else:
        for name in tensors:
            _name(axes, middle + places[name], WIDTHS[name], name)
    finding = _finding(how, parts, chunks, lost, refusal, rows, rows_y)
    title(axes, finding)
    gone = "; ".join(f"{name} rows {', '.join(map(str, gone))}" for name, gone in lost.items() if gone)
    each = "; ".join("/".join(str(len(tensor)) for tensor in part) for part in parts)
    return describe(
        figure,
        f"{how}: x and mask of {rows} rows, y of {rows_y}, {chunks} chunks. "
        + (
            f"Refused: {refusal}."
            if refusal
            else f"Rows of x/mask/y in each micro-batch: {each}. Lost: {gone or 'none'}."
        ),
    )


def _finding(
    how: str, parts: Parts, chunks: int, lost: dict[str, list[int]], refusal: str, rows: int, rows_y: int
) -> str:
    if refusal:
        return f"{how}: {rows} rows of x and {rows_y} of y are refused before anything is cut"
    gone = [f"{len(gone)} row{'s' * (len(gone) > 1)} of {name}" for name, gone in lost.items() if gone]
    if gone:
        return f"{how}: {' and '.join(gone)} lost, without a word"
    if rows != rows_y:
        return f"{how}: {rows} rows of x meet {rows_y} of y: rows paired that do not belong together"
    came = f"{len(parts)} micro-batch{'es' * (len(parts) > 1)}"
    asked = f" where {chunks} were asked for" if len(parts) < chunks else ""
    return f"{how}: {came}{asked}, {sizes_of([part[0] for part in parts])} rows of every tensor"
