"""Figures of notebook 03, DistributedSampler."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.data.samplers import DistributedSampler
from lib.show import sheet, style
from lib.show.explore import switch, whole
from lib.show.sheet import EDGE, LEFT, WIDTH, Cell, arrow, draw_strip, inch_sheet, name_rank, note, write
from lib.show.style import (
    GREY,
    INK,
    MUTED,
    describe,
    headline,
    new_figure,
    rank_color,
    styled,
    title,
)
from lib.text import plural


def name_row(axes: Axes, y: float, name: str, detail: str = "", color: str = INK) -> None:
    """Write the name of a row, and a smaller detail under it, at the left edge of a sheet of inches."""
    write(axes, 0.05, y - 0.08 if detail else y, name, size=10.5, color=color, ha="left", weight="bold")
    write(axes, EDGE, y + 0.11, detail, size=9, color=MUTED, ha="left")


# --- the deal of one epoch


@dataclass(frozen=True)
class DealtEpoch:
    """What the samplers of all ranks give out in one epoch: shares[r][t] is rank r's t-th index."""

    size: int
    shares: list[list[int]]
    dropped: list[int]

    @property
    def order(self) -> list[int]:
        """The order that all ranks share, padding included: its position p is the p // W-th of rank p % W."""
        steps = max(map(len, self.shares))
        return [share[t] for t in range(steps) for share in self.shares if t < len(share)]

    @property
    def repeated(self) -> int:
        """How many positions are padding."""
        return max(0, len(self.order) - self.size)

    @property
    def cells(self) -> list[Cell]:
        """The order as cells, each in its rank's colour, padding hatched; then what was dropped, crossed out."""
        given = [self._cell(position, index) for position, index in enumerate(self.order)]
        return given + [Cell(index, mark="dropped") for index in self.dropped]

    def row(self, rank: int) -> list[Cell]:
        """Return the share of a rank as cells."""
        world = len(self.shares)
        return [self._cell(step * world + rank, index) for step, index in enumerate(self.shares[rank])]

    def _cell(self, position: int, index: int) -> Cell:
        return Cell(index, position % len(self.shares), "padding" if position >= self.size else "plain")

    @property
    def words(self) -> str:
        """What padding or dropping did, as a sum: 10 samples + 2 repeated = 3 ranks × 4 each."""
        padding = f" + {self.repeated} repeated" if self.repeated else ""
        change = f" − {len(self.dropped)} dropped" if self.dropped else padding
        dealt = f"{plural(len(self.shares), 'rank')} × {len(self.shares[0])} each"
        return f"{plural(self.size, 'sample')}{change} = {dealt}"


def deal_epoch(
    size: int,
    world_size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
    kind: Any = DistributedSampler,
    **arguments: Any,
) -> DealtEpoch:
    """Ask one sampler of a kind a rank for its epoch; further arguments go to the samplers."""

    def taken(world: int, rank: int, **more: Any) -> list[int]:
        sampler = kind(range(size), world, rank, seed=seed, **more)
        sampler.set_epoch(epoch)
        return list(sampler)

    shares = [taken(world_size, rank, **arguments) for rank in range(world_size)]
    whole_order = taken(1, 0, shuffle=arguments.get("shuffle", True))
    return DealtEpoch(size, shares, whole_order[sum(map(len, shares)) :])


def in_words(indices: Iterable[object]) -> str:
    """Return indices as text: 4 5 0 2, or "nothing"."""
    return " ".join(map(str, indices)) or "nothing"


def shares_in_words(shares: Sequence[Sequence[object]]) -> str:
    """Return the shares of all ranks as a sentence, for descriptions."""
    return "; ".join(f"rank {rank}: {in_words(share)}" for rank, share in enumerate(shares)) + "."


# --- who gets which index


@styled
def draw_mechanism(
    size: int = 10,
    world_size: int = 3,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
    kind: Any = DistributedSampler,
) -> Figure:
    """Draw the whole mechanism: length, shuffled order, padding or dropping, the slice of each rank, and its share.

    Made for up to about 16 samples; the order is that of real samplers, of the class `kind`.
    """
    how: Any = {"shuffle": shuffle, "drop_last": drop_last}
    one = deal_epoch(size, world_size, seed=seed, epoch=epoch, kind=kind, **how)
    order = one.order
    cells = one.cells
    steps = len(one.shares[0])
    start = max(size, len(cells)) + 1.1  # the column of the shares at the right
    side = min(0.42, (WIDTH - LEFT - 0.1) / (start + max(steps, 5)))
    data_y = 0.3
    order_y = 1.45
    ranks_y = 2.4
    pitch = 0.48

    def at(column: float) -> float:
        return LEFT + (column + 0.5) * side

    figure, axes = inch_sheet(ranks_y + (world_size - 1) * pitch + 0.28)
    name_row(axes, data_y, "dataset", f"length N = {size}")
    how = f"randperm({size})\nseed {seed} + epoch {epoch}" if shuffle else "no shuffle"
    write(axes, EDGE, (data_y + order_y) / 2, how, size=9, color=MUTED, ha="left", linespacing=1.4)
    name_row(axes, order_y, "order", f"total_size = {len(order)}")
    draw_strip(axes, LEFT, data_y, map(Cell, range(size)), side)
    draw_strip(axes, LEFT, order_y, cells, side)
    for position, cell in enumerate(cells):
        x = at(position)
        thread: Any = {"color": cell.hue or GREY, "zorder": 1}
        if position < size:
            tops = [data_y + side / 2, order_y - side / 2]
            axes.plot([at(int(cell.index)), x], tops, linewidth=1.2, alpha=0.6, **thread)
        if cell.rank is not None:
            y = ranks_y + cell.rank * pitch
            axes.plot([x, x], [order_y + side / 2, y - side / 2], linewidth=1.0, alpha=0.45, **thread)
            draw_strip(axes, x - side / 2, y, [cell], side)
    _mark_the_end(axes, one, order_y, side)
    rounded = f"⌊{size} / {world_size}⌋" if drop_last else f"⌈{size} / {world_size}⌉"
    sums = f"num_samples = {rounded} = {steps}\ntotal_size = {steps} × {world_size} = {len(order)}"
    note(axes, at(start - 0.5), data_y, sums)
    note(axes, at(start - 0.5), ranks_y - 0.4, "what each rank yields")
    for rank in range(world_size):
        y = ranks_y + rank * pitch
        name_rank(axes, y, rank, f"order[{rank}::{world_size}]")
        arrow(axes, (at(len(cells) - 0.35), y), (at(start - 0.65), y), color=GREY, width=1.0, head=9, gap=2)
        draw_strip(axes, at(start - 0.5), y, one.row(rank), side)
    title(axes, one.words)
    extra = f"Padded with {in_words(order[size:])}" if one.repeated else f"Dropped: {in_words(one.dropped)}"
    dealt = in_words(int(cell.index) for cell in cells[:size])
    said = f"Order: {dealt}. {extra}. {shares_in_words(one.shares)}"
    return describe(figure, f"From a dataset of {size} to the shares of {world_size} ranks. {said}")


def _mark_the_end(axes: Axes, one: DealtEpoch, y: float, side: float) -> None:
    """Say at the end of the order what was repeated, or dropped."""
    size = LEFT + one.size * side
    end = LEFT + len(one.order) * side
    if one.repeated:
        _bow(axes, LEFT, end, size, y + 0.55 * side, side)
        note(axes, size, y - 0.65 * side, "padding:\nthe head again", "bottom")
    elif one.dropped:
        note(axes, end, y + 0.7 * side, "dropped:\nthe tail", "top")


def _bow(axes: Axes, start: float, end: float, middle: float, y: float, side: float) -> None:
    """Draw a bow from the head of the order (from x = start) to the padding (middle..end), under the cells."""
    width = min(end - middle, middle - start)
    arrow(axes, (start + width / 2, y), ((middle + end) / 2, y), bend=0.12, width=1.3, gap=2, zorder=1.5)
    for left, right in ((start, start + width), (middle, end)):
        axes.plot([left + 0.1 * side, right - 0.1 * side], [y, y], color=INK, linewidth=1.3)


@styled
def draw_slice(count: int = 15, world_size: int = 3) -> Figure:
    """Draw the letters A, B, … dealt by stride, with the hops of each rank, and under them dealt in blocks."""
    letters = [chr(ord("A") + position) for position in range(count)]
    side = min(0.48, (WIDTH - LEFT - 0.1) / count)
    block = math.ceil(count / world_size)
    figure, axes = inch_sheet(2.75)
    name_row(axes, 1.2, "stride", f"order[r::{world_size}]")
    name_row(axes, 2.1, "blocks", "as in notebook 04")
    stride = [p % world_size for p in range(count)]
    blocks = [p // block for p in range(count)]
    draw_strip(axes, LEFT, 1.2, map(Cell, letters, stride), side)
    draw_strip(
        axes,
        LEFT,
        2.1,
        [Cell(letter, rank, "faded") for letter, rank in zip(letters, blocks, strict=True)],
        side,
    )
    for y, name, small in (0.3, "position", range(count)), (1.6, "rank", stride), (2.5, "rank", blocks):
        write(axes, EDGE, y, name, size=9, color=MUTED, ha="left")
        for position, text in enumerate(small):
            write(axes, LEFT + (position + 0.5) * side, y, str(text), size=9, color=MUTED)
    for position in range(count - world_size):
        x = LEFT + (position + 0.5) * side
        y = 1.2 - 0.5 * side
        look: Any = {"color": rank_color(position % world_size), "width": 1.4, "head": 9, "bend": -0.42}
        arrow(axes, (x, y), (x + world_size * side, y), gap=(2, 1), **look)
    title(axes, f"Each rank hops {world_size} positions: the shares are disjoint, but nowhere contiguous")
    said = shares_in_words([letters[rank::world_size] for rank in range(world_size)])
    return describe(figure, f"{count} letters dealt to {world_size} ranks by stride. {said}")


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
    """Draw an epoch: the order, the rank × t grid, and how often each index came in epochs 0..epoch."""
    arguments = dict(seed=seed, shuffle=shuffle, drop_last=drop_last)
    one = deal_epoch(size, world_size, epoch=epoch, **arguments)
    seen = Counter(
        i for e in range(epoch + 1) for i in deal_epoch(size, world_size, epoch=e, **arguments).order
    )
    steps = len(one.shares[0])
    room = WIDTH - LEFT - 0.1
    side = min(0.44, room / max(size, len(one.order)))
    grid = min(0.44, 2.9 / world_size, room / max(1, steps))
    order_y = 0.3
    grid_y = 1.15
    seen_y = grid_y + world_size * grid + 0.35
    steps_y = grid_y - grid / 2 - 0.14
    figure, axes = inch_sheet(seen_y + 0.25)
    name_row(axes, order_y, "order", f"seed + e = {seed + epoch}" if shuffle else "not shuffled")
    draw_strip(axes, LEFT, order_y, one.cells, side)
    write(axes, EDGE, steps_y, "t-th sample", size=9, color=MUTED, ha="left")
    for step in range(steps):
        write(axes, LEFT + (step + 0.5) * grid, steps_y, str(step), size=9, color=MUTED)
    for rank in range(world_size):
        name_rank(axes, grid_y + rank * grid, rank)
        draw_strip(axes, LEFT, grid_y + rank * grid, one.row(rank), grid)
    name_row(axes, seen_y, "times seen", "in epoch 0" if not epoch else f"in epochs 0 to {epoch}")
    for index in range(size):
        write(axes, LEFT + (index + 0.5) * side, seen_y - side / 2 - 0.09, str(index), size=9, color=MUTED)
    counts = [seen[index] for index in range(size)]
    draw_strip(axes, LEFT, seen_y, [_times(count, once=epoch + 1) for count in counts], side)
    title(axes, f"Epoch {epoch}: {one.words}")
    lost = f" Dropped: {in_words(one.dropped)}." if one.dropped else ""
    said = f"{one.words}. {shares_in_words(one.shares)}{lost} Times seen so far: {in_words(counts)}."
    order = f"seed {seed}" if shuffle else "not shuffled"
    return describe(figure, f"Epoch {epoch}, {order}: {said}")


def _times(count: int, once: int) -> Cell:
    """Say how often an index was seen: white for once an epoch, black for more, grey for less, a cross for never."""
    if count == once:
        return Cell(count)
    if not count:
        return Cell(count, color=INK, mark="dropped")
    return Cell(count, color=INK, mark="faded" if count < once else "plain")


@styled
def draw_agreement(size: int = 9, seeds: Sequence[int] = (0, 0, 0), epoch: int = 0) -> Figure:
    """Draw, for ranks that shuffle with `seeds`, each one's order, the share it keeps, and who holds which index.

    As many ranks as seeds. ValueError: they don't divide `size`; padding would be a second holder.
    """
    world = len(seeds)
    if size % world:
        raise ValueError(
            f"{size} samples are no multiple of {plural(world, 'rank')}: give one, nothing is padded then"
        )
    side = min(0.48, (6.3 - LEFT) / size)
    pitch = 0.54
    deals = [deal_epoch(size, world, seed=seed, epoch=epoch) for seed in seeds]
    holders: dict[int, list[int]] = defaultdict(list)
    for rank, one in enumerate(deals):
        for index in one.shares[rank]:
            holders[index].append(rank)
    end_y = 0.3 + world * pitch + 0.3 + (max(map(len, holders.values())) - 1) * side
    figure, axes = inch_sheet(end_y + 0.35)
    for rank, one in enumerate(deals):
        name_rank(axes, 0.3 + rank * pitch, rank, f"seed {seeds[rank]} + e {epoch}")
        kept = [Cell(cell.index, rank if cell.rank == rank else None) for cell in one.cells]
        draw_strip(axes, LEFT, 0.3 + rank * pitch, kept, side)
    name_row(axes, end_y, "who holds", "each index")
    for index in range(size):
        tower = [Cell(index, rank) for rank in holders[index]] or [Cell(index, mark="dropped")]
        for level, cell in enumerate(tower):
            draw_strip(axes, LEFT + index * side, end_y - level * side, [cell], side)
    right = LEFT + size * side + 0.45
    meanings = ("computed and kept", "computed, left to others", "nobody keeps it")
    for line, cell in enumerate((Cell("", 0), Cell(""), Cell("", mark="dropped"))):
        draw_strip(axes, right - 0.15, 0.3 + 0.4 * line, [cell], 0.3)
        note(axes, right + 0.28, 0.3 + 0.4 * line, meanings[line])
    missed = [index for index in range(size) if not holders[index]]
    twice = sum(len(ranks) > 1 for ranks in holders.values())
    finding = "Equal orders: each index has one holder, without a word between the ranks"
    if len({tuple(one.order) for one in deals}) > 1:
        finding = f"Different seeds: {len(missed)} of {size} samples have no holder, {twice} have several"
    title(axes, finding)
    shares = shares_in_words([one.shares[rank] for rank, one in enumerate(deals)])
    said = f"{world} ranks shuffle with seeds {in_words(seeds)}. {shares} Held by nobody: {in_words(missed)}."
    return describe(figure, said)


@styled
def draw_epochs(
    size: int = 12, world_size: int = 3, epochs: int = 6, kind: Any = DistributedSampler
) -> Figure:
    """Draw epoch × position of the order for samplers that never hear of the epoch, and for those that do."""
    told = [deal_epoch(size, world_size, epoch=epoch, kind=kind).order for epoch in range(epochs)]
    untold = [deal_epoch(size, world_size, epoch=0, kind=kind).order] * epochs
    left = 3.2
    top = 1.5
    height = 0.6 + 8.8 * (epochs + 2.0) / (2 * size + 4)
    figure, panels = new_figure(WIDTH, height, cols=2, width_ratios=(size + left, size))
    headings = "set_epoch forgotten", "set_epoch(e) before each epoch"
    for axes, heading, orders, room in zip(panels, headings, (untold, told), (left, 0.0), strict=True):
        sheet.cell_axes(axes, columns=size, rows=epochs, left=room, top=top)
        write(axes, -0.5, -top - 0.1, heading, size=11, ha="left", fontweight="bold")
        for position in range(size):
            rank = position % world_size
            ends = [position - 0.4, position + 0.4]
            axes.plot(ends, [-0.62, -0.62], color=rank_color(rank), linewidth=4, solid_capstyle="butt")
            write(axes, position, -0.98, str(rank), size=9, color=MUTED)
        for epoch, order in enumerate(orders):
            for position, index in enumerate(order):
                cell = Cell(index, color=style.mixed("#deedfa", "#003866", index / max(1, size - 1)))
                sheet.draw_cell(axes, position, epoch, cell, size=0.92, font=9.5)
    for epoch in range(epochs):
        write(panels[0], -0.8, epoch, f"epoch {epoch}", ha="right")
    write(panels[0], -0.8, -0.8, "rank", size=9, color=MUTED, ha="right")
    forgotten, called = (len({tuple(order) for order in orders}) for orders in (untold, told))
    headline(figure, f"set_epoch forgotten: {forgotten} order in {epochs} epochs. Called: {called} orders")
    said = f"epoch 0: {in_words(told[0])}; epoch 1: {in_words(told[1])}; and so on, {called} different rows."
    without = f"Without set_epoch all {epochs} rows are {in_words(untold[0])}."
    return describe(figure, f"Epoch by position. {without} With it, {said}")
