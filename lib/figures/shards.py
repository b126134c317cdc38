"""Figures of notebook 04: how an epoch is cut into shards.

draw_pages        which pages of a file each rank must read: stride against contiguous
draw_page_reads   the same, counted on a real file
draw_cursor       reset, next and index: the cursor of libtorch's samplers over its shard
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.data.libtorch import DistributedRandomSampler, DistributedSequentialSampler
from lib.data.samplers import DistributedSampler
from lib.show.explore import choice, switch, whole
from lib.show.sheet import Cell, Mark, box, cell_sheet, draw_cell, draw_cells, label_row
from lib.show.style import (
    GRID,
    INK,
    MUTED,
    PAPER,
    RED,
    describe,
    headline,
    new_figure,
    rank_color,
    styled,
    title,
)


def listed(samples: Sequence[int]) -> str:
    """Return "8, 9", or the first six and how many there are."""
    text = ", ".join(map(str, samples[:6]))
    return text + (f" … ({len(samples)})" if len(samples) > 6 else "")


def shares(size: int, world_size: int, cut: str, shuffle: bool) -> list[list[int]]:
    """Return each rank's indices of epoch 0, cut by "stride" or "contiguous"."""
    if cut == "stride":
        return [list(DistributedSampler(range(size), world_size, r, shuffle)) for r in range(world_size)]
    kind = DistributedRandomSampler if shuffle else DistributedSequentialSampler
    return [list(kind(size, world_size, r)) for r in range(world_size)]


PAGES_CONTROLS = {
    "size": whole(16, 40, 32, "N · samples", step=4),
    "world_size": whole(1, 8, 4, "W · ranks"),
    "page": whole(2, 8, 4, "samples a page"),
    "cut": choice(("stride", "contiguous"), "stride", "cut"),
    "shuffle": switch(False, "shuffle"),
}


@styled
def draw_pages(*, size: int, world_size: int, page: int, cut: str, shuffle: bool) -> Figure:
    """Draw a file of `size` samples in pages, and for each rank the pages that hold its samples."""
    dealt = shares(size, world_size, cut, shuffle)
    owner = {sample: rank for rank in reversed(range(world_size)) for sample in dealt[rank]}
    pages, gap = math.ceil(size / page), 0.4
    reads = [len({sample // page for sample in own}) for own in dealt]
    figure, axes = cell_sheet(size + gap * (pages - 1), world_size + 1.5)
    label_row(axes, 0, "file")
    for number in range(pages):
        samples = range(number * page, min(size, (number + 1) * page))
        left = number * (page + gap)
        draw_cells(axes, [Cell(sample, owner[sample]) for sample in samples], x=left, font=9)
        for rank, own in enumerate(dealt):
            count, of = Counter(sample // page for sample in set(own))[number], len(samples)
            text = f"{count} of {of}" if count and of > 2 else f"{count or ''}"
            _page(axes, left, 1.5 + rank, of, text, rank_color(rank) if count else PAPER)
    for rank in range(world_size):
        label_row(axes, 1.5 + rank, f"rank {rank}")
    each = f"{min(reads)}" if len(set(reads)) == 1 else f"{min(reads)} to {max(reads)}"
    how = f"{'shuffled, ' if shuffle else ''}{cut}"
    title(axes, f"{how.capitalize()}: a rank reads {each} of {pages} pages; together {sum(reads)} reads")
    return describe(
        figure,
        f"A file of {size} samples in {pages} pages, cut for {world_size} ranks: {cut}"
        f"{', shuffled' if shuffle else ''}. Pages read by rank: {', '.join(map(str, reads))} of {pages}; "
        f"{sum(reads)} reads together.",
    )


def _page(axes: Axes, x: float, y: float, width: float, text: str, color: str) -> None:
    """Draw a page as a box `width` cells wide from column x on."""
    edge = GRID if color == PAPER else color
    look: Any = {"face": color, "edge": edge, "line": 1.0, "radius": 0.16, "size": 9.5, "zorder": 1}
    box(axes, x + (width - 1) / 2, y, width - 0.12, 0.88, text, **look)


@styled
def draw_page_reads(ways: Mapping[str, Sequence[Sequence[int]]], pages: int) -> Figure:
    """Draw rank × page for each way: ways[name][rank] lists the numbers of the pages that the rank has read."""
    figure, grid = new_figure(9, 2.9, cols=len(ways), squeeze=False)
    totals = {name: sum(len(set(own)) for own in ranks) for name, ranks in ways.items()}
    for axes, (name, ranks) in zip(grid[0], ways.items(), strict=True):
        for rank, own in enumerate(ranks):
            for number in range(pages):
                _page(axes, number, rank, 1, "", rank_color(rank) if number in own else PAPER)
        axes.set(xlim=(-0.7, pages - 0.3), ylim=(len(ranks) - 0.4, -0.7), yticks=range(len(ranks)))
        axes.set_xticks([0, pages - 1], labels=["page 0", f"{pages - 1}"])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        axes.set_title(f"{name}: {totals[name]} reads", fontsize=11)
    grid[0][0].set_yticks(range(len(ranks)), labels=[f"rank {rank}" for rank in range(len(ranks))])
    most, least = max(totals, key=lambda name: totals[name]), min(totals, key=lambda name: totals[name])
    headline(
        figure,
        f"The same {pages} pages: read {totals[most]} times with {most}, {totals[least]} times with {least}",
    )
    summed = "; ".join(f"{name} {total}" for name, total in totals.items())
    return describe(figure, f"Pages that {len(ranks)} ranks read of {pages}, summed: {summed}.")


CURSOR_CONTROLS = {
    "size": whole(1, 20, 10, "N · samples"),
    "world_size": whole(1, 8, 3, "W · ranks"),
    "rank": whole(0, 7, 2, "rank"),
    "batch_size": whole(1, 4, 3, "next(b)"),
    "calls": whole(0, 6, 1, "calls of next"),
    "duplicates": switch(True, "allow_duplicates"),
    "random": switch(False, "random"),
}


@styled
def draw_cursor(
    *, size: int, world_size: int, rank: int, batch_size: int, calls: int, duplicates: bool, random: bool
) -> Figure:
    """Draw all positions in their shards, what `calls` calls of next(batch_size) gave one rank, and its cursor."""
    asked, rank = rank, min(rank, world_size - 1)
    kind = DistributedRandomSampler if random else DistributedSequentialSampler
    shards = [list(kind(size, world_size, r, duplicates)) for r in range(world_size)]
    order, local = [sample for shard in shards for sample in shard], len(shards[0])
    missing = sorted(set(range(size)) - set(order))
    mine = kind(size, world_size, rank, duplicates)
    figure, axes = cell_sheet(len(order) + (0.5 + len(missing) if missing else 0), 3.9)
    got = None
    for number in range(1, calls + 1):
        begin, got = mine.index(), mine.next(batch_size)
        if got is not None:
            axes.plot([begin - 0.4, begin + len(got) - 0.6], [0.3, 0.3], color=INK, linewidth=1.5)
            axes.text(
                begin + len(got) / 2 - 0.5, 0, str(number), ha="center", va="center_baseline", color=INK
            )
    for position, sample in enumerate(order):
        padding = sample in order[:position] if random else position >= size
        mark: Mark = "padding" if padding else "plain" if position // local == rank else "faded"
        draw_cell(axes, position, 1, Cell(sample, position // local, mark), font=10)
        axes.text(position, 1.75, str(position), ha="center", va="center_baseline", fontsize=9, color=MUTED)
    draw_cells(axes, [Cell(sample, mark="dropped") for sample in missing], x=len(order) + 0.5, y=1, font=10)
    axes.annotate(
        f"index() = {mine.index()}",
        (mine.index() - 0.5, 1.5),
        (mine.index() - 0.5, 2.9),
        ha="center" if mine.index() else "left",
        va="center",
        color=RED,
        arrowprops={"arrowstyle": "-|>", "color": RED},
    )
    for y, name in ((0, "call"), (1, "sample"), (1.75, "position")):
        label_row(axes, y, name, color=INK if y == 1 else MUTED)
    said = f"call {calls} gave {got}" if calls else "no call yet"
    note = f" (W has no rank {asked})" if asked != rank else ""
    lost = f"; no shard holds {listed(missing)}" if missing else ""
    owns = f"Rank {rank}{note} owns positions {rank * local} to {(rank + 1) * local - 1}: {said}"
    title(axes, (owns if local else f"{size} samples for {world_size} ranks: all shards are empty") + lost)
    return describe(
        figure,
        f"{size} samples, {world_size} ranks, shards {' | '.join(map(str, shards))}. Rank {rank}: {said}, "
        f"index() = {mine.index()}.{' In no shard: ' + listed(missing) + '.' if missing else ''}",
    )
