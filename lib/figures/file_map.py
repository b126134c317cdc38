"""Figure of notebook 05: from the length of the file to the rows of one rank in one mini-epoch.

draw_file_map   the epoch's order, dealt and cut; below it the file, in pages, and what a rank reads of it
"""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.data.permutation import Permutation
from lib.show.explore import whole
from lib.show.sheet import Cell, Mark, cell_sheet, draw_cell, draw_legend, label_row
from lib.show.style import GREY, INK, MUTED, describe, rank_color, styled, title

SIZE, COLUMNS, PAGE, ROW = 48, 24, 4, 44
"""Rows of the file, cells a line, rows a page, bytes a row."""

FILE_MAP_CONTROLS = {
    "world_size": whole(1, 8, 4, "W · ranks"),
    "rank": whole(0, 7, 1, "rank"),
    "mini_epochs": whole(1, 8, 3, "E · mini-epochs"),
    "mini_epoch": whole(0, 7, 0, "mini-epoch"),
    "epoch": whole(0, 9, 0, "e · epoch"),
}


@styled
def draw_file_map(*, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int) -> Figure:
    """Draw who gets which place of the order, and where these rows lie in the file."""
    rank, part = min(rank, world_size - 1), min(mini_epoch, mini_epochs - 1)
    order = Permutation(SIZE, epoch=epoch)[range(SIZE)].tolist()
    turns = -(-SIZE // world_size)
    begin, end = turns * part // mini_epochs, turns * (part + 1) // mini_epochs
    mine = [order[(rank + world_size * turn) % SIZE] for turn in range(begin, end)]
    gap, lines = 0.3, SIZE // COLUMNS
    figure, axes = cell_sheet(COLUMNS + gap * (COLUMNS // PAGE - 1), 8.0, labels=1.15)

    for position, row in enumerate(order):
        turn, owner = divmod(position, world_size)
        now = begin <= turn < end
        mark: Mark = "plain" if now and owner == rank else "faded"
        line, x = divmod(position, COLUMNS)
        y = 1.1 * line
        cell = Cell(row, owner if now else None, mark if now else "plain")
        draw_cell(axes, x, y, cell, font=9.5)
        if turn in {turns * k // mini_epochs for k in range(1, mini_epochs)} and owner == 0:
            axes.plot([x - 0.5, x - 0.5], [y - 0.55, y + 0.55], color=INK, linewidth=2.2, zorder=4)
    label_row(axes, 0, f"order, e = {epoch}")
    label_row(axes, 1.1, f"cut in {mini_epochs}", color=MUTED)

    top, pages = 3.6, set()
    for row in range(SIZE):
        page, place = divmod(row, PAGE)
        line, column = divmod(page, COLUMNS // PAGE)
        at = column * (PAGE + gap) + place
        owner = order.index(row) % world_size
        now = begin <= order.index(row) // world_size < end
        kept = row in mine
        cell = Cell(
            row, rank if kept else owner if now else None, "plain" if kept else "faded" if now else "plain"
        )
        draw_cell(axes, at, top + 1.45 * line, cell, font=9.5)
        pages |= {page} if kept else set()
    for page in range(SIZE // PAGE):
        line, column = divmod(page, COLUMNS // PAGE)
        corner = (column * (PAGE + gap) - 0.44, top + 1.45 * line + 0.56)
        bar = Rectangle(corner, PAGE - 0.12, 0.14, facecolor=rank_color(rank), edgecolor=GREY)
        bar.set_fill(page in pages)
        axes.add_patch(bar)
    for line in range(lines):
        label_row(
            axes,
            top + 1.45 * line,
            f"byte {line * COLUMNS * ROW:,}" if line else "the file",
            color=MUTED if line else INK,
        )
    legend = [
        (Cell("", rank), f"rank {rank} holds it now"),
        (Cell("", (rank + 1) % world_size, "faded"), "another rank does"),
        (Cell(""), "another mini-epoch"),
    ]
    draw_legend(axes, legend, x=0, y=top + 3.2, step=8.2)
    title(
        axes,
        f"Mini-epoch {part} of epoch {epoch}: rank {rank} keeps {len(set(mine))} of {SIZE} rows and meets "
        f"{len(pages)} of {SIZE // PAGE} pages",
    )
    return describe(
        figure,
        f"{SIZE} rows, {world_size} ranks, {mini_epochs} mini-epochs, epoch {epoch}. In mini-epoch {part}, rank {rank} "
        f"holds {' '.join(map(str, mine)) or 'nothing'}; they lie on {len(pages)} of {SIZE // PAGE} pages.",
    )
