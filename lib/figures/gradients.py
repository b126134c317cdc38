"""Figures of notebook 06: what the mean over ranks does to single samples.

draw_weights    how much each sample's gradient weighs when the shares are uneven
draw_negatives  which captions an image is compared with when the loss looks at the batch of one rank
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import Cell, cell_axes, draw_cell
from lib.show.style import (
    GREY,
    HATCH,
    INK,
    MUTED,
    PAPER,
    describe,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)

HOW = ("mean of the ranks' means", "weighted by count", "sum of the ranks' means")


def share_weights(counts: Sequence[int], how: str = HOW[0]) -> list[float]:
    """Return what one sample of each rank weighs in the step's gradient; 1 / sum(counts) would be fair.

    counts: samples of each rank, 1 or more. how: one of HOW. Raises ValueError for another.
    """
    if how not in HOW:
        raise ValueError(f"how must be one of {', '.join(HOW)}, not {how!r}")
    if how == HOW[1]:
        return [1 / sum(counts)] * len(counts)
    return [1 / (count * (len(counts) if how == HOW[0] else 1)) for count in counts]


WEIGHTS_CONTROLS = {
    "rank_0": whole(1, 6, 3, "samples of rank 0"),
    "rank_1": whole(1, 6, 3, "samples of rank 1"),
    "rank_2": whole(1, 6, 1, "samples of rank 2"),
    "how": choice(HOW, HOW[0], "combined by"),
}


@styled
def draw_weights(*, rank_0: int, rank_1: int, rank_2: int, how: str) -> Figure:
    """Draw each sample of a step under a bar: its weight in the gradient, as a multiple of the fair one."""
    counts = (rank_0, rank_1, rank_2)
    total = sum(counts)
    times = [weight * total for weight in share_weights(counts, how)]
    highest = max(2.0, *times)
    figure, axes = new_figure(9, 3.6)
    x, middles, widest = 0.0, [], 6.0
    for rank, count in enumerate(counts):
        left = x
        for _ in range(count):
            bar = Rectangle(
                (x + 0.08, 0), 0.84, times[rank], facecolor=rank_color(rank), edgecolor=INK, lw=0.8
            )
            axes.add_patch(bar)
            x += 1
        middle = (left + x) / 2
        middles.append(middle)
        top = 1.0 if 0.7 < times[rank] < 1 else times[rank]  # clear of the dashed line
        label = f"× {times[rank]:.2f}"
        axes.text(middle, top + 0.03 * highest, label, ha="center", va="bottom", fontsize=10)
        x += 0.6
    axes.plot([-0.2, x - 0.4], [1, 1], color=INK, linestyle="--", linewidth=1.4)
    axes.text(x - 0.3, 1, "fair", va="center", fontsize=10, color=INK)
    axes.set(
        xlim=(-0.3, max(x + 0.5, widest)), ylim=(0, 1.18 * highest), ylabel="weight of a sample\n(fair = 1)"
    )
    axes.set_xticks(
        middles, [f"rank {rank}\n{count} sample{'s' * (count != 1)}" for rank, count in enumerate(counts)]
    )
    axes.tick_params(axis="x", length=0, labelcolor=INK)
    share = " + ".join(map(str, counts))
    title(axes, f"Shares {share}: {_finding(counts, times, how)}")
    said = ", ".join(f"rank {rank} {value:.2f}" for rank, value in enumerate(times))
    return describe(
        figure, f"{total} samples on 3 ranks, {share}; {how}. Weight of one sample, fair = 1: {said}."
    )


def _finding(counts: Sequence[int], times: Sequence[float], how: str) -> str:
    low, high = min(times), max(times)
    if high - low > 1e-9:
        most, least = times.index(high), times.index(low)
        return f"a sample of rank {most} weighs {high / low:.1f} × one of rank {least}"
    if abs(high - 1) < 1e-9:
        return "every sample weighs the same, the gradient is that of the whole batch"
    return f"every sample weighs {high:.0f} ×, as if the learning rate were {high:.0f} times as large"


NEGATIVES_CONTROLS = {
    "batch": steps((4, 8, 12, 16), 12, "samples of all ranks"),
    "world_size": steps((1, 2, 4), 4, "W · ranks"),
    "gathered": switch(False, "gather the embeddings of all ranks first"),
}


@styled
def draw_negatives(*, batch: int, world_size: int, gathered: bool) -> Figure:
    """Draw image × caption of one step: the pair that belongs together, the wrong ones a rank compares, the unseen."""
    own = batch // world_size
    seen = batch if gathered else own
    side = 4.0
    figure, axes = new_figure(9, side + 0.75)
    cell_axes(axes, columns=batch * 2.05, rows=batch, left=batch * 0.13, top=batch * 0.07)
    for image in range(batch):
        rank = image // own
        for caption in range(batch):
            if image == caption:
                draw_cell(axes, caption, image, Cell(image if batch <= 12 else "", rank), font=9)
            elif gathered or caption // own == rank:
                draw_cell(axes, caption, image, Cell("", rank, "faded", rank_color(rank)))
            else:
                axes.add_patch(
                    Rectangle(
                        (caption - 0.44, image - 0.44),
                        0.88,
                        0.88,
                        facecolor=PAPER,
                        edgecolor=GREY,
                        hatch=HATCH["bubble"],
                        linewidth=0.5,
                    )
                )
    for rank in range(world_size):
        y = rank * own + (own - 1) / 2
        axes.text(-0.75, y, f"rank {rank}", ha="right", va="center", fontsize=10, color=INK)
    unit, left = batch / 12, batch + 0.9 * batch / 12
    axes.text((batch - 1) / 2, -0.5 - 0.45 * unit, "captions", ha="center", fontsize=10, color=MUTED)
    legend = (
        (Cell("", 0), "an image and its own caption"),
        (Cell("", 0, "faded", rank_color(0)), "a wrong caption that it is\npushed away from"),
        (None, "a wrong caption that its rank\nnever sees"),
    )
    for line, (cell, meaning) in enumerate(legend):
        y = unit * (1.2 + 1.9 * line)
        corner = (left - 0.44 * unit, y - 0.44 * unit)
        if cell is None:
            axes.add_patch(
                Rectangle(
                    corner, 0.88 * unit, 0.88 * unit, facecolor=PAPER, edgecolor=GREY, hatch="....", lw=0.5
                )
            )
        else:
            face = rank_color(0) if cell.mark == "plain" else pale(rank_color(0))
            axes.add_patch(
                Rectangle(corner, 0.88 * unit, 0.88 * unit, facecolor=face, edgecolor=rank_color(0), lw=1.2)
            )
        axes.text(left + 0.9 * unit, y, meaning, va="center", fontsize=10, color=MUTED)
    axes.text(
        left - 0.4 * unit,
        unit * 8.2,
        f"{'one loss over' if gathered or world_size == 1 else f'{world_size} losses over'} "
        f"{seen} × {seen} pairs{'' if gathered or world_size == 1 else ' each'}\n"
        f"{batch * seen} of {batch * batch} comparisons",
        va="center",
        fontsize=11,
        linespacing=1.5,
    )
    title(
        axes,
        f"{world_size} rank{'s' * (world_size != 1)} × {own} samples: an image is told from "
        f"{seen - 1} of {batch - 1} wrong captions",
    )
    return describe(
        figure,
        f"Image × caption for {batch} samples on {world_size} ranks, embeddings "
        f"{'gathered' if gathered else 'not gathered'}: {batch * seen} of {batch * batch} pairs are compared, "
        f"{seen - 1} wrong captions an image.",
    )
