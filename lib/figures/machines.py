"""Figure of notebook 15: the mesh laid on machines, every link that leaves a machine, and what it carries in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from matplotlib.figure import Figure

from lib.experiments.scaling import make_plan
from lib.show.explore import choice, steps
from lib.show.sheet import WIDTH, arrow, box, inch_sheet
from lib.show.style import GREY, INK, MUTED, RED, describe, rank_color, styled, title

Order: TypeAlias = Literal["rank = data · n + pipeline", "rank = pipeline · W + data"]
ORDERS: tuple[Order, ...] = ("rank = data · n + pipeline", "rank = pipeline · W + data")
SIDE = 1.0  # inches left of the first column

MACHINES_CONTROLS = {
    "ranks": steps((8, 16, 32), 16, "ranks"),
    "partitions": steps((2, 4, 8), 4, "n · stages of a pipeline"),
    "machine": steps((2, 4, 8), 4, "GPUs a machine"),
    "order": choice(ORDERS, ORDERS[0], "order"),
}


@dataclass(frozen=True)
class Link:
    """Two ranks that talk, from and to a place (replica, stage) of the mesh; bytes in a step."""

    start: tuple[int, int]
    end: tuple[int, int]
    kind: Literal["pipeline", "ring"]
    crosses: bool
    size: int


def links_of(ranks: int, partitions: int, machine: int, order: Order) -> list[Link]:
    """Return all links of a mesh: neighbours in a pipeline, and the rings in which each stage's gradients are added."""
    n, replicas = partitions, ranks // partitions
    plan = make_plan(ranks, n, 8)

    def number(d: int, j: int) -> int:
        return d * n + j if order == ORDERS[0] else j * replicas + d

    def link(
        start: tuple[int, int], end: tuple[int, int], kind: Literal["pipeline", "ring"], size: int
    ) -> Link:
        return Link(start, end, kind, number(*start) // machine != number(*end) // machine, size)

    along = [((d, j), (d, j + 1)) for d in range(replicas) for j in range(n - 1)]
    around = [((d, j), ((d + 1) % replicas, j)) for d in range(replicas) for j in range(n) if replicas > 1]
    return [
        *(link(start, end, "pipeline", plan.neighbour_bytes) for start, end in along),
        *(link(start, end, "ring", plan.ring_bytes) for start, end in around),
    ]


@styled
def draw_machines(*, ranks: int, partitions: int, machine: int, order: Order) -> Figure:
    """Draw which links of the mesh leave a machine, and how much they carry (128 blocks, 4096 rows a step)."""
    n, replicas = partitions, ranks // partitions
    links = links_of(ranks, n, machine, order)
    pitch, wide = 0.62, (WIDTH - SIDE - 0.2) / n
    height = replicas * pitch + 0.72
    figure, axes = inch_sheet(height)

    def center(d: int, j: int) -> tuple[float, float]:
        return SIDE + (j + 0.5) * wide, 0.62 + d * pitch

    for j in range(n):
        axes.text(center(0, j)[0], 0.15, f"stage {j}", ha="center", va="center", fontsize=10)
    for d in range(replicas):
        axes.text(0.1, center(d, 0)[1], f"replica {d}", va="center", fontsize=10.5, fontweight="bold")
        for j in range(n):
            rank = d * n + j if order == ORDERS[0] else j * replicas + d
            x, y = center(d, j)
            color = rank_color(rank // machine)
            text = f"{rank} · {chr(65 + rank // machine)}"
            look: Any = {"face": color + "33", "edge": color, "line": 1.8, "radius": 0.06, "ink": INK}
            box(axes, x, y, 0.72, 0.34, text, zorder=4, **look)
    for link in links:
        (x0, y0), (x1, y1) = center(*link.start), center(*link.end)
        color, line = (RED, 2.2) if link.crosses else (GREY, 1.2)
        dashes: Any = (0, (4, 2)) if link.crosses else "-"
        if link.kind == "pipeline":
            axes.plot([x0 + 0.36, x1 - 0.36], [y0, y1], linestyle=dashes, color=color, linewidth=line)
        elif link.end[0] > link.start[0]:
            axes.plot([x0, x1], [y0 + 0.17, y1 - 0.17], linestyle=dashes, color=color, linewidth=line)
        else:  # the ring closes: from the last replica back to the first
            ends = (x0 + 0.3, y0 - 0.17), (x1 + 0.3, y1 + 0.17)
            arrow(axes, *ends, style="-", color=color, width=line, bend=0.16, gap=2, linestyle=dashes)
    crossing = {
        kind: [link for link in links if link.kind == kind and link.crosses] for kind in ("pipeline", "ring")
    }
    every = {kind: sum(link.kind == kind for link in links) for kind in ("pipeline", "ring")}
    size = sum(link.size for found in crossing.values() for link in found)
    y = height - 0.12
    axes.text(
        0.1, y, "rank · machine; red and dashed: leaves its machine", fontsize=9.5, color=MUTED, va="center"
    )
    finding = (
        f"{size / 1e6:,.0f} MB a step between {-(-ranks // machine)} machines: {len(crossing['pipeline'])} of "
        f"{every['pipeline']} pipeline links, {len(crossing['ring'])} of {every['ring']} ring links"
    )
    title(axes, finding)
    return describe(
        figure,
        f"{finding}. {ranks} ranks, {replicas} replicas of {n} stages, {machine} GPUs a machine, {order}. A pipeline "
        f"link carries {links[0].size / 1e6:.1f} MB a step, a ring link {links[-1].size / 1e6:.1f} MB.",
    )
