"""Figure of notebook 06: how W ranks add up a gradient without a centre, by the ring all-reduce.

The gradient is cut into W chunks. In every step each rank sends one chunk to its right neighbour. In the first W - 1
steps the neighbour adds it to its own (reduce-scatter), in the other W - 1 it takes it over (all-gather).

ring        what every rank holds after so many steps
draw_ring   the same as a picture: a row a rank, a column a chunk, a stripe for each rank whose part is in it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from lib._arguments import integer
from lib.show.explore import whole
from lib.show.sheet import EDGE, LEFT, arrow, inch_sheet, name_rank, note
from lib.show.style import GREY, INK, PAPER, describe, ink_on, rank_color, styled, title

Held: TypeAlias = list[list[Counter[int]]]
"""held[rank][chunk]: how often each rank's part is in it."""

Choice: TypeAlias = Callable[[int, int, int], int]
"""(rank, step, world_size) -> the chunk that the rank sends in this step."""


def chunk_to_send(rank: int, step: int, world_size: int) -> int:
    """Return the chunk that a rank sends: first its own number, then always the one that it has just received."""
    return (rank - step) % world_size


def ring(world_size: int, steps: int | None = None, choose: Choice = chunk_to_send) -> Held:
    """Return what every rank holds after so many steps (None: all 2 (W - 1)). Raises ValueError for no such chunk."""
    world_size = integer("world_size", world_size, at_least=1)
    every = 2 * (world_size - 1)
    held = [[Counter({rank: 1}) for _ in range(world_size)] for rank in range(world_size)]
    for step in range(every if steps is None else min(steps, every)):
        sent = [
            integer("chunk", choose(r, step, world_size), at_least=0, below=world_size)
            for r in range(world_size)
        ]
        copies = [held[rank][chunk].copy() for rank, chunk in enumerate(sent)]  # all send at the same time
        for rank, (chunk, copy) in enumerate(zip(sent, copies, strict=True)):
            to = held[(rank + 1) % world_size]
            to[chunk] = to[chunk] + copy if step < world_size - 1 else copy
    return held


RING_CONTROLS = {"world_size": whole(2, 6, 4, "W · ranks"), "step": whole(0, 10, 3, "steps done")}


@styled
def draw_ring(*, world_size: int, step: int) -> Figure:
    """Draw what every rank holds after `step` steps, or at the end, and the chunk that it sends next."""
    every = 2 * (world_size - 1)
    step = min(step, every)
    held = ring(world_size, step)
    pitch, wide, tall = 0.62, 0.95, 0.46
    height = world_size * pitch + 0.75
    figure, axes = inch_sheet(height)
    complete = 0
    for rank in range(world_size):
        y = 0.55 + rank * pitch
        name_rank(axes, y, rank)
        for chunk in range(world_size):
            left, parts = LEFT + chunk * (wide + 0.12), held[rank][chunk]
            whole_sum = len(parts) == world_size
            complete += whole_sum
            for part in range(world_size):
                spot = (left + part * wide / world_size, y - tall / 2)
                inside, color = part in parts, rank_color(part)
                face = color if inside else PAPER
                axes.add_patch(
                    Rectangle(spot, wide / world_size, tall, facecolor=face, edgecolor=GREY, linewidth=0.5)
                )
                if inside:
                    x = spot[0] + wide / world_size / 2
                    ink = ink_on(color)
                    axes.text(x, y, str(part), ha="center", va="center", fontsize=9.5, color=ink)
            axes.add_patch(
                Rectangle(
                    (left, y - tall / 2),
                    wide,
                    tall,
                    facecolor="none",
                    edgecolor=INK,
                    linewidth=2.6 if whole_sum else 0.8,
                )
            )
            if step < every and chunk == chunk_to_send(rank, step, world_size):
                last = rank == world_size - 1
                start = left + wide / 2
                if not last:
                    tip = (start, y + pitch - tall / 2 - 0.02)
                    arrow(axes, (start, y + tall / 2 + 0.01), tip, width=1.0, head=11, gap=2, zorder=6)
                else:
                    axes.text(start, y + tall / 2 + 0.13, "↻ to rank 0", ha="center", va="center", fontsize=9)
    for chunk in range(world_size):
        x = LEFT + chunk * (wide + 0.12) + wide / 2
        axes.text(x, 0.14, f"chunk {chunk}", ha="center", va="center", fontsize=9.5, color=INK)
    right = LEFT + world_size * (wide + 0.12) + 0.15
    phase = (
        "done"
        if step == every
        else "reduce-scatter:\nthe neighbour adds"
        if step < world_size - 1
        else "all-gather:\nthe neighbour copies"
    )
    if right + 1.4 <= 9:
        note(axes, right, 0.55, phase)
        note(
            axes,
            right,
            1.25,
            f"sent by a rank:\n{step} of {world_size} chunks,\n{step / world_size:.2f} × the gradient",
        )
    axes.set(xlim=(EDGE, 9.0), ylim=(height, 0))
    sent = f"{step / world_size:.2f} gradients sent by each rank"
    title(
        axes,
        f"After {step} of {every} steps, {complete} of {world_size**2} chunks are complete; {sent}",
    )
    rows = "; ".join(
        f"rank {rank} holds " + ", ".join("+".join(map(str, sorted(parts))) for parts in row)
        for rank, row in enumerate(held)
    )
    return describe(
        figure,
        f"Ring all-reduce of {world_size} ranks after {step} of {every} steps: {rows}. "
        f"{complete} of {world_size**2} chunks complete, {sent}.",
    )
