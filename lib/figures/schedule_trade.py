"""Time against memory, the two things that a schedule trades: figures of notebook 14.

draw_trade   every schedule of one size: idle share and activations held; a line through those that nobody beats
draw_limit   1F1B that may hold fewer than n: what the missing memory costs in time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from lib.figures.schedule_explorer import make
from lib.figures.schedules import costs
from lib.pipeline.schedule import Action, Schedule, live_activations, simulate
from lib.pipeline.schedule.interleaved import alternate
from lib.show.explore import steps, whole
from lib.show.schedules import NAMES, held
from lib.show.style import BLUE, GREY, INK, MUTED, RED, describe, new_figure, styled, title

TRADE_CONTROLS = {
    "micro_batches": whole(8, 16, 8, "m · micro-batches", 4),
    "partitions": whole(2, 4, 4, "n · ranks"),
    "communicate": steps((0, 0.05, 0.1, 0.25, 0.5), 0.1, "a message, ticks"),
    "weight": steps((0.3, 0.4, 0.5, 0.6, 0.7), 0.5, "W's share of backward"),
}
LIMIT_CONTROLS = {
    "micro_batches": whole(4, 16, 8, "m · micro-batches"),
    "partitions": whole(2, 6, 4, "n · ranks"),
}
ALL = tuple(name for name in NAMES.values() if name not in ("model parallel", "PipeDream"))


def all_schedules(micro_batches: int, partitions: int, *, tight: bool = False) -> dict[str, Schedule]:
    """Return every schedule that flushes, by its name in pictures; those that take v have two stages a rank.

    tight: also 1F1B that may hold fewer than n. DualPipeV is left out where micro-batches are too few for it.
    """
    made = {name: make(name, micro_batches, partitions, 2)[0] for name in ALL}
    for limit in range(1, partitions * tight):
        table = capped(micro_batches, partitions, limit)
        made[table.name] = table
    return {name: table for name, table in made.items() if table.micro_batches == micro_batches}


def time_and_memory(
    schedules: Mapping[str, Schedule], communicate: float = 0.0, weight: float = 0.5
) -> dict[str, tuple[float, float]]:
    """Return (ticks, most activations held) by name; a rank's work is 1 tick forward, 2 back, for each micro-batch.

    communicate: ticks of a message. weight: W's share of a backward.
    """
    points = {}
    for name, table in schedules.items():
        price = costs(table)
        trace = simulate(table, **price, weight=weight * price["backward"], communicate=communicate)
        points[name] = round(trace.makespan, 6), max(held(table))
    return points


def unbeaten(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the names that no other beats in one thing without losing in the other, fastest first."""
    best = [
        name
        for name, (t, h) in points.items()
        if not any(a <= t and b <= h and (a, b) != (t, h) for a, b in points.values())
    ]
    return sorted(best, key=lambda name: points[name])


@styled
def draw_trade(micro_batches: int, partitions: int, communicate: float, weight: float) -> Figure:
    """Draw time and memory of every schedule; names stand in a column at the side, each joined to its point."""
    points = time_and_memory(all_schedules(micro_batches, partitions), communicate, weight)
    front = unbeaten(points)
    figure, axes = new_figure(9, 4.3)
    shortest = 3.0 * micro_batches
    times = [t / shortest for t, _ in points.values()]
    low, high = min(times), max(times)
    width = max(high - low, 0.02)
    top = max(h for _, h in points.values())
    corner = [points[name] for name in front]
    axes.step(
        [t / shortest for t, _ in corner], [h for _, h in corner], where="post", color=BLUE, lw=1.6, zorder=1
    )
    groups: dict[tuple[float, float], list[str]] = {}
    for name, point in points.items():
        groups.setdefault(point, []).append(name)
    ordered = sorted(groups, key=lambda point: (-point[1], -point[0]))  # their lines don't cross
    for k, (t, h) in enumerate(ordered):
        names, good = groups[t, h], groups[t, h][0] in front
        color = BLUE if good else GREY
        y = 1.05 * top * (1 - (k + 0.5) / len(ordered))
        axes.plot([t / shortest, high + 0.09 * width], [h, y], color=color, lw=0.8, ls=":", zorder=0)
        axes.plot(t / shortest, h, "o", ms=9, color=color, zorder=3)
        text = f"{', '.join(names)}  ({h:g})"
        look: dict[str, Any] = {"color": INK if good else MUTED, "fontweight": "bold" if good else "normal"}
        axes.text(high + 0.11 * width, y, text, va="center", fontsize=10, **look)
    axes.set(xlim=(low - 0.06 * width, high + 0.85 * width), ylim=(0, 1.12 * top))
    marks = [low + k * width / 4 for k in range(5)]
    axes.set_xticks(marks, [f"{mark:.2f}" for mark in marks])
    axes.set(xlabel="step time (1 = no bubble)", ylabel="held at most (micro-batches)")
    axes.xaxis.set_label_coords(0.27, -0.1)
    quickest = front[0]
    told = ", ".join(f"{name} {points[name][0] / shortest:.2f}" for name in (quickest, "1F1B", "GPipe"))
    finding = f"Step time, 1 = work alone: {told} (m = {micro_batches}, n = {partitions})"
    title(axes, finding)
    said = "; ".join(f"{name}: {t:g} ticks, holds {h:g}" for name, (t, h) in points.items())
    return describe(figure, f"{finding}. All: {said}. Not beaten: {', '.join(front)}.")


def capped(micro_batches: int, partitions: int, limit: int) -> Schedule:
    """Make 1F1B in which no rank holds more than `limit`: rank j goes min(n - j, limit) forwards ahead."""
    rows = []
    for j in range(partitions):
        forwards, backwards = ([Action(op, j, i) for i in range(micro_batches)] for op in ("F", "B"))
        rows.append(alternate(forwards, backwards, warm_up=min(partitions - j, limit) - 1))
    return Schedule(f"1F1B, at most {limit}", rows)


@styled
def draw_limit(micro_batches: int, partitions: int) -> Figure:
    """Draw the ticks of a step by how many activations a rank may hold."""
    m, n = micro_batches, partitions
    limits = list(range(1, min(m, n + 3) + 1))
    ticks = []
    for limit in limits:
        table = capped(m, n, limit)
        assert max(live_activations(table)) <= limit
        ticks.append(simulate(table).makespan)
    figure, axes = new_figure(9, 3.3)
    enough = min(n, m)
    for limit, value in zip(limits, ticks, strict=True):
        color = BLUE if limit >= enough else RED
        axes.bar(
            limit, value, width=0.66, color=color, hatch="" if limit >= enough else "//", edgecolor="white"
        )
        axes.text(limit, value + 0.01 * max(ticks), f"{value:g}", ha="center", fontsize=10)
    axes.axhline(3 * m, color=INK, lw=1.2, ls=(0, (4, 3)))
    axes.text(limits[-1] + 0.5, 3 * m, f"work: {3 * m}", ha="left", va="bottom", fontsize=10)
    axes.set_xlim(limits[0] - 0.6, limits[-1] + 0.5 + 0.13 * len(limits))
    axes.set_xticks(limits)
    axes.set(xlabel="activations that a rank may hold", ylabel="step (ticks)", ylim=(0, 1.13 * max(ticks)))
    longer = f"with 1 the step takes {ticks[0] / ticks[-1]:.1f} × as long"
    finding = f"m = {m}, n = {n}: {enough} activations are enough; {longer}"
    title(axes, finding)
    said = "; ".join(f"{limit}: {value:g} ticks" for limit, value in zip(limits, ticks, strict=True))
    return describe(figure, f"{finding}. By limit: {said}.")
