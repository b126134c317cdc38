"""What the figures of notebook 03 share: the deal of one epoch, asked from real samplers, and a canvas in inches.

deal        ask one DistributedSampler a rank for its indices
canvas      axes on which one unit is one inch; rows have their names at the left
draw_index  the cell of an index on such a canvas
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.data.samplers import DistributedSampler
from lib.figures.cells import Cell, Mark, draw_cell
from lib.figures.style import INK, MUTED, new_figure, rank_color

WIDTH, EDGE, LEFT = 9.0, 0.06, 1.35
"""Inches: the width of a figure, where titles and names of rows begin, and where cells begin."""


@dataclass(frozen=True)
class Deal:
    """What the samplers of all ranks give out in one epoch: shares[r][t] is rank r's index in step t."""

    size: int
    shares: list[list[int]]
    dropped: list[int]

    @property
    def order(self) -> list[int]:
        """The order that all ranks share, padding included: its position p belongs to rank p % W, step p // W."""
        steps = max(map(len, self.shares))
        return [share[t] for t in range(steps) for share in self.shares if t < len(share)]

    @property
    def repeated(self) -> int:
        """How many positions are padding."""
        return max(0, len(self.order) - self.size)


def deal(size: int, world_size: int, *, seed: int = 0, epoch: int = 0, **arguments: Any) -> Deal:
    """Ask one DistributedSampler a rank for its epoch; further arguments go to the samplers."""

    def taken(world: int, rank: int, **more: Any) -> list[int]:
        sampler = DistributedSampler(range(size), world, rank, seed=seed, **more)
        sampler.set_epoch(epoch)
        return list(sampler)

    shares = [taken(world_size, rank, **arguments) for rank in range(world_size)]
    whole_order = taken(1, 0, shuffle=arguments.get("shuffle", True), order=arguments.get("order", "torch"))
    return Deal(size, shares, whole_order[sum(map(len, shares)) :])


def canvas(height: float) -> tuple[Figure, Axes]:
    """Make a figure as wide as the text whose axes count inches, y downwards from 0 to `height`, under a title."""
    figure, axes = new_figure(WIDTH, height + 0.5)
    figure.set_layout_engine("none")
    axes.set_position((EDGE / WIDTH, 0, 1 - EDGE / WIDTH, height / (height + 0.5)))
    axes.set(xlim=(EDGE, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return figure, axes


def draw_index(
    axes: Axes,
    x: float,
    y: float,
    index: int | str,
    rank: int | None,
    mark: Mark = "plain",
    side: float = 0.34,
) -> None:
    """Draw the cell of an index, `side` inches wide, in its rank's colour (None: nobody's)."""
    draw_cell(axes, x, y, Cell(index, rank, mark), size=0.88 * side, font=max(9.0, min(11.0, 31 * side)))


def name_row(axes: Axes, y: float, name: str, detail: str = "", color: str = INK) -> None:
    """Write the name of a row, and a smaller detail under it, at the left edge."""
    axes.text(
        0.05, y - (0.08 if detail else 0), name, va="center", fontsize=10.5, fontweight="bold", color=color
    )
    if detail:
        axes.text(EDGE, y + 0.11, detail, va="center", fontsize=9, color=MUTED)


def name_rank(axes: Axes, y: float, rank: int, detail: str = "") -> None:
    """Write "rank r" beside a bar of its colour."""
    axes.plot([0.1, 0.1], [y - 0.13, y + 0.13], color=rank_color(rank), linewidth=5, solid_capstyle="butt")
    axes.text(
        0.22, y - (0.08 if detail else 0), f"rank {rank}", va="center", fontsize=10.5, fontweight="bold"
    )
    if detail:
        axes.text(0.22, y + 0.11, detail, va="center", fontsize=9, color=MUTED, family="monospace")


def words(indices: Sequence[int]) -> str:
    """Return indices as text: 4 5 0 2, or "nothing"."""
    return " ".join(map(str, indices)) or "nothing"


def listed(shares: Sequence[Sequence[int]]) -> str:
    """Return the shares of all ranks as a sentence, for descriptions."""
    return "; ".join(f"rank {rank}: {words(share)}" for rank, share in enumerate(shares)) + "."


def note(axes: Axes, x: float, y: float, text: str, align: str = "center") -> None:
    """Write a remark into the drawing, from x on."""
    axes.text(x, y, text, fontsize=9.5, color=MUTED, va=align, linespacing=1.35)


def what_happened(one: Deal) -> str:
    """Say what padding or dropping did to an epoch, as a sum: 10 samples + 2 repeated = 3 ranks × 4 steps."""
    world, steps = len(one.shares), len(one.shares[0])
    change = (
        f" + {one.repeated} repeated"
        if one.repeated
        else f" − {len(one.dropped)} dropped"
        if one.dropped
        else ""
    )
    counted = ((one.size, "sample"), (world, "rank"), (steps, "step"))
    samples, ranks, turns = (f"{number} {noun}{'s' * (number != 1)}" for number, noun in counted)
    return f"{samples}{change} = {ranks} × {turns}"
