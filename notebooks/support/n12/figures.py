"""Figures of notebook 12, GPipe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from lib.show.charts import bars, beside, legend_pair, log2_axis
from lib.show.explore import Control, choice, steps, whole
from lib.show.lanes import bar, idle, lane_bars, lane_rows
from lib.show.sheet import write
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    describe,
    headline,
    new_figure,
    pale,
    rank_color,
    source_note,
    styled,
    title,
)
from lib.text import format_share
from lib.timeline import Trace
from support.n12.balance import (
    block_costs,
    clock_by_clock,
    fastest,
    held_after_forward,
    held_at_most,
    launched_ahead,
    predicted_forward,
    speedup,
    time_of_recompute,
)

_Row = Mapping[str, Any]
_Point = tuple[float, float]

# --- a balance, and the clocks that follow from it

COSTS: dict[str, tuple[int, ...]] = {
    "early layers dear": (6, 5, 4, 3, 2, 2, 1, 1, 1, 1),
    "all alike": (3,) * 10,
    "one heavy layer": (1, 1, 1, 1, 12, 2, 2, 2, 2, 2),
}

BALANCE_CONTROLS: dict[str, Control] = {
    "costs": choice(tuple(COSTS), "early layers dear", "costs of the layers"),
    "first": whole(1, 8, 4, "layers in partition 0"),
    "second": whole(1, 8, 3, "layers in partition 1"),
    "chunks": whole(1, 16, 4, "m · micro-batches"),
    "overhead": steps((0.0, 0.1, 0.2, 0.5, 1.0), 0.1, "overhead of a task, ticks"),
}


def owners(balance: Sequence[int]) -> list[int]:
    """Return the partition of each layer."""
    return [j for j, size in enumerate(balance) for _ in range(size)]


@styled
def draw_balance(costs: str, first: int, second: int, chunks: int, overhead: float) -> Figure:
    """Draw ten layers in three partitions, and the predicted forward pass of `chunks` micro-batches."""
    layers = COSTS[costs]
    asked = (first, second)
    first = min(first, len(layers) - 2)
    second = min(second, len(layers) - first - 1)
    balance = [first, second, len(layers) - first - second]
    blocks = block_costs(layers, balance)
    best = fastest(layers, 3, chunks, overhead)
    gain, possible = (speedup(layers, cut, chunks, overhead) for cut in (balance, best))
    trace = predicted_forward([block / chunks + overhead for block in blocks], chunks)

    figure, (upper, lower) = new_figure(9, 4.9, rows=2, height_ratios=[1, 1.9])
    _draw_layers(upper, layers, balance, blocks)
    _draw_clocks(lower, trace, chunks)
    slowest = [j for j, block in enumerate(blocks) if block == max(blocks)]
    alone = len(slowest) == 1 and chunks > 1  # one micro-batch is in one partition at a time
    who = f"partition {slowest[0]} decides" if alone else "no partition alone decides"
    better = "no cut is faster"
    if possible > gain + 5e-3:
        better = f"{best} gives {possible:.2f} ×"
    elif possible > gain + 1e-9:
        better = f"{best} is faster by a hair"
    finding = f"{balance}: {who}, {gain:.2f} × one device; {better}"
    changed = ""
    if (first, second) != asked:
        taken = f"{first}, {second} and {balance[2]} in place of {asked[0]}, {asked[1]}"
        upper.set_xlabel(f"there are only ten layers: {taken}")
        changed = f" There are only ten layers: {taken}."
    title(upper, finding)
    facts = ", ".join(f"partition {j} costs {block:g} ticks" for j, block in enumerate(blocks))
    said = f"{chunks} micro-batches. Layers cost {', '.join(map(str, layers))}; {facts}."
    ends = f"The forward pass ends after {trace.makespan:.1f} ticks, {format_share(trace.bubble)} idle."
    return describe(figure, f"{finding}. {said} {ends}{changed}")


def _draw_layers(axes: Axes, layers: Sequence[int], balance: Sequence[int], blocks: Sequence[float]) -> None:
    starts = accumulate(layers, initial=0)
    for start, cost, j in zip(starts, layers, owners(balance), strict=False):
        bar(axes, 0, start, cost, rank_color(j), str(cost), size=10, height=1, linewidth=1.5)
    for j, (at, block) in enumerate(zip(accumulate(blocks, initial=0), blocks, strict=False)):
        axes.plot([at + 0.1, at + block - 0.1], [0.72, 0.72], color=rank_color(j), linewidth=3)
        write(axes, at + block / 2, 0.88, f"{j}: {block:g}", va="top")
    lane_rows(axes, ["layers"], -0.2, sum(layers) + 0.2)
    axes.set(xticks=[], ylim=(1.45, -0.6))
    axes.spines["bottom"].set_visible(False)


def _draw_clocks(axes: Axes, trace: Trace, chunks: int) -> None:
    end = trace.makespan
    for j, lane in enumerate(trace.lanes):
        idle(axes, j, [(0, end)])
        spans = trace.only(lane=lane).spans
        places = [(span.start, span.duration) for span in spans]
        texts = [str(i) if span.duration > end / 45 else "" for i, span in enumerate(spans)]
        lane_bars(axes, j, places, [rank_color(j)] * len(spans), texts, size=9.5, linewidth=1)
        write(axes, end * 1.01, j, f"{format_share(trace.busy(lane) / end)} busy", color=MUTED, ha="left")
    for start in sorted({span.start for span in trace}):
        axes.axvline(start, color=INK, linewidth=0.8, linestyle=(0, (3, 3)))
    lane_rows(axes, trace.lanes, 0, end * 1.13)
    axes.set_xlabel(f"time (ticks); a number is a micro-batch of 1/{chunks}, dashed lines part the clocks")


# --- measured beside predicted


@styled
def draw_gains(rows: Sequence[_Row]) -> Figure:
    """Draw how many times as fast forward was, beside what the clocks predict.

    rows: one per m, with "chunks", "law" (as if a task were as fast beside another), "predicted" and "measured".
    """
    figure, axes = new_figure(9, 3.7)
    for x, row in enumerate(rows):
        bar_of: Any = {"width": 0.34, "align": "center"}
        axes.bar(x - 0.19, row["predicted"], color=PAPER, edgecolor=BLUE, lw=1.8, **bar_of)
        axes.bar(x + 0.19, row["measured"], color=BLUE, lw=0, **bar_of)
        axes.plot([x - 0.4, x + 0.4], [row["law"]] * 2, color=INK, lw=1.6, ls=(0, (3, 2)))
        for shift, key, color in ((-0.19, "predicted", INK), (0.19, "measured", PAPER)):
            beside(axes, (x + shift, 0), f"{row[key]:.2f}", (0, 5), ha="center", va="bottom", color=color)
    handles = [
        Patch(
            facecolor=PAPER, edgecolor=BLUE, linewidth=1.8, label="predicted, with contention and hand-over"
        ),
        Patch(facecolor=BLUE, label="measured"),
        Line2D([], [], color=INK, lw=1.6, ls=(0, (3, 2)), label="2 m / (m + 1)"),
    ]
    axes.legend(handles=handles, loc="upper left", ncols=3)
    axes.set_xticks(range(len(rows)), [f"m = {row['chunks']}" for row in rows])
    axes.set(ylim=(0, 2.6), ylabel="speed, × one task at a time")
    last = rows[-1]
    finding = f"Forward in two workers, m = {last['chunks']}: predicted {last['predicted']:.2f} ×"
    finding += f", measured {last['measured']:.2f} ×"
    title(axes, finding)
    each = "m = {chunks}: 2 m / (m + 1) is {law:.2f}, predicted {predicted:.2f}, measured {measured:.2f}".format_map
    return describe(figure, f"{finding}. {'; '.join(map(each, rows))}.")


@styled
def draw_ways(seconds: Mapping[str, float], beside_others: Mapping[str, float]) -> Figure:
    """Draw how fast a training step is in several ways, alone and beside busy programs; the first is the unit."""
    names = list(seconds)
    figure, axes = new_figure(9, 4.0)
    told = []
    fastest_are = []
    looks = (seconds, "as the machine is", BLUE), (beside_others, "beside busy programs", pale(BLUE, 0.4))
    for shift, (times, where, color) in zip((-0.2, 0.2), looks, strict=True):
        gains = [times[names[0]] / times[name] for name in names]
        axes.barh([y + shift for y in range(len(names))], gains, height=0.38, color=color, lw=0, label=where)
        for y, (name, gain) in enumerate(zip(names, gains, strict=True)):
            beside(axes, (max(gain, 1.0), y + shift), f"{gain:.2f} ×   {1e3 * times[name]:.0f} ms", (5, 0))
        best = max(range(len(gains)), key=gains.__getitem__)
        fastest_are.append(f"{names[best]} {gains[best]:.2f} ×" if best else "none gains")
        each = zip(names, gains, strict=True)
        told.append(f"{where}: {'; '.join(f'{name} {gain:.2f} ×' for name, gain in each)}")
    axes.axvline(1, color=INK, lw=1, ls=(0, (3, 3)), zorder=0)
    axes.set(xlim=(0, max(2.8, 1.3 * axes.get_xlim()[1])), xlabel=f"speed of a training step, × {names[0]}")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.legend(loc="upper right")
    finding = f"Fastest: {fastest_are[0]}; beside busy programs: {fastest_are[1]}"
    headline(figure, finding)
    return describe(figure, f"{finding}. {'. '.join(told)}.")


# --- training


def furthest(runs: Mapping[str, Sequence[float]]) -> float:
    """Return the largest relative difference between the first run's losses and another's, at any step."""
    first, *others = runs.values()
    return max(abs(a - b) / a for other in others for a, b in zip(first, other, strict=True))


@styled
def draw_same(runs: Mapping[str, Sequence[float]], whole: Sequence[float]) -> Figure:
    """Draw the losses of several runs, wide lines below narrow ones, and how far each is from the first.

    whole: the losses of the same training without micro-batches.
    """
    figure, (left, right) = new_figure(9, 3.9, cols=2, width_ratios=[1.4, 1])
    first = next(iter(runs.values()))
    for k, (name, losses) in enumerate(runs.items()):
        color, width = (GREY, 9.0) if k == 0 else (rank_color(k - 1), 8.0 - 1.7 * k)
        left.plot(losses, color=color, lw=width, label=name, solid_capstyle="round")
        if k:
            apart = [abs(a - b) / a for a, b in zip(first, losses, strict=True)]
            right.plot(apart, color=color, lw=1.6, label=name)
    left.plot(whole, color=INK, lw=1.0, ls=(0, (3, 2)), label="whole batches")
    far = [abs(a - b) / a for a, b in zip(first, whole, strict=True)]
    right.plot(far, color=INK, lw=1.0, ls=(0, (3, 2)))
    left.set(xlabel="step", ylabel="loss", ylim=(0, None))
    left.legend(loc="upper right")
    right.set_yscale("symlog", linthresh=1e-9)
    right.set(xlabel="step", ylabel="difference from the first, relative", ylim=(-2e-10, 1.5))
    right.set_yticks([0, 1e-9, 1e-6, 1e-3, 1], ["0", "1e-9", "1e-6", "0.001", "1"])
    right.minorticks_off()
    most = furthest(runs)
    apart_by = ", to the last bit"
    if most:
        apart_by = f" to within {10.0 ** math.ceil(math.log10(most)):.0e} of itself"
    finding = f"{len(runs)} runs with one seed: at every step the same loss{apart_by}"
    headline(figure, finding)
    ends = ", ".join(f"{name} ends at {losses[-1]:.4f}" for name, losses in runs.items())
    return describe(figure, f"{finding}. {ends}; whole batches end at {whole[-1]:.4f}.")


# --- on devices

LAWS = {launched_ahead: "launched ahead", clock_by_clock: "each clock waits"}


@styled
def draw_speeds(seconds: Sequence[Sequence[float]], ms: Sequence[int], name: str) -> Figure:
    """Draw the time of forward and of backward on four devices by m, between two predictions.

    seconds: [forward, backward] of f, of o, then of each m. name: of the device.
    """
    figure, both = new_figure(9, 3.9, cols=2)
    nearer = []
    fastest_with = []
    for k, (axes, way, color) in enumerate(zip(both, ("forward", "backward"), (BLUE, ORANGE), strict=True)):
        f, o, *measured = (1e3 * row[k] for row in seconds)
        laws = {law: [law(m, 4, f, o) for m in ms] for law in LAWS}
        axes.plot(
            ms,
            laws[clock_by_clock],
            color=MUTED,
            lw=1.6,
            ls=(0, (3, 2)),
            label=f"predicted, {LAWS[clock_by_clock]}",
        )
        axes.plot(ms, laws[launched_ahead], color=INK, lw=1.6, label=f"predicted, {LAWS[launched_ahead]}")
        axes.plot(ms, measured, "o", color=color, ms=8, label="measured")
        log2_axis(axes, ms)
        axes.set(xlabel="m · micro-batches", ylim=(0, 1.15 * max(*measured, *laws[clock_by_clock][1:])))
        best = min(zip(measured, ms, strict=True))[1]
        axes.set_title(f"{way}: f/o = {f / o:.0f}, fastest with m = {best}", fontsize=11)
        fastest_with.append(f"{way} is fastest with m = {best}, f = {f:.1f} ms, o = {o:.2f} ms")
        off = {
            law: sum(abs(math.log(a / b)) for a, b in zip(each, measured, strict=True))
            for law, each in laws.items()
        }
        nearer.append(LAWS[min(laws, key=off.__getitem__)])
    both[0].set_ylabel("time of a pass, ms")
    both[0].legend(loc="upper center")
    finding = f"Forward is nearer to “{nearer[0]}”, backward to “{nearer[1]}”"
    if nearer[0] == nearer[1]:
        finding = f"Forward and backward are nearer to “{nearer[0]}”"
    headline(figure, finding)
    rows = "; ".join(
        f"m = {m}: {1e3 * forward:.1f} and {1e3 * back:.1f} ms"
        for m, (forward, back) in zip(ms, seconds[2:], strict=True)
    )
    return describe(figure, f"{finding}. On {name}; {'; '.join(fastest_with)}. Forward and backward, {rows}.")


@styled
def draw_held(found: Mapping[str, Sequence[float]], m: int, inside: float) -> Figure:
    """Draw what partition 1 holds after forward and at most, by mode, beside the formulas; in bytes of its input.

    found: [after forward, peak] by mode. inside: of the whole mini-batch.
    """
    figure, both = new_figure(9, 3.3, cols=2, sharey=True)
    formulas = (held_after_forward, held_at_most)
    for k, (axes, formula, when) in enumerate(
        zip(both, formulas, ("after forward", "at most, in backward"), strict=True)
    ):
        predicted = [formula(mode, m, inside) for mode in found]
        bars(axes, predicted, [each[k] for each in found.values()], GREEN, across=True, write="{:.2f}".format)
        axes.set_title(when, fontsize=11)
        axes.set(xlabel="held, × E", xlim=(0, 1.25 * max(inside, *(each[1] for each in found.values()))))
    both[0].set_yticks(range(len(found)), list(found))
    both[0].legend(handles=legend_pair(measured=True, color=GREEN), loc="upper right")
    saved = found["except_last"][0] - found["always"][0]
    least = held_at_most("always", m, inside)
    finding = (
        f"m = {m}: always saves {saved:.2f} E after forward; at the peak both need at least {least:.2f} E"
    )
    headline(figure, finding)
    rows = "; ".join(
        f"{mode} {after:.2f} E after forward, {peak:.2f} E at most" for mode, (after, peak) in found.items()
    )
    return describe(
        figure, f"{finding}. {rows}. Outlines: the formulas, at the peak the least that must be there."
    )


# --- what others have published


def ideal(partitions: int, micro_batches: int) -> float:
    """Return the speed that the clocks allow, as a multiple of one busy device: n · m / (m + n - 1)."""
    return partitions * micro_batches / (micro_batches + partitions - 1)


@styled
def draw_published(record: _Row) -> Figure:
    """Draw torchgpipe's published speeds against the clocks, and what one partition costs beside the plain layers."""
    figure, (ideals, alone) = new_figure(9, 3.9, cols=2, width_ratios=[1.25, 1])
    shares = _draw_ideals(ideals, record["amoebanet"])
    cost = _draw_one_partition(alone, record["speed"])
    least = round(100 * min(shares))
    most = round(100 * max(shares))
    finding = f"Published: {least} to {most} % of what the clocks allow, in a unit that recomputes all"
    headline(figure, finding)
    origin = record["provenance"]
    source = f"Published {origin['date']}, not measured here: {record['source']}."
    source += f"\n{origin['machine']}, {origin['commit'].partition(' (')[0]}"
    source_note(figure, source, recorded=True)
    return describe(figure, f"{finding}. {cost}. {source}.")


def _draw_ideals(axes: Axes, rows: Sequence[_Row]) -> list[float]:
    """Draw what was reached and what the clocks allow; return the shares of it that torchgpipe reached."""
    rows = [row for row in rows if row["micro_batches"] > 1]  # m = 1: one at a time works, that is the unit
    rows = sorted(rows, key=lambda row: (row["partitions"], row["micro_batches"]))
    limits = [ideal(row["partitions"], row["micro_batches"]) for row in rows]
    ours = [row["torchgpipe"] for row in rows]
    theirs = [row["gpipe"] for row in rows]
    places = range(len(rows))
    axes.hlines(places, theirs, limits, color=GREY, lw=1, zorder=1)
    axes.plot(limits, places, "|", color=INK, ms=15, mew=2, label="limit: n·m / (m+n−1)")
    axes.plot(ours, places, "o", color=BLUE, ms=8, label="torchgpipe")
    axes.plot(theirs, places, "s", mfc=PAPER, mec=MUTED, ms=7, label="GPipe's paper")
    axes.legend(loc="upper right", handletextpad=0.2, borderaxespad=0)
    axes.set_yticks(places, ["n = {partitions}, m = {micro_batches}".format_map(row) for row in rows])
    for place, row in zip(places, rows, strict=True):
        beside(axes, (limits[place], place), f"{row['batch']} rows", (6, 0), fontsize=9, color=MUTED)
    axes.set(xlim=(0.5, 8.4), ylim=(len(rows) - 0.4, -0.6))
    axes.set_xlabel("speed, × n = 2, m = 1, always, 96 rows")
    axes.set_title("AmoebaNet-D, except_last", fontsize=11)
    return [speed / limit for speed, limit in zip(ours, limits, strict=True)]


def _draw_one_partition(axes: Axes, speeds: Mapping[str, _Row]) -> str:
    """Draw how many times as long a row takes in one partition as in the plain layers; say it."""
    found = {name: row["baseline"] / row["partitions"]["1"] for name, row in speeds.items()}
    chunks = {row["one_partition"]["micro_batches"] for row in speeds.values()}
    (m,) = chunks
    half = time_of_recompute(2.0, (m - 1) / m)
    everything = time_of_recompute(2.0)
    bars(axes, [half] * len(found), list(found.values()), BLUE, across=True, write="".format)
    for place, ratio in enumerate(found.values()):
        beside(axes, (ratio, place), f"{ratio:.3f} ×", (-6, 0), ha="right", color=PAPER)
    axes.axvline(everything, color=MUTED, lw=1.6, ls=(0, (3, 2)))
    beside(axes, (everything, -0.55), f"always: {everything:.2f} ×", (5, 0), fontsize=9, color=MUTED)
    axes.set_yticks(range(len(found)), list(found))
    axes.set(xlim=(0, 2.1), ylim=(len(found) - 0.3, -0.75))
    axes.set_xlabel("time of a row, × plain layers")
    axes.set_title(f"one partition, m = {m}, except_last", fontsize=11)
    told = ", ".join(f"{name} {ratio:.3f}" for name, ratio in found.items())
    return f"One partition of two micro-batches takes {told} times as long as plain layers; {half:.3f} is predicted"
