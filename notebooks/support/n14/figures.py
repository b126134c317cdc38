"""Figures of notebook 14, schedules: what they hold and cost, time against memory, B cut in I and W."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.graph import Node

from lib._values import format_share
from lib.schedules import Action, Schedule, interleaved_one_f_one_b, live_activations, one_f_one_b
from lib.schedules.makers import alternate
from lib.schedules.simulate import simulate
from lib.schedules.split_backward import trunk
from lib.show.charts import bars, legend_pair
from lib.show.explore import choice, steps, whole
from lib.show.schedules import NAMES, held, make
from lib.show.sheet import arrow, box
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    HATCH,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    color_of,
    describe,
    headline,
    new_figure,
    rank_color,
    source_note,
    styled,
    title,
)
from lib.timeline import Trace

# ---- What a schedule holds, and what a finer cut costs.

AGAINST = ("1F1B", "interleaved 1F1B", "zero bubble (ZB-H1)", "ZB-V")
HELD_CONTROLS = {
    "schedule": choice(AGAINST, "1F1B", "beside GPipe"),
    "micro_batches": whole(2, 16, 8, "m · micro-batches"),
    "partitions": whole(2, 6, 4, "n · ranks"),
}
INTERLEAVING_CONTROLS = {
    "micro_batches": whole(4, 16, 8, "m · micro-batches", 4),
    "partitions": whole(2, 8, 4, "n · ranks", 2),
    "communicate": steps((0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5), 0.1, "a message, ticks"),
}


def costs(schedule: Schedule, backward: float = 2.0) -> dict[str, Any]:
    """Return what to simulate: a rank's stages together take one tick forward and `backward` back."""
    each = len(schedule.ranks) / schedule.stages
    return {"forward": each, "backward": backward * each}


def held_over_time(schedule: Schedule, trace: Trace) -> list[list[tuple[float, float]]]:
    """Return, for each rank, (time, activations held from then on), in micro-batches: v stages a rank count 1/v each.

    F holds from its start; B, or W, lets go at its end. Both at the same time: no change.
    """
    share, curves = len(schedule.ranks) / schedule.stages, []
    for lane in trace.lanes:
        changes: list[tuple[float, float]] = []
        for span in trace.only(lane=lane):
            op = Action.parse(span.label).op
            if op == "F":
                changes.append((span.start, share))
            elif op in "BW":
                changes.append((span.end, -share))
        curve, now = [(trace.start, 0.0)], 0.0
        for time in sorted({time for time, _ in changes}):
            now = round(now + sum(change for at, change in changes if at == time), 6)
            curve.append((time, now))
        curves.append([*curve, (trace.end, now)])
    return curves


@styled
def draw_held(schedule: str, micro_batches: int, partitions: int) -> Figure:
    """Draw how many activations each rank holds over the time of a step: GPipe to the left, another to the right."""
    pair = [
        make(name, micro_batches, partitions, 2 if "interleaved" in name else 1)[0]
        for name in ("GPipe", schedule)
    ]
    traces = [simulate(table, **costs(table)) for table in pair]
    figure, both = new_figure(9, 3.9, cols=2, sharex=True, sharey=True)
    top = max(max(held(table)) for table in pair)
    for axes, table, trace in zip(both, pair, traces, strict=True):
        _curves(axes, table, trace)
        most = ", ".join(f"{peak:g}" for peak in held(table))
        axes.set_title(f"{table.name}: at most {most}", fontsize=11, pad=6)
        axes.set_xlabel("time (ticks)")
        axes.set(xlim=(0, 1.02 * max(t.end for t in traces)), ylim=(0, top + 0.9))
        axes.grid(axis="y")
        axes.yaxis.get_major_locator().set_params(integer=True)
    both[0].set_ylabel("activations held")
    both[1].legend(loc="upper right", ncols=3, columnspacing=1.0, handlelength=1.4, labelcolor=INK)
    peaks, ends = [max(held(table)) for table in pair], [round(trace.makespan, 2) for trace in traces]
    when = (
        f"in {ends[0]:g} ticks both" if ends[0] == ends[1] else f"in {ends[1]:g} ticks instead of {ends[0]:g}"
    )
    finding = f"GPipe holds up to {peaks[0]:g} activations a rank, {schedule} {peaks[1]:g}: {when}"
    headline(figure, finding)
    said = "; ".join(
        f"{table.name}: rank by rank {', '.join(f'{p:g}' for p in held(table))}" for table in pair
    )
    return describe(figure, f"{finding}. m = {micro_batches}, n = {partitions}. {said}.")


def _curves(axes: Axes, schedule: Schedule, trace: Trace) -> None:
    for rank, curve in enumerate(held_over_time(schedule, trace)):
        shift = 0.06 * (rank - (len(trace.lanes) - 1) / 2)  # equal lines lie side by side
        axes.plot(
            [time for time, _ in curve],
            [count + shift for _, count in curve],
            drawstyle="steps-post",
            color=rank_color(rank),
            linewidth=1.8,
            label=f"rank {rank}",
        )


@styled
def draw_interleaving(micro_batches: int, partitions: int, communicate: float) -> Figure:
    """Draw the time of a step of interleaved 1F1B by v (1: 1F1B): work, bubble, and what messages add.

    communicate: the time of a message in ticks, whatever v: the activation at a cut is as large as before.
    """
    m, n = micro_batches, partitions
    work, cut = 3.0 * m, (1, 2, 3, 4, 6, 8)
    free, real, peaks = [], [], []
    for v in cut:
        table = one_f_one_b(m, n) if v == 1 else interleaved_one_f_one_b(m, n, v)
        # once without messages, once with them: the difference is what messages add
        free.append(simulate(table, **costs(table)).makespan)
        real.append(simulate(table, **costs(table), communicate=communicate).makespan)
        peaks.append(max(held(table)))
    # rounded, so that of equal times the smallest v is named
    best = min(range(len(cut)), key=lambda k: round(real[k], 6))
    figure, (axes, memory) = new_figure(9, 3.7, cols=2, width_ratios=[2.2, 1])
    places = range(len(cut))
    look: dict[str, Any] = {"width": 0.66, "edgecolor": PAPER, "linewidth": 0.8}
    axes.bar(places, work, color=color_of("forward"), label="work", **look)
    axes.bar(
        places,
        [f - work for f in free],
        bottom=work,
        color=GREY,
        hatch=HATCH["bubble"],
        label="bubble",
        **look,
    )
    added = [r - f for r, f in zip(real, free, strict=True)]
    axes.bar(places, added, bottom=free, color=ORANGE, hatch="//", label="added by messages", **look)
    for k in places:
        weight = "bold" if k == best else "normal"
        axes.text(
            k, real[k] + 0.012 * max(real), f"{real[k]:.1f}", ha="center", fontsize=10, fontweight=weight
        )
    axes.set(ylim=(0, 1.3 * max(real)), ylabel="step (ticks)", xlabel="v · stages per rank")
    axes.legend(loc="upper right", ncols=3, facecolor=PAPER, frameon=True, framealpha=1, edgecolor=PAPER)
    memory.bar(places, peaks, color=[rank_color(3) if k == best else GREY for k in places], width=0.66)
    for k in places:
        memory.text(k, peaks[k] + 0.1, f"{peaks[k]:.1f}", ha="center", fontsize=9)
    memory.set(
        ylim=(0, 1.16 * max(peaks)), ylabel="held at most (micro-batches)", xlabel="v · stages per rank"
    )
    for each in (axes, memory):
        each.set_xticks(list(places), [str(v) for v in cut])
    finding = f"m = {m}, n = {n}, message {communicate:g}: v = {cut[best]} is fastest, {real[best]:.1f} ticks"
    headline(figure, f"{finding}, {format_share(1 - work / real[best])} idle; it holds {peaks[best]:.1f}")
    said = "; ".join(
        f"v = {v}: {r:.1f} ticks, holds {p:.1f}" for v, r, p in zip(cut, real, peaks, strict=True)
    )
    return describe(figure, f"{finding}. {said}.")


@styled
def draw_forgotten(shares: Sequence[float], missing: Sequence[int], error: float) -> Figure:
    """Draw what each micro-batch adds to the gradient of a weight (the length of its part), the forgotten ones crossed.

    shares: lengths, by micro-batch. missing: numbers of those whose W never ran. error: relative, of the whole.
    """
    figure, axes = new_figure(9, 2.9)
    for i, share in enumerate(shares):
        lost = i in missing
        look = (
            {"facecolor": PAPER, "edgecolor": RED, "hatch": HATCH["dropped"]}
            if lost
            else {"color": color_of("weight")}
        )
        axes.bar(i, share, width=0.7, linewidth=1.4, **look)
        if lost:
            axes.text(i, share * 1.02, "forgotten", ha="center", va="bottom", fontsize=10, color=RED)
    axes.set_xticks(range(len(shares)))
    axes.set(xlabel="micro-batch", ylabel="its part (length)", ylim=(0, 1.22 * max(shares)))
    axes.tick_params(axis="x", colors=MUTED)
    many = f"{len(missing)} W forgotten" if missing else "Every W done"
    finding = f"{many}: the gradient is {100 * error:.0f} % off, and nothing was raised"
    finding = finding if missing else f"{many}: the gradient is the plain model's"
    title(axes, finding)
    listed = ", ".join(map(str, missing)) or "none"
    return describe(figure, f"{finding}. {len(shares)} micro-batches; forgotten: {listed}.")


# ---- Time against memory, the two things that a schedule trades.

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


# ---- Schedules on the streams of a GPU: peak memory and idle share, predicted and measured.


@styled
def draw_executor_gpu(rows: Sequence[Mapping[str, Any]], source: str) -> Figure:
    """Draw the rows of support.n14.runs: outlines are predicted, full bars measured."""
    have = "mib" in rows[0]
    figure, both = new_figure(9, 3.4, cols=2)
    names = [NAMES.get(row["schedule"], row["schedule"]) for row in rows]
    panels = (
        ("peak memory, all ranks (MiB)", "predicted_mib", "mib", BLUE, 1),
        ("idle (%)", "predicted_idle", "idle", GREEN, 100),
    )
    for axes, (label, predicted, measured, color, scale) in zip(both, panels, strict=True):
        found = [scale * row[measured] for row in rows] if have else None
        bars(axes, [scale * row[predicted] for row in rows], found, color, across=True)
        axes.set_yticks(range(len(rows)), names if axes is both[0] else [""] * len(rows), color=INK)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)
        axes.margins(x=0.16)
    both[1].legend(handles=legend_pair(have), loc="upper right", bbox_to_anchor=(1, 1.14), ncols=2)
    key = "mib" if have else "predicted_mib"
    share = 100 * rows[1][key] / rows[0][key]
    finding = f"{names[1]} {'needs' if have else 'should need'} {share:.0f} % of {names[0]}'s memory"
    headline(figure, finding)
    source_note(figure, source)
    said = "; ".join(
        f"{name}: {row[key]:.0f} MiB, holds {row['live']}" for name, row in zip(names, rows, strict=True)
    )
    return describe(figure, f"{finding}. {source}. {said}.")


# ---- The autograd graph of a stage, cut in two: the trunk that I walks, and the branches that are left to W.

I_COLOR, W_COLOR = color_of("input"), color_of("weight")


def name_of(node: Node) -> str:
    """Return the name of a node as torch prints it, without its number: "Addmm"."""
    if node.name().endswith("AccumulateGrad"):
        return "leaf"
    return node.name().removesuffix("0").removesuffix("Backward")


def leaf_names(stage: nn.Module, x: Tensor) -> dict[int, str]:
    """Return what the leaves are called, by the id of their tensor."""
    return {id(x): "input"} | {id(parameter): name for name, parameter in stage.named_parameters()}


@styled
def draw_split(stage: nn.Module, x: Tensor) -> Figure:
    """Draw the real graph of `stage(x)`: the trunk from left (output) to right (input), each branch below its node.

    stage: one whose trunk is a chain. x: a leaf that requires a gradient.
    """
    output = stage(x)
    assert isinstance(output, Tensor)
    assert output.grad_fn is not None
    on_trunk, branches = trunk([output.grad_fn], [x])
    names = leaf_names(stage, x)
    # the trunk as a chain: from the output, always to the child that is on it
    chain: list[Node] = [output.grad_fn]
    while below := [child for child, _ in chain[-1].next_functions if child in on_trunk]:
        chain.append(below[0])
    figure, axes = new_figure(9, 3.5)
    gap = 1.9
    axes.text(-0.85, 0, "output", ha="right", va="center", color=MUTED)
    hanging = 0
    for k, node in enumerate(chain):
        text = names[id(node.variable)] if hasattr(node, "variable") else name_of(node)
        _box(axes, k * gap, 0, text, I_COLOR)
        if k:
            arrow(axes, ((k - 1) * gap + 0.72, 0), (k * gap - 0.72, 0), width=1.3, head=11)
        if node not in branches:
            continue
        # the branches of a node side by side, each followed down to its leaf
        below = [child for child, _ in node.next_functions if child is not None and child not in on_trunk]
        for place, child in enumerate(below):
            dx = (place - (len(below) - 1) / 2) * 1.5
            start, y = (k * gap, -0.32), -1.25
            while True:
                leaf = getattr(child, "variable", None)
                text = name_of(child) if leaf is None else names.get(id(leaf), "leaf")
                _box(axes, k * gap + dx, y, text, W_COLOR)
                arrow(axes, start, (k * gap + dx, y + 0.32), width=1.3, head=11)
                hanging += 1
                following = [grand for grand, _ in child.next_functions if grand is not None]
                if not following:
                    break
                child, start, y = following[0], (k * gap + dx, y - 0.32), y - 1.05
    axes.set(xlim=(-2.1, (len(chain) - 1) * gap + 1.0), ylim=(-3.1, 0.8))
    axes.axis("off")
    note = "I walks the upper row, and writes down what arrives where a branch begins; W starts there"
    axes.text(-1.7, -2.95, note, fontsize=10, color=MUTED)
    finding = f"I walks {len(chain)} nodes to the input; W begins at {len(branches)} of them and walks {hanging} more"
    title(axes, finding)
    told = " → ".join(names[id(n.variable)] if hasattr(n, "variable") else name_of(n) for n in chain)
    return describe(figure, f"{finding}. The trunk: {told}. Branches lead to the weights.")


def _box(axes: Axes, x: float, y: float, text: str, color: str) -> None:
    box(axes, x, y, 1.4, 0.6, text, face=color, edge=INK, line=0.9, radius=0.14, size=9.5)


def example_stage() -> tuple[nn.Module, Tensor]:
    """Return a stage of two linear layers, and an input for it."""
    stage = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    return stage, torch.ones(2, 4, requires_grad=True)
