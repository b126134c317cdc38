"""Figures of notebook 11, the order of backward: a pipeline's graph, what runs when, copies."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, Rectangle
from matplotlib.path import Path

from lib.pipeline.recording import Place
from lib.show.explore import choice, switch, whole
from lib.show.sheet import arrow, box
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    RED,
    describe,
    headline,
    ink_on,
    new_figure,
    pale,
    rank_color,
    styled,
    title,
)
from support.n11.runs import MODES, Node, alive, peaks, predict

# ---- The autograd graph of a pipeline, read from its real nodes: a row a micro-batch, a band a partition.
#
# All partitions have the same columns. One unit of the axes is an inch.

GRAPH_CONTROLS = {
    "micro_batches": whole(1, 4, 3, "m · micro-batches"),
    "partitions": whole(1, 2, 2, "n · partitions"),
    "mode": choice(MODES, "always", "checkpoint"),
    "dependencies": switch(True, "dependencies"),
}

NAMES = ("Copy", "Wait", "Checkpoint", "Recompute", "Fork", "Join")
COLUMNS = ("fed", "copy", "wait in", "work", "wait out", "branch", "merge", "fork", "join")
"""Of a partition, left to right. branch and merge are the Fork and Join of a Recompute, which hangs between them."""

WIDTH, ROW, TOP, LEFT, TALL, BELOW = 9.0, 1.26, 0.62, 0.36, 0.3, 0.46  # inches
Point = tuple[float, float]


class NodeBox(FancyBboxPatch):
    """A node on the canvas, which remembers its index and turn: what a test looks at."""

    index: int
    turn: int | None


@styled
def draw_pipeline(micro_batches: int, partitions: int, mode: str, dependencies: bool) -> Figure:
    """Draw the graph that a forward of m micro-batches through n partitions leaves; the turns are the rule's."""
    run = predict(micro_batches, partitions, mode, dependencies)
    ties = len(ties_of(run.nodes))
    said = {0: "Nothing ties one row to another", 1: "1 dependency ties the rows"}
    finding = said.get(ties, f"{ties} dependencies tie the rows, {micro_batches - 1} a partition")
    if mode == "never" and ties:
        finding = f"{finding.split(',')[0]}; the input needs no gradient, so partition 0 is not tied"
    return draw_graph(run.nodes, run.ran, finding)


@styled
def draw_graph(
    nodes: Sequence[Node], ran: Sequence[int] = (), finding: str = "", rows: Sequence[str] = ()
) -> Figure:
    """Draw the nodes of a pipeline, and those with a label of their own, each where its place says.

    ran: indices of nodes in the order of backward, for the numbers. rows: their names, else "micro-batch 0", …; with
    names there are no partitions. Raises ValueError if no node has a place.
    """
    layout = Layout(nodes)
    height = TOP + len(layout.rows) * ROW - 0.1
    top = 0.45 if rows else 0.0  # without partitions there are no headings
    figure, axes = new_figure(WIDTH, height - top + 0.5)
    axes.set(xlim=(0, WIDTH), ylim=(height, top), aspect="equal")
    axes.axis("off")
    _draw_bands(axes, layout, height, rows)
    shown = [k for k in ran if k in layout.at]
    for start, end in layout.edges:
        _draw_edge(axes, layout, start, end)
    for k in layout.at:
        _draw_node(axes, layout, k, shown.index(k) + 1 if k in shown else None)
    ties = ties_of(nodes)
    title(axes, finding or f"{len(layout.at)} nodes, {len(ties)} ties between rows")
    return describe(figure, f"{axes.get_title('left')}. {_words(nodes, layout, shown, ties)}")


class Layout:
    """Where each node that is shown goes: `at[k]` is its centre, `edges` skip the nodes that are not shown."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        shown = [k for k in range(len(nodes)) if nodes[k].place is not None and is_shown(nodes[k])]
        if not shown:
            raise ValueError("no node of this graph says where it belongs")
        self.rows = sorted({self.place(k).i for k in shown})
        self.partitions = sorted({self.place(k).j for k in shown})
        self.root = 0 if not is_shown(nodes[0]) else None
        self.column = {k: (self.place(k).j, self.column_of(k)) for k in shown if nodes[k].name != "Recompute"}
        self.keys = sorted(set(self.column.values()), key=lambda key: (key[0], COLUMNS.index(key[1])))
        self._spread()
        self.at = {k: self._center(k) for k in shown}
        last = max((x for x, _ in self.at.values()), default=0)
        if self.root is not None:
            self.at[self.root] = (max(WIDTH - 0.25, last + 0.4), TOP + 0.3 + (len(self.rows) - 1) * ROW / 2)
        self.edges = [(k, end) for k in self.at for end in dict.fromkeys(self._ends(k))]

    def place(self, k: int) -> Place:
        """Return the place of a node that has one."""
        place = self.nodes[k].place
        assert place is not None
        return place

    def column_of(self, k: int) -> str:
        """Return the column of a node within its partition."""
        node, targets = self.nodes[k], list(self._ends(k))
        names = [self.nodes[target].name for target in targets]
        if node.name == "Copy":
            return "copy"
        if node.name == "Wait":
            return "wait in" if "Copy" in names else "wait out"
        if node.name == "Fork":
            users = [other.name for other in self.nodes if k in other.next]
            return "branch" if "Recompute" in users else "fork"
        if node.name == "Join":
            return "merge" if "Recompute" in names else "fed" if node.next[0] is None else "join"
        return "work"

    def _ends(self, k: int) -> Iterator[int]:
        """Yield the shown nodes that an edge from this one leads to, through those that are not shown."""
        for target in self.nodes[k].next:
            if target is not None and is_shown(self.nodes[target]):
                yield target
            elif target is not None:
                yield from self._ends(target)

    def _spread(self) -> None:
        widths = dict.fromkeys(self.keys, 0.0)
        for k, key in self.column.items():
            widths[key] = max(widths[key], width_of(self.nodes[k].name))
        right = 0.55 if self.root is not None else 0.1
        gap = min(0.8, (WIDTH - LEFT - right - sum(widths.values())) / (len(widths) + 1))
        x, self.x = LEFT + gap, {}
        for key, width in widths.items():
            self.x[key] = x + width / 2
            x += width + gap

    def _center(self, k: int) -> Point:
        y = TOP + 0.3 + self.rows.index(self.place(k).i) * ROW
        if k in self.column:
            return self.x[self.column[k]], y
        j = self.place(k).j
        left, right = self.x[j, "branch"], self.x[j, "merge"]
        return max((left + right) / 2, right + 0.1 - width_of("Recompute") / 2), y + BELOW


def is_shown(node: Node) -> bool:
    """Say whether a node is drawn: it has a label, or is one that a pipeline makes."""
    return node.name in NAMES or hasattr(node.function, "label")


def ties_of(nodes: Sequence[Node]) -> list[tuple[int, int]]:
    """Return the edges between rows, (from, to) as backward runs; without those that only collect the rows."""
    layout = Layout(nodes)
    edges = [edge for edge in layout.edges if layout.root not in edge]
    return [(a, b) for a, b in edges if layout.place(a).i != layout.place(b).i]


def width_of(name: str) -> float:
    """Return how many inches a node of this name takes, at 9 points."""
    return 0.12 + 0.073 * len(name)


def _draw_bands(axes: Axes, layout: Layout, height: float, rows: Sequence[str]) -> None:
    for number, i in enumerate(layout.rows):
        name = rows[i] if rows else f"micro-batch {i}"
        y = TOP + 0.3 + number * ROW
        axes.text(0.12, y + 0.1, name, rotation=90, ha="center", va="center", fontsize=10, color=MUTED)
    for j in () if rows else layout.partitions:
        xs = [(layout.x[key], key) for key in layout.keys if key[0] == j]
        names = {
            key: max(width_of(layout.nodes[k].name) for k, c in layout.column.items() if c == key)
            for _, key in xs
        }
        inside = [(x, key) for x, key in xs if key[1] != "join"]
        left = inside[0][0] - names[inside[0][1]] / 2 - 0.07
        right = inside[-1][0] + names[inside[-1][1]] / 2 + 0.07
        color = rank_color(j)
        axes.add_patch(
            Rectangle((left, 0.1), right - left, height - 0.12, facecolor=pale(color, 0.07), zorder=0)
        )
        axes.text(left + 0.08, 0.26, f"partition {j}", color=INK, weight="bold", fontsize=10, va="center")
        axes.plot([left, right], [0.1, 0.1], color=color, linewidth=3, solid_capstyle="butt")


def _draw_node(axes: Axes, layout: Layout, k: int, turn: int | None) -> None:
    (x, y), node = layout.at[k], layout.nodes[k]
    wide, tall = width_of(node.name), TALL
    face, edge = pale(MUTED, 0.12), MUTED
    if k == layout.root:
        wide, tall = TALL, max(0.5, (len(layout.rows) - 1) * ROW + TALL)
    elif node.name == "Recompute":
        face, edge = pale(PINK, 0.4), PINK
    elif layout.column.get(k, ("", ""))[1] in ("fed", "join", "fork"):
        face, edge = PAPER, RED
    elif layout.column[k][1] == "work":
        face, edge = pale(rank_color(node.place.j if node.place else 0), 0.3), rank_color(layout.place(k).j)
    box = NodeBox(
        (x - wide / 2, y - tall / 2),
        wide,
        tall,
        boxstyle="round,pad=0,rounding_size=0.07",
        facecolor=face,
        edgecolor=edge,
        linewidth=1.5,
        zorder=3,
    )
    box.index, box.turn = k, turn
    axes.add_patch(box)
    rotation = 90 if k == layout.root else 0
    axes.text(x, y, node.name, ha="center", va="center", fontsize=9, rotation=rotation, zorder=4)
    if turn is not None:
        corner = (x if k == layout.root else x + wide / 2 - 0.09, y - tall / 2 - 0.1)
        if node.name == "Recompute":
            corner = (x + wide / 2 + 0.13, y + 0.02)
        axes.text(*corner, str(turn), ha="center", va="center", fontsize=9, weight="bold", zorder=5)


def _draw_edge(axes: Axes, layout: Layout, start: int, end: int) -> None:
    (x0, y0), (x1, y1) = layout.at[start], layout.at[end]
    names = layout.nodes[start].name, layout.nodes[end].name
    look: dict[str, Any] = {"color": MUTED, "linewidth": 1.2}
    half = width_of(names[0]) / 2, width_of(names[1]) / 2
    if start == layout.root:
        points = [(x0 - TALL / 2, y1), (x1 + half[1], y1)]
    elif layout.place(start).i != layout.place(end).i:
        look = {"color": RED, "linewidth": 1.6, "linestyle": (0, (4, 2))}
        up = y0 - TALL / 2 - 0.25
        points = [(x0, y0 - TALL / 2), (x0, up), (x1, up), (x1, y1 + TALL / 2)]
    elif names[1] == "Recompute":
        points = [(x0, y0 + TALL / 2), (x0, y1 - TALL / 2)]
    # Recompute hangs below the row: straight up where the Fork is above it, else around the corner
    elif names[0] == "Recompute" and names[1] == "Fork" and abs(x0 - x1) < half[0]:
        points = [(x1, y0 - TALL / 2), (x1, y1 + TALL / 2)]
    elif names[0] == "Recompute":
        points = [(x0 - half[0], y0), (x1, y0), (x1, y1 + TALL / 2)]
        look = {"color": PINK, "linewidth": 1.2}
    else:
        points = [(x0 - half[0], y0), (x1 + half[1], y1)]
    arrow = FancyArrowPatch(
        path=Path(points), arrowstyle="-|>", mutation_scale=9, zorder=2, joinstyle="round", **look
    )
    arrow.set_facecolor("none" if len(points) > 2 else look["color"])
    axes.add_patch(arrow)


def _words(
    nodes: Sequence[Node], layout: Layout, shown: Sequence[int], ties: Sequence[tuple[int, int]]
) -> str:
    counts = Counter(nodes[k].name for k in layout.at)
    parts = ["Nodes: " + ", ".join(f"{count} {name}" for name, count in counts.items())]

    def name(k: int) -> str:
        return f"{nodes[k].name} {layout.place(k).i}{layout.place(k).j}"

    if ties:
        parts.append("Ties between rows: " + ", ".join(f"{name(a)} to {name(b)}" for a, b in ties))
    if shown:
        work = [k for k in shown if k not in layout.column or layout.column[k][1] == "work"]
        parts.append("In their turn: " + ", ".join(name(k) for k in work if k != layout.root))
    return ". ".join(parts) + "."


# ---- The order of backward, and what it holds: lanes by step, strips of operations, staircases.

BACKWARD_CONTROLS = {
    "micro_batches": whole(1, 6, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 2, "n · partitions"),
    "mode": choice(MODES, "always", "checkpoint"),
    "dependencies": switch(True, "dependencies"),
}
HUE = {"R": PINK, "B": GREEN}
CELL = 0.24  # inches


class OpCell(Rectangle):
    """An operation on the canvas, which remembers its name: what a test looks at."""

    op: str


@styled
def draw_backward(micro_batches: int, partitions: int, mode: str, dependencies: bool) -> Figure:
    """Draw backward of m micro-batches through n partitions, as the engine's rule predicts it, and what is alive."""
    m, n = micro_batches, partitions
    ops = predict(m, n, mode, dependencies).ops
    rows = m * n
    tall = rows * CELL + n * 0.1
    figure, (lanes, stairs) = new_figure(
        9, tall + 2.7, rows=2, sharex=True, gridspec_kw={"height_ratios": [tall, 1.25]}
    )
    _draw_lanes(lanes, ops, m, n)
    held = _by_partition(ops, m, n)
    _draw_stack(stairs, held)
    stairs.set_xlabel("step of backward (one thread: one operation a step)")
    with matplotlib.rc_context({"axes.titlepad": 30}):  # the legend stands between title and lanes
        title(lanes, _finding(ops, m, n, mode, dependencies))
    total = [int(x) for x in held.sum(axis=0)]
    words = f"Order: {' '.join(ops)}. Insides alive in each step: {', '.join(map(str, total))}."
    return describe(figure, f"{lanes.get_title('left')}. {words}".replace("\n", " "))


def _finding(ops: Sequence[str], m: int, n: int, mode: str, dependencies: bool) -> str:
    most = max(peaks(ops, m, n))
    if mode == "never":
        return f"Nothing is recomputed: all {m * n} insides are alive from the start, whatever the order"
    how = "With" if dependencies else "Without"
    other = max(peaks(predict(m, n, mode, not dependencies).ops, m, n))
    return f"{how} dependencies at most {most} alive in a partition; {'without' if dependencies else 'with'}: {other}"


def _draw_lanes(axes: Axes, ops: Sequence[str], m: int, n: int) -> None:
    found = alive(ops, m, n)
    pad = 0.1 / CELL
    axes.set(xlim=(0.4, len(ops) + 0.6), ylim=(m * n + n * pad, -0.2))
    axes.spines[:].set_visible(False)
    ticks: list[float] = []
    for j in range(n):
        top = j * (m + pad)
        axes.add_patch(
            Rectangle((0.45, top), len(ops) + 0.1, m, facecolor=pale(rank_color(j), 0.08), zorder=0)
        )
        axes.text(
            len(ops) + 0.75,
            top + m / 2,
            f"partition {j}",
            rotation=90 if m > 2 else 0,
            va="center",
            fontsize=10,
            color=INK,
            weight="bold",
        )
        for i in range(m):
            y, pair = top + i, f"{i}{j}"
            ticks.append(y + 0.5)
            # a bar behind the cells: the steps in which the inside of this micro-batch is alive
            steps = [k for k, now in enumerate(found) if pair in now]
            wide = steps[-1] - steps[0] + 1
            axes.add_patch(
                Rectangle(
                    (steps[0] + 0.5, y + 0.2), wide, 0.6, facecolor=pale(rank_color(j), 0.55), linewidth=0
                )
            )
    for k, op in enumerate(ops, start=1):
        i, j = int(op[1]), int(op[2])
        _cell(axes, op, (k - 0.5, j * (m + pad) + i + 0.04), (1, 0.92), HUE[op[0]], op[0])
    axes.set_yticks(ticks, [f"{i}" for _ in range(n) for i in range(m)])
    axes.set_ylabel("micro-batch")
    axes.tick_params(length=0, labelbottom=False)
    names = {"R": "recompute (R)", "B": "backward (B)"}
    patches = [Patch(facecolor=HUE[letter], label=text) for letter, text in names.items()]
    patches.append(Patch(facecolor=pale(rank_color(0), 0.55), label="inside alive"))
    axes.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, handlelength=1, borderaxespad=0.1
    )


def _cell(
    axes: Axes, op: str, at: tuple[float, float], size: tuple[float, float], face: str, text: str
) -> OpCell:
    cell = OpCell(at, *size, facecolor=face, edgecolor=PAPER, linewidth=1, zorder=3)
    cell.op = op
    axes.add_patch(cell)
    middle = (at[0] + size[0] / 2, at[1] + size[1] / 2)
    axes.text(
        *middle,
        text,
        ha="center",
        va="center_baseline",
        fontsize=9,
        color=ink_on(face),
        zorder=6,
        weight="bold",
    )
    return cell


def _by_partition(ops: Sequence[str], m: int, n: int) -> Any:
    """Return how many insides each partition holds in each step: an array (n, steps)."""
    return np.array([[sum(pair[1] == str(j) for pair in now) for now in alive(ops, m, n)] for j in range(n)])


def _draw_stack(axes: Axes, held: Any) -> None:
    base = np.zeros(held.shape[1])
    for j, counts in enumerate(held):
        axes.bar(
            np.arange(1, len(counts) + 1), counts, 1.0, base, color=pale(rank_color(j), 0.55), linewidth=0
        )
        base = base + counts
    axes.step(np.arange(len(base) + 2) - 0.5, [0, *base, 0], where="post", color=INK, linewidth=1.4)
    axes.set_ylim(0, base.max() + 0.6)
    axes.set_yticks(range(0, int(base.max()) + 1, 1 + int(base.max()) // 5))
    axes.set_ylabel("insides alive")
    axes.set_xticks(np.arange(1, len(base) + 1, 1 + len(base) // 25))


@styled
def draw_orders(orders: Mapping[str, Sequence[str]], finding: str = "") -> Figure:
    """Draw each order as a strip of cells; a triangle marks where one first leaves the order in the first row.

    A cell has its partition's colour, full for B and pale for R. Raises ValueError for no order.
    """
    if not orders:
        raise ValueError("draw_orders needs at least one order")
    first = next(iter(orders.values()))
    m, n = 1 + max(int(op[1]) for op in first), 1 + max(int(op[2]) for op in first)
    longest = max(map(len, orders.values()))
    figure, axes = new_figure(9, 1.0 + 0.56 * len(orders))
    left = 0.088 * max(map(len, orders)) + 0.15
    side = (9 - left - 1.15) / longest
    axes.set(xlim=(0, 9), ylim=(0.56 * len(orders) + 0.3, 0.0))
    axes.axis("off")
    axes.text(9 - 1.05, 0.1, "most alive in\na partition", fontsize=9, color=MUTED, va="center")
    for row, (name, ops) in enumerate(orders.items()):
        y = 0.34 + 0.56 * row
        axes.text(0.02, y + 0.16, name, va="center", fontsize=10.5)
        off = next((k for k, (a, b) in enumerate(zip(ops, first, strict=False)) if a != b), None)
        for k, op in enumerate(ops):
            hue = rank_color(int(op[2]))
            cell = _cell(
                axes, op, (left + k * side, y), (side, 0.32), hue if op[0] == "B" else pale(hue, 0.35), op
            )
            if off is not None and k == off:
                cell.set(edgecolor=RED, linewidth=2.2, zorder=5)
                axes.plot(left + (k + 0.5) * side, y - 0.07, marker="v", color=RED, markersize=6)
        axes.text(9 - 0.7, y + 0.16, str(max(peaks(ops, m, n))), va="center", weight="bold", fontsize=12)
    title(axes, finding or f"{len(orders)} orders of backward")
    said = "; ".join(
        f"{name}: {' '.join(ops)}, at most {max(peaks(ops, m, n))} alive in a partition"
        for name, ops in orders.items()
    )
    return describe(figure, f"{axes.get_title('left')}. {said}.".replace("\n", " "))


@styled
def draw_staircases(
    runs: Mapping[str, Sequence[int]], predicted: Mapping[str, Sequence[int]], finding: str = ""
) -> Figure:
    """Draw tensors held in each step, a panel a run: counted (filled) and predicted (outlined)."""
    figure, axes = new_figure(9, 3.1, cols=len(runs), sharey=True, squeeze=False)
    said = []
    for panel, (name, counts) in zip(axes[0], runs.items(), strict=True):
        steps = np.arange(1, len(counts) + 1)
        panel.bar(steps, counts, 1.0, color=PINK, linewidth=0, label="counted")
        outline = [0, *predicted[name], 0]
        panel.step(
            np.arange(len(outline)) - 0.5, outline, where="post", color=INK, linewidth=1.6, label="predicted"
        )
        top = int(np.argmax(counts))
        panel.annotate(
            f"{max(counts)}",
            (top + 1, max(counts)),
            (0, 4),
            textcoords="offset points",
            weight="bold",
            ha="center",
        )
        panel.set_xlabel(f"step of backward, {name}")
        equal = "as predicted" if list(predicted[name]) == list(counts) else "not as predicted"
        said.append(f"{name}: at most {max(counts)} tensors, {equal}")
    axes[0][0].set_ylabel("tensors of recomputed insides")
    axes[0][0].legend(loc="upper left")
    axes[0][0].set_ylim(0, 1.22 * max(max(counts) for counts in runs.values()))
    headline(figure, finding)
    return describe(figure, f"{finding}. {'; '.join(said)}.")


# ---- One micro-batch in one partition, between two streams: what fence and compute put there.
#
#     copy stream      ── Copy ──┐                          ┌── Copy ──
#     compute stream             └ Wait ─ Checkpoint ─ Wait ┘
#                                  [1]       [2]       [3]  Recompute [4]

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Stop:
    """A node on the way: the line of lib/pipeline/pipeline.py that makes it, and what it does either way."""

    name: str
    tag: str
    x: float
    code: str
    forward: str
    backward: str


STOPS = (
    Stop(
        "Copy",
        "",
        1.45,
        "copy(batch, copy_streams[j - 1][i], next_stream)",
        "brings the output of partition j - 1 here, on the copy streams",
        "brings the gradient to partition j - 1, on the copy streams",
    ),
    Stop(
        "Wait",
        "[1]",
        2.75,
        "wait(batch, copy_streams[j][i], streams[j])",
        "the compute stream waits for the copied input",
        "the copy stream waits for the gradient that was computed",
    ),
    Stop(
        "Checkpoint",
        "[2]",
        4.3,
        "Task(streams[j], compute=compute, finalize=finalize)",
        "the worker computes the layers, without their inside",
        "goes back through the recomputed inside, with the gradient",
    ),
    Stop(
        "Wait",
        "[3]",
        5.85,
        "wait(batch, streams[j], copy_streams[j][i])",
        "the copy stream waits for the output",
        "the compute stream waits for the gradient that is copied",
    ),
    Stop(
        "Recompute",
        "[4]",
        6.9,
        "task.finalize(batch)",
        "is tied in beside, and does nothing yet",
        "computes the inside, while the gradient is still being copied",
    ),
    Stop(
        "Copy",
        "",
        8.2,
        "copy(batch, copy_streams[j][i], copy_streams[j + 1][i])",
        "brings the output to partition j + 1, on the copy streams",
        "brings the gradient from partition j + 1, on the copy streams",
    ),
)
"""In the order of forward. `code` is shortened: `self.` and the Python names of the neighbours are left out."""

BACKWARD = (5, 4, 3, 2, 1, 0)
WAYS = {"forward": ((0, 1, 2, 3, 5), ((3, 4),)), "backward": ((5, 3, 2, 1, 0), ((5, 4), (4, 2)))}
"""Which stops an arrow connects: on the main way, and to and from Recompute."""

FENCE_CONTROLS = {
    "direction": choice(DIRECTIONS, "forward", "direction"),
    "step": whole(1, len(STOPS), 3, "step"),
}
COPY_LANE, COMPUTE_LANE = 1.55, 2.65  # inches from the top


@styled
def draw_fence(direction: str, step: int) -> Figure:
    """Draw the way of a micro-batch through partition j, at one of its six steps. Raises ValueError for a direction."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, not {direction!r}")
    now = order_of(direction)[step - 1]
    stop = STOPS[now]
    figure, axes = new_figure(9, 4.1)
    axes.set(xlim=(0, 9), ylim=(3.85, 0.4), aspect="equal")
    axes.axis("off")
    _draw_streams(axes)
    nodes = [_node(axes, k, k == now) for k in range(len(STOPS))]
    way, beside = WAYS[direction]
    for start, end in itertools.pairwise(way):
        arrow(axes, _center(start), _center(end), gap=2, patchA=nodes[start], patchB=nodes[end], zorder=2)
    for start, end in beside:
        look: Any = {"patchA": nodes[start], "patchB": nodes[end], "zorder": 2}
        arrow(axes, _center(start), _center(end), color=PINK, gap=2, **look)
    says = getattr(stop, direction)
    title(
        axes,
        f"{direction.capitalize()}, step {step} of {len(STOPS)}, {f'{stop.name} {stop.tag}'.strip()}: {says}",
    )
    axes.text(0.1, 3.72, stop.code, family="DejaVu Sans Mono", fontsize=11, va="center")
    words = "; ".join(f"{STOPS[k].name} {STOPS[k].tag}".strip() for k in order_of(direction))
    return describe(
        figure, f"{axes.get_title('left')}. Code: {stop.code}. Order {direction}: {words}.".replace("\n", " ")
    )


def order_of(direction: str) -> tuple[int, ...]:
    """Return the indices of the stops in the order in which they come."""
    return tuple(range(len(STOPS))) if direction == "forward" else BACKWARD


def _center(k: int) -> tuple[float, float]:
    stop = STOPS[k]
    if stop.name == "Wait":
        return stop.x, (COPY_LANE + COMPUTE_LANE) / 2
    return stop.x, {"Copy": COPY_LANE, "Checkpoint": COMPUTE_LANE, "Recompute": COMPUTE_LANE}[stop.name]


def _draw_streams(axes: Axes) -> None:
    for y, name, color in ((COPY_LANE, "copy\nstream", ORANGE), (COMPUTE_LANE, "compute\nstream", BLUE)):
        axes.add_patch(Rectangle((0.85, y - 0.36), 8.1, 0.72, facecolor=pale(color, 0.1), zorder=0))
        axes.text(0.05, y, name, va="center", fontsize=10.5, color=MUTED)
    for left, right, name in ((0.9, 2.0, "fence"), (2.2, 7.45, "compute"), (7.65, 8.8, "next fence")):
        axes.plot([left, left, right, right], [0.86, 0.76, 0.76, 0.86], color=INK, linewidth=1.2)
        axes.text((left + right) / 2, 0.58, name, ha="center", va="center", weight="bold")


def _node(axes: Axes, k: int, now: bool) -> FancyBboxPatch:
    (x, y), stop = _center(k), STOPS[k]
    hue = {"Copy": ORANGE, "Checkpoint": BLUE, "Recompute": PINK}.get(stop.name, GREY)
    look: Any = {
        "face": pale(hue, 0.55 if now else 0.25),
        "edge": INK if now else hue,
        "line": 2.6 if now else 1.5,
    }
    weight = {"weight": "bold" if now else "normal"}
    node = box(axes, x, y, 0.2 + 0.095 * len(stop.name), 0.42, stop.name, size=11, ink=INK, zorder=3, writing=weight,
               **look)  # fmt: skip
    if stop.tag:
        place = (x, y + 0.52 if stop.name in ("Checkpoint", "Recompute") else y - 0.34)
        axes.text(*place, stop.tag, ha="center", va="center", fontsize=10.5, color=MUTED, zorder=4)
    return node
