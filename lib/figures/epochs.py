"""What happens from epoch to epoch, and what goes wrong: orders that ranks share, repeat, or do not share.

draw_agreement    the order that each rank computes for itself, its own share, and who holds what in the end
draw_epochs       epoch × position, with and without set_epoch
draw_left_out     epoch × index under drop_last, with and without shuffle
draw_coincidence  which (seed, epoch) give which order
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lib.data.samplers import DistributedSampler
from lib.figures.deal import deal, listed, words
from lib.show.sheet import (
    LEFT,
    Cell,
    Mark,
    cell_axes,
    draw_cell,
    draw_index,
    inch_sheet,
    name_rank,
    name_row,
    note,
)
from lib.show.style import INK, MUTED, RED, describe, new_figure, rank_color, styled, title


@styled
def draw_agreement(size: int = 10, seeds: Sequence[int] = (0, 0, 0), epoch: int = 0) -> Figure:
    """Draw, for ranks that shuffle with `seeds`, each one's order, the share it keeps, and who holds which index.

    As many ranks as seeds; nothing is padded, so that a tower of cells can only come from different orders.
    """
    world, side, pitch = len(seeds), min(0.48, (6.3 - LEFT) / size), 0.54
    deals = [deal(size, world, seed=seed, epoch=epoch, pad=False) for seed in seeds]
    holders: dict[int, list[int]] = defaultdict(list)
    for rank, one in enumerate(deals):
        for index in one.shares[rank]:
            holders[index].append(rank)
    end_y = 0.3 + world * pitch + 0.3 + (max(map(len, holders.values())) - 1) * side
    figure, axes = inch_sheet(end_y + 0.35)
    for rank, one in enumerate(deals):
        y = 0.3 + rank * pitch
        name_rank(axes, y, rank, f"seed {seeds[rank]} + e {epoch}")
        for position, index in enumerate(one.order):
            owner = rank if position % world == rank else None
            draw_index(axes, LEFT + (position + 0.5) * side, y, index, owner, side=side)
    name_row(axes, end_y, "who holds", "each index")
    for index in range(size):
        x = LEFT + (index + 0.5) * side
        for level, rank in enumerate(holders[index]):
            draw_index(axes, x, end_y - level * side, index, rank, side=side)
        if not holders[index]:
            draw_index(axes, x, end_y, index, None, "dropped", side)
    right = LEFT + size * side + 0.45
    entries: tuple[tuple[int | None, Mark, str], ...] = (
        (0, "plain", "computed and kept"),
        (None, "plain", "computed, left to others"),
        (None, "dropped", "nobody keeps it"),
    )
    for line, (owner, mark, meaning) in enumerate(entries):
        draw_index(axes, right, 0.3 + 0.4 * line, "", owner, mark, 0.3)
        note(axes, right + 0.28, 0.3 + 0.4 * line, meaning)
    missed = [index for index in range(size) if not holders[index]]
    twice = sum(len(ranks) > 1 for ranks in holders.values())
    if len({tuple(one.order) for one in deals}) == 1:
        title(axes, "Equal seeds: each index has one holder, without a word between the ranks")
    else:
        title(axes, f"Different seeds: {len(missed)} of {size} samples have no holder, {twice} have several")
    shares = listed([one.shares[rank] for rank, one in enumerate(deals)])
    return describe(
        figure, f"{world} ranks shuffle with seeds {words(seeds)}. {shares} Held by nobody: {words(missed)}."
    )


def shade(index: int, size: int) -> str:
    """Return the colour of an index on the ramp from pale blue (0) to dark blue (size - 1)."""
    place = index / max(1, size - 1)
    light, dark = (0.87, 0.93, 0.98), (0.0, 0.22, 0.40)
    red, green, blue = ((1 - place) * a + place * b for a, b in zip(light, dark, strict=True))
    return to_hex((red, green, blue))


def _panel(axes: Axes, columns: int, rows: int, left: float, heading: str, top: float = 0.8) -> None:
    cell_axes(axes, columns=columns, rows=rows, left=left, top=top)
    axes.text(-0.5, -top - 0.1, heading, fontsize=11, fontweight="bold", va="center")


@styled
def draw_epochs(size: int = 12, world_size: int = 3, epochs: int = 6) -> Figure:
    """Draw epoch × position of the order for samplers that never hear of the epoch, and for those that do."""
    told = [deal(size, world_size, epoch=epoch).order for epoch in range(epochs)]
    untold = [deal(size, world_size, epoch=0).order] * epochs
    figure, panels = new_figure(
        9, 0.6 + 8.8 * (epochs + 2.0) / (2 * size + 4), cols=2, width_ratios=(size + 3.2, size)
    )
    for axes, orders, heading, left in (
        (panels[0], untold, "set_epoch forgotten", 3.2),
        (panels[1], told, "set_epoch(e) before each epoch", 0.0),
    ):
        _panel(axes, size, epochs, left, heading, 1.5)
        for position in range(size):
            rank = position % world_size
            axes.plot(
                [position - 0.4, position + 0.4],
                [-0.62, -0.62],
                color=rank_color(rank),
                linewidth=4,
                solid_capstyle="butt",
            )
            axes.text(position, -0.98, str(rank), fontsize=9, ha="center", va="center", color=MUTED)
        for epoch, order in enumerate(orders):
            if left:
                axes.text(-0.8, epoch, f"epoch {epoch}", ha="right", va="center", fontsize=10)
            for position, index in enumerate(order):
                draw_cell(axes, position, epoch, Cell(index, color=shade(index, size)), size=0.92, font=9.5)
        if left:
            axes.text(-0.8, -0.8, "rank", ha="right", va="center", fontsize=9, color=MUTED)
    kinds = len({tuple(order) for order in untold}), len({tuple(order) for order in told})
    _over(
        figure,
        f"Forgotten: {kinds[0]} order in {epochs} epochs, a column never changes. Told: {kinds[1]} orders",
    )
    return describe(
        figure,
        f"Epoch by position. Without set_epoch all {epochs} rows are {words(untold[0])}. "
        f"With it, epoch 0: {words(told[0])}; epoch 1: {words(told[1])}; and so on, {kinds[1]} different rows.",
    )


@styled
def draw_left_out(size: int = 11, world_size: int = 4, epochs: int = 6) -> Figure:
    """Draw epoch × index under drop_last: who got it, or nobody; without shuffle and with it."""
    figure, panels = new_figure(
        9, 0.6 + 8.8 * (epochs + 2.3) / (2 * size + 4), cols=2, width_ratios=(size + 3.2, size)
    )
    never = []
    for axes, shuffle, left in ((panels[0], False, 3.2), (panels[1], True, 0.0)):
        _panel(axes, size, epochs + 1, left, f"shuffle={shuffle}")
        times = [0] * size
        for epoch in range(epochs):
            one = deal(size, world_size, epoch=epoch, shuffle=shuffle, drop_last=True)
            holder = {index: rank for rank, share in enumerate(one.shares) for index in share}
            for index in range(size):
                mark: Mark = "plain" if index in holder else "dropped"
                draw_cell(axes, index, epoch, Cell(index, holder.get(index), mark), font=9.5)
                times[index] += index in holder
            if left:
                axes.text(-0.8, epoch, f"epoch {epoch}", ha="right", va="center", fontsize=10)
        for index, count in enumerate(times):
            weight, color = ("normal", INK) if count else ("bold", RED)
            axes.text(
                index,
                epochs + 0.15,
                str(count),
                ha="center",
                va="center",
                fontsize=10.5,
                fontweight=weight,
                color=color,
            )
        if left:
            axes.text(-0.8, epochs + 0.15, "times seen", ha="right", va="center", fontsize=10, color=MUTED)
        never.append([index for index in range(size) if not times[index]])
    fixed, fresh = (f"{len(lost) or 'no'} sample{'s' * (len(lost) != 1)}" for lost in never)
    _over(figure, f"Never seen in {epochs} epochs: {fixed} without shuffle, {fresh} with it")
    return describe(
        figure,
        f"Epoch by index with drop_last, {size} samples, {world_size} ranks. Never seen in {epochs} epochs: "
        f"without shuffle {words(never[0])}; with shuffle {words(never[1])}.",
    )


@styled
def draw_coincidence(size: int = 10, seeds: int = 6, epochs: int = 6) -> Figure:
    """Draw seed × epoch, each cell named after the order that it gives, for order="torch" and order="feistel".

    A cell has a colour if its order is also that of another cell.
    """
    figure, panels = new_figure(9, 4.1, cols=2, width_ratios=(epochs + 1.6, epochs))
    kinds = []
    for axes, order, left in ((panels[0], "torch", 1.6), (panels[1], "feistel", 0.0)):
        _panel(axes, epochs, seeds, left, f'order="{order}"', 1.2)
        table = {(s, e): _order(size, s, e, order) for s in range(seeds) for e in range(epochs)}
        names = {one: number for number, one in enumerate(dict.fromkeys(table.values()))}
        times = Counter(table.values())
        for (seed, epoch), one in table.items():
            color = shade(names[one], len(names)) if times[one] > 1 else None
            draw_cell(axes, epoch, seed, Cell(_letters(names[one]), color=color), size=0.92, font=11)
        if left:
            for seed in range(seeds):
                axes.text(-0.75, seed, f"seed {seed}", ha="right", va="center", fontsize=10)
        for epoch in range(epochs):
            axes.text(epoch, -0.75, f"e = {epoch}", ha="center", va="center", fontsize=9.5, color=MUTED)
        kinds.append(len(names))
    _over(
        figure, f"{seeds} seeds × {epochs} epochs: torch has {kinds[0]} different orders, feistel {kinds[1]}"
    )
    return describe(
        figure,
        f"Seed by epoch, {size} samples. torch: {kinds[0]} different orders in {seeds * epochs} cells, the same along "
        f"each diagonal of constant seed + epoch. feistel: {kinds[1]} different orders.",
    )


def _order(size: int, seed: int, epoch: int, order: Any) -> tuple[int, ...]:
    sampler = DistributedSampler(range(size), 1, 0, seed=seed, order=order)
    sampler.set_epoch(epoch)
    return tuple(sampler)


def _letters(number: int) -> str:
    """Return A, B, … Z, AA, AB …"""
    return ("" if number < 26 else chr(64 + number // 26)) + chr(65 + number % 26)


def _over(figure: Figure, finding: str) -> None:
    figure.suptitle(finding, x=0.01, ha="left", fontsize=13, fontweight="bold")
