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
from lib.show.explore import choice, steps
from lib.show.lanes import draw_timeline
from lib.show.sheet import WIDTH, Cell, Mark, arrow, box, draw_strip, inch_sheet
from lib.show.style import BLUE, GREY, INK, ORANGE, PAPER, RED, describe, new_figure, styled
from lib.text import plural
from lib.timeline import Span, Trace
from support.n15.plans import ExposedRule, Machine, MemoryRule, Plan, every_plan, fastest_plan
from support.n15.tower import even_balance

SIDE = 1.0  # inches left of the first column

# ---- All ways to use so many ranks for the model of 7 billion parameters: time of a step, memory of a rank.

RANKS = 512
NEAR = 0.02  # seconds of a step that such a plan can't tell apart
#: How many cards a machine has, and how many of them one ring can use.
CARDS = {"one a ring": (8, 1), "all shared": (8, 8), "one for all": (1, 1)}
BETWEEN = {"50 GB/s": 50e9, "45 GB/s": 45e9, "12 GB/s": 12e9}
GATHERS = ("waits", "hides")
SCHEDULES = ("any", "1F1B")
SEQUENCES = {"1": 1, "1 or 2": 2}
PLANS_CONTROLS = {
    "sequences": choice(tuple(SEQUENCES), "1 or 2", "sequences of a micro-batch"),
    "rings": choice(tuple(CARDS), "one a ring", "network cards"),
    "schedules": choice(SCHEDULES, "any", "schedule"),
    "gather": choice(GATHERS, "hides", "gathering new weights"),
    "between": choice(tuple(BETWEEN), "50 GB/s", "a card between machines"),
    "memory": steps((24, 64, 80), 80, "GB of a GPU"),
}

PARTS = {
    "computing": (BLUE, ""), "computing again": (style.SKY, "//"), "idle": (PAPER, "...."),
    "reduction that is not hidden": (ORANGE, ""), "gathering that is not hidden": (style.YELLOW, ""),
}  # fmt: skip


def machine_of(rings: str, between: str, memory: float) -> Machine:
    """Return the machine of these settings; memory in GB."""
    cards, of_a_ring = CARDS[rings]
    return Machine(between=BETWEEN[between], memory=memory * 1e9, cards=cards, cards_of_a_ring=of_a_ring)


@styled
def draw_plans(
    memory_rule: MemoryRule,
    exposed_rule: ExposedRule,
    *,
    sequences: str,
    rings: str,
    schedules: str,
    gather: str,
    between: str,
    memory: float,
) -> Figure:
    """Draw for n = 1 to 16 the best plan's step on 512 ranks, by its parts, and what its fullest rank holds."""
    plans = every_plan(
        RANKS,
        memory_rule,
        exposed_rule,
        largest=SEQUENCES[sequences],
        only_1f1b=schedules == "1F1B",
        gather_waits=gather == "waits",
        machine=machine_of(rings, between, memory),
    )
    fitting = [plan for plan in plans if plan.schedule]
    best = fastest_plan(fitting) if fitting else None
    figure, (time, held) = new_figure(9, 5.8, rows=2, sharex=True, height_ratios=(1.7, 1))
    told = []
    highest = 0.5
    for place, plan in enumerate(plans):
        told.append(_told_of(plan))
        top = _draw_seconds(time, place, plan) if plan.schedule else 0.0
        highest = max(highest, top)
        weight = "bold" if plan is best else "normal"
        beside(time, (place, top), told[-1], (0, 3), ha="center", va="bottom", fontweight=weight)
        if plan.schedule:
            _draw_memory(held, place, plan, memory)
    held.axhline(memory, color=RED, linestyle="--", linewidth=1.6)
    held.text(-0.46, 1.03 * memory, f"the GPU has {memory:g}", color=RED, fontsize=9.5, va="bottom")
    held.set(ylabel="held by the fullest\nrank (GB)", ylim=(0, 1.25 * memory), xlabel="n × replicas")
    held.set_xticks(range(len(plans)), [f"{p.partitions} × {p.replicas}" for p in plans])
    time.set(ylabel="a step (s)", ylim=(0, 1.55 * highest), xlim=(-0.5, len(plans) - 0.5))
    patches = [Patch(facecolor=c, edgecolor=GREY, hatch=h, label=name) for name, (c, h) in PARTS.items()]
    where: Any = {"ncols": 3, "fontsize": 9.5, "borderaxespad": 0, "loc": "lower right"}
    time.legend(handles=patches, bbox_to_anchor=(1.0, 1.0), **where)
    finding = f"{RANKS} ranks: nothing fits into {memory:g} GB"
    if best:
        near = [str(p.partitions) for p in fitting if p is not best and p.seconds - best.seconds < NEAR]
        others = f"; n = {' and '.join(near)} within {NEAR:g} s" if near else ""
        finding = f"{RANKS} ranks: fastest with n = {best.partitions}, {best.seconds:.3f} s{others}"
    style.headline(figure, finding)
    facts = "; ".join(
        f"{p.partitions} x {p.replicas}: {words.replace(chr(10), ' ')}, {p.memory / 1e9:.0f} GB"
        for p, words in zip(plans, told, strict=True)
    )
    limits = (
        f"Limit {memory:g} GB, {between} a card, cards {rings}, schedule {schedules}, gathering {gather}, "
        f"micro-batches of {sequences}"
    )
    return describe(figure, f"{finding}. {limits}. n x replicas: {facts}.")


def _told_of(plan: Plan) -> str:
    if not plan.schedule:
        return "does not fit"
    name = plan.schedule.split(" (")[0].replace("ed zero", "ed\nzero").replace("t acc", "t\nacc")
    more = ["2 sequences"] * (plan.size > 1) + ["recomputed"] * plan.recompute
    more += ["a column a machine"] * (plan.order == "replicas")
    return "\n".join([f"{plan.seconds:.3f} s", name, *more])


def _draw_seconds(axes: Axes, place: int, plan: Plan) -> float:
    """Draw the parts of a step on each other; return how high they reach."""
    once = plan.compute * (3 / 4 if plan.recompute else 1)  # F + B of 4 parts are F again
    again = plan.compute - once
    parts = (once, again, plan.pipeline - plan.compute, plan.reduce, plan.gather)
    bottom = 0.0
    for part, (color, hatch) in zip(parts, PARTS.values(), strict=True):
        edge = GREY if hatch else PAPER
        axes.bar(place, part, 0.62, bottom, color=color, edgecolor=edge, hatch=hatch)
        bottom += part
    return bottom


def _draw_memory(axes: Axes, place: int, plan: Plan, memory: float) -> None:
    gigabytes = plan.memory / 1e9
    axes.bar(place, gigabytes, 0.62, color=style.GREEN, edgecolor=PAPER)
    inside = memory / 2 < gigabytes  # else above the bar: never on the line of the limit
    look: dict[str, Any] = {"va": "top", "color": PAPER} if inside else {"va": "bottom"}
    beside(axes, (place, gigabytes), f"{gigabytes:.0f}", (0, -3 if inside else 3), ha="center", **look)


# ---- The last backward, and the buckets of its gradients on the network.

EXPOSED_CONTROLS = {
    "reduce": steps((1, 2, 4, 6, 8), 6, "R · reduction, ms"),
    "backward": steps((2, 4, 8), 4, "B · last backward, ms"),
    "buckets": steps((1, 2, 4, 8), 4, "b · buckets"),
}


def buckets_of(reduce: float, backward: float, buckets: int) -> Trace:
    """Return when each bucket of gradients is computed, and when it is on the network, in seconds; given are ms."""
    spans = []
    free = 0.0
    for k in range(buckets):
        ready = 1e-3 * backward * (k + 1) / buckets
        spans.append(Span("last backward", f"{k}", 1e-3 * backward * k / buckets, ready, "backward"))
        begin = max(free, ready)
        free = begin + 1e-3 * reduce / buckets
        spans.append(Span("network", f"{k}", begin, free, "reduction"))
    return Trace(spans, ("last backward", "network"))


def draw_exposed(*, reduce: float, backward: float, buckets: int) -> Figure:
    """Draw the last backward of a rank and the reduction of its gradients, bucket by bucket."""
    trace = buckets_of(reduce, backward, buckets)
    left = 1e3 * trace.makespan - backward
    title = (
        f"A reduction of {reduce:g} ms in {plural(buckets, 'bucket')}: {left:g} ms are left behind backward"
    )
    return draw_timeline(predicted=trace, title=title, unit="ms")


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
    learns = "only guesses" if wrong[-1] > 0.95 * chance else "learns too"
    losses = f"{wrong[-1]:.1f} after {len(wrong)} steps, not {right[-1]:.1f}"
    finding = f"Dealt to ranks, the model {learns}: {losses}"
    style.title(axes, finding)
    return describe(figure, f"{finding}. Guessing among 10 classes gives {chance:.2f}.")
