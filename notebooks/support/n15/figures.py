"""Figures of notebook 15, scale out: meshes on machines, all plans, who is who."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib._values import integer, plural
from lib.show.explore import choice, steps
from lib.show.sheet import WIDTH, Cell, Mark, arrow, box, draw_strip, inch_sheet
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
    SKY,
    describe,
    headline,
    new_figure,
    rank_color,
    styled,
    title,
)
from support.n15.runs import SCHEDULES, Plan, even_balance, every_plan, fastest, make_plan

# ---- The mesh laid on machines, every link that leaves a machine, and what it carries in a step.

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


# ---- All ways to use so many ranks, what a step takes, what a rank holds, what it sends.

PLANS_CONTROLS = {
    "ranks": steps((8, 64, 512), 64, "ranks"),
    "micro_batches": steps((4, 8, 16, 32), 8, "m · micro-batches"),
    "schedule": choice(tuple(SCHEDULES), "1F1B", "schedule"),
    "memory": steps((10, 20, 50, 100, 200, 500), 100, "MB a rank may hold"),
    "bandwidth": steps((0.1, 0.3, 1.0, 3.0, 10.0), 1.0, "network, GB/s"),
}


@lru_cache(maxsize=256)
def _plans(ranks: int, micro_batches: int, schedule: str, bandwidth: float) -> tuple[Plan, ...]:
    return tuple(every_plan(ranks, micro_batches, schedule=schedule, bandwidth=bandwidth * 1e9))


@styled
def draw_plans(*, ranks: int, micro_batches: int, schedule: str, memory: float, bandwidth: float) -> Figure:
    """Draw every number of stages from 1 to 64: time of a step, memory and traffic of a rank; which one is fastest.

    Of 128 blocks and a global batch of 4096 rows, with the round costs of support.n15.runs.NOMINAL.
    """
    plans = _plans(ranks, micro_batches, schedule, bandwidth)
    best = fastest(plans, memory * 1e6)
    figure, (time, held, sent) = new_figure(9, 6.6, rows=3, sharex=True, height_ratios=(1.35, 1, 1))
    places = range(len(plans))
    # plans that need more memory than there is are pale; parts of a bar lie upon each other
    faded = [0.3 if plan.memory > memory * 1e6 else 1.0 for plan in plans]
    _bars(time, [1e3 * p.compute for p in plans], BLUE, faded)
    _bars(
        time,
        [1e3 * (p.pipeline - p.compute) for p in plans],
        PAPER,
        faded,
        [1e3 * p.compute for p in plans],
        "....",
    )
    _bars(time, [1e3 * p.reduce for p in plans], ORANGE, faded, [1e3 * p.pipeline for p in plans])
    _bars(held, [p.states / 1e6 for p in plans], GREEN, faded)
    _bars(held, [p.activations / 1e6 for p in plans], PINK, faded, [p.states / 1e6 for p in plans])
    _bars(sent, [p.ring_bytes / 1e6 for p in plans], ORANGE, faded)
    _bars(sent, [p.neighbour_bytes / 1e6 for p in plans], SKY, faded, [p.ring_bytes / 1e6 for p in plans])
    # slow plans would flatten all others: their bars are cut off, and say so with an arrow
    cap = 3.5e3 * min(plan.seconds for plan in plans)
    for place, plan in enumerate(plans):
        beyond = 1e3 * plan.seconds > cap
        time.annotate(
            f"{1e3 * plan.seconds:,.0f} ms{' ↑' if beyond else ''}\n{plan.bubble:.0%} idle",
            (place, min(cap, 1e3 * plan.seconds)),
            (0, 4),
            textcoords="offset points",
            ha="center",
            fontsize=9,
            color=INK if faded[place] == 1 else MUTED,
            fontweight="bold" if plan is best else "normal",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": PAPER, "edgecolor": "none"} if beyond else None,
        )
    held.axhline(memory, color=RED, linestyle="--", linewidth=1.6)
    for axes, label in (
        (time, "a step\n(ms)"),
        (held, "held by\na rank (MB)"),
        (sent, "sent by\na rank (MB)"),
    ):
        axes.set_ylabel(label)
        axes.margins(y=0.02)
    time.set_ylim(0, 1.35 * min(cap, max(1e3 * plan.seconds for plan in plans)))
    held.set_ylim(0, 1.12 * max([memory, *(plan.memory / 1e6 for plan in plans)]) if memory < 500 else None)
    sent.set_xticks(places, [f"{p.partitions} × {p.replicas}" for p in plans])
    sent.set_xlabel("stages × replicas")
    _legend(time, ("computing", BLUE, ""), ("bubble", PAPER, "...."), ("all-reduce", ORANGE, ""))
    _legend(held, ("weights, gradients, momentum", GREEN, ""), ("activations", PINK, ""))
    _legend(sent, ("gradients of weights", ORANGE, ""), ("activations and their gradients", SKY, ""))
    finding = f"{ranks} ranks, m = {micro_batches}, {schedule}: "
    finding += (
        f"{best.partitions} stages × {best.replicas} replicas, {1e3 * best.seconds:,.0f} ms"
        if best
        else f"nothing fits into {memory:g} MB"
    )
    headline(figure, finding)
    facts = "; ".join(
        f"{p.partitions} x {p.replicas}: {1e3 * p.seconds:.0f} ms, {p.bubble:.0%} idle, {p.memory / 1e6:.0f} MB held, "
        f"{p.sent / 1e6:.0f} MB sent"
        for p in plans
    )
    return describe(
        figure, f"{finding}. Limit {memory:g} MB, network {bandwidth:g} GB/s. Stages x replicas: {facts}."
    )


def _bars(
    axes: Axes,
    values: list[float],
    color: str,
    faded: list[float],
    bottom: list[float] | None = None,
    hatch: str = "",
) -> None:
    edge = GREY if hatch else PAPER
    bars = axes.bar(
        range(len(values)), values, 0.62, bottom, color=color, edgecolor=edge, hatch=hatch, linewidth=0.8
    )
    for bar, alpha in zip(bars, faded, strict=True):
        bar.set_alpha(alpha)


def _legend(axes: Axes, *entries: tuple[str, str, str]) -> None:
    patches = [
        Patch(facecolor=color, edgecolor=GREY, hatch=hatch, label=name) for name, color, hatch in entries
    ]
    axes.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.98),
        ncols=len(entries),
        fontsize=9,
        borderaxespad=0,
    )


# ---- Who is who in a mesh of replicas and stages, and what comes of dealing rows to the wrong one.

Deal: TypeAlias = Literal["to replicas", "to ranks"]
DEALS: tuple[Deal, ...] = ("to replicas", "to ranks")
LAYERS = 8  # of support.n15.runs


@dataclass(frozen=True)
class Place:
    """Where a rank is, which share of the rows it reads (one of `shares`), which layers it holds."""

    rank: int
    data: int
    pipeline: int
    share: int
    shares: int
    layers: range

    def places(self, count: int = 4) -> list[int]:
        """Return the first places in the epoch's order that it reads."""
        return [self.share + t * self.shares for t in range(count)]


def mesh_of(ranks: int, partitions: int, deal: Deal = "to replicas") -> list[list[Place]]:
    """Return a row for each replica, a Place for each stage; raises ValueError if ranks can't be divided so."""
    ranks, n = integer("ranks", ranks, at_least=1), integer("partitions", partitions, at_least=1)
    if ranks % n:
        raise ValueError(f"{ranks} ranks do not make pipelines of {n}")
    ends = [0]
    for layers in even_balance(LAYERS, n):
        ends.append(ends[-1] + layers)
    shares = ranks // n if deal == "to replicas" else ranks
    return [
        [
            Place(
                d * n + j,
                d,
                j,
                d if deal == "to replicas" else d * n + j,
                shares,
                range(ends[j], ends[j + 1]),
            )
            for j in range(n)
        ]
        for d in range(ranks // n)
    ]


MESH_CONTROLS = {
    "ranks": steps((2, 4, 8), 4, "ranks"),
    "partitions": steps((1, 2, 4, 8), 2, "n · stages of a pipeline"),
    "deal": choice(DEALS, "to replicas", "rows are dealt"),
}


@styled
def draw_mesh(*, ranks: int, partitions: int, deal: Deal) -> Figure:
    """Draw the mesh; more stages than ranks are cut to as many. The images come from the first column's rows."""
    n = min(partitions, ranks)
    mesh = mesh_of(ranks, n, deal)
    pitch, wide = 1.02, (WIDTH - SIDE - 0.1) / n
    height = len(mesh) * pitch + 0.42
    figure, axes = inch_sheet(height)
    for j, place in enumerate(mesh[0]):
        said = (
            f"stage {j}: layers {place.layers[0]}–{place.layers[-1]}" if n < 8 else f"layer {place.layers[0]}"
        )
        axes.text(SIDE + (j + 0.5) * wide, 0.2, said, ha="center", va="center", fontsize=10, color=INK)
    for row in mesh:
        y = 0.42 + row[0].data * pitch
        axes.text(0.1, y + 0.42, f"replica {row[0].data}", va="center", fontsize=10.5, fontweight="bold")
        for place in row:
            _draw_place(axes, SIDE + place.pipeline * wide, y, wide, mesh, place)
        if row[0].data + 1 < len(mesh):
            for j in range(n):
                x = SIDE + (j + 0.5) * wide
                axes.plot([x - 0.03, x - 0.03], [y + 0.86, y + 1.0], color=INK, linewidth=1.4)
                axes.plot([x + 0.03, x + 0.03], [y + 0.86, y + 1.0], color=INK, linewidth=1.4)
    finding = _finding(mesh)
    title(axes, finding)
    rows = "; ".join(
        f"rank {p.rank} holds layers {p.layers[0]} to {p.layers[-1]} and reads places {' '.join(map(str, p.places()))}"
        for row in mesh
        for p in row
    )
    return describe(figure, f"{finding}. {len(mesh)} replicas of {n} stages: {rows}.")


def _finding(mesh: list[list[Place]]) -> str:
    ranks, n = sum(map(len, mesh)), len(mesh[0])
    apart = sum(row[0].share != row[-1].share for row in mesh)
    if apart:
        return f"{apart} of {len(mesh)} replicas in error: images of one rank's rows, targets of another's"
    replicas = plural(len(mesh), "replica")
    share = "all rows" if len(mesh) == 1 else f"1/{len(mesh)} of the rows"
    return f"{ranks} ranks are {replicas} of {plural(n, 'stage')}: each replica reads {share}"


def _draw_place(axes: Axes, x: float, y: float, wide: float, mesh: list[list[Place]], place: Place) -> None:
    inner, tall, row = wide - 0.22, 0.84, mesh[place.data]
    first, last = place is row[0], place is row[-1]
    wrong = last and row[0].share != place.share
    look: Any = {"edge": RED, "line": 2.4} if wrong else {"line": 1.6}
    box(axes, x + 0.02 + inner / 2, y + tall / 2, inner, tall - 0.04, zorder=1, **look)
    uses = "images, targets" if first and last else "images" if first else "targets" if last else ""
    words = f"rank {place.rank}"
    if uses and wide > 1.5:
        words += f" · {uses}"
    if wrong and wide > 2.5:
        words += " ≠ images"
    axes.text(
        x + 0.12, y + 0.24, words, va="center", fontsize=10, fontweight="bold", color=RED if wrong else INK
    )
    count = max(2, min(10, int((inner - 0.14) / 0.34)))
    side = min(0.34, (inner - 0.14) / count)
    mark: Mark = "plain" if uses else "faded"
    draw_strip(axes, x + 0.1, y + 0.58, [Cell(i, place.share, mark) for i in place.places(count)], side)
    if not last:
        ends = (x + inner + 0.03, y + tall / 2), (x + wide + 0.01, y + tall / 2)
        arrow(axes, *ends, width=1.0, head=11, gap=2, zorder=6)


@styled
def draw_same(losses: Mapping[str, Sequence[float]], tolerance: float = 1e-9) -> Figure:
    """Draw loss curves over each other, and below how far each is from the first, which is drawn broadest.

    tolerance: what still counts as the same. Raises ValueError unless there are at least two, of one length.
    """
    (name, first), *others = losses.items()
    if not others or len({len(values) for values in losses.values()}) != 1:
        counts = {name: len(values) for name, values in losses.items()}
        raise ValueError(f"two curves or more, of one length, not {counts}")
    figure, (upper, lower) = new_figure(WIDTH, 4.6, rows=2, sharex=True, height_ratios=(2, 1))
    steps_done = range(len(first))
    upper.plot(steps_done, first, color=ORANGE, linewidth=9, alpha=0.5, solid_capstyle="round", label=name)
    most, smallest = 0.0, 1e-18
    for number, (other, values) in enumerate(others):
        color, width = (BLUE, 4.0) if number % 2 == 0 else (INK, 1.4)
        style = "-" if number % 2 == 0 else (0, (4, 3))
        upper.plot(steps_done, values, color=color, linewidth=width, linestyle=style, label=other)
        apart = [abs(a - b) for a, b in zip(first, values, strict=True)]
        most = max(most, *apart)
        spots = [step + 0.24 * number - 0.12 for step in steps_done]
        lower.vlines(spots, smallest, [max(gap, smallest) for gap in apart], color=color, linewidth=2)
    bound = f"{tolerance:g}".replace("e-0", "e-")
    lower.axhline(tolerance, color=RED, linestyle="--", linewidth=1.4)
    lower.text(len(first) - 1, 2 * tolerance, bound, color=RED, fontsize=9.5, ha="right", va="bottom")
    lower.set_yscale("log")
    lower.set(ylim=(smallest, 1e3 * max(tolerance, most)), xlabel="step", ylabel=f"apart from\n{name}")
    upper.set(ylabel="loss of the\nglobal batch", ylim=(0, None))
    upper.legend(loc="upper right")
    said = f"never {bound} apart" if most < tolerance else f"up to {most:.0e} apart"
    finding = f"{', '.join(losses)}: {'one curve' if most < tolerance else 'different curves'}, {said}"
    title(upper, finding)
    return describe(figure, f"{finding}. Loss in {len(first)} steps: from {first[0]:.2f} to {first[-1]:.2f}.")


@styled
def draw_deals(right: Sequence[float], wrong: Sequence[float], classes: int = 10) -> Figure:
    """Draw the losses of two runs that differ in who got which rows, and what guessing among so many classes gives."""
    chance = math.log(classes)
    figure, axes = new_figure(WIDTH, 3.4)
    axes.plot(range(len(right)), right, "-", color=BLUE)
    axes.plot(range(len(wrong)), wrong, "--", color=RED)
    axes.axhline(chance, color=GREY, linewidth=1.2, linestyle=":")
    ends = ((right[-1], "dealt to replicas", BLUE), (wrong[-1], "dealt to ranks", RED))
    for value, name, color in ends:
        axes.annotate(
            name,
            (len(right) - 1, value),
            (6, -10 if color == RED else 0),
            textcoords="offset points",
            color=color,
            va="center",
        )
    words = f"guessing: ln {classes} = {chance:.2f}"
    axes.text(1.21 * len(right), chance + 0.06, words, fontsize=9.5, color=MUTED, ha="right", va="bottom")
    axes.set(xlabel="step", ylabel="loss of the\nglobal batch", ylim=(0, 1.12 * max(*right, *wrong)))
    axes.set_xlim(-0.4, 1.22 * len(right))
    learns = "learns nothing" if wrong[-1] > 0.8 * chance else "learns too"
    finding = (
        f"Dealt to ranks, the model {learns}: {wrong[-1]:.1f} after {len(wrong)} steps, not {right[-1]:.1f}"
    )
    title(axes, finding)
    return describe(figure, f"{finding}. Guessing among {classes} classes gives {chance:.2f}.")
