"""Figures of notebook 07, micro-batches: rows cut and gathered, memory and time, gradients, BatchNorm."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from lib._values import format_share, plural
from lib.pipeline.batchnorm import DeferredBatchNorm
from lib.pipeline.microbatch import gather, scatter
from lib.show.explore import choice, steps, switch, whole
from lib.show.sheet import Cell, Mark, arrow, cell_axes, draw_cells
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    GRID,
    INK,
    MUTED,
    PAPER,
    PINK,
    RED,
    SKY,
    describe,
    headline,
    ink_on,
    new_figure,
    pale,
    rank_color,
    source_note,
    styled,
    title,
)

# ---- Rows, cut into micro-batches and put together again.

GAP = 0.55  # cells between two micro-batches
ZIP, SCATTER = "zip of torch.chunk", "scatter"

Parts: TypeAlias = Sequence[Sequence[Tensor]]


def numbered(rows: int, width: int) -> Tensor:
    """Return a tensor of rows × width whose items say where they come from: 42 is row 4, column 2."""
    return 10 * torch.arange(rows)[:, None] + torch.arange(width)


def sizes_of(parts: Sequence[Tensor]) -> str:
    """Return the rows of micro-batches as a sum: "2 + 2 + 2 + 1"."""
    return " + ".join(str(len(part)) for part in parts)


def _canvas(columns: float, rows: float) -> tuple[Figure, Axes]:
    """Make axes of columns × rows cells, a cell 0.34 inches wide, and 0.9 cells above for the names of tensors."""
    figure, axes = new_figure(9, 0.6 + 0.34 * (rows + 1.3))
    cell_axes(axes, columns=columns, rows=rows + 0.4, top=0.9)
    return figure, axes


def _block(axes: Axes, x: float, y: float, tensor: Tensor, number: int | None, mark: Mark = "plain") -> None:
    """Draw the cells of a tensor from (x, y) on, in the colour of micro-batch `number`."""
    for row, items in enumerate(tensor.tolist()):
        draw_cells(axes, [Cell(f"{item:02d}", number, mark) for item in items], x=x, y=y + row, font=9.5)


def _band(axes: Axes, x0: float, x1: float, y0: float, y1: float, rows: int, number: int) -> None:
    """Draw a pale band that leads `rows` rows from height y0 at x0 to height y1 at x1."""
    corners = [(x0, y0 - 0.44), (x1, y1 - 0.44), (x1, y1 + rows - 0.56), (x0, y0 + rows - 0.56)]
    axes.add_patch(Polygon(corners, closed=True, facecolor=rank_color(number), alpha=0.22, linewidth=0))


def _name(axes: Axes, x: float, width: float, text: str, y: float = -0.85, color: str = MUTED) -> None:
    axes.text(x + (width - 1) / 2, y, text, ha="center", va="center", fontsize=10, color=color)


CUT_CONTROLS = {
    "rows": whole(1, 12, 7, "rows"),
    "chunks": whole(1, 8, 4, "m · chunks"),
    "width": whole(1, 4, 3, "columns"),
}


@styled
def draw_cut(*, rows: int, chunks: int, width: int) -> Figure:
    """Draw x, the micro-batches of scatter(x, chunks), and gather of them, with bands that follow the rows."""
    x = numbered(rows, width)
    batches = scatter(x, chunks)
    parts = [batch.tensor for batch in batches]
    missing = chunks - len(parts)
    height = rows + GAP * (len(parts) - 1)
    middle, right = 9.0, 21.0
    figure, axes = _canvas(26, max(height, 4))
    top = (height - rows) / 2
    y, row = 0.0, 0
    for i, part in enumerate(parts):
        # a band from x to the micro-batch, and one from there to the result; all rows keep their colour
        for left, to, start, end in (
            (width - 0.5, middle - 0.55, top + row, y),
            (middle + width - 0.45, right - 0.55, y, top + row),
        ):
            _band(axes, left, to, start, end, len(part), i)
        _block(axes, 0, top + row, part, i)
        _block(axes, middle, y, part, i)
        _block(axes, right, top + row, part, i)
        tall = f"{len(part)} × {width}"
        text = axes.text(
            middle + width - 0.2,
            y + (len(part) - 1) / 2,
            f"micro-batch {i}: {tall}",
            va="center",
            fontsize=9.5,
        )
        text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1.5})
        y, row = y + len(part) + GAP, row + len(part)
    _name(axes, 0, width, f"x: {rows} × {width}", top - 0.85)
    _name(axes, middle, width, f"scatter(x, {chunks})")
    _name(axes, right, width, "gather(…)", top - 0.85)
    same = torch.equal(gather(batches), x)  # type: ignore[arg-type]
    many = plural(len(parts), "micro-batch", "micro-batches")
    few = f" ({chunks} asked for, none may be empty)" if missing else ""
    plus = f": {sizes_of(parts)}" if len(parts) > 1 and not missing else ""
    title(axes, f"{plural(rows, 'row')} in {many}{few}{plus}; gather {'restores' if same else 'changes'} x")
    return describe(
        figure,
        f"x has {rows} rows of {width}. scatter(x, {chunks}) gives {many} of {sizes_of(parts)} rows; gather returns "
        f"{'the same' if same else 'another'} tensor.",
    )


SIZES_CONTROLS = {"rows": whole(2, 16, 10, "rows")}


@styled
def draw_sizes(*, rows: int) -> Figure:
    """Draw for each number of chunks 1..rows how torch.chunk and scatter group the rows."""
    x = torch.arange(rows)
    columns = max(rows, 9) + 2.4
    figure, grid = new_figure(9, 0.95 + 4.35 * rows / (columns + 2), cols=2)
    short: list[int] = []
    for axes, name in zip(grid, ("torch.chunk", SCATTER), strict=True):
        cell_axes(axes, columns=columns, rows=rows, left=2.0)
        for m in range(1, rows + 1):
            parts = x.chunk(m) if name != SCATTER else [batch.tensor for batch in scatter(x, m)]
            for i, part in enumerate(parts):
                draw_cells(axes, [Cell(row, i) for row in part.tolist()], x=int(part[0]), y=m - 1, font=9)
                if i:
                    cut = int(part[0]) - 0.5
                    axes.plot([cut, cut], [m - 1.45, m - 0.55], color=INK, linewidth=2.2, zorder=4)
            axes.text(-0.75, m - 1, f"m = {m}", ha="right", va="center_baseline", fontsize=9.5)
            if len(parts) < m:
                short.append(m)
                axes.text(
                    rows - 0.2, m - 1, f"gives {len(parts)}", va="center_baseline", fontsize=9.5, color=RED
                )
        axes.set_title(name, fontsize=11)
    found = f"gives too few in {len(short)} of {rows} cases" if short else "gives enough"
    headline(figure, f"{rows} rows: torch.chunk {found}, scatter never")
    return describe(
        figure,
        f"{rows} rows cut into m = 1 to {rows} micro-batches. torch.chunk gives too few for m = "
        f"{', '.join(map(str, short)) or 'none'}; scatter for none.",
    )


def zip_of_chunks(tensors: Sequence[Tensor], chunks: int) -> Parts:
    """Cut each tensor by torch.chunk and zip the parts, as torchgpipe does: what has no partner is lost."""
    return list(zip(*(tensor.chunk(chunks) for tensor in tensors), strict=False))


TUPLE_CONTROLS = {
    "rows": whole(1, 10, 5, "rows of x and mask"),
    "rows_y": whole(1, 10, 5, "rows of y"),
    "chunks": whole(1, 6, 4, "m · chunks"),
    "how": choice((SCATTER, ZIP), SCATTER, "cut by"),
}
WIDTHS = {"x": 3, "mask": 1, "y": 2}


@styled
def draw_tuple(*, rows: int, rows_y: int, chunks: int, how: str) -> Figure:
    """Draw (x, mask, y) and the micro-batches made of it; rows that reach no micro-batch are crossed out."""
    tensors = {name: numbered(rows_y if name == "y" else rows, width) for name, width in WIDTHS.items()}
    try:
        parts = (
            [tuple(batch) for batch in scatter(tuple(tensors.values()), chunks)]
            if how == SCATTER
            else zip_of_chunks(tuple(tensors.values()), chunks)
        )
        refusal = ""
    except ValueError as error:
        parts, refusal = [], str(error)
    tall = sum(max(map(len, part)) for part in parts) + GAP * max(0, len(parts) - 1)
    figure, axes = _canvas(26, max(tall, rows, rows_y, 4))
    places, middle = {"x": 0.0, "mask": 3.5, "y": 5.0}, 13.0
    lost: dict[str, list[int]] = {}
    for k, (name, tensor) in enumerate(tensors.items()):
        # the rows carry their own number (numbered), so a part tells which rows it has got
        owner = {int(row[0]) // 10: i for i, part in enumerate(parts) for row in part[k]}
        lost[name] = [row for row in range(len(tensor)) if row not in owner] if parts else []
        for row in range(len(tensor)):
            mark: Mark = "dropped" if row in lost[name] else "plain"
            _block(axes, places[name], row, tensor[row : row + 1], owner.get(row), mark)
        _name(axes, places[name], WIDTHS[name], name)
    y = 0.0
    for i, part in enumerate(parts):
        for k, name in enumerate(tensors):
            _block(axes, middle + places[name], y, part[k], i)
        # a micro-batch in which the tensors have different numbers of rows
        torn = len({len(tensor) for tensor in part}) > 1
        shapes = " / ".join(str(len(tensor)) for tensor in part) if torn else str(len(part[0]))
        axes.text(
            middle + 7.2,
            y + (max(map(len, part)) - 1) / 2,
            f"micro-batch {i}: {shapes} {'row' if shapes == '1' else 'rows'}",
            va="center",
            fontsize=9.5,
            color=RED if torn else INK,
        )
        if rows == rows_y and not any(lost.values()):
            _band(axes, 6.6, middle - 0.6, int(part[0][0, 0]) / 10, y, len(part[0]), i)
        y += max(map(len, part)) + GAP
    if refusal:
        axes.text(middle - 2.5, 1.0, "ValueError", fontsize=11, fontweight="bold", color=RED)
        axes.text(middle - 2.5, 1.6, "\n".join(textwrap.wrap(refusal, 44)), fontsize=10, color=INK, va="top")
    else:
        for name in tensors:
            _name(axes, middle + places[name], WIDTHS[name], name)
    finding = _finding(how, parts, chunks, lost, refusal, rows, rows_y)
    title(axes, finding)
    gone = "; ".join(f"{name} rows {', '.join(map(str, gone))}" for name, gone in lost.items() if gone)
    each = "; ".join("/".join(str(len(tensor)) for tensor in part) for part in parts)
    return describe(
        figure,
        f"{how}: x and mask of {rows} rows, y of {rows_y}, {chunks} chunks. "
        + (
            f"Refused: {refusal}."
            if refusal
            else f"Rows of x/mask/y in each micro-batch: {each}. Lost: {gone or 'none'}."
        ),
    )


def _finding(
    how: str, parts: Parts, chunks: int, lost: dict[str, list[int]], refusal: str, rows: int, rows_y: int
) -> str:
    if refusal:
        return f"{how}: {rows} rows of x and {rows_y} of y are refused before anything is cut"
    gone = [f"{plural(len(gone), 'row')} of {name}" for name, gone in lost.items() if gone]
    if gone:
        return f"{how}: {' and '.join(gone)} lost, without a word"
    if rows != rows_y:
        return f"{how}: {rows} rows of x meet {rows_y} of y: rows paired that do not belong together"
    came = plural(len(parts), "micro-batch", "micro-batches")
    asked = f" where {chunks} were asked for" if len(parts) < chunks else ""
    return f"{how}: {came}{asked}, {sizes_of([part[0] for part in parts])} rows of every tensor"


# ---- What micro-batches save in memory and cost in time.


@styled
def draw_live(histories: Mapping[str, Sequence[int]]) -> Figure:
    """Draw the live bytes of saved tensors over one step, a panel a way; histories[way] in bytes."""
    figure, grid = new_figure(9, 3.2, cols=len(histories), squeeze=False, sharey=True)
    peaks = {way: max(history) for way, history in histories.items()}
    first = next(iter(peaks.values()))
    shares = {way: peak / first for way, peak in peaks.items()}
    for number, (axes, (way, history)) in enumerate(zip(grid[0], histories.items(), strict=True)):
        kilobytes = [value / 1e3 for value in history]
        axes.fill_between(range(len(history)), kilobytes, step="post", color=rank_color(number), alpha=0.35)
        axes.step(range(len(history)), kilobytes, where="post", color=rank_color(number), linewidth=1.5)
        axes.axhline(first / 1e3, color=GREY, linewidth=1, linestyle="--")
        axes.set_title(f"{way}\npeak {peaks[way] / 1e3:.0f} kB", fontsize=11)
        axes.set_xticks([])
        axes.set_xlabel("one step →")
        axes.set_ylim(0, 1.08 * max(peaks.values()) / 1e3)
    grid[0][0].set_ylabel("saved for backward, kB")
    least = min(shares, key=lambda way: shares[way])
    headline(figure, f"{least}: {format_share(shares[least])} of the peak of the {next(iter(peaks))}")
    said = "; ".join(f"{way} {peak / 1e3:.0f} kB" for way, peak in peaks.items())
    return describe(figure, f"Peak of the tensors saved for backward in one step: {said}.")


def fixed_rows(record: Mapping[str, Any]) -> float:
    """Return how many rows take as long as what a micro-batch costs besides its rows, from the ends of a measurement.

    record: "size" and "rows_per_second", as `chunk_speed` returns them. The model: a micro-batch of s rows takes a
    fixed time plus s times a row's time.
    """
    sizes, speeds = record["size"], record["rows_per_second"]
    ends = (min(sizes), max(sizes))
    small, large = (size / speeds[sizes.index(size)] for size in ends)
    row = (large - small) / (ends[1] - ends[0])
    return max(0.0, small / row - ends[0]) if row > 0 else float("inf")


def predicted_share(size: float, fixed: float) -> float:
    """Return the share of the best speed that micro-batches of `size` rows reach; 1/2 where size = fixed."""
    return size / (size + fixed)


def half_speed(record: Mapping[str, Any]) -> float:
    """Return the micro-batch size from which on the measured speed is half of the best, interpolated."""
    points = sorted(zip(record["size"], record["rows_per_second"], strict=True))
    half = max(speed for _, speed in points) / 2
    above = next(number for number, (_, speed) in enumerate(points) if speed >= half)
    if above == 0:
        return float(points[0][0])
    (size, speed), (larger, faster) = points[above - 1], points[above]
    return float(size + (larger - size) * (half - speed) / (faster - speed))


@styled
def draw_speed(records: Mapping[str, Mapping[str, Any]], note: str = "") -> Figure:
    """Draw share of the best speed against micro-batch size; records[name] as chunk_speed returns them.

    Points are measured, the dashed line is predicted from the two ends. Without records the predicted form is drawn.
    note: a line under the figure, such as where a recording comes from.
    """
    if not records:
        return _draw_form(note)
    figure, axes = new_figure(9, 3.9 + 0.3 * bool(note))
    for number, (name, record) in enumerate(records.items()):
        sizes, speeds = record["size"], record["rows_per_second"]
        fixed, best = fixed_rows(record), max(speeds)
        scale = speeds[sizes.index(max(sizes))] / best / predicted_share(max(sizes), fixed)
        color = (BLUE, PINK)[number % 2]
        fine = [min(sizes) * (max(sizes) / min(sizes)) ** (k / 80) for k in range(81)]
        line = [100 * scale * predicted_share(size, fixed) for size in fine]
        label = f"{name}: predicted from the two ends"
        axes.plot(fine, line, color=color, linewidth=1.5, linestyle="--", label=label)
        shares = [100 * speed / best for speed in speeds]
        axes.plot(sizes, shares, "os"[number % 2], color=color, markersize=8, label=f"{name}: measured")
    _speed_axes(axes, "rows in a micro-batch")
    axes.legend(loc="lower right")
    halves = ", ".join(f"about {half_speed(record):.0f} rows on {name}" for name, record in records.items())
    headline(figure, f"Half of the best speed needs {halves}")
    if note:
        source_note(figure, note)
    falls = all(
        record["rows_per_second"][record["size"].index(min(record["size"]))]
        < 0.5 * max(record["rows_per_second"])
        for record in records.values()
    )
    fewest = "less than half" if falls else "half or more"
    return describe(
        figure,
        f"Speed against rows in a micro-batch, {', '.join(records)}: the smallest reaches {fewest} of the best.",
    )


def _draw_form(note: str) -> Figure:
    figure, axes = new_figure(9, 3.5)
    fine = [2 ** (k / 8) for k in range(-40, 57)]
    axes.plot(fine, [100 * predicted_share(s, 1) for s in fine], color=INK, linewidth=1.5, linestyle="--")
    axes.plot([1], [50], "o", markerfacecolor="none", markeredgecolor=INK, markersize=10)
    axes.annotate(
        "fixed time = time of the rows", (1, 50), (12, -14), textcoords="offset points", fontsize=10
    )
    _speed_axes(axes, "rows in a micro-batch (1: as many as take the fixed time)")
    headline(figure, "Predicted, not measured: the form of a GPU's curve")
    if note:
        source_note(figure, note)
    return describe(
        figure,
        f"Predicted form of a GPU's curve, nothing measured: half of the speed where both times are equal. {note}",
    )


def _speed_axes(axes: Axes, xlabel: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_ylim(0, 112)
    axes.axhline(50, color=GREY, linewidth=1)
    axes.set_xlabel(xlabel)
    axes.set_ylabel("share of the best speed, %")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


# ---- The same gradient to its last digits, and the training curves that come of it.


def digits_of(value: float, many: int) -> str:
    """Return the first `many` significant decimal digits of a number."""
    return f"{abs(value):.{many - 1}e}".split("e")[0].replace(".", "")


def agreeing(value: float, truth: float, many: int) -> int:
    """Return how many digits of `value`, from the first, are those of `truth`; 0 where the power of ten differs."""
    mine, true = f"{value:.{many - 1}e}", f"{truth:.{many - 1}e}"
    if mine.split("e")[1] != true.split("e")[1] or (value < 0) != (truth < 0):
        return 0
    pairs = zip(digits_of(value, many), digits_of(truth, many), strict=True)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), many)


WRITTEN = {"float32": 9, "float64": 17}
"""Decimal digits that tell any two numbers of the type apart."""


@styled
def draw_digits(values: Mapping[str, Mapping[int, float]], sure: Mapping[str, int]) -> Figure:
    """Draw the digits of one gradient: values[dtype][m], dtype "float32" or "float64", m = 1 is the whole batch.

    sure: for each dtype the digits that the description may promise on any machine; the last ones depend on it.
    """
    names = list(values)
    rows = max(len(by_m) for by_m in values.values())
    figure, grid = new_figure(
        9,
        1.5 + 0.3 * rows,
        cols=len(names),
        squeeze=False,
        width_ratios=[WRITTEN[name] + 5 for name in names],
    )
    least: dict[str, int] = {}
    for axes, name in zip(grid[0], names, strict=True):
        many, truth = WRITTEN[name], values[name][1]
        axes.set(xlim=(-4.6, many + 0.4), ylim=(rows + 0.2, -0.6))
        axes.axis("off")
        axes.set_title(name, fontsize=11)
        same = []
        for y, (m, value) in enumerate(values[name].items()):
            same.append(agreeing(value, truth, many))
            axes.text(-0.9, y, f"m = {m}", ha="right", va="center_baseline", fontsize=10)
            for place, digit in enumerate(digits_of(value, many)):
                # digits from the first one that differs are red: the rest of them says nothing
                good = place < same[-1]
                face = GREEN if m == 1 else SKY if good else RED
                axes.add_patch(Rectangle((place - 0.46, y - 0.42), 0.92, 0.84, facecolor=face))
                axes.text(
                    place,
                    y,
                    digit,
                    ha="center",
                    va="center_baseline",
                    fontsize=9.5,
                    color=ink_on(face),
                    fontweight="normal" if good else "bold",
                )
        least[name] = min(same)
    said = ", ".join(f"{least[name]} of {WRITTEN[name]} digits in {name}" for name in names)
    headline(figure, f"The same gradient to {said}")
    promised = "; ".join(
        f"{name}: {'the first' if least[name] >= sure[name] else 'fewer than'} {sure[name]} of {WRITTEN[name]}"
        for name in names
    )
    ms = ", ".join(map(str, values[names[0]]))
    return describe(
        figure,
        f"Digits of one weight's gradient in m = {ms} micro-batches that equal those of m = 1. {promised}.",
    )


LINES = ("-", "--", "-.", ":")


@styled
def draw_losses(losses: Mapping[str, Sequence[float]]) -> Figure:
    """Draw the loss before each step, a line for each way of training; the first is what others are compared with."""
    figure, axes = new_figure(9, 3.8)
    colors = (INK, SKY, RED, GREEN)
    for number, (name, curve) in enumerate(losses.items()):
        axes.plot(
            range(len(curve)),
            curve,
            color=colors[number % len(colors)],
            linestyle=LINES[number % len(LINES)],
            linewidth=5 if number == 0 else 2.4,
            alpha=0.35 if number == 0 else 1,
            label=name,
        )
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps")
    axes.set_ylabel("training loss")
    axes.legend(loc="best")
    (norm, first), *others = losses.items()
    said, alt = [], []
    for name, curve in others:
        same = all(abs(a - b) <= 1e-3 * b for a, b in zip(curve, first, strict=True))
        said.append(f"{name}: {'the same curve' if same else f'ends {curve[-1] / first[-1]:.1f} × as high'}")
        alt.append(
            f"{name} {'is the same curve' if same else 'ends higher' if curve[-1] > first[-1] else 'ends lower'}"
        )
    title(axes, said[-1])
    return describe(figure, f"Training loss over {len(first)} steps. Against {norm}: {'; '.join(alt)}.")


# ---- The gradient of micro-batches against that of the whole batch.

BY_ROWS, BY_PARTS, NOTHING = "rows / all rows", "1 / m", "1 (forgot to divide)"
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
    _axes_around(axes, torch.cat([points, target[None]]))
    for i, (start, end) in enumerate(zip(points[:-1].tolist(), points[1:].tolist(), strict=True)):
        arrow(axes, start, end, color=rank_color(i), width=3, head=11)
        middle = [(a + b) / 2 for a, b in zip(start, end, strict=True)]
        label = axes.text(
            *middle, str(i), fontsize=9.5, ha="center", va="center", color=ink_on(rank_color(i))
        )
        label.set_bbox({"boxstyle": "circle,pad=0.22", "facecolor": rank_color(i), "edgecolor": PAPER})
    axes.plot(
        *target.tolist(), "o", markersize=17, markerfacecolor="none", markeredgecolor=INK, markeredgewidth=2
    )
    _label_target(axes, points, target)
    axes.plot(0, 0, "o", markersize=6, color=INK)
    axes.text(0, 0, "  0", va="top", fontsize=10, color=MUTED)
    axes.set_xlabel("gradient of weight 0")
    axes.set_ylabel("gradient of weight 1")
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


def _label_target(axes: Axes, points: Tensor, target: Tensor) -> None:
    """Write "whole batch" beside the ring, on the side where the arrows are not."""
    away = target - points[-1]
    if float(away.norm()) < 1e-9:
        away = target - points[-2]
    right = bool(away[0] > 0)
    place, align = (14 if right else -14, 0), "left" if right else "right"
    label = axes.annotate(
        "whole batch",
        (float(target[0]), float(target[1])),
        place,
        textcoords="offset points",
        ha=align,
        va="center",
        fontsize=10,
    )
    label.set_bbox({"facecolor": PAPER, "alpha": 0.8, "edgecolor": "none", "pad": 1.5})


def _axes_around(axes: Axes, points: Tensor) -> None:
    """Set equal axes with a margin around the points, so that an arrow of the same length looks the same."""
    low, high = points.min(0).values, points.max(0).values
    centre, half = (low + high) / 2, 0.62 * float((high - low).max())
    axes.set(
        xlim=(float(centre[0]) - 1.5 * half, float(centre[0]) + 1.5 * half),
        ylim=(float(centre[1]) - half, float(centre[1]) + half),
    )
    axes.set_aspect("equal")
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.axvline(0, color=GREY, linewidth=0.8)


def _table(axes: Axes, parts: Sequence[tuple[Tensor, ...]], scale: Sequence[float]) -> None:
    """Write for each micro-batch its colour, its rows, and its factor."""
    axes.set(xlim=(0, 10), ylim=(9.4, -1.2))
    axes.axis("off")
    axes.text(2.2, -0.6, "rows", fontsize=10, color=MUTED, ha="center")
    axes.text(5.2, -0.6, "factor", fontsize=10, color=MUTED, ha="center")
    axes.text(8.4, -0.6, "of one row", fontsize=10, color=MUTED, ha="center")
    rows = sum(len(part[0]) for part in parts)
    for i, (part, factor) in enumerate(zip(parts, scale, strict=True)):
        box = {"boxstyle": "circle,pad=0.22", "facecolor": rank_color(i), "edgecolor": PAPER}
        axes.text(
            0.5,
            i + 0.2,
            str(i),
            fontsize=9.5,
            color=ink_on(rank_color(i)),
            ha="center",
            va="center",
            bbox=box,
        )
        weight = factor / len(part[0])
        fair = abs(weight * rows - 1) < 1e-9
        axes.text(2.2, i + 0.2, str(len(part[0])), fontsize=10.5, ha="center", va="center")
        axes.text(5.2, i + 0.2, f"{factor:.3f}", fontsize=10.5, ha="center", va="center")
        axes.text(
            8.4, i + 0.2, f"{weight:.3f}", fontsize=10.5, ha="center", va="center", color=INK if fair else RED
        )
    axes.text(
        0,
        len(parts) + 0.35,
        f"fair: 1 / {rows} = {1 / rows:.3f} a row",
        fontsize=10,
        color=MUTED,
        va="center",
    )


# ---- BatchNorm, the layer in which rows see each other.

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
        # full: the row itself; pale: another row of its micro-batch; blank: no influence
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
        axes.set_title(f"{name}\nsees {plural(counts[name], 'row')}", fontsize=11)
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
    # labels move apart where two rows lie close, and a thin line leads to each
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
        pairs = f"{plural(swaps, 'pair')} of rows swap order"
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
