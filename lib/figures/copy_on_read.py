"""Figures of notebook 05: what reading costs a forked worker.

draw_pages_copied   a few pages of rows, and the copies that a worker has made of them by reading
draw_growth         the same measured: private bytes over rows read
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_share
from lib.data.copy_on_read import expected_private
from lib.data.permutation import Permutation
from lib.show.explore import choice, whole
from lib.show.sheet import Cell, arrow, box, cell_sheet, draw_cell, label_row
from lib.show.style import BLUE, GREY, INK, MUTED, ORANGE, PAPER, describe, new_figure, pale, styled, title

SIZE = 24
TOP, LOW = 0.3, 2.7
LIST, PACKED = "list of str", "packed bytes"

PAGES_COPIED_CONTROLS = {
    "reads": whole(0, SIZE, 3, "rows read"),
    "per_page": whole(2, 8, 4, "rows a page"),
    "rows": choice((LIST, PACKED), LIST, "rows as"),
}


def _sheet(axes: Axes, x: float, y: float, width: float, color: str, dashed: bool) -> None:
    face, dashes = (PAPER, (0, (2, 2))) if dashed else (pale(color), "-")
    look: Any = {"face": face, "edge": color, "line": 1.6, "radius": 0.12, "zorder": 1, "linestyle": dashes}
    box(axes, x + (width - 1) / 2, y, width + 0.1, 1.24, **look)


@styled
def draw_pages_copied(*, reads: int, per_page: int, rows: str) -> Figure:
    """Draw the pages that parent and worker share, and below them those that the worker's reading has copied."""
    order = Permutation(SIZE, seed=3)[range(SIZE)].tolist()
    seen, pages, gap = set(order[:reads]), -(-SIZE // per_page), 0.35
    copied = {row // per_page for row in seen} if rows == LIST else set()
    figure, axes = cell_sheet(SIZE + gap * (pages - 1) + 0.2, 4.7, labels=1.25)
    for y, name in ((TOP, "parent's pages"), (LOW, "worker's own")):
        label_row(axes, y, name)
    for page in range(pages):
        inside, left = range(page * per_page, min(SIZE, (page + 1) * per_page)), page * (per_page + gap)
        _sheet(axes, left, TOP, len(inside), BLUE, dashed=False)
        _sheet(axes, left, LOW, len(inside), ORANGE if page in copied else GREY, dashed=page not in copied)
        for place, row in enumerate(inside):
            read = row in seen
            draw_cell(
                axes,
                left + place,
                TOP,
                Cell(row, color=BLUE, mark="plain" if read and not copied else "faded"),
                font=9.5,
            )
            if page in copied:
                mark: Cell = Cell(row, color=ORANGE, mark="plain" if read else "faded")
                draw_cell(axes, left + place, LOW, mark, font=9.5)
        if page in copied:
            middle = left + (len(inside) - 1) / 2
            arrow(axes, (middle, TOP + 0.7), (middle, LOW - 0.68), color=ORANGE, gap=2)
    text = (
        "a dark row has been read: its reference count was written"
        if rows == LIST
        else "a dark row has been read; nothing was written"
    )
    axes.text(-0.5, LOW + 1.2, text, fontsize=10, color=MUTED, va="center")
    title(
        axes,
        f"{rows.capitalize()}: {reads} of {SIZE} rows read ({format_share(reads / SIZE)}), {len(copied)} of {pages} "
        f"pages copied ({format_share(len(copied) / pages)})",
    )
    return describe(
        figure,
        f"{SIZE} rows as {rows} in {pages} pages. A forked worker has read {reads} of them in random order and "
        f"copied {len(copied)} pages.",
    )


@styled
def draw_growth(
    grown: Mapping[str, Sequence[tuple[int, int]]], list_bytes: float, list_name: str = LIST
) -> Figure:
    """Draw private bytes over rows read; grown: by name. list_bytes: what a row's object takes, for the prediction."""
    figure, axes = new_figure(9, 3.9)
    if not any(grown.values()):
        axes.text(
            0.5, 0.5, "No fork on this system: every worker gets a whole copy at its start.", ha="center"
        )
        axes.axis("off")
        return describe(figure, "Nothing measured: this system does not fork.")
    size = grown[list_name][-1][0]
    reads = [count for count, _ in grown[list_name][1:]]
    expected = [expected_private(count, size, list_bytes) / 1e6 for count in reads]
    axes.plot(
        reads, expected, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.6, label="predicted: pages touched"
    )
    for (name, points), color, mark in zip(grown.items(), (ORANGE, BLUE), "os", strict=False):
        x, y = zip(*points[1:], strict=True)
        axes.plot(x, [b / 1e6 for b in y], linestyle="", marker=mark, markersize=7, color=color, label=name)
        axes.annotate(f"{y[-1] / 1e6:.0f} MB", (x[-1], y[-1] / 1e6), (8, 0), textcoords="offset points", va="center",
                      color=INK, fontweight="bold")  # fmt: skip
    axes.set(xscale="log", xlim=(reads[0] * 0.8, size * 2.2), xlabel="rows read by the worker, random order")
    axes.set_xticks(
        reads[::2],
        [f"{100 * count / size:.{int(count < size / 10)}f} %" for count in reads[::2]],
    )
    axes.minorticks_off()
    axes.set_ylabel("private to the worker (MB)")
    axes.set_ylim(0, None)
    axes.legend(loc="upper left")
    last = {name: points[-1][1] for name, points in grown.items()}
    share = next(b for c, b in grown[list_name] if c >= size / 17) / last[list_name]
    others = ", ".join(f"{name} {b / 1e6:.0f} MB" for name, b in last.items() if name != list_name)
    title(axes, f"A sixteenth of the rows read, {format_share(share)} of the list copied; {others}")
    told = "; ".join(f"{name} {b / 1e6:.0f} MB" for name, b in last.items())
    return describe(figure, f"Private memory of a forked worker after reading {size:,} rows: {told}.")
