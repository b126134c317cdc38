"""Figures of notebook 04: samples that no rank reads.

draw_never_seen   dropped samples: the same ones in every epoch, or others each time
draw_missed       ranks that shuffle differently: how much of the data nobody reads
"""

from __future__ import annotations

from functools import cache

import numpy as np
from matplotlib.figure import Figure
from torch.utils.data import DistributedSampler as TorchSampler

from lib._units import format_share
from lib.data.libtorch import DistributedRandomSampler
from lib.figures.shards import listed
from lib.show.explore import steps, switch, whole
from lib.show.sheet import Cell, cell_axes, draw_cells, label_row
from lib.show.style import BLUE, GREY, INK, MUTED, PAPER, RED, SKY, describe, headline, new_figure, styled

NEVER_SEEN_CONTROLS = {
    "size": whole(4, 16, 10, "N · samples"),
    "world_size": whole(2, 8, 4, "W · ranks"),
    "epochs": whole(2, 10, 6, "epochs"),
}


@styled
def draw_never_seen(*, size: int, world_size: int, epochs: int) -> Figure:
    """Draw epoch × sample for two samplers that drop the rest of N / W: who is left out, and how often."""
    ways = {
        "libtorch: cuts, then shuffles": [_libtorch_epoch(size, world_size, e) for e in range(epochs)],
        "torch, drop_last: shuffles, then cuts": [_torch_epoch(size, world_size, e) for e in range(epochs)],
    }
    figure, grid = new_figure(
        9, 1.1 + 4.0 * (epochs + 1.3) / (size + 3), cols=2, width_ratios=(size + 3, size)
    )
    never: dict[str, list[int]] = {}
    for axes, (name, seen) in zip(grid, ways.items(), strict=True):
        cell_axes(axes, columns=size, rows=epochs + 1.3, left=0 if never else 3)
        times = [sum(sample in each for each in seen) for sample in range(size)]
        for e, each in enumerate(seen):
            row = [Cell(s, mark="plain" if s in each else "dropped", color=BLUE) for s in range(size)]
            draw_cells(axes, row, y=e, font=9)
            if not never:
                label_row(axes, e, f"epoch {e}")
        for sample, count in enumerate(times):
            look = {"color": INK if count else RED, "fontweight": "normal" if count else "bold"}
            axes.text(
                sample, epochs + 0.3, str(count), ha="center", va="center_baseline", fontsize=10, **look
            )
        axes.set_title(name, fontsize=11)
        never[name] = [sample for sample in range(size) if not times[sample]]
    label_row(grid[0], epochs + 0.3, "times seen")
    lost, still = never.values()
    headline(figure, _finding(size % world_size, lost, still))
    return describe(
        figure,
        f"{epochs} epochs of {size} samples over {world_size} ranks without duplicates. Never seen: libtorch "
        f"{listed(lost) or 'none'}; torch with drop_last {listed(still) or 'none'}.",
    )


def _finding(rest: int, lost: list[int], still: list[int]) -> str:
    if not rest:
        return "N is a multiple of W: nobody is left out"
    torchs = f"torch not {listed(still)} so far" if still else "torch leaves out others each epoch"
    return f"libtorch never shows {listed(lost)}; {torchs}"


def _libtorch_epoch(size: int, world_size: int, epoch: int) -> set[int]:
    seen: set[int] = set()
    for rank in range(world_size):
        sampler = DistributedRandomSampler(size, world_size, rank, allow_duplicates=False)
        sampler.set_epoch(epoch)
        seen.update(sampler)
    return seen


def _torch_epoch(size: int, world_size: int, epoch: int) -> set[int]:
    seen: set[int] = set()
    for rank in range(world_size):
        sampler = TorchSampler(range(size), world_size, rank, drop_last=True)  # type: ignore[arg-type,var-annotated]
        sampler.set_epoch(epoch)
        seen.update(sampler)
    return seen


DECK = 240  # samples in draw_missed: a multiple of each W that its slider offers, so that shards are equal
WORLDS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 16, 20, 24, 30, 40, 48, 60)

MISSED_CONTROLS = {
    "world_size": steps(WORLDS, 8, "W · ranks"),
    "epoch": whole(0, 9, 0, "epoch"),
    "agree": switch(False, "all ranks use the same seed"),
}


def readers(world_size: int, epoch: int, agree: bool) -> list[int]:
    """Return for each sample how many ranks read it; each takes its contiguous slice of an order of its own seed."""
    count, local = np.zeros(DECK, dtype=np.int64), DECK // world_size
    for rank in range(world_size):
        generator = np.random.default_rng((epoch, 0 if agree else rank + 1))
        count[generator.permutation(DECK)[rank * local : (rank + 1) * local]] += 1
    return count.tolist()


@cache
def missed_share(world_size: int, epochs: int = 40) -> float:
    """Return the share of samples that no rank reads, over some epochs of ranks that do not agree."""
    return sum(readers(world_size, epoch, False).count(0) for epoch in range(epochs)) / (DECK * epochs)


@styled
def draw_missed(*, world_size: int, epoch: int, agree: bool) -> Figure:
    """Draw how many ranks read each sample in one epoch, and the share that none reads, measured over W."""
    count = readers(world_size, epoch, agree)
    missed, twice = count.count(0) / DECK, sum(c > 1 for c in count) / DECK
    figure, (left, right) = new_figure(9, 4.2, cols=2, width_ratios=(1.15, 1))
    columns = 20
    cell_axes(left, columns=columns, rows=DECK // columns)
    marks = [
        Cell(times, mark="plain" if times else "dropped", color=SKY if times > 1 else BLUE) for times in count
    ]
    draw_cells(left, marks, columns=columns, font=9)
    left.set_title(f"{DECK} samples: how many ranks read each", fontsize=11, fontweight="normal")
    worlds = np.array(WORLDS)
    right.plot(worlds, 100 * (1 - 1 / worlds) ** worlds, color=GREY, label="predicted (1 - 1/W)$^W$")
    right.axhline(100 / np.e, color=MUTED, linewidth=1, linestyle=":")
    right.text(WORLDS[-1] + 2, 100 / np.e, "1/e", va="center", color=MUTED, backgroundcolor=PAPER)
    right.set_xlim(-1, WORLDS[-1] + 8)
    right.plot(worlds, [100 * missed_share(w) for w in WORLDS], "o", color=RED, label="measured, 40 epochs")
    right.plot([world_size], [100 * missed], "D", markersize=9, color=BLUE, label="the epoch on the left")
    right.set_ylim(-3, 48)
    right.set_xlabel("W, ranks")
    right.set_ylabel("samples that nobody reads, %")
    right.legend(loc="lower right")
    many = f"{world_size} rank{'s' * (world_size > 1)}"
    if agree:
        headline(figure, f"{many}, one order: every sample once")
    else:
        shares = (
            f"nobody reads {format_share(missed)} of the samples, several ranks read {format_share(twice)}"
        )
        headline(figure, f"{many}, an order each: {shares}")
    return describe(
        figure,
        f"Epoch {epoch}, {world_size} ranks, {'one shared' if agree else 'different'} orders of {DECK} samples: "
        f"{count.count(0)} read by nobody, {count.count(1)} once, {sum(c > 1 for c in count)} more often. Curve "
        f"(1 - 1/W)^W: {(1 - 1 / world_size) ** world_size:.3f}, measured {missed_share(world_size):.2f}.",
    )
