"""Who gets which index: the whole way from a dataset's length to the share of each rank, and an explorer of it.

draw_mechanism  length -> num_samples -> total_size -> order -> slices -> shares, in one drawing
draw_slice      what [rank::W] takes
draw_ranks      one epoch for any N, W, epoch, seed, shuffle, drop_last; RANKS_CONTROLS are its controls
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch

from lib.figures.deal import deal, listed, what_happened, words
from lib.show.explore import switch, whole
from lib.show.sheet import (
    EDGE,
    LEFT,
    WIDTH,
    Cell,
    Mark,
    draw_cell,
    draw_index,
    inch_sheet,
    name_rank,
    name_row,
    note,
)
from lib.show.style import GREY, INK, MUTED, describe, rank_color, styled, title


@styled
def draw_mechanism(
    size: int = 10,
    world_size: int = 3,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> Figure:
    """Draw the whole mechanism: length, shuffled order, padding or dropping, the slice of each rank, and its share.

    Made for up to about 16 samples; the order is that of real samplers.
    """
    one = deal(size, world_size, seed=seed, epoch=epoch, shuffle=shuffle, drop_last=drop_last)
    order, steps = one.order, len(one.shares[0])
    everything = order + one.dropped
    start = max(size, len(everything)) + 1.1  # the column of the shares at the right
    side = min(0.42, (WIDTH - LEFT - 0.1) / (start + max(steps, 5)))

    def at(column: float) -> float:
        return LEFT + (column + 0.5) * side

    data_y, order_y, ranks_y, pitch = 0.3, 1.45, 2.4, 0.48
    figure, axes = inch_sheet(ranks_y + (world_size - 1) * pitch + 0.28)
    name_row(axes, data_y, "dataset", f"length N = {size}")
    how = f"randperm({size})\nseed {seed} + epoch {epoch}" if shuffle else "no shuffle"
    axes.text(EDGE, (data_y + order_y) / 2, how, fontsize=9, color=MUTED, va="center", linespacing=1.4)
    name_row(axes, order_y, "order", f"total_size = {len(order)}")
    for index in range(size):
        draw_index(axes, at(index), data_y, index, None, side=side)
    for position, index in enumerate(everything):
        lost, x, rank = position >= len(order), at(position), position % world_size
        mark: Mark = "dropped" if lost else "padding" if position >= size else "plain"
        draw_index(axes, x, order_y, index, None if lost else rank, mark, side)
        thread: dict[str, Any] = dict(color=GREY if lost else rank_color(rank), zorder=1)
        if position < size:
            axes.plot(
                [at(index), x], [data_y + side / 2, order_y - side / 2], linewidth=1.2, alpha=0.6, **thread
            )
        if not lost:
            y = ranks_y + rank * pitch
            axes.plot([x, x], [order_y + side / 2, y - side / 2], linewidth=1.0, alpha=0.45, **thread)
            draw_index(axes, x, y, index, rank, mark, side)
    if one.repeated:
        _bow(
            axes,
            at(0) - side / 2,
            at(len(order) - 1) + side / 2,
            at(size) - side / 2,
            order_y + 0.55 * side,
            side,
        )
        note(axes, at(size - 0.5), order_y - 0.65 * side, "padding:\nthe head again", "bottom")
    elif one.dropped:
        note(axes, at(len(order) - 0.5), order_y + 0.7 * side, "dropped:\nthe tail", "top")
    rounded = f"⌊{size} / {world_size}⌋" if drop_last else f"⌈{size} / {world_size}⌉"
    note(
        axes,
        at(start - 0.5),
        data_y,
        f"num_samples = {rounded} = {steps}\ntotal_size = {steps} × {world_size} = {len(order)}",
    )
    note(axes, at(start - 0.5), ranks_y - 0.4, "what each rank yields")
    for rank, share in enumerate(one.shares):
        y = ranks_y + rank * pitch
        name_rank(axes, y, rank, f"order[{rank}::{world_size}]")
        arrow = dict(arrowstyle="-|>", color=GREY, linewidth=1.0, mutation_scale=9)
        axes.annotate("", (at(start - 0.65), y), (at(len(everything) - 0.35), y), arrowprops=arrow)
        for step, index in enumerate(share):
            padded = step * world_size + rank >= size
            draw_index(axes, at(start + step), y, index, rank, "padding" if padded else "plain", side)
    title(axes, what_happened(one))
    extra = f"Padded with {words(order[size:])}" if one.repeated else f"Dropped: {words(one.dropped)}"
    return describe(
        figure,
        f"From a dataset of {size} to the shares of {world_size} ranks. Order: {words(everything[:size])}. {extra}. "
        + listed(one.shares),
    )


def _bow(axes: Axes, start: float, end: float, middle: float, y: float, side: float) -> None:
    """Draw a bow from the head of the order (from x = start) to the padding (middle..end), under the cells."""
    width = min(end - middle, middle - start)
    bow = FancyArrowPatch(
        (start + width / 2, y),
        ((middle + end) / 2, y),
        connectionstyle="arc3,rad=0.12",
        arrowstyle="-|>",
        mutation_scale=13,
        color=INK,
        linewidth=1.3,
        zorder=1.5,
    )
    axes.add_patch(bow)
    for left, right in ((start, start + width), (middle, end)):
        axes.plot([left + 0.1 * side, right - 0.1 * side], [y, y], color=INK, linewidth=1.3)


@styled
def draw_slice(count: int = 15, world_size: int = 3) -> Figure:
    """Draw the numbers 1..count dealt by stride, with the hops of each rank, and under them dealt in blocks."""
    side = min(0.48, (WIDTH - LEFT - 0.1) / count)
    figure, axes = inch_sheet(2.2)
    name_row(axes, 1.0, "stride", f"[r::{world_size}]")
    name_row(axes, 1.8, "blocks", "as in notebook 04")
    block = -(-count // world_size)
    for position in range(count):
        rank, x = position % world_size, LEFT + (position + 0.5) * side
        draw_index(axes, x, 1.0, position + 1, rank, side=side)
        draw_index(axes, x, 1.8, position + 1, position // block, "faded", side)
        if position + world_size < count:
            hop = FancyArrowPatch(
                (x, 1.0 - 0.5 * side),
                (x + world_size * side, 1.0 - 0.5 * side),
                connectionstyle="arc3,rad=-0.42",
                arrowstyle="-|>",
                mutation_scale=9,
                color=rank_color(rank),
                linewidth=1.4,
                shrinkB=1,
            )
            axes.add_patch(hop)
    shares = [list(range(1, count + 1))[rank::world_size] for rank in range(world_size)]
    title(axes, f"Each rank hops {world_size} positions: the shares are disjoint, but nowhere contiguous")
    return describe(
        figure, f"The numbers 1 to {count} dealt to {world_size} ranks by stride. {listed(shares)}"
    )


def draw_count(axes: Axes, x: float, y: float, times: int, fair: int, side: float) -> None:
    """Draw how often an index was seen: grey for the fair number, black for more, pale for less, a cross for never."""
    mark: Mark = "dropped" if not times else "faded" if times < fair else "plain"
    cell = Cell(times, color=INK if times > fair else GREY, mark=mark)
    draw_cell(axes, x, y, cell, size=0.88 * side, font=max(9.0, min(11.0, 31 * side)))


RANKS_CONTROLS = {
    "size": whole(1, 32, 10, "N · samples"),
    "world_size": whole(1, 8, 3, "W · ranks"),
    "epoch": whole(0, 12, 0, "e · epoch"),
    "seed": whole(0, 9, 0, "seed"),
    "shuffle": switch(True, "shuffle"),
    "drop_last": switch(False, "drop_last"),
}


@styled
def draw_ranks(
    *, size: int, world_size: int, epoch: int, seed: int, shuffle: bool, drop_last: bool
) -> Figure:
    """Draw an epoch: the order, the rank × step grid, and how often each index came in epochs 0..epoch."""
    arguments = dict(seed=seed, shuffle=shuffle, drop_last=drop_last)
    one = deal(size, world_size, epoch=epoch, **arguments)
    seen = Counter(i for e in range(epoch + 1) for i in deal(size, world_size, epoch=e, **arguments).order)
    order, steps = one.order, len(one.shares[0])
    room = WIDTH - LEFT - 0.1
    side = min(0.44, room / max(size, len(order)))
    grid = min(0.44, 2.9 / world_size, room / max(1, steps))
    order_y, grid_y = 0.3, 1.15
    seen_y = grid_y + world_size * grid + 0.35
    figure, axes = inch_sheet(seen_y + 0.25)
    name_row(axes, order_y, "order", f"seed + epoch = {seed + epoch}" if shuffle else "not shuffled")
    for position, index in enumerate(order + one.dropped):
        lost = position >= len(order)
        mark: Mark = "dropped" if lost else "padding" if position >= size else "plain"
        rank = None if lost else position % world_size
        draw_index(axes, LEFT + (position + 0.5) * side, order_y, index, rank, mark, side)
    axes.text(EDGE, grid_y - grid / 2 - 0.14, "step", fontsize=9, color=MUTED, va="center")
    for step in range(steps):
        x = LEFT + (step + 0.5) * grid
        axes.text(x, grid_y - grid / 2 - 0.14, str(step), fontsize=9, color=MUTED, ha="center", va="center")
        for rank, share in enumerate(one.shares):
            mark = "padding" if step * world_size + rank >= size else "plain"
            draw_index(axes, x, grid_y + rank * grid, share[step], rank, mark, grid)
    for rank in range(world_size):
        name_rank(axes, grid_y + rank * grid, rank)
    name_row(axes, seen_y, "times seen", "in epoch 0" if not epoch else f"in epochs 0 to {epoch}")
    for index in range(size):
        x = LEFT + (index + 0.5) * side
        axes.text(x, seen_y - side / 2 - 0.09, str(index), fontsize=9, color=MUTED, ha="center", va="center")
        draw_count(axes, x, seen_y, seen[index], epoch + 1, side)
    counts = [seen[index] for index in range(size)]
    title(axes, f"Epoch {epoch}: {what_happened(one)}")
    lost_text = f" Dropped: {words(one.dropped)}." if one.dropped else ""
    return describe(
        figure,
        f"Epoch {epoch}, seed {seed}: {what_happened(one)}. {listed(one.shares)}{lost_text} "
        f"Times seen so far: {words(counts)}.",
    )
