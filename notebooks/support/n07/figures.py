"""Figures of notebook 07, micro-batches: rows cut, gradients added up, live bytes, BatchNorm."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from torch import Tensor, nn

from lib.runtime.microbatch import scatter
from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import Cell, Mark, arrow, box, cell_axes, draw_cells, write
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
    ink_on,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)
from lib.text import plural
from support.n07.cutting import numbered, zip_of_chunks

# ---- Rows, cut into micro-batches.

GAP = 0.55  # cells between two micro-batches
ZIP = "zip of torch.chunk"
SCATTER = "scatter"

SIZES_CONTROLS = {"rows": whole(2, 16, 10, "rows")}


@styled
def draw_sizes(*, rows: int) -> Figure:
    """Draw for each number of chunks, 1..8 or 1..rows, how torch.chunk and tensor_split group the rows."""
    x = torch.arange(rows)
    most = min(rows, 8)  # there are eight colours
    columns = max(rows, 9) + 2.4
    figure, grid = new_figure(9, 0.95 + 4.35 * most / (columns + 2), cols=2)
    short: list[int] = []
    for axes, name in zip(grid, ("torch.chunk", "torch.tensor_split"), strict=True):
        cell_axes(axes, columns=columns, rows=most, left=2.0)
        for m in range(1, most + 1):
            parts = x.chunk(m) if name == "torch.chunk" else x.tensor_split(m)
            for i, part in enumerate(parts):
                draw_cells(axes, [Cell(row, i) for row in part.tolist()], x=int(part[0]), y=m - 1, font=9)
                if i:
                    cut = int(part[0]) - 0.5
                    axes.plot([cut, cut], [m - 1.45, m - 0.55], color=INK, linewidth=2.2, zorder=4)
            axes.text(-0.75, m - 1, f"m = {m}", ha="right", va="center_baseline", fontsize=9.5)
            if len(parts) < m:
                short.append(m)
                write(axes, rows - 0.2, m - 1, f"gives {len(parts)}", size=9.5, color=RED, ha="left")
        axes.set_title(name, fontsize=11)
    too_few = f"torch.chunk gives too few in {len(short)} of {most} cases, tensor_split never"
    headline(figure, f"{rows} rows: {too_few if short else 'torch.chunk and tensor_split give enough'}")
    return describe(
        figure,
        f"{rows} rows cut into m = 1 to {most} micro-batches. torch.chunk gives too few for m = "
        f"{', '.join(map(str, short)) or 'none'}; tensor_split for none.",
    )


TUPLE_CONTROLS = {
    "rows": whole(1, 10, 7, "rows of x and mask"),
    "rows_y": whole(1, 10, 7, "rows of y"),
    "chunks": whole(1, 6, 4, "m · chunks"),
    "how": choice((SCATTER, ZIP), SCATTER, "cut by"),
}
WIDTHS = {"x": 3, "mask": 1, "y": 2}
PLACES = {"x": 0.0, "mask": 3.5, "y": 5.0}
MIDDLE = 13.0


@styled
def draw_tuple(*, rows: int, rows_y: int, chunks: int, how: str) -> Figure:
    """Draw (x, mask, y) and the micro-batches made of it; rows that reach no micro-batch are crossed out."""
    tensors = {name: numbered(rows_y if name == "y" else rows, width) for name, width in WIDTHS.items()}
    refusal = ""
    parts = list[Sequence[Tensor]]()
    try:
        cut: Callable[..., Any] = scatter if how == SCATTER else zip_of_chunks
        parts = [tuple(part) for part in cut(tuple(tensors.values()), chunks)]
    except ValueError as error:
        refusal = str(error)
    height = max(4, rows, rows_y, sum(max(map(len, part)) for part in parts) + GAP * (len(parts) - 1))
    figure, axes = new_figure(9, 0.6 + 0.34 * (height + 1.3))
    cell_axes(axes, columns=26, rows=height + 0.4, top=0.9)
    lost = {}
    for k, (name, tensor) in enumerate(tensors.items()):
        lost[name] = _draw_tensor(axes, name, tensor, [part[k] for part in parts])
        for left in (0.0, MIDDLE) if parts else (0.0,):
            write(axes, left + PLACES[name] + (WIDTHS[name] - 1) / 2, -0.85, name, color=MUTED)
    _draw_parts(axes, parts, arrows=rows == rows_y)
    if refusal:
        write(axes, MIDDLE - 2.5, 1.0, "ValueError", size=11, color=RED, ha="left", weight="bold")
        write(axes, MIDDLE - 2.5, 1.6, textwrap.fill(refusal, 44), ha="left", va="top")
    gone = "; ".join(f"{name} rows {', '.join(map(str, each))}" for name, each in lost.items() if each)
    title(axes, _finding(how, parts, chunks, gone, refusal, (rows, rows_y)))
    each = "; ".join("/".join(str(len(tensor)) for tensor in part) for part in parts)
    came = f"Rows of x/mask/y in each micro-batch: {each}. Lost: {gone or 'none'}."
    if refusal:
        came = f"Refused: {refusal}."
    return describe(figure, f"{how}: x and mask of {rows} rows, y of {rows_y}, {chunks} chunks. {came}")


def _draw_tensor(axes: Axes, name: str, tensor: Tensor, parts: Sequence[Tensor]) -> list[int]:
    """Draw a tensor before it is cut, in the colours of its parts; return the rows that are in none of them."""
    # the rows carry their own number (numbered), so a part tells which rows it has got
    owner = {int(row[0]) // 10: i for i, part in enumerate(parts) for row in part}
    lost = [row for row in range(len(tensor)) if row not in owner] if parts else []
    for row, items in enumerate(tensor.tolist()):
        mark: Mark = "dropped" if row in lost else "plain"
        cells = [Cell(f"{item:02d}", owner.get(row), mark) for item in items]
        draw_cells(axes, cells, x=PLACES[name], y=row, font=9.5)
    return lost


def _draw_parts(axes: Axes, parts: Sequence[Sequence[Tensor]], *, arrows: bool) -> None:
    """Draw the micro-batches below each other, with their numbers of rows; arrows: from where each was cut."""
    y = 0.0
    for i, part in enumerate(parts):
        for name, tensor in zip(WIDTHS, part, strict=True):
            for row, items in enumerate(tensor.tolist()):
                cells = [Cell(f"{item:02d}", i) for item in items]
                draw_cells(axes, cells, x=MIDDLE + PLACES[name], y=y + row, font=9.5)
        # a micro-batch in which the tensors have different numbers of rows
        torn = len({len(tensor) for tensor in part}) > 1
        shapes = " / ".join(str(len(tensor)) for tensor in part) if torn else str(len(part[0]))
        said = f"micro-batch {i}: {shapes} {'row' if shapes == '1' else 'rows'}"
        middle = y + (max(map(len, part)) - 1) / 2
        write(axes, MIDDLE + 7.2, middle, said, size=9.5, color=RED if torn else INK, ha="left")
        if arrows:
            start = (6.8, int(part[0][0, 0]) // 10 + (len(part[0]) - 1) / 2)
            arrow(axes, start, (MIDDLE - 0.8, middle), color=rank_color(i), head=9)
        y += max(map(len, part)) + GAP


def _finding(
    how: str,
    parts: Sequence[Sequence[Tensor]],
    chunks: int,
    gone: str,
    refusal: str,
    lengths: tuple[int, int],
) -> str:
    if refusal:
        return f"{how}: {lengths[0]} rows of x and {lengths[1]} of y are refused before anything is cut"
    if gone:
        return f"{how}: lost without a word: {gone}"
    if lengths[0] != lengths[1]:
        return f"{how}: micro-batches with unequal numbers of rows of x and y"
    came = plural(len(parts), "micro-batch", "micro-batches")
    asked = f" where {chunks} were asked for" if len(parts) < chunks else ""
    sizes = [len(part[0]) for part in parts]
    rows = plural(1, "row") if sizes == [1] else f"{' + '.join(map(str, sizes))} rows"
    return f"{how}: {came}{asked}, {rows} of every tensor"


# ---- What micro-batches save in memory.


@styled
def draw_live(histories: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the live bytes of saved tensors over one step, a panel a way; histories[way] in bytes."""
    figure, grid = new_figure(9, 3.2, cols=len(histories), squeeze=False, sharey=True)
    peaks = {way: max(history) for way, history in histories.items()}
    first = next(iter(peaks.values()))
    shares = {way: peak / first for way, peak in peaks.items()}
    for axes, (way, history) in zip(grid[0], histories.items(), strict=True):
        kilobytes = [value / 1e3 for value in history]
        axes.fill_between(range(len(history)), kilobytes, step="post", color=GREY, alpha=0.35)
        axes.step(range(len(history)), kilobytes, where="post", color=INK, linewidth=1.5)
        axes.axhline(first / 1e3, color=MUTED, linewidth=1, linestyle="--")
        axes.set_title(f"{way}\npeak {peaks[way] / 1e3:.0f} kB", fontsize=11)
        axes.set_xticks([])
        axes.set_xlabel("one step →")
        axes.set_ylim(0, 1.08 * max(peaks.values()) / 1e3)
    grid[0][0].set_ylabel("saved for backward, kB")
    whole, *others = peaks
    told = "; ".join(f"{way}: {100 * shares[way]:.3g} %" for way in others)
    headline(figure, f"{told} of the peak of the {whole}")
    said = "; ".join(f"{way} {peak / 1e3:.0f} kB" for way, peak in peaks.items())
    return describe(figure, f"Peak of the tensors saved for backward in one step: {said}.")


# ---- The gradient of micro-batches against that of the whole batch.

BY_ROWS = "rows / all rows"
BY_PARTS = "1 / m"
NOTHING = "1 (forgot to divide)"
HOW = (BY_ROWS, BY_PARTS, NOTHING)


def factors(sizes: Sequence[int], how: str) -> list[float]:
    """Return what the mean loss of each micro-batch is multiplied by. Raises ValueError for an unknown `how`."""
    if how not in HOW:
        raise ValueError(f"how must be one of {', '.join(HOW)}, not {how!r}")
    if how == BY_ROWS:
        return [size / sum(sizes) for size in sizes]
    return [1 / len(sizes) if how == BY_PARTS else 1.0] * len(sizes)


def rows_of_line(rows: int) -> tuple[Tensor, Tensor]:
    """Return x (rows × 2) and y (rows): points of a noisy plane, the same rows first whatever their number."""
    generator = torch.Generator().manual_seed(1902)
    x = torch.randn(64, 2, dtype=torch.float64, generator=generator)
    y = x @ torch.tensor([1.0, -0.6], dtype=torch.float64) + torch.randn(64, generator=generator).double()
    return x[:rows], y[:rows]


def mean_gradient(x: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the mean squared error of y = x @ w at w = 0: one number a weight."""
    w = torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True)
    (gradient,) = torch.autograd.grad((x @ w - y).square().mean(), w)
    return gradient


PATH_CONTROLS = {
    "rows": whole(2, 16, 7, "rows"),
    "chunks": whole(1, 8, 3, "m · chunks"),
    "how": choice(HOW, BY_ROWS, "factor"),
}


@styled
def draw_path(*, rows: int, chunks: int, how: str) -> Figure:
    """Draw the scaled gradients of the micro-batches of a model with two weights, head to tail, and the target."""
    x, y = rows_of_line(rows)
    target = mean_gradient(x, y)
    parts = [tuple(batch) for batch in scatter((x, y), chunks)]
    scale = factors([len(part[0]) for part in parts], how)
    steps = [factor * mean_gradient(*part) for factor, part in zip(scale, parts, strict=True)]
    points = torch.stack([torch.zeros(2, dtype=x.dtype), *steps]).cumsum(0)
    figure, (axes, table) = new_figure(9, 4.3, cols=2, width_ratios=(2.1, 1))
    axes.update_datalim(torch.cat([points, target[None]]).tolist())
    axes.margins(0.15)
    axes.set_aspect("equal", adjustable="datalim")  # an arrow of the same length looks the same
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)
    for i, (start, end) in enumerate(zip(points[:-1].tolist(), points[1:].tolist(), strict=True)):
        arrow(axes, start, end, color=rank_color(i), width=3, head=11)
        look = {"boxstyle": "circle,pad=0.22", "facecolor": rank_color(i), "edgecolor": PAPER}
        centre = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
        write(axes, centre[0], centre[1], str(i), size=9.5, color=ink_on(rank_color(i)), bbox=look)
    ring = {"markersize": 17, "markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 2}
    axes.plot(*target.tolist(), "o", **ring)
    axes.plot(0, 0, "o", markersize=6, color=INK)
    table.plot(0.5, len(parts) + 1.5, "o", **ring)  # a legend in the plot would lie on arrows
    write(table, 1.6, len(parts) + 1.5, "gradient of the whole batch", ha="left")
    axes.set(xlabel="gradient of weight 0", ylabel="gradient of weight 1")
    _table(table, parts, scale)
    # the sum may differ from the target in its last digits
    off = float((points[-1] - target).norm() / target.norm())
    length = float(points[-1].norm() / target.norm())
    hit = off < 1e-9
    if hit:
        many = plural(len(parts), "micro-batch", "micro-batches")
        finding = f"{many}: the arrows end in the gradient of the whole batch"
    elif how == NOTHING and off > 0.5:
        finding = f"Not divided: the gradient is {length:.1f} times as long as it should be"
    else:
        finding = f"Factor {how}: the gradient is {100 * off:.0f} % off"
    headline(figure, finding)
    return describe(
        figure,
        f"{rows} rows in {len(parts)} micro-batches, each mean loss times {how}. The sum of the gradients is "
        f"{'equal to the whole gradient' if hit else f'{100 * off:.0f} % off the whole gradient'}, "
        f"its length {length:.2f} times.",
    )


def _table(axes: Axes, parts: Sequence[tuple[Tensor, ...]], scale: Sequence[float]) -> None:
    """Write for each micro-batch its colour, its rows, and its factor."""
    axes.set(xlim=(0, 10), ylim=(10.2, -1.2))
    axes.axis("off")
    for x, name in ((2.2, "rows"), (5.2, "factor"), (8.4, "of one row")):
        write(axes, x, -0.6, name, color=MUTED)
    rows = sum(len(part[0]) for part in parts)
    for i, (part, factor) in enumerate(zip(parts, scale, strict=True)):
        weight = factor / len(part[0])
        fair = abs(weight * rows - 1) < 1e-9
        box(axes, 0.5, i + 0.2, 0.9, 0.7, str(i), face=rank_color(i), edge=PAPER, size=9.5)
        write(axes, 2.2, i + 0.2, str(len(part[0])))
        write(axes, 5.2, i + 0.2, f"{factor:.3f}")
        write(axes, 8.4, i + 0.2, f"{weight:.3f}", color=INK if fair else RED)
    said = f"whole batch: 1 / {rows} = {1 / rows:.3f} for each row"
    write(axes, 0, len(parts) + 0.35, said, color=MUTED, ha="left")


# ---- BatchNorm, the layer in which rows see each other.

SEES_CONTROLS = {"chunks": whole(1, 6, 3, "m · micro-batches")}


@styled
def draw_sees(seen: Mapping[str, Callable[[int], Tensor]], *, chunks: int) -> Figure:
    """Draw output row × input row for each layer; seen[name](m): True where one depends on the other."""
    figure, grid = new_figure(9, 4.0, cols=len(seen))
    counts: dict[str, int] = {}
    for axes, (name, matrix) in zip(grid, seen.items(), strict=True):
        strong = matrix(chunks)
        rows = len(strong)
        owner = [i for i, part in enumerate(torch.arange(rows).tensor_split(chunks)) for _ in part]
        counts[name] = int(strong.sum(1).max())
        most = "up to" if int(strong.sum(1).min()) < counts[name] else "depends on"
        # full: the row itself; pale: another row of its micro-batch; blank: no influence
        shares = (torch.eye(rows) + 0.35 * (1 - torch.eye(rows))) * strong
        shades = [
            [to_rgb(pale(rank_color(owner[i]), float(share))) for share in shares[i]] for i in range(rows)
        ]
        axes.imshow(shades)
        edges = [k - 0.5 for k in range(rows + 1)]
        axes.hlines(edges, -0.5, rows - 0.5, color=GRID, linewidth=0.8)
        axes.vlines(edges, -0.5, rows - 0.5, color=GRID, linewidth=0.8)
        cuts = [i - 0.5 for i in range(1, rows) if owner[i] != owner[i - 1]]
        axes.hlines(cuts, -0.6, rows - 0.4, color=INK, linewidth=1.2)
        axes.set(xlim=(-0.7, rows - 0.3), ylim=(rows - 0.3, -0.7), aspect="equal", xlabel="input row")
        axes.set(xticks=[0, rows - 1], yticks=[0, rows - 1])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(f"{name}\n{most} {plural(counts[name], 'row')}", fontsize=11)
    grid[0].set_ylabel("output row")
    others = [name for name, count in counts.items() if count > 1]
    most = "up to " * (rows % chunks != 0)
    finding = f"{chunks} micro-batch{'es' * (chunks > 1)}: an output row depends on its own input row alone"
    if others:
        finding += f",\nbut on {most}{max(counts.values())} rows in {' and '.join(others)}"
    headline(figure, finding)
    said = "; ".join(f"{name} {count}" for name, count in counts.items())
    return describe(
        figure,
        f"{rows} rows in {chunks} micro-batches. Input rows that an output row depends on, at most: {said}.",
    )


BATCHES = 80
BATCH_ROWS = 24
WAYS = ("whole batches", "BatchNorm, micro-batches", "deferred, micro-batches")

RUNNING_CONTROLS = {
    "chunks": whole(1, 8, 4, "m · micro-batches"),
    "momentum": steps((0.02, 0.05, 0.1, 0.2, 0.5), 0.1, "momentum"),
    "ordered": switch(True, "rows sorted by value"),
}


def running(norm: nn.Module, chunks: int, ordered: bool) -> Tensor:
    """Return running mean and variance after 0, 1, … BATCHES mini-batches: shape (BATCHES + 1, 2).

    norm: a BatchNorm of one channel in float64; its `commit`, if it has one, is called after each mini-batch.
    """
    generator = torch.Generator().manual_seed(2)
    states = [[0.0, 1.0]]
    for _ in range(BATCHES):
        x = 3 + 2 * torch.randn(BATCH_ROWS, 1, dtype=torch.float64, generator=generator)
        for part in (x.sort(0).values if ordered else x).tensor_split(chunks):
            norm(part)
        getattr(norm, "commit", int)()
        states.append([float(norm.get_buffer(name)) for name in ("running_mean", "running_var")])
    return torch.tensor(states, dtype=torch.float64)


@styled
def draw_running(deferred: type[nn.Module], *, chunks: int, momentum: float, ordered: bool) -> Figure:
    """Draw both running statistics after each mini-batch: of whole batches, in micro-batches, and deferred."""
    makes: list[Any] = [nn.BatchNorm1d, nn.BatchNorm1d, deferred]
    kinds = zip(WAYS, makes, (1, chunks, chunks), strict=True)
    lines = {way: running(kind(1, momentum=momentum).double(), m, ordered) for way, kind, m in kinds}
    figure, grid = new_figure(9, 4.0, cols=2)
    looks = (("-", INK, 6, 0.35), ("--", RED, 2, 1.0), ("-", SKY, 1.6, 1.0))
    for k, (axes, name) in enumerate(zip(grid, ("running_mean", "running_var"), strict=True)):
        for (way, states), (look, color, width, alpha) in zip(lines.items(), looks, strict=True):
            axes.plot(states[:, k].tolist(), look, color=color, linewidth=width, alpha=alpha, label=way)
        top = 1.08 * max(float(states[:, k].max()) for states in lines.values())
        axes.set(xlabel="mini-batches", ylabel=name, ylim=(0, top))
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    (_, right), (_, cut), (_, joined) = (states[-1].tolist() for states in lines.values())
    same = bool(torch.allclose(lines[WAYS[2]], lines[WAYS[0]], rtol=1e-6))
    means = [float(lines[way][BATCHES // 2 :, 0].mean()) for way in WAYS[:2]]
    found = f"running_var ends at {cut:.1f}, of whole batches at {right:.1f}"
    rest = " and deferred" if same else f"; {joined:.1f} deferred"
    rows = "rows sorted" if ordered else "rows as they come"
    headline(figure, f"{rows}, running_var: {cut:.1f} in micro-batches; {right:.1f} on whole batches{rest}")
    return describe(
        figure,
        f"Running statistics over {BATCHES} mini-batches in {chunks} micro-batches, momentum {momentum:g}"
        f"{', rows sorted' if ordered else ''}. BatchNorm in micro-batches: {found}; running_mean is "
        f"{means[1]:.2f} in the second half, with whole batches {means[0]:.2f}. "
        f"Deferred {'equals' if same else 'differs from'} whole batches.",
    )
