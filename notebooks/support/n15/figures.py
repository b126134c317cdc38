"""Figures of notebook 15, scale out: who is who in a mesh, one curve of three runs, all plans for a large model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib.show import style
from lib.show.charts import beside
from lib.show.explore import choice, steps, switch
from lib.show.sheet import WIDTH, Cell, Mark, arrow, box, draw_strip, inch_sheet
from lib.show.style import BLUE, GREY, INK, ORANGE, PAPER, RED, describe, new_figure, styled
from lib.text import plural
from support.n15.plans import Machine, MemoryRule, every_plan
from support.n15.tower import even_balance

SIDE = 1.0  # inches left of the first column

# ---- All ways to use so many ranks for the model of 7 billion parameters: time of a step, memory of a rank.

BETWEEN = {"200 GB/s": 200e9, "50 GB/s": 50e9, "12 GB/s": 12e9}
PLANS_CONTROLS = {
    "ranks": steps((8, 64, 512), 512, "ranks"),
    "memory": steps((16, 24, 40, 80), 80, "GB of a GPU"),
    "between": choice(tuple(BETWEEN), "50 GB/s", "between machines"),
    "shards": switch(True, "deal optimizer states to replicas"),
}


PARTS = {
    "computing": (BLUE, ""), "computing again": (style.SKY, "//"), "idle": (PAPER, "...."),
    "all-reduce that is not hidden": (ORANGE, ""),
}  # fmt: skip


@styled
def draw_plans(memory_rule: MemoryRule, *, ranks: int, memory: float, between: str, shards: bool) -> Figure:
    """Draw for 1 to 16 stages the best plan's step, by its parts, and what its fullest rank holds; which is fastest."""
    machine = Machine(between=BETWEEN[between], memory=memory * 1e9)
    plans = every_plan(ranks, memory_rule, machine=machine, shards=shards)
    best = min((p for p in plans if p.schedule), key=lambda plan: plan.seconds, default=None)
    figure, (time, held) = new_figure(9, 5.8, rows=2, sharex=True, height_ratios=(1.7, 1))
    told = []
    for place, plan in enumerate(plans):
        told.append("does not fit")
        look: dict[str, Any]
        once = plan.compute * (3 / 4 if plan.recompute else 1)  # F + B of 4 parts are F again
        parts = (once, plan.compute - once, plan.pipeline - plan.compute, plan.reduce)
        bottom = 0.0
        for part, (color, hatch) in zip(parts if plan.schedule else (), PARTS.values(), strict=False):
            edge = GREY if hatch else PAPER
            time.bar(place, part / once, 0.62, bottom, color=color, edgecolor=edge, hatch=hatch)
            bottom += part / once
        if plan.schedule:
            name = plan.schedule.split(" (")[0].replace("ed zero", "ed\nzero").replace("t acc", "t\nacc")
            told[-1] = f"{plan.seconds:.3g} s\n{name}" + "\nrecomputed" * plan.recompute
            held.bar(place, plan.memory / 1e9, 0.62, color=style.GREEN, edgecolor=PAPER)
            inside = memory / 2 < plan.memory / 1e9  # else above the bar: never on the line of the limit
            look = {"va": "top", "color": PAPER} if inside else {"va": "bottom"}
            top = (place, plan.memory / 1e9)
            beside(held, top, f"{top[1]:.0f}", (0, -3 if inside else 3), ha="center", **look)
        look = {"ha": "center", "va": "bottom", "fontweight": "bold" if plan is best else "normal"}
        beside(time, (place, bottom), told[-1], (0, 3), **look)
    held.axhline(memory, color=RED, linestyle="--", linewidth=1.6)
    held.text(-0.46, 1.03 * memory, f"the GPU has {memory:g}", color=RED, fontsize=9.5, va="bottom")
    held.set(ylabel="held by the fullest\nrank (GB)", ylim=(0, 1.25 * memory), xlabel="stages × replicas")
    held.set_xticks(range(len(plans)), [f"{p.partitions} × {p.replicas}" for p in plans])
    time.set(ylabel="a step, by what it\ncomputes once", ylim=(0, 2.2), xlim=(-0.5, len(plans) - 0.5))
    patches = [Patch(facecolor=c, edgecolor=GREY, hatch=h, label=name) for name, (c, h) in PARTS.items()]
    where: Any = {"ncols": 4, "fontsize": 9.5, "borderaxespad": 0, "loc": "lower right"}
    time.legend(handles=patches, bbox_to_anchor=(1.0, 1.0), **where)
    finding = f"{ranks} ranks: nothing fits into {memory:g} GB"
    if best:
        shape = f"{plural(best.partitions, 'stage')} × {plural(best.replicas, 'replica')}"
        finding = f"{ranks} ranks: fastest with {shape}, {best.seconds:.3g} s"
    style.headline(figure, finding)
    facts = "; ".join(
        f"{p.partitions} x {p.replicas}: {words.replace(chr(10), ' ')}, {p.memory / 1e9:.0f} GB"
        for p, words in zip(plans, told, strict=True)
    )
    limits = f"Limit {memory:g} GB, {between} between machines, optimizer states dealt: {shards}"
    return describe(figure, f"{finding}. {limits}. Stages x replicas: {facts}.")


# ---- Who is who in a mesh of replicas and stages, and what comes of dealing rows to the wrong one.

DEALS = ("to replicas", "to ranks")
LAYERS = 8  # of support.n15.tower


@dataclass(frozen=True)
class RankPlace:
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


def mesh_of(ranks: int, partitions: int, deal: str = "to replicas") -> list[list[RankPlace]]:
    """Return a row for each replica, a Place for each stage."""
    n = partitions
    ends = [0, *accumulate(even_balance(LAYERS, partitions))]
    dealt = deal == "to replicas"
    rows = [range(first, first + n) for first in range(0, ranks, n)]
    shares = len(rows) if dealt else ranks
    return [
        [RankPlace(r, d, r % n, d if dealt else r, shares, range(*ends[r % n : r % n + 2])) for r in row]
        for d, row in enumerate(rows)
    ]


MESH_CONTROLS = {
    "ranks": steps((2, 4, 8), 4, "ranks"),
    "partitions": steps((1, 2, 4, 8), 2, "n · stages of a pipeline"),
    "deal": choice(DEALS, "to replicas", "rows are dealt"),
}


@styled
def draw_mesh(*, ranks: int, partitions: int, deal: str) -> Figure:
    """Draw the mesh; more stages than ranks are cut to as many. The images come from the first column's rows."""
    n = min(partitions, ranks)
    mesh = mesh_of(ranks, n, deal)
    pitch = 1.02
    wide = (WIDTH - SIDE - 0.1) / n
    height = len(mesh) * pitch + 0.42
    figure, axes = inch_sheet(height)
    for j, place in enumerate(mesh[0]):
        layers = f"stage {j}: layers {place.layers[0]}–{place.layers[-1]}"
        said = layers if n < 8 else f"layer {place.layers[0]}"
        axes.text(SIDE + (j + 0.5) * wide, 0.2, said, ha="center", va="center", fontsize=10, color=INK)
    for row in mesh:
        y = 0.42 + row[0].data * pitch
        axes.text(0.1, y + 0.42, f"replica {row[0].data}", va="center", fontsize=10.5, fontweight="bold")
        for place in row:
            _draw_place(axes, SIDE + place.pipeline * wide, y, wide, mesh, place)
        if row[0].data + 1 < len(mesh):
            for j in range(n):
                x = SIDE + (j + 0.5) * wide
                axes.vlines([x - 0.03, x + 0.03], y + 0.86, y + 1.0, color=INK, linewidth=1.4)
    finding = _finding(mesh)
    style.title(axes, finding)
    rows = "; ".join(
        f"rank {p.rank} holds layers {p.layers[0]} to {p.layers[-1]} and reads places {' '.join(map(str, p.places()))}"
        for row in mesh
        for p in row
    )
    return describe(figure, f"{finding}. {len(mesh)} replicas of {n} stages: {rows}.")


def _finding(mesh: list[list[RankPlace]]) -> str:
    ranks = sum(map(len, mesh))
    n = len(mesh[0])
    apart = sum(row[0].share != row[-1].share for row in mesh)
    if apart:
        return f"{apart} of {len(mesh)} replicas in error: images of one rank's rows, targets of another's"
    replicas = plural(len(mesh), "replica")
    share = "all rows" if len(mesh) == 1 else f"1/{len(mesh)} of the rows"
    return f"{ranks} ranks are {replicas} of {plural(n, 'stage')}: each replica reads {share}"


def _draw_place(
    axes: Axes, x: float, y: float, wide: float, mesh: list[list[RankPlace]], place: RankPlace
) -> None:
    inner = wide - 0.22
    tall = 0.84
    row = mesh[place.data]
    first = place is row[0]
    last = place is row[-1]
    wrong = last and row[0].share != place.share
    look: Any = {"edge": RED, "line": 2.4} if wrong else {"line": 1.6}
    box(axes, x + 0.02 + inner / 2, y + tall / 2, inner, tall - 0.04, zorder=1, **look)
    used = {"images": first, "targets": last}
    uses = ", ".join(what for what, needed in used.items() if needed)
    words = f"rank {place.rank}"
    if uses and wide > 1.5:
        words += f" · {uses}"
    if wrong and wide > 2.5:
        words += " ≠ images"
    color = RED if wrong else INK
    axes.text(x + 0.12, y + 0.24, words, va="center", fontsize=10, fontweight="bold", color=color)
    count = max(2, min(10, int((inner - 0.14) / 0.34)))
    side = min(0.34, (inner - 0.14) / count)
    mark: Mark = "plain" if uses else "faded"
    draw_strip(axes, x + 0.1, y + 0.58, [Cell(i, place.share, mark) for i in place.places(count)], side)
    if not last:
        ends = (x + inner + 0.03, y + tall / 2), (x + wide + 0.01, y + tall / 2)
        arrow(axes, *ends, style="<|-|>", width=1.0, head=9, gap=0, zorder=6)


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
    most = 0.0
    smallest = 1e-18
    for number, (other, values) in enumerate(others):
        color, width = (BLUE, 4.0) if number % 2 == 0 else (INK, 1.4)
        dash = "-" if number % 2 == 0 else (0, (4, 3))
        upper.plot(steps_done, values, color=color, linewidth=width, linestyle=dash, label=other)
        apart = [abs(a - b) for a, b in zip(first, values, strict=True)]
        most = max(most, *apart)
        spots = [step + 0.24 * number - 0.12 for step in steps_done]
        lower.vlines(spots, smallest, [max(gap, smallest) for gap in apart], color=color, linewidth=2)
    bound = f"{tolerance:g}".replace("e-0", "e-")
    lower.axhline(tolerance, color=RED, linestyle="--", linewidth=1.4)
    lower.text(len(first) - 1, 2 * tolerance, bound, color=RED, fontsize=9.5, ha="right", va="bottom")
    lower.set_yscale("log")
    lower.set(ylim=(smallest, 1e3 * max(tolerance, most)), xlabel="step (no bar: exactly equal)")
    lower.set_ylabel(f"apart from\n{name}")
    upper.set(ylabel="loss of the\nglobal batch", ylim=(0, None))
    upper.legend(loc="upper right")
    said = f"never {bound} apart" if most < tolerance else f"up to {most:.0e} apart"
    finding = f"{', '.join(losses)}: {'one curve' if most < tolerance else 'different curves'}, {said}"
    style.title(upper, finding)
    return describe(figure, f"{finding}. Loss in {len(first)} steps: from {first[0]:.2f} to {first[-1]:.2f}.")


@styled
def draw_deals(right: Sequence[float], wrong: Sequence[float]) -> Figure:
    """Draw the losses of two runs that differ in who got which rows, and what guessing among ten classes gives."""
    chance = math.log(10)
    figure, axes = new_figure(WIDTH, 3.4)
    axes.plot(range(len(right)), right, "-", color=BLUE)
    axes.plot(range(len(wrong)), wrong, "--", color=RED)
    axes.axhline(chance, color=GREY, linewidth=1.2, linestyle=":")
    ends = ((right[-1], "dealt to replicas", BLUE), (wrong[-1], "dealt to ranks", RED))
    for value, name, color in ends:
        beside(axes, (len(right) - 1, value), name, (6, -10 if color == RED else 0), color=color, va="center")
    words = f"guessing: ln 10 = {chance:.2f}"
    axes.text(
        1.21 * len(right), chance + 0.06, words, fontsize=9.5, color=style.MUTED, ha="right", va="bottom"
    )
    axes.set(xlabel="step", ylabel="loss of the\nglobal batch", ylim=(0, 1.12 * max(*right, *wrong)))
    axes.set_xlim(-0.4, 1.22 * len(right))
    learns = "learns nothing" if wrong[-1] > 0.8 * chance else "learns too"
    losses = f"{wrong[-1]:.1f} after {len(wrong)} steps, not {right[-1]:.1f}"
    finding = f"Dealt to ranks, the model {learns}: {losses}"
    style.title(axes, finding)
    return describe(figure, f"{finding}. Guessing among 10 classes gives {chance:.2f}.")
