"""The autograd graph of a pipeline, read from its real nodes: a row a micro-batch, a band a partition.

draw_graph       the graph of any small run; arrows run as backward does, a number is a node's turn in it
draw_pipeline    the same for m × n, run for the picture: what the explorer wraps
ties_of          the edges from one row to another: the dependencies

All partitions have the same columns. One unit of the axes is an inch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle
from matplotlib.path import Path

from lib.experiments.autograd_graph import Node
from lib.experiments.backward_order import MODES, predict
from lib.pipeline.tracing import Place
from lib.show.explore import choice, switch, whole
from lib.show.style import INK, MUTED, PAPER, PINK, RED, describe, new_figure, pale, rank_color, styled, title

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
