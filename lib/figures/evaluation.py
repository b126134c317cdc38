"""What the shares do to results: one gradient step over all ranks, and an evaluation that counts samples twice.

draw_step        load, forward, backward with all-reduce, step: what is apart and what is together
draw_graded      real images dealt to ranks, with their marks right or wrong, padding included
draw_evaluation  how far the padded score is from the exact one, for every world size
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from lib.figures.deal import deal, listed
from lib.show.sheet import EDGE, LEFT, WIDTH, draw_index, inch_sheet, name_rank, note
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    RED,
    color_of,
    describe,
    headline,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)


def _box(axes: Axes, left: float, y: float, width: float, text: str, kind: str, height: float = 0.4) -> None:
    """Draw a rounded box in the pale colour of its kind, its left edge at `left`, vertically centred at y."""
    color = color_of(kind)
    box = FancyBboxPatch(
        (left, y - height / 2),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.07",
        facecolor=pale(color, 0.3),
        edgecolor=color,
        linewidth=1.3,
        zorder=3,
    )
    axes.add_patch(box)
    style: dict[str, Any] = dict(ha="center", va="center", fontsize=10, linespacing=1.4, zorder=4)
    axes.text(left + width / 2, y, text, **style)


@styled
def draw_step(
    size: int = 12, world_size: int = 3, batch_size: int = 2, seed: int = 0, epoch: int = 0
) -> Figure:
    """Draw the first gradient step of data-parallel training: what each rank does alone, and what all do together."""
    one = deal(size, world_size, seed=seed, epoch=epoch)
    batches = [share[:batch_size] for share in one.shares]
    pitch, side, top = 0.62, 0.4, 0.3
    figure, axes = inch_sheet(world_size * pitch + 0.45)
    x = LEFT + batch_size * side + 0.25
    for rank, batch in enumerate(batches):
        y = top + rank * pitch
        name_rank(axes, y, rank)
        for place, index in enumerate(batch):
            draw_index(axes, LEFT + (place + 0.5) * side, y, index, rank, side=side)
        _box(axes, x, y, 0.8, "load", "load")
        _box(axes, x + 0.85, y, 1.05, "forward", "forward")
        _box(axes, x + 1.95, y, 1.5, "backward", "backward")
        _box(axes, x + 4.65, y, 0.75, "step", "step")
        axes.text(x + 5.52, y, "w − η·ḡ", fontsize=11, va="center", color=INK, zorder=4)
        if rank:
            equal: dict[str, Any] = dict(ha="center", va="center", rotation=90, color=MUTED)
            axes.text(x + 5.8, y - pitch / 2, "=", fontsize=13, **equal)
    middle, tall = top + (world_size - 1) * pitch / 2, (world_size - 1) * pitch + 0.4
    _box(
        axes, x + 3.25, middle, 1.35, "all-reduce\nḡ = mean of g", "transfer", tall
    )  # it begins while backward runs
    below = top + (world_size - 1) * pitch + 0.36
    for left, right, text in (
        (LEFT, x + 3.2, "each rank alone"),
        (x + 3.25, x + 4.6, "together"),
        (x + 4.65, x + 6.1, "alone, but equal"),
    ):
        axes.plot([left, right], [below, below], color=GREY, linewidth=1.5)
        center: dict[str, Any] = dict(ha="center", va="center", fontsize=9.5, color=MUTED)
        axes.text((left + right) / 2, below + 0.17, text, **center)
    count = sum(map(len, batches))
    title(axes, f"One step: {world_size} ranks × {batch_size} samples act as one batch of {count}")
    return describe(
        figure,
        f"The first step. {listed(batches)} Each rank loads its own samples and runs forward and backward alone; "
        "one all-reduce takes the mean of the gradients; each makes the same step, so the parameters stay equal.",
    )


@styled
def draw_graded(images: torch.Tensor, correct: Sequence[bool], world_size: int = 4, first: int = 0) -> Figure:
    """Draw images dealt to ranks without shuffle, each answer right or wrong, with padding, and the scores.

    images: (count, height, width), any range. correct: as many. `first` is the index of the first one, for the labels.
    """
    marks = [bool(mark) for mark in correct]
    size, one = len(marks), deal(len(marks), world_size, shuffle=False)
    steps, side, pitch = len(one.shares[0]), 0.74, 1.25
    height = world_size * side + 0.15
    figure, axes = inch_sheet(height)
    for rank, share in enumerate(one.shares):
        name_rank(axes, 0.4 + rank * side, rank)
        for step, index in enumerate(share):
            padded = step * world_size + rank >= size
            spot = (LEFT + (step + 0.5) * pitch, 0.4 + rank * side)
            _draw_answer(axes, spot, images[index], rank, marks[index], padded, str(first + index))
    axes.set(xlim=(EDGE, WIDTH), ylim=(height, 0))  # imshow moved them
    counted = [marks[index] for index in one.order]
    right = LEFT + steps * pitch + 0.35
    for line, (name, hits, total) in enumerate(
        (("exact", sum(marks), size), ("padded", sum(counted), len(counted)))
    ):
        y = 0.4 + 0.62 * line
        axes.text(right, y, name, fontsize=10, color=MUTED, va="center")
        score = f"{hits} / {total} = {hits / total:.1%}"
        axes.text(right + 0.75, y, score, fontsize=13, va="center", fontweight="bold")
    note(axes, right, 0.4 + 1.25, "hatched: an image that\nwas counted already")
    move = signed(100 * (sum(counted) / len(counted) - sum(marks) / size))
    repeats = f"{one.repeated} image{'s are' if one.repeated != 1 else ' is'} counted twice"
    title(axes, f"{repeats}: the score moves by {move} points")
    return describe(
        figure,
        f"Test images {first} to {first + size - 1} on {world_size} ranks, numbered from 0. {listed(one.shares)} "
        f"Exact {sum(marks)} of {size}, padded {sum(counted)} of {len(counted)}: {move} points.",
    )


def _draw_answer(
    axes: Axes,
    spot: tuple[float, float],
    image: torch.Tensor,
    rank: int,
    right: bool,
    padded: bool,
    label: str,
) -> None:
    x, y = spot
    half = 0.31
    axes.imshow(
        image.numpy(), cmap="gray_r", extent=(x - half, x + half, y + half, y - half), aspect="auto", zorder=2
    )
    frame = FancyBboxPatch(
        (x - half, y - half),
        2 * half,
        2 * half,
        boxstyle="round,pad=0.01,rounding_size=0.05",
        facecolor="none",
        edgecolor=rank_color(rank),
        linewidth=2.2,
        hatch=HATCH["padding"] if padded else None,
        zorder=3,
    )
    axes.add_patch(frame)
    center: dict[str, Any] = dict(ha="center", va="center")
    sign, color = ("✓", GREEN) if right else ("✗", RED)
    axes.text(x + 0.47, y - 0.08, sign, fontsize=15, color=color, fontweight="bold", **center)
    axes.text(x + 0.47, y + 0.2, label, fontsize=9, color=MUTED, **center)


def signed(number: float) -> str:
    """Return a number with one decimal and its sign: +2.9, −5.0, 0.0."""
    return "0.0" if abs(number) < 0.05 else f"{number:+.1f}".replace("-", "−")


@styled
def draw_evaluation(correct: torch.Tensor, sizes: Sequence[int] = (50, 360), most: int = 64) -> Figure:
    """Draw measured minus exact accuracy against the world size 1..most, for the first `size` answers of each size.

    correct: bool, one for each test sample. Shares without shuffle, as evaluations have them.
    """
    figure, axes = new_figure(9, 4.0)
    worlds, marks = range(1, most + 1), correct.numpy().astype(float)

    def moves(size: int, pad: bool) -> Any:
        scores = [marks[deal(size, world, shuffle=False, pad=pad).order].mean() for world in worlds]
        return 100 * (np.array(scores) - marks[:size].mean())

    largest = []
    for size, (color, marker) in zip(sizes, ((ORANGE, "s"), (BLUE, "o")), strict=True):
        padded = moves(size, True)
        largest.append(f"{signed(padded[np.abs(padded).argmax()])} points (N = {size})")
        axes.vlines(worlds, 0, padded, color=color, linewidth=1.0, alpha=0.45, zorder=2)
        axes.scatter(
            worlds, padded, s=28, color=color, marker=marker, label=f"padded, {size} images", zorder=3
        )
    exact = max(float(np.abs(moves(size, False)).max()) for size in sizes)
    axes.axhline(0, color=GREEN, linewidth=2.5, zorder=2.5, label=f"pad=False: {signed(exact)} for every W")
    axes.set(
        xlabel="W, ranks that share the evaluation", ylabel="measured − exact accuracy\npercentage points"
    )
    axes.set_xlim(0, most + 1)
    axes.legend(loc="upper center", ncols=3, bbox_to_anchor=(0.5, 1.14), columnspacing=1.4, handletextpad=0.4)
    headline(figure, f"Padding biases the score by up to {' and '.join(largest)}")
    return describe(
        figure,
        f"Measured minus exact accuracy for 1 to {most} ranks. Padded: up to {' and '.join(largest)}. "
        f"pad=False: {signed(exact)} everywhere.",
    )
