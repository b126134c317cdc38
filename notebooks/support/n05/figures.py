"""Figures of notebook 05, 400 million rows: who holds which rows and pages, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from lib._values import format_bytes, format_share, plural
from lib.data.permutation import Permutation
from lib.show.explore import choice, steps, whole
from lib.show.sheet import (
    Cell,
    Mark,
    arrow,
    box,
    cell_axes,
    cell_sheet,
    draw_cell,
    draw_cells,
    draw_legend,
    label_row,
)
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    describe,
    headline,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)
from support import recordings
from support.n05.runs import HOW, OFFSETS, WAYS, Run, Way, expected_private, predict

# ---- From the length of the file to the rows of one rank in one mini-epoch.

SIZE, COLUMNS, PAGE, ROW = 48, 24, 4, 44
"""Rows of the file, cells a line, rows a page, bytes a row."""

FILE_MAP_CONTROLS = {
    "world_size": whole(1, 8, 4, "W · ranks"),
    "rank": whole(0, 7, 1, "rank"),
    "mini_epochs": whole(1, 8, 3, "E · mini-epochs"),
    "mini_epoch": whole(0, 7, 0, "mini-epoch"),
    "epoch": whole(0, 9, 0, "e · epoch"),
}


@styled
def draw_file_map(*, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int) -> Figure:
    """Draw who gets which place of the order, and where these rows lie in the file."""
    rank, part = min(rank, world_size - 1), min(mini_epoch, mini_epochs - 1)
    order = Permutation(SIZE, epoch=epoch)[range(SIZE)].tolist()
    turns = -(-SIZE // world_size)
    # a rank's turns, cut in E parts: this mini-epoch is turns begin … end - 1 of every rank
    begin, end = turns * part // mini_epochs, turns * (part + 1) // mini_epochs
    mine = [order[(rank + world_size * turn) % SIZE] for turn in range(begin, end)]
    gap, lines = 0.3, SIZE // COLUMNS
    figure, axes = cell_sheet(COLUMNS + gap * (COLUMNS // PAGE - 1), 8.0, labels=1.15)

    # above: the order, with a line where a mini-epoch ends
    for position, row in enumerate(order):
        turn, owner = divmod(position, world_size)
        now = begin <= turn < end
        mark: Mark = "plain" if now and owner == rank else "faded"
        line, x = divmod(position, COLUMNS)
        y = 1.1 * line
        cell = Cell(row, owner if now else None, mark if now else "plain")
        draw_cell(axes, x, y, cell, font=9.5)
        if turn in {turns * k // mini_epochs for k in range(1, mini_epochs)} and owner == 0:
            axes.plot([x - 0.5, x - 0.5], [y - 0.55, y + 0.55], color=INK, linewidth=2.2, zorder=4)
    label_row(axes, 0, f"order, e = {epoch}")
    label_row(axes, 1.1, f"cut in {mini_epochs}", color=MUTED)

    # below: the file row by row, and under each page a bar that is full if the rank must read it
    top, pages = 3.6, set()
    for row in range(SIZE):
        page, place = divmod(row, PAGE)
        line, column = divmod(page, COLUMNS // PAGE)
        at = column * (PAGE + gap) + place
        owner = order.index(row) % world_size
        now = begin <= order.index(row) // world_size < end
        kept = row in mine
        cell = Cell(
            row, rank if kept else owner if now else None, "plain" if kept else "faded" if now else "plain"
        )
        draw_cell(axes, at, top + 1.45 * line, cell, font=9.5)
        pages |= {page} if kept else set()
    for page in range(SIZE // PAGE):
        line, column = divmod(page, COLUMNS // PAGE)
        corner = (column * (PAGE + gap) - 0.44, top + 1.45 * line + 0.56)
        bar = Rectangle(corner, PAGE - 0.12, 0.14, facecolor=rank_color(rank), edgecolor=GREY)
        bar.set_fill(page in pages)
        axes.add_patch(bar)
    for line in range(lines):
        label_row(
            axes,
            top + 1.45 * line,
            f"byte {line * COLUMNS * ROW:,}" if line else "the file",
            color=MUTED if line else INK,
        )
    legend = [
        (Cell("", rank), f"rank {rank} holds it now"),
        (Cell("", (rank + 1) % world_size, "faded"), "another rank does"),
        (Cell(""), "another mini-epoch"),
    ]
    draw_legend(axes, legend, x=0, y=top + 3.2, step=8.2)
    title(
        axes,
        f"Mini-epoch {part} of epoch {epoch}: rank {rank} keeps {len(set(mine))} of {SIZE} rows and meets "
        f"{len(pages)} of {SIZE // PAGE} pages",
    )
    return describe(
        figure,
        f"{SIZE} rows, {world_size} ranks, {mini_epochs} mini-epochs, epoch {epoch}. In mini-epoch {part}, rank {rank} "
        f"holds {' '.join(map(str, mine)) or 'nothing'}; they lie on {len(pages)} of {SIZE // PAGE} pages.",
    )


# ---- Which process holds which rows, for each of the three ways.

HELD_ROWS = 24  # of the file in draw_holders
HOLDER_WAYS = {"every rank all rows": "naive", "one server": "server", "every rank its own": "rank"}

HOLDERS_CONTROLS = {
    "way": choice(tuple(HOLDER_WAYS), "every rank all rows", "way"),
    "world_size": whole(1, 4, 2, "W · ranks"),
    "workers": whole(0, 2, 1, "workers a rank"),
}


@styled
def draw_holders(*, way: str, world_size: int, workers: int, mini_epochs: int = 2) -> Figure:
    """Draw the rows that the server, the ranks and their workers hold once they have read; rank: mini-epoch 0."""
    kind = HOLDER_WAYS[way]
    server = kind == "server"
    lines = world_size * (1 + workers) + server
    figure, axes = cell_sheet(HELD_ROWS, lines + 0.35 * (world_size - 1) + 0.2, labels=1.15)
    order = Permutation(HELD_ROWS)[range(HELD_ROWS)].tolist()
    everything = list(range(HELD_ROWS))
    y, copies, private = 0.0, 0, 0
    if server:
        label_row(axes, y, "server")
        draw_cells(axes, [Cell(row, color=GREY) for row in everything], y=y, font=9.5)
        copies, private, y = 1, HELD_ROWS, y + 1.35
    for rank in range(world_size):
        # a rank's own rows: its places of the order, and of these the first mini-epoch
        own = (
            order[rank::world_size][: HELD_ROWS // world_size // mini_epochs]
            if kind == "rank"
            else everything
        )
        for worker in range(-1, workers):
            label_row(
                axes,
                y,
                f"rank {rank}" if worker < 0 else f"worker {worker}",
                color=INK if worker < 0 else MUTED,
            )
            if server:
                axes.text(-0.4, y, "asks the server", va="center_baseline", fontsize=10, color=MUTED)
            else:
                # a worker that copies counts; one that shares its rank's pages is drawn pale and doesn't
                copied = worker < 0 or kind == "naive"
                for row in sorted(own):
                    draw_cells(axes, [Cell(row, rank, "plain" if copied else "faded")], x=row, y=y, font=9.5)
                copies, private = copies + copied, private + copied * len(own)
            y += 1
        y += 0.35
    each = private // copies
    parts = {
        "naive": f"{copies} processes hold all {HELD_ROWS} rows: {private} in memory",
        "server": f"The server holds all {HELD_ROWS} rows once; nobody else holds any",
        "rank": f"Each rank holds {each} of {HELD_ROWS} rows (E = {mini_epochs}), workers share them: "
        f"{private} in memory",
    }
    title(axes, parts[kind])
    shared = " Workers share their rank's." if kind == "rank" and workers else ""
    return describe(
        figure,
        f"{world_size} ranks, {workers} workers a rank, {way}. {copies} processes hold rows of their own, "
        f"{each} each, {private} in all.{shared}",
    )


# ---- What reading costs a forked worker.

PAGED_ROWS = 24  # that parent and worker share in draw_pages_copied
TOP, LOW = 0.3, 2.7
LIST, PACKED = "list of str", "packed bytes"

PAGES_COPIED_CONTROLS = {
    "reads": whole(0, PAGED_ROWS, 3, "rows read"),
    "per_page": whole(2, 8, 4, "rows a page"),
    "rows": choice((LIST, PACKED), LIST, "rows as"),
}


def _sheet(axes: Axes, x: float, y: float, width: float, color: str, dashed: bool) -> None:
    face, dashes = (PAPER, (0, (2, 2))) if dashed else (pale(color), "-")
    look: Any = {"face": face, "edge": color, "line": 1.6, "radius": 0.12, "zorder": 1, "linestyle": dashes}
    box(axes, x + (width - 1) / 2, y, width + 0.1, 1.24, **look)


@styled
def draw_pages_copied(*, reads: int, per_page: int, rows: str) -> Figure:
    """Draw the pages that parent and worker share, and below them those that the worker's reading has copied."""
    order = Permutation(PAGED_ROWS, seed=3)[range(PAGED_ROWS)].tolist()
    seen, pages, gap = set(order[:reads]), -(-PAGED_ROWS // per_page), 0.35
    # reading an object of a list writes its reference count, so its page is copied; bytes stay shared
    copied = {row // per_page for row in seen} if rows == LIST else set()
    figure, axes = cell_sheet(PAGED_ROWS + gap * (pages - 1) + 0.2, 4.7, labels=1.25)
    for y, name in ((TOP, "parent's pages"), (LOW, "worker's own")):
        label_row(axes, y, name)
    for page in range(pages):
        inside, left = (
            range(page * per_page, min(PAGED_ROWS, (page + 1) * per_page)),
            page * (per_page + gap),
        )
        _sheet(axes, left, TOP, len(inside), BLUE, dashed=False)
        _sheet(axes, left, LOW, len(inside), ORANGE if page in copied else GREY, dashed=page not in copied)
        for place, row in enumerate(inside):
            read = row in seen
            draw_cell(
                axes,
                left + place,
                TOP,
                Cell(row, color=BLUE, mark="plain" if read and not copied else "faded"),
                font=9.5,
            )
            if page in copied:
                mark: Cell = Cell(row, color=ORANGE, mark="plain" if read else "faded")
                draw_cell(axes, left + place, LOW, mark, font=9.5)
        if page in copied:
            middle = left + (len(inside) - 1) / 2
            arrow(axes, (middle, TOP + 0.7), (middle, LOW - 0.68), color=ORANGE, gap=2)
    text = (
        "a dark row has been read: its reference count was written"
        if rows == LIST
        else "a dark row has been read; nothing was written"
    )
    axes.text(-0.5, LOW + 1.2, text, fontsize=10, color=MUTED, va="center")
    title(
        axes,
        f"{rows.capitalize()}: {reads} of {PAGED_ROWS} rows read ({format_share(reads / PAGED_ROWS)}), "
        f"{len(copied)} of {pages} pages copied ({format_share(len(copied) / pages)})",
    )
    return describe(
        figure,
        f"{PAGED_ROWS} rows as {rows} in {pages} pages. A forked worker has read {reads} of them in random order "
        f"and copied {len(copied)} pages.",
    )


@styled
def draw_growth(
    grown: Mapping[str, Sequence[tuple[int, int]]], list_bytes: float, list_name: str = LIST
) -> Figure:
    """Draw private bytes over rows read; grown: by name. list_bytes: what a row's object takes, for the prediction."""
    figure, axes = new_figure(9, 3.9)
    if not any(grown.values()):
        axes.text(
            0.5, 0.5, "No fork on this system: every worker gets a whole copy at its start.", ha="center"
        )
        axes.axis("off")
        return describe(figure, "Nothing measured: this system does not fork.")
    size = grown[list_name][-1][0]
    reads = [count for count, _ in grown[list_name][1:]]
    expected = [expected_private(count, size, list_bytes) / 1e6 for count in reads]
    axes.plot(
        reads, expected, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.6, label="predicted: pages touched"
    )
    for (name, points), color, mark in zip(grown.items(), (ORANGE, BLUE), "os", strict=False):
        x, y = zip(*points[1:], strict=True)
        axes.plot(x, [b / 1e6 for b in y], linestyle="", marker=mark, markersize=7, color=color, label=name)
        axes.annotate(f"{y[-1] / 1e6:.0f} MB", (x[-1], y[-1] / 1e6), (8, 0), textcoords="offset points", va="center",
                      color=INK, fontweight="bold")  # fmt: skip
    axes.set(xscale="log", xlim=(reads[0] * 0.8, size * 2.2), xlabel="rows read by the worker, random order")
    axes.set_xticks(
        reads[::2], [f"{100 * count / size:.{int(count < size / 10)}f} %" for count in reads[::2]]
    )
    axes.minorticks_off()
    axes.set_ylabel("private to the worker (MB)")
    axes.set_ylim(0, None)
    axes.legend(loc="upper left")
    last = {name: points[-1][1] for name, points in grown.items()}
    share = next(b for c, b in grown[list_name] if c >= size / 17) / last[list_name]
    others = ", ".join(f"{name} {b / 1e6:.0f} MB" for name, b in last.items() if name != list_name)
    title(axes, f"A sixteenth of the rows read, {format_share(share)} of the list copied; {others}")
    told = "; ".join(f"{name} {b / 1e6:.0f} MB" for name, b in last.items())
    return describe(figure, f"Private memory of a forked worker after reading {size:,} rows: {told}.")


# ---- The memory of each way, predicted, and what was measured of it.

NAMES: dict[Way, str] = {
    "one": "one process",
    "naive": "every rank all rows",
    "server": "one server",
    "rank": "every rank its own",
}
LEAST = 5e6

MEMORY_CONTROLS = {
    "million_rows": steps((1, 2, 4, 10, 20, 40, 100, 200, 400, 1000), 400, "N · million rows"),
    "row_bytes": whole(20, 200, 44, "bytes a row", step=4),
    "world_size": steps((1, 2, 4, 8, 16, 32), 8, "W · ranks"),
    "workers": whole(0, 8, 2, "workers a rank"),
    "mini_epochs": steps((1, 2, 4, 8, 16), 8, "E · mini-epochs"),
    "machine_gb": steps((0.4, 8, 16, 32, 64, 128, 256, 512), 64, "machine · GB"),
}


@dataclass(frozen=True)
class Point:
    """One measured run: of which way, what it is called, bytes predicted and bytes measured, here or recordings."""

    way: Way
    label: str
    predicted: float
    measured: float
    here: bool


def points_of(runs: Sequence[Run], record: Mapping[str, Any] | None = None) -> list[Point]:
    """Return the points of runs made here, and of the recorded headline: 8 ranks together, at their peak."""
    points = []
    for run in runs:
        setting = f"W = {run.world_size}" + (f", {run.num_workers} workers" if run.num_workers else "")
        setting += f", E = {run.mini_epochs}" if run.way == "rank" else ""
        label = f"{run.rows / 1e6:g} M rows" + (f", {setting}" if run.way != "one" else "")
        points.append(Point(run.way, label, run.predicted.total, run.peak, True))
    if record is not None:
        world, parts, rows = record["world_size"], record["mini_epochs"], record["rows"]
        model = predict(
            "rank", rows=rows, row_bytes=record["bytes"] / rows, world_size=world, mini_epochs=parts
        )
        label = f"recorded: {rows / 1e6:g} M rows, W = {world}, E = {parts}"
        points.append(Point("rank", label, model.total, together_peak(record), False))
    return points


def together_peak(record: Mapping[str, Any]) -> float:
    """Return the most bytes that all ranks of the headline took at once, as if all were at their peak then."""
    peaks: dict[int, float] = {}
    for load in record["together"]["loads"]:
        peaks[load["rank"]] = max(peaks.get(load["rank"], 0.0), load["peak_bytes"])
    return sum(peaks.values())


@styled
def draw_memory(
    *,
    million_rows: int,
    row_bytes: int,
    world_size: int,
    workers: int,
    mini_epochs: int,
    machine_gb: float,
    runs: Sequence[Run] = (),
    record: Mapping[str, Any] | None = None,
) -> Figure:
    """Draw the bytes of the whole machine on a log scale; what lies beyond the machine's memory is hatched."""
    points, machine = points_of(runs, record), machine_gb * 1e9
    holdings = {
        way: predict(
            way,
            rows=million_rows * 10**6,
            row_bytes=row_bytes,
            world_size=world_size,
            workers=0 if way == "one" else workers,
            mini_epochs=mini_epochs,
        )
        for way in WAYS
    }
    own = {way: [point for point in points if point.way == way] for way in WAYS}
    figure, axes = new_figure(9, 1.75 + sum(0.56 + 0.27 * len(own[way]) for way in WAYS) + 0.3 * bool(record))
    y, places = 0.0, []
    for way, holding in holdings.items():
        total = max(LEAST, holding.total)
        over = total > machine
        # an outline for the prediction, red and hatched beyond the machine; then each run with its own
        _bar(axes, y, LEAST, min(total, machine), BLUE)
        if over:
            _bar(axes, y, machine, total, RED, HATCH["padding"])
        _note(axes, total, y, format_bytes(holding.total), RED if over else INK, size=11, weight="bold")
        places.append((y, f"{NAMES[way]}\n{_copies(holding.copies)} {format_bytes(holding.each)}"))
        for point in own[way]:
            y += 0.4 if point is own[way][0] else 0.32
            axes.plot([point.predicted, point.measured], [y, y], color=MUTED, linewidth=1)
            axes.plot(point.predicted, y, "|", color=INK, markersize=10, markeredgewidth=1.6)
            look = {"color": BLUE if point.here else PINK, "markersize": 6}
            axes.plot(point.measured, y, "o" if point.here else "D", **look)
            _note(
                axes,
                max(point.predicted, point.measured),
                y,
                f"{format_bytes(point.measured)}, {point.label}",
            )
        y += 0.7
    axes.axvline(machine, color=RED, linestyle=(0, (5, 3)), linewidth=1.5, zorder=0)
    axes.text(machine, -0.42, f"the machine: {format_bytes(machine)}", color=RED, fontsize=10, ha="center")
    # room to the right for the notes: the axis is logarithmic
    most = max(machine, *(holding.total for holding in holdings.values()), *(p.measured for p in points), 1e9)
    axes.set(xscale="log", xlim=(LEAST, most * 40), ylim=(y - 0.3, -0.6), xlabel="bytes on the whole machine")
    axes.set_yticks([place for place, _ in places], [text for _, text in places], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axes.minorticks_off()
    fits = [NAMES[way] for way in WAYS if holdings[way].total <= machine]
    rank, naive = holdings["rank"], holdings["naive"]
    verdict = f"What fits: {', '.join(fits)}" if fits else "Nothing fits"
    headline(
        figure,
        f"{million_rows} M rows, {plural(world_size, 'rank')}: {format_bytes(naive.total)} if every rank "
        f"holds all, {format_bytes(rank.total)} if each holds its own. {verdict}",
    )
    notes = []
    if runs:
        notes.append("● measured here at its peak     ")
    if record:
        notes.append("◆ " + recordings.provenance(record))
    if notes:
        figure.supxlabel("| predicted for that run     " + "".join(notes), fontsize=9, color=MUTED)
    bars = "; ".join(f"{NAMES[way]} {format_bytes(h.total)}" for way, h in holdings.items())
    seen = "; ".join(
        f"{NAMES[p.way]}, {p.label}: predicted {_rough(p.predicted)}, measured {_rough(p.measured)}"
        for p in points
    )
    return describe(
        figure,
        f"Memory of {million_rows} million rows of {row_bytes} bytes, {world_size} ranks, {workers} workers a rank, "
        f"{mini_epochs} mini-epochs: {bars}. The machine has {format_bytes(machine)}."
        + (f" Measured: {seen}." if seen else ""),
    )


def _bar(axes: Axes, y: float, start: float, end: float, color: str, hatch: str | None = None) -> None:
    axes.barh(
        y, end - start, left=start, height=0.36, facecolor=PAPER, edgecolor=color, linewidth=2, hatch=hatch
    )


def _note(
    axes: Axes, x: float, y: float, text: str, color: str = MUTED, size: float = 9, weight: str = "normal"
) -> None:
    paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    axes.annotate(text, (x, y), (9, 0), textcoords="offset points", va="center", fontsize=size, color=color,
                  fontweight=weight, bbox=paper)  # fmt: skip


def _tick(size: float) -> str:
    return (
        f"{size / 1e12:g} TB"
        if size >= 1e12
        else f"{size / 1e9:g} GB"
        if size >= 1e9
        else f"{size / 1e6:g} MB"
    )


def _copies(count: int) -> str:
    return "1 copy of" if count == 1 else f"{count} copies of"


def _rough(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


# ---- Epochs of a RankDataset.


@styled
def draw_received(loops: Mapping[str, Sequence[Sequence[int]]], truth: Sequence[Sequence[int]]) -> Figure:
    """Draw epoch × rows for each loop; a row has the colour of the epoch whose deal it came from, a cross: none now."""
    epochs, most = len(truth), max(map(len, truth))
    figure, grid = new_figure(9, 1.25 + 0.46 * epochs, cols=len(loops), squeeze=False)
    words, wrong = [], {}
    for axes, (name, received) in zip(grid[0], loops.items(), strict=True):
        cell_axes(axes, columns=most, rows=epochs, left=2.2)
        source = [next((t for t in range(epochs) if list(truth[t]) == list(rows)), None) for rows in received]
        for epoch, rows in enumerate(received):
            label_row(axes, epoch, f"epoch {epoch}")
            draw_cells(
                axes,
                [Cell(row, source[epoch], "plain" if source[epoch] == epoch else "padding") for row in rows],
                y=epoch,
                font=10,
            )
        axes.set_title(name, fontsize=11)
        wrong[name] = sum(list(a) != list(b) for a, b in zip(received, truth, strict=True))
        words.append(f"{name}: rows of epochs {', '.join('?' if s is None else str(s) for s in source)}")
    parts = [f"{name}: {count} of {epochs} epochs wrong" for name, count in wrong.items()]
    headline(figure, "; ".join(parts))
    return describe(figure, f"Told epochs {', '.join(map(str, range(epochs)))}. {'; '.join(words)}.")


SEEN_CONTROLS = {
    "world_size": whole(2, 32, 8, "W · ranks", step=2),
    "epochs": whole(4, 40, 20, "epochs", step=2),
}


@styled
def draw_seen(*, world_size: int, epochs: int, size: int = 3200) -> Figure:
    """Draw the share of all rows that rank 0 has seen: dealt once, and dealt anew (counted, over 1 - (1 - 1/W)^e)."""
    seen, counted = np.zeros(size, bool), []
    for epoch in range(epochs):
        seen[Permutation(size, epoch=epoch)[np.arange(0, size, world_size)]] = True
        counted.append(100 * float(seen.mean()))
    figure, axes = new_figure(9, 3.5)
    x = range(1, epochs + 1)
    axes.plot(
        x,
        [100 * (1 - (1 - 1 / world_size) ** e) for e in x],
        color=MUTED,
        linestyle=(0, (4, 3)),
        linewidth=1.6,
    )
    axes.plot(x, counted, "o", color=BLUE, markersize=6)
    axes.plot(x, [100 / world_size] * epochs, "s", color=RED, markersize=5)
    axes.annotate(
        "dealt anew in each epoch",
        (epochs, counted[-1]),
        (0, 9),
        textcoords="offset points",
        ha="right",
        color=BLUE,
    )
    axes.annotate(
        "dealt once", (epochs, 100 / world_size), (0, 9), textcoords="offset points", ha="right", color=RED
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(
        ylim=(0, 112), xlim=(0.5, epochs + 0.5), xlabel="epochs", ylabel="seen by rank 0 (% of all rows)"
    )
    once = 100 / world_size
    finding = (
        f"{world_size} ranks, {epochs} epochs: a rank sees {counted[-1]:.0f} % of the data, not {once:.0f} %"
    )
    title(axes, finding)
    return describe(figure, f"{finding}. After one epoch it is {counted[0]:.0f} % either way.")


@styled
def draw_cost(
    costs: Mapping[int, Mapping[str, float]], rows: int, row_bytes: float, world_size: int
) -> Figure:
    """Draw what E changes; costs[E] has "bytes" held, and "seconds" that a rank loads in an epoch."""
    figure, (left, right) = new_figure(9, 3.6, cols=2)
    parts = list(costs)
    model = [
        predict("rank", rows=rows, row_bytes=row_bytes, world_size=world_size, mini_epochs=e).each / 1e6
        for e in parts
    ]
    left.plot(
        parts, model, "-", color=MUTED, marker="s", markerfacecolor=PAPER, markersize=11, label="predicted"
    )
    left.plot(parts, [costs[e]["bytes"] / 1e6 for e in parts], "o", color=BLUE, label="held")
    left.set(ylabel="memory a rank (MB)", ylim=(0, None))
    left.legend()
    right.plot(parts, [costs[e]["seconds"] for e in parts], "-o", color=ORANGE)
    right.set(ylabel="loading, a rank and epoch (s)", ylim=(0, None))
    for axes in (left, right):
        axes.set(xscale="log", xlabel="E · mini-epochs")
        axes.set_xticks(parts, [str(e) for e in parts])
        axes.minorticks_off()
    first, last = costs[parts[0]], costs[parts[-1]]
    finding = (
        f"E = {parts[-1]} instead of {parts[0]}: {format_share(last['bytes'] / first['bytes'])} of the memory, "
        f"{last['seconds'] / first['seconds']:.1f} × the loading"
    )
    headline(figure, finding)
    held = ", ".join(f"E = {e} {costs[e]['bytes'] / 1e6:.1f} MB" for e in parts)
    return describe(figure, f"{finding}. Held by a rank of {world_size}: {held}.")


@styled
def draw_headline(record: Mapping[str, Any]) -> Figure:
    """Draw the recorded memory over time of one rank through all mini-epochs, and of all ranks together."""
    world, parts, rows = record["world_size"], record["mini_epochs"], record["rows"]
    text = record["predicted_text_bytes"]
    payload = predict(
        "rank", rows=rows, row_bytes=record["bytes"] / rows, world_size=world, mini_epochs=parts
    ).each
    figure, panels = new_figure(9, 4.4, cols=2)
    peaks = {}
    for axes, (where, ranks) in zip(panels, (("alone", 1), ("together", world)), strict=True):
        times, sizes = zip(*record[where]["pss_over_time"], strict=True)
        axes.fill_between(times, [size / 1e6 for size in sizes], color=PINK, alpha=0.35, linewidth=0)
        axes.plot(times, [size / 1e6 for size in sizes], color=PINK, linewidth=1.6)
        for value, look, label in (
            (text, (0, (1, 1.5)), "text, M / (W · E)"),
            (payload, (0, (5, 2)), f"with {OFFSETS} bytes a row"),
        ):
            axes.axhline(
                ranks * value / 1e6, color=INK, linestyle=look, linewidth=1.4, label=f"predicted: {label}"
            )
        peaks[where] = max(load["peak_bytes"] for load in record[where]["loads"])
        axes.set(xlabel="time (s)", ylim=(0, 1.45 * ranks * payload / 1e6), xlim=(0, None))
        axes.set_title(f"{'one rank alone' if ranks == 1 else f'{ranks} ranks together'}", fontsize=11)
    panels[0].set_ylabel("memory, PSS (MB)")
    panels[0].legend(loc="upper left")
    peak = format_bytes(peaks["alone"])
    finding = f"{rows / 1e6:.0f} million rows: a rank peaks at {peak}, {format_bytes(text)} of text predicted"
    headline(figure, finding)
    figure.supxlabel(recordings.provenance(record), fontsize=9, color=MUTED)
    return describe(
        figure,
        f"{finding}. Recorded, W = {world}, E = {parts}: payload predicted {format_bytes(payload)}; "
        f"{world} ranks together peak at {format_bytes(peaks['together'])} each.",
    )


# ---- What one server hands out.

LOOKS = dict(zip(HOW, ((ORANGE, "o"), (BLUE, "s"), (GREEN, "^")), strict=True))


@styled
def draw_queries(table: Mapping[str, Mapping[str, float]], claimed: float = 1000) -> Figure:
    """Draw rows a second on a log scale, a line a server, a mark a way to ask; claimed: what the article says."""
    figure, axes = new_figure(9, 1.6 + 0.62 * len(table))
    for y, rates in enumerate(table.values()):
        axes.plot([min(rates.values()), max(rates.values())], [y, y], color=MUTED, linewidth=1)
        for how, rate in rates.items():
            color, mark = LOOKS[how]
            axes.plot(rate, y, mark, color=color, markersize=9, label=how if not y else None)
            axes.annotate(_short(rate), (rate, y), (0, 8 if how != HOW[1] else -17), textcoords="offset points",
                          ha="center", fontsize=9.5, color=INK)  # fmt: skip
    axes.axvline(claimed, color=RED, linestyle=(0, (5, 3)), linewidth=1.4)
    axes.text(claimed, -0.62, f"the article: {_short(claimed)}", color=RED, ha="center", fontsize=10)
    axes.set_yticks(range(len(table)), list(table), color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set(xscale="log", xlim=(8, 4e6), ylim=(len(table) - 0.4, -0.8), xlabel="rows a second, one client")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.legend(loc="lower center", bbox_to_anchor=(0.42, 1.0), ncols=3)
    every = [rate for row in table.values() for rate in row.values()]
    finding = f"The same rows from one server: {_short(min(every))} to {_short(max(every))} a second"
    title(axes, finding)
    axes.set_title(axes.get_title("left"), pad=34)
    told = "; ".join(
        f"{name}: " + ", ".join(f"{how} {_short(r)}" for how, r in row.items()) for name, row in table.items()
    )
    return describe(figure, f"{finding}. {told}.")


def _short(rate: float) -> str:
    digits = f"{float(f'{rate:.2g}'):,.0f}"
    return digits if rate < 10_000 else f"{rate / 1e3:,.0f} k" if rate < 1e6 else f"{rate / 1e6:.1f} M"


@styled
def draw_late(delay: float = 0.04) -> Figure:
    """Draw one query to a server that sends head and body apart: the body waits for the late acknowledgement."""
    figure, axes = new_figure(9, 2.7)
    ms = 1e3 * delay
    messages = [
        (0.0, "client", "GET /get/17", BLUE),
        (0.06 * ms, "server", "head, sent at once", GREEN),
        (ms, "client", f"acknowledgement, {ms:.0f} ms late", RED),
        (1.06 * ms, "server", "body, held back until now", GREEN),
    ]
    top = {"client": 0.0, "server": 1.0}
    for name, y in top.items():
        axes.plot([0, 1.5 * ms], [y, y], color=MUTED, linewidth=1.2, zorder=0)
        axes.text(-0.02 * ms, y, name, ha="right", va="center", fontweight="bold")
    for when, sender, text, color in messages:
        start, end = top[sender], 1 - top[sender]
        arrow = {"arrowstyle": "-|>", "color": color, "lw": 2.2}
        axes.annotate("", (when + 0.05 * ms, end), (when, start), arrowprops=arrow)
        at, align = (when + 0.05 * ms, "left") if sender == "server" else (when - 0.005 * ms, "right")
        if not when:
            at, align = 0.12 * ms, "left"
        height = 0.12 if not when else 0.25 if sender == "client" else 0.72
        axes.text(at, height, text, color=color, ha=align, va="center", fontsize=10)
    axes.annotate("", (ms, 0.5), (0.14 * ms, 0.5), arrowprops={"arrowstyle": "<->", "color": MUTED})
    axes.text(0.57 * ms, 0.49, "nothing moves", ha="center", va="bottom", color=MUTED)
    axes.set(xlim=(-0.14 * ms, 1.5 * ms), ylim=(1.12, -0.12), xlabel="time (ms)", yticks=[])
    axes.spines["left"].set_visible(False)
    title(axes, f"Two small writes: a query takes {ms:.0f} ms, so {1 / delay:.0f} queries a second at most")
    return describe(
        figure,
        f"One query: the client asks, the server sends the head, the client acknowledges it {ms:.0f} ms later, only "
        f"then the body leaves: at most {1 / delay:.0f} queries a second.",
    )


# ---- The memory of each way over time, by whose pages they are.

LAYERS = {
    "ranks": ("private to ranks (USS)", BLUE, ""),
    "shared": ("shared (PSS − USS)", GREY, "...."),
    "workers": ("private to workers (USS)", ORANGE, "////"),
    "server": ("the server (USS)", GREEN, "\\\\\\\\"),
}


@styled
def draw_ways(runs: Mapping[str, Run], budget: float) -> Figure:
    """Draw runs by name side by side, on one scale; `budget`: bytes of a machine that is too small for some."""
    figure, axes = new_figure(9, 4.6, cols=len(runs), sharey=True, sharex=True, squeeze=False)
    longest = max(run.times[-1] for run in runs.values())
    said = []
    for place, (name, run) in zip(axes[0], runs.items(), strict=True):
        layers = [[size / 1e6 for size in getattr(run, layer)] for layer in LAYERS]
        looks = [{"facecolor": c, "hatch": h, "edgecolor": PAPER} for _, c, h in LAYERS.values()]
        # layer upon layer, each from where the one below it ends
        low = [0.0] * len(run.times)
        for layer, look in zip(layers, looks, strict=True):
            high = [a + b for a, b in zip(low, layer, strict=True)]
            place.fill_between(run.times, low, high, linewidth=0, **look)
            low = high
        place.plot(run.times, low, color="black", linewidth=1)
        place.axhline(budget / 1e6, color=RED, linestyle=(0, (5, 3)), linewidth=1.4)
        called = name.replace("\n", " ")
        over = next((t for t, size in zip(run.times, run.totals, strict=True) if size > budget), None)
        if over is None:
            said.append(f"{called}: peak {format_bytes(run.peak)}, fits")
            verdict, color = "fits", GREEN
        else:
            place.plot(over, budget / 1e6, "X", color=RED, markersize=11, markeredgecolor=PAPER, zorder=5)
            said.append(f"{called}: peak {format_bytes(run.peak)}, over after {over:.1f} s")
            verdict, color = f"over at {over:.1f} s", RED
        place.set_title(name, fontsize=10.5, pad=32, linespacing=1.2)
        place.text(0, 1.025, verdict, transform=place.transAxes, fontsize=9.5, color=color, fontweight="bold")
        place.text(0, 1.085, f"peak {format_bytes(run.peak)}", transform=place.transAxes, fontsize=9.5)
        place.set(xlabel="time (s)")
    top = max(run.peak for run in runs.values()) / 1e6
    axes[0, 0].set(ylim=(0, 1.06 * top), xlim=(0, longest), ylabel="memory (MB)")
    paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.0}
    axes[0, 0].text(
        0.04 * longest, budget / 1e6, format_bytes(budget), va="center", color=RED, fontsize=10, bbox=paper
    )
    handles = [Patch(facecolor=c, hatch=h, edgecolor=PAPER, label=label) for label, c, h in LAYERS.values()]
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
    fitting = sum(run.peak <= budget for run in runs.values())
    finding = f"A machine of {format_bytes(budget)} has room for {fitting} of these {len(runs)} ways"
    headline(figure, finding)
    return describe(figure, f"{finding}. Memory over time, {'; '.join(said)}.")
