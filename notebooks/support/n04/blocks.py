"""Pictures of notebook 04 in which an order is dealt in blocks: what is read, and what is left when a job stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from lib.show.explore import steps
from lib.show.sheet import Cell, Mark, box, cell_sheet, draw_cell, label_row
from lib.show.style import (
    BLUE,
    GRID,
    INK,
    MUTED,
    PAPER,
    RED,
    describe,
    headline,
    new_figure,
    styled,
    title,
)
from lib.text import plural
from support.n04.cutting import pieces
from support.n04.runs import block_shares

SIZE = 48  # positions in draw_blocks
WORLD = 4

BLOCK_CONTROLS = {
    "block": steps((1, 2, 3, 4, 6, 8, 12), 1, "c · block"),
    "batch_size": steps((1, 2, 3, 4), 2, "b · batch"),
    "step": steps((0, 1, 2, 3, 4), 1, "steps done"),
    "rows_of_a_page": steps((1, 2, 4, 8, 16), 8, "rows of a page"),
}


@styled
def draw_blocks(*, block: int, batch_size: int, step: int, rows_of_a_page: int) -> Figure:
    """Draw 48 positions that are dealt to 4 ranks in blocks, what is used after some steps, and who reads which page.

    What is left is underlined, each piece with a line of its own; below each page stands how many ranks read it.
    """
    shares = block_shares(SIZE, WORLD, block)
    owner = {place: rank for rank, share in enumerate(shares) for place in share}
    used = {place for share in shares for place in share[: step * batch_size]}
    done = min(step, -(-len(shares[0]) // batch_size))  # an epoch may have fewer
    left = pieces(set(range(SIZE)) - used)
    figure, axes = cell_sheet(SIZE, 5.6)
    for place in range(SIZE):
        mark: Mark = "plain" if place in used else "faded"
        draw_cell(axes, place, 0.5, Cell("", owner[place], mark))
    for first, last in left:
        axes.plot([first - 0.4, last + 0.4], [1.45, 1.45], color=RED, linewidth=2)
    reads = 0
    for begin in range(0, SIZE, rows_of_a_page):
        end = min(begin + rows_of_a_page, SIZE)
        readers = len({owner[place] for place in range(begin, end)})
        reads += readers
        middle = (begin + end - 1) / 2
        box(axes, middle, 2.8, end - begin - 0.12, 1, str(readers), face=PAPER, edge=GRID, line=1.0, size=9)
    for y, name in ((0.5, "position"), (1.45, "left over"), (2.8, "read by")):
        label_row(axes, y, name, color=INK if y == 0.5 else MUTED)
    told = f"{plural(len(left), 'piece')} left after {plural(done, 'step')}"
    reading = f"{reads} page reads"
    key = "a colour is a rank, full colour is used; a box is a page, its number: ranks that read it"
    axes.text(-0.4, 4.3, key, va="center", fontsize=10, color=MUTED)
    title(axes, f"Blocks of {block}: {reading}, {told}")
    pages = -(-SIZE // rows_of_a_page)
    batches = f", batches of {batch_size}" if step else ""
    return describe(
        figure,
        f"{SIZE} positions, {WORLD} ranks, blocks of {block}{batches}: {reading} of {pages} pages with "
        f"{plural(rows_of_a_page, 'row')} each, {told}.",
    )


#: What stands at which block, for 1,797 rows on 8 ranks.
NAMED = ((1, "stride"), (32, "a batch"), (64, "a page"), (225, "epoch shard"))
TOLD = (1, 32, 33, 64, 65, 225)
"""Blocks whose numbers stand in the words: the named ones, and two that lie beside the lines of pages."""


@styled
def draw_block_prices(reads: Mapping[str, Mapping[int, int]], left: Mapping[int, int]) -> Figure:
    """Draw the pages that are read by blocks of each length, a line for each order, and the pieces that are left.

    reads: of an order, by block: pages; left: by block the most pieces after any step; of all blocks, so that the
    lines join neighbours only.
    """
    figure, (above, below) = new_figure(9, 4.2, rows=2, height_ratios=(2, 1), sharex=True)
    looks = ((INK, "-"), (RED, ":"), (BLUE, "--"))
    for (name, pages), (color, line) in zip(reads.items(), looks, strict=False):
        above.plot(list(pages), list(pages.values()), color=color, linestyle=line, linewidth=1.4, label=name)
    above.set(ylabel="page reads", ylim=(0, 250), xscale="log")
    above.legend(loc="lower left")
    below.plot(list(left), list(left.values()), color=RED, marker="o", markersize=3, linestyle="none")
    below.set(ylabel="pieces", ylim=(0, 9), yticks=(1, 4, 8), xlabel="c · block")
    for block, name in NAMED:
        for axes in (above, below):
            axes.axvline(block, color=GRID, linewidth=1, zorder=0)
        above.text(block, 252, name, ha="center", va="bottom", fontsize=9, color=MUTED)
    marks = [1, 2, 4, 8, 16, 32, 64, 128, 225]
    below.set_xticks(marks, labels=[str(mark) for mark in marks])
    below.minorticks_off()
    order, first = next(iter(reads.items()))
    best = fewest_with_a_prefix(first, left)
    above.plot(best, first[best], color=INK, marker="o", markersize=6)
    found = f"of the blocks that leave one piece after every step, {best} reads the fewest pages"
    headline(figure, f"{order[0].upper()}{order[1:]}: {found}")
    told = "; ".join(
        f"{name}: {', '.join(f'{pages[block]} at {block}' for block in TOLD if block in pages)}"
        for name, pages in reads.items()
    )
    most = ", ".join(f"{left[block]} at {block}" for block, _ in NAMED if block in left)
    return describe(figure, f"Page reads by block. {told}. Most pieces left after a step: {most}.")


def fewest_with_a_prefix(pages: Mapping[int, int], left: Mapping[int, int]) -> int:
    """Return the block with the fewest page reads of those that leave one piece after every step."""
    return min((block for block in pages if left[block] <= 1), key=lambda block: pages[block])


def most_pieces(shares: Sequence[Sequence[int]], batch_size: int) -> int:
    """Return in how many pieces the rest of the order lies at most, after any step."""
    size = sum(map(len, shares))
    used: set[int] = set()
    most = 0
    for begin in range(0, max(map(len, shares)), batch_size):
        used.update(place for share in shares for place in share[begin : begin + batch_size])
        most = max(most, len(pieces(set(range(size)) - used)))
    return most
