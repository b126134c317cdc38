"""What a schedule holds, and what a finer cut costs: the first figures of notebook 14.

draw_held          activations that each rank holds, over time: a schedule beside GPipe
draw_interleaving  the time of a step by stages per rank: work, bubble, communication
draw_forgotten     what each micro-batch adds to a weight's gradient, and what is missing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib._units import format_share
from lib.figures.schedule_explorer import make
from lib.pipeline.schedule import Action, Schedule, interleaved_one_f_one_b, one_f_one_b, simulate
from lib.show.explore import choice, steps, whole
from lib.show.schedules import held
from lib.show.style import (
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
    styled,
    title,
)
from lib.timeline import Trace

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
        axes.grid(axis="y", color="#e3e6ea")
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
        free.append(simulate(table, **costs(table)).makespan)
        real.append(simulate(table, **costs(table), communicate=communicate).makespan)
        peaks.append(max(held(table)))
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
