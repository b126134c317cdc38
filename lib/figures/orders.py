"""Orders as strips of index cells: what a sampler yields, position by position.

draw_orders     one strip per order, cut into batches
draw_ahead      how far the sampler has run ahead of the training loop
draw_weighted   how often each index was drawn, against its weight
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.show.sheet import Cell, cell_axes, cell_font, draw_cell, draw_cells, draw_legend
from lib.show.style import INK, MUTED, describe, new_figure, styled, title

GAP = 0.3  # columns between two batches
LEAST = 21.0  # a figure is at least so many columns wide, or a short strip would have huge cells
INCHES = 8.8  # of its 9 inches for the columns


def _sheet(columns: float, rows: float, labels: Sequence[str]) -> tuple[Figure, Axes]:
    """Make a figure for `columns` × `rows` cells with the labels' room to their left (0.1 inch a letter)."""
    room = 0.094 * max((len(label) for label in labels), default=0) + 0.15
    wide = max(columns, LEAST * (INCHES - room) / INCHES)
    left = room * wide / (INCHES - room)
    figure, axes = new_figure(9, rows * INCHES / (wide + left) + 0.55)
    return figure, cell_axes(axes, columns=wide, rows=rows, left=left)


def _label(axes: Axes, y: float, text: str) -> None:
    axes.text(axes.get_xlim()[0], y, text, ha="left", va="center_baseline", fontsize=10.5, color=INK)


def _listed(values: Sequence[object]) -> str:
    return ", ".join("–" if value is None else str(value) for value in values) or "nothing"


@styled
def draw_orders(
    rows: Mapping[str, Sequence[int | None]],
    finding: str,
    *,
    batch_size: int | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
    expected: int = 0,
    positions: str = "position in the epoch",
) -> Figure:
    """Draw each row of indices as a strip under its label.

    The colour is the batch (with batch_size), or the number that `groups` gives each cell, or one for all. A row with
    less than `expected` indices is filled up with crossed cells: nothing came. None leaves its place blank.
    """
    length = max([expected, *(len(row) for row in rows.values())])

    def at(place: int) -> float:
        return place + GAP * (place // batch_size if batch_size else 0)

    figure, axes = _sheet(at(max(length, 1) - 1) + 1, len(rows) + 1.1, list(rows))
    font = cell_font(axes, 11)
    for y, (label, row) in enumerate(rows.items()):
        _label(axes, y, label)
        for place, index in enumerate(row):
            group = place // batch_size if batch_size else 0
            group = groups[label][place] if groups else group
            if index is not None:
                draw_cell(axes, at(place), y, Cell(index, group), font=font)
        for place in range(len(row), expected):
            draw_cell(axes, at(place), y, Cell("", mark="dropped"), font=font)
    for place in range(length):
        axes.text(at(place), len(rows) - 0.2, str(place), ha="center", va="center", fontsize=9, color=MUTED)
    axes.text(
        at(length - 1) / 2, len(rows) + 0.35, positions, ha="center", va="center", fontsize=10, color=MUTED
    )
    title(axes, finding)
    said = "; ".join(f"{label}: {_listed(row)}" for label, row in rows.items())
    return describe(figure, f"{finding}. Strips of indices by {positions}. {said}.")


@styled
def draw_ahead(handed_out: Mapping[str, Sequence[int]], size: int, batch_size: int) -> Figure:
    """Draw, for each loader and each batch that arrives, which indices are used, on their way, and not yet asked for.

    handed_out: by the loader's name, how many indices its sampler had given when batch 0, 1, … arrived.
    """
    batches = max(len(counts) for counts in handed_out.values())
    labels = [f"batch {number} arrives" for number in range(batches)]
    block = size + 1.6
    columns = block * len(handed_out) - 1.6
    figure, axes = _sheet(columns, batches + 2.4, labels)
    font = cell_font(axes, 11)
    for number, label in enumerate(labels):
        _label(axes, number + 0.9, label)
    for part, (name, counts) in enumerate(handed_out.items()):
        x = part * block
        axes.text(x - 0.45, -0.05, name, fontsize=11, weight="bold", va="center_baseline", color=INK)
        for number, count in enumerate(counts):
            used = min(size, (number + 1) * batch_size)
            for index in range(size):
                batch = index // batch_size
                on_its_way = Cell(index, batch, "faded") if index < count else Cell(index)
                draw_cell(
                    axes,
                    x + index,
                    number + 0.9,
                    Cell(index, batch) if index < used else on_its_way,
                    font=font,
                )
    legend = [
        (Cell("", 0), "arrived"),
        (Cell("", 0, "faded"), "handed out, on its way"),
        (Cell(""), "not asked for yet"),
    ]
    for x, entry in zip((0, 4.2, 12.2), legend, strict=True):
        draw_legend(axes, [entry], x=x, y=batches + 1.25, step=0)
    ahead = ", ".join(f"{name} {counts[0] - min(size, batch_size)}" for name, counts in handed_out.items())
    title(axes, f"Indices on their way when the first batch arrives: {ahead}")
    told = "; ".join(f"{name}: {_listed(list(counts))}" for name, counts in handed_out.items())
    return describe(
        figure,
        f"{axes.get_title('left')}. Indices handed out when batch 0, 1, … of {batch_size} arrived: {told}.",
    )


@styled
def draw_weighted(drawn: Sequence[int], weights: Sequence[float]) -> Figure:
    """Draw a row per index with one cell for each time it was drawn, and dashed how many its weight asks for."""
    counts = [list(drawn).count(index) for index in range(len(weights))]
    due = [len(drawn) * weight / sum(weights) for weight in weights]
    labels = [f"index {index}, weight {weight:g}" for index, weight in enumerate(weights)]
    figure, axes = _sheet(max(*counts, *due) + 5, len(weights), labels)
    for index, (count, expected, label) in enumerate(zip(counts, due, labels, strict=True)):
        _label(axes, index, label)
        draw_cells(axes, [Cell(index, 0)] * count, y=index, font=9.5)
        frame = Rectangle(
            (-0.5, index - 0.5), expected, 1, fill=False, edgecolor=INK, linestyle=(0, (3, 2)), zorder=4
        )
        axes.add_patch(frame)
        x = max(count, expected) - 0.2
        axes.text(
            x, index, f"{count} drawn, {expected:.3g} due", fontsize=9.5, va="center_baseline", color=MUTED
        )
    odd = max(range(len(weights)), key=lambda index: abs(counts[index] - due[index]))
    title(
        axes,
        f"Weights set odds, not counts: of {len(drawn)} draws index {odd} got {counts[odd]}, {due[odd]:.3g} were due",
    )
    pairs = "; ".join(f"index {i}: {counts[i]} drawn, {due[i]:.3g} due" for i in range(len(weights)))
    return describe(figure, f"{axes.get_title('left')}. One cell for each of {len(drawn)} draws: {pairs}.")
