"""Figures of notebook 07: BatchNorm, the layer in which rows see each other.

draw_sees      which input rows an output row depends on, for three layers: the Jacobian, row by row
draw_norm      one channel: where BatchNorm puts each row of a whole batch, and where in micro-batches
draw_running   the running statistics after every mini-batch: whole, in micro-batches, deferred
"""

from __future__ import annotations

import itertools
from functools import cache

import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from lib.pipeline.batchnorm import DeferredBatchNorm
from lib.pipeline.microbatch import scatter
from lib.show.explore import steps, switch, whole
from lib.show.style import (
    GREY,
    GRID,
    INK,
    MUTED,
    PAPER,
    RED,
    SKY,
    describe,
    headline,
    new_figure,
    pale,
    rank_color,
    styled,
)

ROWS, FEATURES = 12, 4
LAYERS = ("Linear + ReLU", "LayerNorm", "BatchNorm1d")


def layer_of(name: str) -> nn.Module:
    """Make one of LAYERS in float64, in training mode, with weights that are always the same."""
    layers: dict[str, nn.Module] = {
        "Linear + ReLU": nn.Sequential(nn.Linear(FEATURES, 8), nn.ReLU()),
        "LayerNorm": nn.LayerNorm(FEATURES),
        "BatchNorm1d": nn.BatchNorm1d(FEATURES),
    }
    layer, generator = layers[name].double(), torch.Generator().manual_seed(0)
    for weight in layer.parameters():
        if weight.dim() > 1:
            nn.init.uniform_(weight, -1, 1, generator=generator)
    return layer


def rows_seen(layer: nn.Module, x: Tensor, chunks: int) -> Tensor:
    """Return rows × rows: how strongly output row i depends on input row j, if x comes in `chunks` micro-batches.

    It is the norm of the Jacobian's block (i, j): 0 where moving row j by a little does not move output i at all.
    """

    def in_parts(x: Tensor) -> Tensor:
        return torch.cat([layer(part) for part in x.tensor_split(chunks)])

    # out row, out feature, in row, in feature
    jacobian: Tensor = torch.autograd.functional.jacobian(in_parts, x)  # type: ignore[no-untyped-call]
    return jacobian.square().sum((1, 3)).sqrt()


@cache
def _seen(name: str, chunks: int) -> Tensor:
    x = torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return rows_seen(layer_of(name), x, chunks)


SEES_CONTROLS = {"chunks": whole(1, 6, 1, "m · micro-batches")}


@styled
def draw_sees(*, chunks: int) -> Figure:
    """Draw output row × input row for three layers: a filled cell where the output depends on the input."""
    figure, grid = new_figure(9, 4.0, cols=len(LAYERS))
    owner = [i for i, part in enumerate(torch.arange(ROWS).tensor_split(chunks)) for _ in part]
    counts: dict[str, int] = {}
    for axes, name in zip(grid, LAYERS, strict=True):
        seen = _seen(name, chunks)
        strong = seen > 1e-12
        counts[name] = int(strong.sum(1).max())
        picture = [
            [
                to_rgb(pale(rank_color(owner[i]), 1.0 if i == j else 0.35) if strong[i, j] else PAPER)
                for j in range(ROWS)
            ]
            for i in range(ROWS)
        ]
        axes.imshow(picture)
        edges = [k - 0.5 for k in range(ROWS + 1)]
        axes.hlines(edges, -0.5, ROWS - 0.5, color=GRID, linewidth=0.8)
        axes.vlines(edges, -0.5, ROWS - 0.5, color=GRID, linewidth=0.8)
        for cut in range(1, ROWS):
            if owner[cut] != owner[cut - 1]:
                axes.plot([-0.6, ROWS - 0.4], [cut - 0.5, cut - 0.5], color=INK, linewidth=1.2)
        axes.set(xlim=(-0.7, ROWS - 0.3), ylim=(ROWS - 0.3, -0.7), aspect="equal")
        axes.set_xticks([0, ROWS - 1])
        axes.set_yticks([0, ROWS - 1])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"{name}\nsees {counts[name]} row{'s' * (counts[name] > 1)}", fontsize=11)
        axes.set_xlabel("input row")
    grid[0].set_ylabel("output row")
    norm = counts["BatchNorm1d"]
    if chunks == 1:
        finding = f"In BatchNorm each of the {ROWS} rows sees all {norm}; elsewhere a row sees only itself"
    else:
        finding = f"In {chunks} micro-batches a row sees {norm} in BatchNorm; the other layers notice nothing"
    headline(figure, finding)
    said = "; ".join(f"{name} {count}" for name, count in counts.items())
    return describe(
        figure,
        f"{ROWS} rows in {chunks} micro-batches. Input rows that an output row depends on, at most: {said}.",
    )


NORM_CONTROLS = {
    "chunks": whole(1, 6, 3, "m · micro-batches"),
    "ordered": switch(False, "rows sorted by value"),
}


def normalised(values: Tensor, chunks: int) -> Tensor:
    """Return one channel's values as nn.BatchNorm1d gives them in training, a micro-batch at a time."""
    norm = nn.BatchNorm1d(1).double()
    with torch.no_grad():
        return torch.cat([norm(part[:, None])[:, 0] for part in values.tensor_split(chunks)])


def channel(ordered: bool = False) -> Tensor:
    """Return the values of ROWS rows in one channel, as a hidden layer might give them."""
    values = 3 + 2 * torch.randn(ROWS, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    return values.sort().values if ordered else values


@styled
def draw_norm(*, chunks: int, ordered: bool) -> Figure:
    """Draw where BatchNorm puts twelve rows of one channel: as one batch at the left, by micro-batch at the right."""
    raw = channel(ordered)
    by_all, by_part = normalised(raw, 1), normalised(raw, chunks)
    figure, axes = new_figure(9, 4.4)
    parts = raw.tensor_split(chunks)
    owner = [i for i, part in enumerate(parts) for _ in part]
    places = [_apart(by.tolist(), 0.2) for by in (by_all, by_part)]
    for row in range(ROWS):
        color, ends = rank_color(owner[row]), (float(by_all[row]), float(by_part[row]))
        axes.plot([0, 1], ends, "o-", color=color, markersize=8, linewidth=2)
        for x, align, tip, place in zip((-0.09, 1.09), ("right", "left"), ends, places, strict=True):
            axes.plot([round(x), 0.75 * x + 0.25 * round(x)], [tip, place[row]], color=color, linewidth=0.8)
            axes.text(x, place[row], f"row {row}", ha=align, va="center", fontsize=9.5, color=INK)
    top = 2.3
    axes.text(1.42, top, "micro-batch: its mean, std", fontsize=10, color=MUTED, va="center")
    for i, part in enumerate(parts):
        text = f"{i}:  {float(part.mean()):.1f}, {float(part.std(correction=0)):.1f}"
        axes.plot(1.45, top - 0.4 * (i + 1), "s", color=rank_color(i), markersize=10)
        axes.text(1.5, top - 0.4 * (i + 1), text, va="center", fontsize=10)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(xlim=(-0.3, 2.0), ylabel="normalised value (one channel)")
    axes.set_xticks([0, 1], labels=["as one batch", "by micro-batch"])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", length=0, labelsize=11)
    moved = (by_part - by_all).abs()
    far = int(moved.argmax())
    swaps = sum(
        bool((by_all[a] - by_all[b]) * (by_part[a] - by_part[b]) < 0) for a in range(ROWS) for b in range(a)
    )
    if chunks == 1:
        finding = "One micro-batch: BatchNorm as it is"
    else:
        pairs = f"{swaps} pair{'s' * (swaps != 1)} of rows swap order"
        finding = f"BatchNorm in {chunks} micro-batches: row {far} moves by {float(moved[far]):.1f}, {pairs}"
    headline(figure, finding)
    return describe(
        figure,
        f"{ROWS} rows of one channel{', sorted,' if ordered else ''} in {chunks} micro-batches. Normalised by "
        f"micro-batch instead of as a whole, row {far} moves most, {float(moved[far]):.2f}; pairs that swap: {swaps}.",
    )


def _apart(heights: list[float], least: float) -> list[float]:
    """Move labels up and down until neighbours are `least` apart, in their order."""
    order = sorted(range(len(heights)), key=lambda k: heights[k])
    moved = list(heights)
    for _ in range(60):
        for low, high in itertools.pairwise(order):
            lack = least - (moved[high] - moved[low])
            if lack > 0:
                moved[low] -= lack / 2
                moved[high] += lack / 2
    return moved


BATCHES, BATCH_ROWS = 8, 24
WAYS = ("whole batches", "BatchNorm, micro-batches", "DeferredBatchNorm, micro-batches")

RUNNING_CONTROLS = {
    "chunks": whole(1, 8, 4, "m · micro-batches"),
    "momentum": steps((0.02, 0.05, 0.1, 0.2, 0.5), 0.1, "momentum"),
    "ordered": switch(False, "rows sorted by value"),
}


def running(way: str, chunks: int, momentum: float, ordered: bool) -> Tensor:
    """Return running mean and variance after 0, 1, … BATCHES mini-batches: shape (BATCHES + 1, 2)."""
    generator = torch.Generator().manual_seed(2)
    deferred = way == WAYS[2]
    norm = (DeferredBatchNorm if deferred else nn.BatchNorm1d)(1, momentum=momentum).double()
    if isinstance(norm, DeferredBatchNorm):
        norm.chunks = chunks
    states = [[0.0, 1.0]]
    for _ in range(BATCHES):
        x = 3 + 2 * torch.randn(BATCH_ROWS, 1, dtype=torch.float64, generator=generator)
        x = x.sort(0).values if ordered else x
        for batch in scatter(x, 1 if way == WAYS[0] else chunks):
            norm(batch.tensor)
        assert norm.running_mean is not None
        assert norm.running_var is not None
        states.append([float(norm.running_mean), float(norm.running_var)])
    return torch.tensor(states, dtype=torch.float64)


@styled
def draw_running(*, chunks: int, momentum: float, ordered: bool) -> Figure:
    """Draw both running statistics after each mini-batch, for BatchNorm on whole batches and both in micro-batches."""
    lines = {way: running(way, chunks, momentum, ordered) for way in WAYS}
    figure, grid = new_figure(9, 4.2, cols=2)
    looks = {WAYS[0]: ("o-", INK, 9, 0.45), WAYS[1]: ("s--", RED, 6, 1.0), WAYS[2]: ("D:", SKY, 5, 1.0)}
    for k, (axes, name) in enumerate(zip(grid, ("running_mean", "running_var"), strict=True)):
        for way, states in lines.items():
            look, color, size, alpha = looks[way]
            axes.plot(states[:, k].tolist(), look, color=color, markersize=size, alpha=alpha, label=way)
        axes.axhline((3, 4)[k], color=GREY, linewidth=1)
        axes.text(0, (3, 4)[k], "true", fontsize=9.5, color=MUTED, va="bottom")
        axes.set_xlabel("mini-batches")
        axes.set_ylabel(name)
        axes.set_ylim(
            bottom=(-0.2, 0)[k],
            top=max((3.6, 5.0)[k], *(1.05 * float(s[:, k].max()) for s in lines.values())),
        )
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    away = float((lines[WAYS[1]] - lines[WAYS[0]]).abs().max())
    same = bool(torch.allclose(lines[WAYS[2]], lines[WAYS[0]], rtol=1e-9))
    first = lines[WAYS[1]][1, 0] / lines[WAYS[0]][1, 0]
    if chunks == 1:
        finding = "One micro-batch: all three are the same"
    else:
        right = "is right" if same else "is wrong"
        finding = f"{chunks} micro-batches: running_mean jumps {float(first):.1f} × as far; deferred {right}"
    headline(figure, finding)
    return describe(
        figure,
        f"Running statistics over {BATCHES} mini-batches in {chunks} micro-batches, momentum {momentum:g}"
        f"{', rows sorted' if ordered else ''}. BatchNorm in micro-batches is {away:.2f} away at most; "
        f"the deferred one {'equals' if same else 'differs from'} whole batches. At the end running_var is "
        f"{float(lines[WAYS[1]][-1, 1]):.2f} against {float(lines[WAYS[0]][-1, 1]):.2f}.",
    )
