"""Figures of notebook 05, 400 million rows: who holds which rows and pages, what a rank reads, memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from lib.data.permutation import Permutation
from lib.show import style
from lib.show.charts import beside
from lib.show.explore import choice, whole
from lib.show.sheet import Cell, arrow, box, cell_sheet, draw_cell, draw_cells, draw_legend, label_row, write
from lib.show.style import BLUE, GREY, INK, MUTED, ORANGE, RED, describe, new_figure, pale, styled, title
from lib.text import format_bytes, format_share, plural
from support.captions import Way
from support.n05.runs import MeasuredWay

# ---- Which process holds which rows.
HELD_ROWS = 24  # of the file in draw_holders
HOLDER_WAYS: dict[str, Way] = {
    "every rank all rows": "naive",
    "one server": "server",
    "every rank its own": "rank",
    "a file, read or mapped": "file",
}
HOLDERS_CONTROLS = {
    "way": choice(tuple(HOLDER_WAYS), "every rank all rows", "way"),
    "world_size": whole(1, 4, 2, "W · ranks"),
    "workers": whole(0, 2, 1, "workers per rank"),
}


@styled
def draw_holders(*, way: str, world_size: int, workers: int) -> Figure:
    """Draw the rows that each process holds once it has read; "every rank its own": in mini-epoch 0 of 2."""
    kind = HOLDER_WAYS[way]
    first = {"server": "server", "file": "page cache"}.get(kind, "")
    height = world_size * (1 + workers) + 1.35 * bool(first) + 0.35 * (world_size - 1) + 0.2
    figure, axes = cell_sheet(HELD_ROWS, height, labels=1.3)
    order = Permutation(HELD_ROWS)[range(HELD_ROWS)].tolist()
    everything = [*range(HELD_ROWS)]
    y = 0.0
    copies = 0
    private = 0
    if first:
        label_row(axes, y, first)
        for row in everything:  # the page cache is nobody's own: pale
            look = Cell(row, color=GREY, mark="plain" if kind == "server" else "faded")
            draw_cells(axes, [look], x=row, y=y, font=9.5)
        copies, private, y = (1, HELD_ROWS, 1.35) if kind == "server" else (0, 0, 1.35)
    for rank in range(world_size):
        share = order[rank::world_size][: HELD_ROWS // world_size // 2]
        own = share if kind == "rank" else everything
        for worker in range(-1, workers):
            name, color = (f"rank {rank}", INK) if worker < 0 else (f"worker {worker}", MUTED)
            label_row(axes, y, name, color=color)
            if first:
                does = "asks the server" if kind == "server" else "reads there"
                write(axes, -0.4, y, does, color=MUTED, ha="left")
            else:
                copied = worker < 0 or kind == "naive"  # the others share their rank's pages: pale
                for row in own:
                    draw_cells(axes, [Cell(row, rank, "plain" if copied else "faded")], x=row, y=y, font=9.5)
                copies = copies + copied
                private = private + copied * len(own)
            y += 1
        y += 0.35
    shared = "; its workers share them" if workers else ""
    finding = {
        "naive": f"{copies} process{'es hold' if copies > 1 else ' holds'} all {HELD_ROWS} rows: {private} in memory",
        "server": f"The server holds all {HELD_ROWS} rows once; nobody else holds any",
        "rank": f"Each rank holds {private // world_size} of {HELD_ROWS} rows at a time{shared}",
    }
    title(axes, finding.get(kind, "No process holds a row; all read the system's one copy of the file"))
    who = f"{plural(world_size, 'rank')}, {plural(workers, 'worker')} per rank, {way}"
    holders = plural(copies, "process", "processes")
    return describe(figure, f"{who}. {holders} with rows of their own, {private} rows in all.")


# ---- What reading costs a forked worker.
PAGED_ROWS = 24  # that parent and worker share in draw_pages_copied
PAGES_COPIED_CONTROLS = {
    "reads": whole(0, PAGED_ROWS, 3, "rows read"),
    "per_page": whole(2, 8, 4, "rows per page"),
}


@styled
def draw_pages_copied(*, reads: int, per_page: int) -> Figure:
    """Draw pages that a worker shares with its parent, and its copies of them: strings above, packed bytes below."""
    read = set(Permutation(PAGED_ROWS, seed=3)[range(PAGED_ROWS)].tolist()[:reads])
    pages = -(-PAGED_ROWS // per_page)
    gap = 0.35
    copied = sorted({row // per_page for row in read})
    figure, axes = cell_sheet(PAGED_ROWS + gap * (pages - 1) + 0.2, 8.1, labels=1.7)
    lines = (("list: parent", 0.3, BLUE), ("worker's own", 2.4, ORANGE), ("packed: parent", 4.4, BLUE))
    for name, y, color in (*lines, ("worker's own", 6.5, ORANGE)):
        label_row(axes, y, name)
        for page in range(pages):
            inside = range(page * per_page, min(PAGED_ROWS, (page + 1) * per_page))
            full = color == BLUE or (y < 4 and page in copied)
            look: Any = {"face": pale(color), "edge": color} if full else {"face": style.PAPER, "edge": GREY}
            left = page * (per_page + gap)
            line = "-" if full else (0, (2, 2))
            middle = left + (len(inside) - 1) / 2
            look |= {"line": 1.6, "radius": 0.12, "zorder": 1, "linestyle": line}
            box(axes, middle, y, len(inside) + 0.1, 1.24, **look)
            for place, row in enumerate(inside if full else ()):
                dark = row in read and (color == ORANGE or y > 4)
                cell = Cell(row, color=color, mark="plain" if dark else "faded")
                draw_cell(axes, left + place, y, cell, font=9.5)
            if full and color == ORANGE:
                arrow(axes, (middle, 1.0), (middle, 1.72), color=ORANGE, gap=2)
    share = format_share(len(copied) / pages)
    title(
        axes,
        f"{reads} of {PAGED_ROWS} rows read: of a list {len(copied)} of {pages} pages copied ({share}), "
        "of packed bytes none",
    )
    last = PAGED_ROWS - (pages - 1) * per_page
    short = f", only {last} in the last" if last < per_page else ""
    held = f"{PAGED_ROWS} rows in {pages} pages{short}"
    told = f"{held}. A forked worker has read {reads} of them in random order"
    result = f"of a list of strings it has copied {len(copied)} pages, of packed bytes none"
    return describe(figure, f"{told}: {result}.")


@styled
def draw_growth(grown: Mapping[str, Mapping[int, int]], expected: Sequence[float]) -> Figure:
    """Draw private bytes by rows read, for each way to hold them; expected: bytes predicted for the first of them."""
    figure, axes = new_figure(9, 3.6)
    reads = [*next(iter(grown.values()))]
    axes.plot(
        reads,
        [size / 1e6 for size in expected],
        "--",
        color=MUTED,
        label="predicted: pages touched, random order",
    )
    for (name, points), color, mark in zip(grown.items(), (ORANGE, BLUE, style.PINK), "os^", strict=False):
        sizes = [points[count] / 1e6 for count in reads]
        axes.plot(reads, sizes, mark, markersize=7, color=color, label=name)
        beside(axes, (reads[-1], sizes[-1]), f"{sizes[-1]:.0f} MB", color=INK)
    axes.set(xscale="log", xlim=(reads[0] * 0.8, reads[-1] * 2), ylim=(-2, None))
    axes.set(xlabel="rows read by the worker", ylabel="private to the worker (MB)")
    axes.set_xticks(reads, [f"1/{reads[-1] // count}" if count < reads[-1] else "all" for count in reads])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    ends = "; ".join(f"{name} {points[reads[-1]] / 1e6:.0f} MB" for name, points in grown.items())
    early = max(0, len(reads) - 3)
    part = f"1/{reads[-1] // reads[early]}" if reads[early] < reads[-1] else "all"
    then = "; ".join(f"{name} {points[reads[early]] / 1e6:.0f} MB" for name, points in grown.items())
    title(axes, f"{part} of the rows read: {then}")
    return describe(figure, f"Private memory of a forked worker after reading {reads[-1]:,} rows: {ends}.")


# ---- From the length of the file to the rows of one rank in one mini-epoch.
SIZE = 48
COLUMNS = 24
ROWS_A_PAGE = 4
FILE_MAP_CONTROLS = {
    "world_size": whole(1, 8, 2, "W · ranks"),
    "rank": whole(0, 7, 0, "rank"),
    "mini_epochs": whole(1, 6, 2, "E · mini-epochs"),  # 8 ranks have 6 turns: none is empty
    "mini_epoch": whole(0, 5, 0, "mini-epoch"),
    "epoch": whole(0, 9, 0, "epoch"),
}


@styled
def draw_file_map(*, world_size: int, rank: int, mini_epochs: int, mini_epoch: int, epoch: int) -> Figure:
    """Draw who gets which place of the order, and where these rows lie in the file."""
    asked = (("rank", rank, world_size), ("mini-epoch", mini_epoch, mini_epochs))
    lost = [f"There is no {what} {k}: {what} {count - 1} is drawn." for what, k, count in asked if k >= count]
    missing = " ".join(["", *lost])
    rank = min(rank, world_size - 1)
    part = min(mini_epoch, mini_epochs - 1)
    order = Permutation(SIZE, epoch=epoch)[range(SIZE)].tolist()
    turns = -(-SIZE // world_size)
    gap = 0.3
    begin = turns * part // mini_epochs
    end = turns * (part + 1) // mini_epochs
    dealt = range(world_size * begin, world_size * end)  # places; its head again beyond its end
    ids = [[order[place % SIZE] for place in dealt[r::world_size]] for r in range(world_size)]
    mine = ids[rank]
    width = COLUMNS + gap * (COLUMNS // ROWS_A_PAGE - 1)
    figure, axes = cell_sheet(width, 8.0 + 0.5 * bool(lost), labels=1.15)

    def cell(row: int) -> Cell:
        owner = rank if row in mine else next((r for r in range(world_size) if row in ids[r]), None)
        return Cell(row, owner, "plain" if owner in (rank, None) else "faded")

    for position, row in enumerate(order):  # above: the order
        draw_cell(axes, position % COLUMNS, 1.1 * (position // COLUMNS), cell(row), font=9.5)
    for page in range(SIZE // ROWS_A_PAGE):  # below: the file; under each page a bar, full if it must be read
        line, column = divmod(page, COLUMNS // ROWS_A_PAGE)
        left = column * (ROWS_A_PAGE + gap)
        y = 3.6 + 1.45 * line
        rows = range(page * ROWS_A_PAGE, (page + 1) * ROWS_A_PAGE)
        for place, row in enumerate(rows):
            draw_cell(axes, left + place, y, cell(row), font=9.5)
        at = (left - 0.44, y + 0.56)
        bar = Rectangle(at, ROWS_A_PAGE - 0.12, 0.14, facecolor=style.rank_color(rank), edgecolor=GREY)
        bar.set_fill(not set(mine).isdisjoint(rows))
        axes.add_patch(bar)
    label_row(axes, 0, f"order, epoch {epoch}")
    label_row(axes, 3.6, "the file")
    others = [(Cell("", (rank + 1) % world_size, "faded"), "another rank, in its colour")] * (world_size > 1)
    legend = [(Cell("", rank), f"rank {rank} holds it now"), *others, (Cell(""), "another mini-epoch")]
    draw_legend(axes, legend, x=0, y=6.8, step=8.2)
    write(axes, -0.5, 7.75, missing.strip(), color=RED, ha="left")
    pages = len({row // ROWS_A_PAGE for row in mine})
    finding = f"keeps {len(set(mine))} of {SIZE} rows and meets {pages} of {SIZE // ROWS_A_PAGE} pages"
    title(axes, f"Mini-epoch {part} of epoch {epoch}: rank {rank} {finding}")
    told = f"{SIZE} rows, {world_size} ranks, {mini_epochs} mini-epochs, epoch {epoch}. In mini-epoch {part}"
    holds = (
        f"rank {rank} holds {' '.join(map(str, mine))}; they lie on {pages} of {SIZE // ROWS_A_PAGE} pages"
    )
    return describe(figure, f"{told}, {holds}.{missing}")


# ---- Memory, predicted and measured.


@styled
def draw_ways(
    runs: Mapping[str, MeasuredWay], budget: float, without_rows: MeasuredWay | None = None
) -> Figure:
    """Draw the peak of each run, and a mark for what was predicted; budget: bytes of a small machine.

    without_rows: a run of the same processes that hold no rows, whose peak is taken off all others.
    """
    figure, axes = new_figure(9, 1.3 + 0.5 * len(runs))
    base = without_rows.peak if without_rows else 0
    shown = {name: run for name, run in runs.items() if run is not without_rows}
    runs = {name: replace(run, peak=max(0, run.peak - base)) for name, run in shown.items()}
    end = max(budget, *(size for run in runs.values() for size in (run.peak, run.predicted.total)))
    for y, run in enumerate(runs.values()):
        over = run.peak > budget
        color, hatch = (RED, style.HATCH["padding"]) if over else (BLUE, None)
        axes.barh(y, run.peak, height=0.5, color=pale(color), edgecolor=color, hatch=hatch)
        axes.plot(
            run.predicted.total,
            y,
            "D",
            color=ORANGE,
            markeredgecolor=INK,
            clip_on=False,
            label=None if y else "rows, predicted",
        )
        write(axes, 1.04 * end, y, format_bytes(run.peak), color=color, ha="left")  # in a column
    axes.axvline(budget, color=RED, linestyle=(0, (5, 3)), linewidth=1.4, zorder=0)
    small = f"the small machine: {format_bytes(budget)}"
    write(axes, budget + 0.01 * end, -0.75, small, color=RED, ha="left")
    axes.set(xlim=(0, 1.18 * end), ylim=(len(runs) - 0.4, -1.05))
    axes.set_yticks(range(len(runs)), [*runs], color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(lambda size, _: format_bytes(size))
    less = f", less {format_bytes(base)} that they take without rows" if base else ""
    axes.set_xlabel(f"the most bytes of all processes together (PSS){less}")
    free = "upper left" if budget > end / 2 else "upper right"  # beside the dashed line and its words
    axes.legend(loc=free, borderaxespad=0.2)
    fitting = sum(run.peak <= budget for run in runs.values())
    finding = f"A machine of {format_bytes(budget)} has room for {fitting} of these {len(runs)} runs"
    style.headline(figure, finding)
    sizes = {name: (format_bytes(run.peak), format_bytes(run.predicted.total)) for name, run in runs.items()}
    told = "; ".join(f"{name}: peak {peak}, predicted {rows}" for name, (peak, rows) in sizes.items())
    return describe(figure, f"{finding}. {told}.")
