"""Figure of notebook 05: which process holds which rows, for each of the three ways.

draw_holders   every process is a line; a full cell is a row that it holds for itself, a pale one a row that it shares
"""

from __future__ import annotations

from matplotlib.figure import Figure

from lib.data.permutation import Permutation
from lib.show.explore import choice, whole
from lib.show.sheet import Cell, cell_sheet, draw_cells, label_row
from lib.show.style import GREY, INK, MUTED, describe, styled, title

SIZE = 24
HOLDER_WAYS = {"every rank all rows": "naive", "one server": "server", "every rank its own": "rank"}

HOLDERS_CONTROLS = {
    "way": choice(tuple(HOLDER_WAYS), "every rank all rows", "way"),
    "world_size": whole(1, 4, 2, "W · ranks"),
    "workers": whole(0, 2, 1, "workers a rank"),
}


@styled
def draw_holders(*, way: str, world_size: int, workers: int, mini_epochs: int = 2) -> Figure:
    """Draw the rows that the server, the ranks and their workers hold once they have read; rank: mini-epoch 0."""
    kind = HOLDER_WAYS[way]
    server = kind == "server"
    lines = world_size * (1 + workers) + server
    figure, axes = cell_sheet(SIZE, lines + 0.35 * (world_size - 1) + 0.2, labels=1.15)
    order = Permutation(SIZE)[range(SIZE)].tolist()
    everything = list(range(SIZE))
    y, copies, private = 0.0, 0, 0
    if server:
        label_row(axes, y, "server")
        draw_cells(axes, [Cell(row, color=GREY) for row in everything], y=y, font=9.5)
        copies, private, y = 1, SIZE, y + 1.35
    for rank in range(world_size):
        own = order[rank::world_size][: SIZE // world_size // mini_epochs] if kind == "rank" else everything
        for worker in range(-1, workers):
            label_row(
                axes,
                y,
                f"rank {rank}" if worker < 0 else f"worker {worker}",
                color=INK if worker < 0 else MUTED,
            )
            if server:
                axes.text(-0.4, y, "asks the server", va="center_baseline", fontsize=10, color=MUTED)
            else:
                copied = worker < 0 or kind == "naive"
                for row in sorted(own):
                    draw_cells(axes, [Cell(row, rank, "plain" if copied else "faded")], x=row, y=y, font=9.5)
                copies, private = copies + copied, private + copied * len(own)
            y += 1
        y += 0.35
    each = private // copies
    parts = {
        "naive": f"{copies} processes hold all {SIZE} rows: {private} in memory",
        "server": f"The server holds all {SIZE} rows once; nobody else holds any",
        "rank": f"Each rank holds {each} of {SIZE} rows (E = {mini_epochs}), workers share them: {private} in memory",
    }
    title(axes, parts[kind])
    shared = " Workers share their rank's." if kind == "rank" and workers else ""
    return describe(
        figure,
        f"{world_size} ranks, {workers} workers a rank, {way}. {copies} processes hold rows of their own, "
        f"{each} each, {private} in all.{shared}",
    )
