"""Figure of notebook 15: all ways to use so many ranks, what a step takes, what a rank holds, what it sends."""

from __future__ import annotations

from functools import lru_cache

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from lib.experiments.scaling import SCHEDULES, Plan, every_plan, fastest
from lib.show.explore import choice, steps
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
    styled,
)

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

    Of 128 blocks and a global batch of 4096 rows, with the round costs of lib.experiments.scaling.NOMINAL.
    """
    plans = _plans(ranks, micro_batches, schedule, bandwidth)
    best = fastest(plans, memory * 1e6)
    figure, (time, held, sent) = new_figure(9, 6.6, rows=3, sharex=True, height_ratios=(1.35, 1, 1))
    places = range(len(plans))
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
    cap = 3.5e3 * min(plan.seconds for plan in plans)
    for place, plan in enumerate(plans):
        beyond = 1e3 * plan.seconds > cap
        time.annotate(
            f"{1e3 * plan.seconds:,.0f} ms{' ↑' * beyond}\n{plan.bubble:.0%} idle",
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
