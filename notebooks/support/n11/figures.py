"""Figures of notebook 11, the order of backward: the graph of a pipeline, orders, and what is alive."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Patch, Rectangle
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lib.show import style
from lib.show.explore import choice, whole
from lib.show.sheet import EDGE, WIDTH, box, inch_sheet, write
from lib.show.style import GREEN, INK, MUTED, PAPER, PINK, RED, pale, rank_color
from support.n11.runs import OLDER, Node, alive, order_of, peaks, walk

# ---- The autograd graph of a pipeline: a row a micro-batch, a band a partition; all partitions have the same columns.

NAMES = ("Copy", "Wait", "Checkpoint", "Recompute", "Fork", "Join", "Add")
COLUMNS = ("fed", "copy", "wait in", "work", "wait out", "branch", "merge", "fork", "join", "sum")
"""Of a partition, left to right. branch and merge are the Fork and Join of a Recompute, which hangs below them."""

# Inches.
ROW = 1.2
TOP = 0.85
TALL = 0.3
BELOW = 0.46
_Point = tuple[float, float]


@style.styled
def draw_graph(output: Tensor, finding: str, rows: Sequence[str] = ()) -> Figure:
    """Draw the nodes behind `output` and their turns in backward, as the engine's rule says them.

    rows: their names, else "micro-batch 0", …; with names there are no partitions. Raises ValueError for a graph in
    which no node is one that a pipeline makes, or has a label.
    """
    graph = Graph(walk(output))
    top = TOP if not rows else 0.35
    figure, axes = inch_sheet(top + len(graph.rows) * ROW - (0.1 if graph.hangs else 0.5))
    bottom = axes.get_ylim()[0]
    at = {k: (x, top + y) for k, (x, y) in graph.at.items()}
    for number, i in enumerate(graph.rows):
        name = rows[i] if rows else f"micro-batch {i}"
        write(axes, 0.17, top + number * ROW + 0.1 * graph.hangs, name, rotation=90, color=MUTED)
    for j in () if rows else graph.partitions:
        left, right = graph.band(j)
        face = pale(rank_color(j), 0.07)
        axes.add_patch(Rectangle((left, 0.2), right - left, bottom - 0.2, facecolor=face, zorder=0))
        axes.plot([left, right], [0.2, 0.2], color=rank_color(j), linewidth=3, solid_capstyle="butt")
        write(axes, left + 0.08, 0.37, f"partition {j}", ha="left", weight="bold")
    for start, end in graph.edges:
        _draw_edge(axes, graph, at, start, end)
    for turn, k in enumerate(graph.shown, start=1):
        _draw_node(axes, graph, k, at[k], turn)
    style.title(axes, finding)
    ties = ", ".join(f"{graph.name(a)} to {graph.name(b)}" for a, b in graph.ties) or "none"
    order = ", ".join(map(graph.name, graph.shown))
    return style.describe(figure, f"{finding}. Ties between rows: {ties}. In backward: {order}.")


class Graph:
    """Which nodes are shown, in their turn, and where: `at[k]` is a centre; `edges` skip the nodes not shown."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = nodes
        drawn = (node.name in NAMES or hasattr(node.function, "label") for node in nodes)
        self.shown = [k for k, is_drawn in enumerate(drawn) if is_drawn]
        if not self.shown:
            raise ValueError("no node of this graph is one that a pipeline makes, or has a label")
        self.rows = sorted({nodes[k].place.i for k in self.shown})
        self.partitions = sorted({nodes[k].place.j for k in self.shown})
        self.hangs = any(nodes[k].name == "Recompute" for k in self.shown)
        self.column = {k: (nodes[k].place.j, COLUMNS.index(self._column(k))) for k in self.shown}
        self._spread()
        self.at = {k: self._center(k) for k in self.shown}
        self.edges = [(k, end) for k in self.shown for end in dict.fromkeys(self._ends(k))]
        self.ties = [(a, b) for a, b in self.edges if nodes[a].place.i != nodes[b].place.i]
        self.ties = [(a, b) for a, b in self.ties if nodes[a].name == "Join"]

    def name(self, k: int) -> str:
        """Return a node's name with its place, or its label."""
        node = self.nodes[k]
        own = node.name[-1:].isdigit() or node.name == "Add"
        return node.name if own else f"{node.name} {node.place.i}{node.place.j}"

    def band(self, j: int) -> _Point:
        """Return where the band of a partition begins and ends; the Join of a tie stands before it."""
        own = [k for k, key in self.column.items() if key[0] == j and COLUMNS[key[1]] != "join"]
        ends = [(self.at[k][0], width_of(self.nodes[k].name) / 2 + 0.07) for k in own]
        left = min(x - half for x, half in ends)
        return left, max(left + 1.0, *(x + half for x, half in ends))  # at least as wide as its name

    def _column(self, k: int) -> str:
        node = self.nodes[k]
        names = [self.nodes[target].name for target in self._ends(k)]
        if node.name == "Wait":
            return "wait in" if "Copy" in names or not names else "wait out"
        if node.name == "Fork":
            return "branch" if any(x.name == "Recompute" and k in x.next for x in self.nodes) else "fork"
        if node.name == "Join":
            if "Recompute" in names:
                return "merge"
            return "fed" if node.next[0] is None else "join"
        return {"Copy": "copy", "Recompute": "merge", "Add": "sum"}.get(node.name, "work")

    def _ends(self, k: int) -> Iterator[int]:
        """Yield the shown nodes that an edge from this one leads to, through those that are not shown."""
        for target in self.nodes[k].next:
            if target in self.shown:
                yield target
            elif target is not None:
                yield from self._ends(target)

    def _spread(self) -> None:
        widths = dict[tuple[int, int], float]()
        for k in sorted((k for k in self.shown if not self._hung(k)), key=self.column.__getitem__):
            widths[self.column[k]] = max(widths.get(self.column[k], 0.0), width_of(self.nodes[k].name))
        gap = min(1.3, (WIDTH - 0.45 - sum(widths.values())) / (len(widths) + 1))
        right = 0.4 + gap
        self.x = dict[tuple[int, int], float]()
        for key, width in widths.items():
            self.x[key] = right + width / 2
            right += width + gap

    def _hung(self, k: int) -> bool:
        return self.nodes[k].name == "Recompute"

    def _center(self, k: int) -> _Point:
        x = self.x[self.column[k]]
        y = self.rows.index(self.nodes[k].place.i) * ROW
        return (x + 0.1 - width_of("Recompute") / 2, y + BELOW) if self._hung(k) else (x, y)


def width_of(name: str) -> float:
    """Return how many inches a node of this name takes, at 9 points."""
    return 0.12 + 0.073 * len(name)


def _draw_node(axes: Axes, graph: Graph, k: int, at: _Point, turn: int) -> None:
    (x, y) = at
    node = graph.nodes[k]
    role = COLUMNS[graph.column[k][1]]
    hue = MUTED if node.name[-1].isdigit() else rank_color(node.place.j)
    look = {"work": (pale(hue, 0.3), hue), "fed": (PAPER, RED), "fork": (PAPER, RED), "join": (PAPER, RED)}
    face, edge = (pale(PINK, 0.4), PINK) if graph._hung(k) else look.get(role, (pale(MUTED, 0.12), MUTED))
    wide = width_of(node.name)
    box(axes, x, y, wide, TALL, node.name, face=face, edge=edge, size=9, ink=INK, zorder=3)
    corner = (x + wide / 2 + 0.13, y) if graph._hung(k) else (x + wide / 2 - 0.09, y - TALL / 2 - 0.1)
    write(axes, *corner, str(turn), size=9, weight="bold", zorder=5)


def _draw_edge(axes: Axes, graph: Graph, at: Mapping[int, _Point], start: int, end: int) -> None:
    (x0, y0) = at[start]
    (x1, y1) = at[end]
    halves = [width_of(graph.nodes[k].name) / 2 for k in (start, end)]
    look: dict[str, Any] = {"color": MUTED, "linewidth": 1.2}
    points = [(x0 - halves[0], y0), (x1 + halves[1], y1)]
    if (start, end) in graph.ties:
        look = {"color": RED, "linewidth": 1.6, "linestyle": (0, (4, 2))}
        up = y0 - TALL / 2 - 0.25
        points = [(x0, y0 - TALL / 2), (x0, up), (x1, up), (x1, y1 + TALL / 2)]
    elif y0 != y1 and graph.nodes[start].name == "Add":
        points = [(x0, y0 + TALL / 2), (x0, y1), points[1]]
    elif graph._hung(end):
        points = [(x0, y0 + TALL / 2), (x0, y1 - TALL / 2)]
    elif graph._hung(start):  # straight up where the node is above it, else around the corner
        points = [(x1, y0 - TALL / 2), (x1, y1 + TALL / 2)]
        if abs(x0 - x1) >= halves[0]:
            points = [(x0 - halves[0], y0), (x1, y0), (x1, y1 + TALL / 2)]
    look |= {"arrowstyle": "-|>", "mutation_scale": 9, "zorder": 2, "joinstyle": "round"}
    patch = FancyArrowPatch(path=Path(points), **look)
    patch.set_facecolor("none" if len(points) > 2 else look["color"])
    axes.add_patch(patch)


# ---- Orders as strips of operations, and as lanes by step with what is alive.

BACKWARD_CONTROLS = {
    "micro_batches": whole(1, 6, 4, "m · micro-batches"),
    "partitions": whole(1, 4, 2, "n · partitions"),
    "worker": choice(("new", "older"), "new", "the worker is"),
}
HUE = {"R": PINK, "B": GREEN}


@style.styled
def draw_orders(orders: Mapping[str, Sequence[str]], finding: str) -> Figure:
    """Draw each order as a strip of cells; a triangle marks where one first leaves the order in the first row.

    A cell has its partition's colour, full for B and pale for R. Raises ValueError for no order.
    """
    if not orders:
        raise ValueError("draw_orders needs at least one order")
    first = next(iter(orders.values()))
    figure, axes = inch_sheet(0.3 + 0.56 * len(orders))
    left = EDGE + 0.088 * max(map(len, orders)) + 0.15
    side = (WIDTH - left - 1.15) / max(map(len, orders.values()))
    write(axes, WIDTH - 0.7, 0.14, "most alive in\na partition", size=9, color=MUTED)
    for row, (name, ops) in enumerate(orders.items()):
        y = 0.52 + 0.56 * row
        write(axes, EDGE, y, name, size=10.5, ha="left")
        leaves = [k for k, (a, b) in enumerate(zip(ops, first, strict=False)) if a != b][:1]
        for k, op in enumerate(ops):
            hue = rank_color(int(op[2]))
            face = hue if op[0] == "B" else pale(hue, 0.35)
            look: Any = {"edge": RED, "line": 2.2, "zorder": 5} if k in leaves else {"edge": PAPER, "line": 1}
            look |= {"face": face, "ink": style.ink_on(face), "radius": 0, "size": 9}
            box(axes, left + (k + 0.5) * side, y, side, 0.32, op, **look)
        for k in leaves:
            axes.plot(left + (k + 0.5) * side, y - 0.23, marker="v", color=RED, markersize=6)
        write(axes, WIDTH - 0.7, y, str(max(peaks(ops))), size=12, weight="bold")
    style.title(axes, finding)
    said = "; ".join(
        f"{name}: {' '.join(ops)}, at most {max(peaks(ops))} alive in a partition"
        for name, ops in orders.items()
    )
    return style.describe(figure, f"{finding}. {said}.")


@style.styled
def draw_backward(micro_batches: int, partitions: int, worker: str) -> Figure:
    """Draw backward of m micro-batches through n partitions, with ties and without, and how many insides are alive."""
    m = micro_batches
    n = partitions
    age = OLDER if worker == "older" else 0
    orders = {name: order_of(m, n, tied, age) for name, tied in (("with ties", True), ("without", False))}
    tall = max(0.22 * m * n, 0.9)  # inches: room for the name of the axis
    shape: Any = {"sharex": "col", "sharey": "row", "height_ratios": (tall + 0.2, 1.1)}
    figure, grid = style.new_figure(9, 2.9 + tall, rows=2, cols=2, **shape)
    said = []
    most = [max(peaks(ops)) for ops in orders.values()]
    for (lanes, stairs), (name, ops) in zip(zip(*grid, strict=True), orders.items(), strict=True):
        _draw_lanes(lanes, ops, m, n)
        counts = np.array([[sum(pair[1] == str(j) for pair in now) for now in alive(ops)] for j in range(n)])
        for j in range(n):
            color = pale(rank_color(j), 0.55)
            below = counts[:j].sum(axis=0)
            stairs.bar(np.arange(len(ops)), counts[j], 1.0, below, color=color)
        lanes.set_title(f"{name}: at most {max(peaks(ops))} in a partition", fontsize=11)
        stairs.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        stairs.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        stairs.set_xlabel("step of backward: one operation")
        said.append(f"{name.capitalize()}: {' '.join(ops)}; alive {', '.join(map(str, counts.sum(axis=0)))}")
    grid[0][0].set_ylabel("micro-batch")
    grid[1][0].set_ylabel("insides alive,\npartitions stacked", fontsize=9)
    names = grid[0][1].secondary_yaxis("right")
    names.set_yticks([j * m + (m - 1) / 2 for j in range(n)], [f"partition {j}" for j in range(n)])
    names.tick_params(length=0)
    handles = [Patch(facecolor=HUE["R"], label="R recompute"), Patch(facecolor=HUE["B"], label="B backward")]
    alive_in = {f"inside alive, partition {j}": pale(rank_color(j), 0.55) for j in range(n)}
    handles += [Patch(facecolor=color, label=label) for label, color in alive_in.items()]
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=5 if n < 4 else 3,
        handlelength=1.1,
        columnspacing=1.3,
    )
    finding = (
        f"Insides at once in a partition, {worker} worker: at most {most[0]} with ties, {most[1]} without"
    )
    style.headline(figure, finding)
    return style.describe(figure, f"{finding}. {'. '.join(said)}.")


def _draw_lanes(axes: Axes, ops: Sequence[str], m: int, n: int) -> None:
    found = alive(ops)
    axes.set(xlim=(-0.6, len(ops) - 0.4), ylim=(m * n - 0.4, -0.6))
    for i, j in np.ndindex(m, n):
        steps = [k for k, now in enumerate(found) if f"{i}{j}" in now]
        look: Any = {"facecolor": pale(rank_color(j), 0.55), "linewidth": 0}
        axes.add_patch(Rectangle((steps[0] - 0.5, j * m + i - 0.3), steps[-1] - steps[0] + 1, 0.6, **look))
        for k in (steps[0], steps[-1]):
            face = HUE[ops[k][0]]
            corner = (k - 0.5, j * m + i - 0.45)
            axes.add_patch(Rectangle(corner, 1, 0.9, facecolor=face, edgecolor=PAPER, zorder=3))
            if len(ops) <= 16:
                write(axes, k, j * m + i, ops[k][0], size=9, color=style.ink_on(face), zorder=4)
    for j in range(n):
        axes.axhspan(j * m - 0.5, j * m + m - 0.5, color=pale(rank_color(j), 0.08), zorder=0)
    axes.set_yticks(range(m * n), [str(i) for _ in range(n) for i in range(m)])
    axes.tick_params(length=0)
