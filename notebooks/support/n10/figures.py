"""Figures of notebook 10, checkpoint and recompute: held tensors, blocks while they are trained, faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from lib.show import style
from lib.show.charts import bars, beside
from lib.show.explore import Control, choice, whole
from lib.text import plural
from support.n10.blocks import WAYS, course_of
from support.n10.faults import Outcome
from support.n10.staircase import (
    MODES,
    HeldStep,
    Mode,
    checkpointed,
    measure_held,
    peak,
    predict,
    segments_of,
)

# ---- The memory staircase drawn: when each tensor is held, how many there are in each step.
#
# Bars and lines are predicted (support.n10.staircase: predict); what is filled is counted in a real run (measure_held).

LETTER = {"forward": "F", "recompute": "R", "backward": "B"}
LIVES = {  # why a tensor is held: colour, hatch, words
    "boundary": (style.BLUE, "", "kept: input of a segment"),
    "inside": (style.ORANGE, "....", "kept: no checkpoint"),
    "recomputed": (style.PINK, "////", "recomputed"),
}
KIND_COLORS = {
    "forward": style.PALETTE["forward"],
    "recompute": style.PINK,
    "backward": style.PALETTE["backward"],
}
HELD_CONTROLS: dict[str, Control] = {
    "layers": whole(2, 16, 8, "L · layers"),
    "segments": whole(1, 8, 1, "segments"),
    "micro_batches": whole(1, 4, 4, "m · micro-batches"),
    "mode": choice(MODES, "except_last", "checkpoint"),
}
COURSE_CONTROLS: dict[str, Control] = {
    "blocks": choice((1, 2, 4, 8), 1, "blocks"),
    "positions": choice((64, 128, 256, 512), 256, "s · positions"),
}


def lives(
    steps: list[HeldStep], layers: int, segments: int, stop: int
) -> Iterator[tuple[tuple[int, int], int, int, str]]:
    """Yield (tensor, first step, step after the last, why it is held) of every life of every tensor."""
    starts = {part[0] - 1 for part in segments_of(layers, segments)}
    for i, k in sorted({tensor for step in steps for tensor in step.held}):
        begun: int | None = None
        for t, step in enumerate((*steps, None)):
            here = step is not None and (i, k) in step.held
            again = step is not None and step[:3] == ("recompute", i, k)  # a second copy: another life
            if begun is not None and (again or not here):
                kept = k in starts and steps[begun][:3] != ("recompute", i, k)
                why = "boundary" if kept else "recomputed"
                if i >= stop:
                    why = "inside"
                yield (i, k), begun, t, why
                begun = None
            if here and begun is None:
                begun = t


@style.styled
def draw_held(layers: int = 12, segments: int = 3, micro_batches: int = 1, mode: Mode = "always") -> Figure:
    """Draw when each tensor is held for backward, and their number in each step: predicted and counted."""
    segments = min(segments, layers)
    steps = predict(layers, segments, micro_batches, mode)
    stop = checkpointed(micro_batches, mode)
    counted = [count for *_, count in measure_held(layers, segments, micro_batches, mode)]
    rows = micro_batches * (layers + 1)
    tall = min(0.17 * rows, 4.6)
    figure, (top, strip, bottom) = style.new_figure(
        9, tall + 3.0, rows=3, sharex=True, height_ratios=(tall, 0.28, 1.7)
    )
    seen: dict[str, None] = {}
    # a bar for each life of a tensor, from the step that makes it to the one after which it is dropped
    for (i, k), start, end, why in lives(steps, layers, segments, stop):
        color, hatch, _ = LIVES[why]
        seen[why] = None
        place = (i * (layers + 1) + k - 0.4, 0.8)
        edge = style.PAPER if hatch else color
        top.broken_barh([(start, end - start)], place, facecolor=color, edgecolor=edge, hatch=hatch, lw=0.4)
    _name_tensors(top, layers, micro_batches, dense=rows / tall)
    _draw_strip(strip, steps, micro_batches)
    _draw_count(bottom, [len(step.held) for step in steps], counted)
    looks = {why: look for why, look in LIVES.items() if why in seen}
    handles = [Patch(fc=c, ec=style.PAPER, hatch=h, label=words) for c, h, words in looks.values()]
    top.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
    highest = peak(steps)
    without = micro_batches * (layers + 1)
    batches = f" × {micro_batches} micro-batches" if micro_batches > 1 else ""
    parts = f", {plural(segments, 'segment')}" if stop else ""
    against = f" instead of {without}" if stop else ", no checkpoint"
    finding = f"{layers} layers{parts}{batches}: peak of {max(counted)} tensors{against}"
    with matplotlib.rc_context({"axes.titlepad": 30}):  # above the legend
        style.title(top, finding)
    fits = counted == [len(s.held) for s in steps]
    same = "in every step as predicted" if fits else f"predicted peak {highest}"
    last = counted[sum(s.kind == "forward" for s in steps) - 1]
    return style.describe(
        figure,
        f"Life lines of {rows} tensors over {len(steps)} steps, checkpoint {mode}. {finding}. "
        f"Counted in a real run: {last} in the last step of forward, {same}.",
    )


def _name_tensors(axes: Axes, layers: int, micro_batches: int, *, dense: float) -> None:
    """Name the rows: every tensor where there is room, else every fourth; a line between micro-batches."""
    every = 4 if dense < 20 else layers
    if dense < 6.5:
        every = 1
    last = layers + 1 if every == 1 else layers + 2 - every  # not so near to the next x0
    places = [(i, k) for i in range(micro_batches) for k in range(0, max(1, last), every)]
    names = [f"micro-batch {i}: x0" if micro_batches > 1 and k == 0 else f"x{k}" for i, k in places]
    axes.set_yticks([i * (layers + 1) + k for i, k in places], names, fontsize=9)
    axes.set_ylim(micro_batches * (layers + 1) - 0.5, -0.5)
    for i in range(1, micro_batches):
        axes.axhline(i * (layers + 1) - 0.5, color=style.GREY, lw=0.8)
    axes.tick_params(axis="both", length=0, labelbottom=False)
    axes.spines["bottom"].set_visible(False)


def _draw_strip(axes: Axes, steps: list[HeldStep], micro_batches: int) -> None:
    """Draw what the device does: a block for every run of steps of one kind and micro-batch."""
    kinds = itertools.groupby(enumerate(steps), lambda pair: (pair[1].kind, pair[1].micro_batch))
    for (kind, i), run in kinds:
        places = [t for t, _ in run]
        color = style.PALETTE[kind]
        axes.broken_barh([(places[0], len(places))], (0, 1), facecolor=color, edgecolor=style.PAPER, lw=1)
        label = LETTER[kind] + (str(i) if micro_batches > 1 else "")
        wide = 560 * len(places) / len(steps) > 7 * len(label)
        x = places[0] + len(places) / 2
        size = 9 if wide else 6
        axes.text(x, 0.5, label, ha="center", va="center_baseline", fontsize=size, color=style.ink_on(color))
    axes.set(ylim=(0, 1), yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.set_ylabel("runs", rotation=0, ha="right", va="center", fontsize=9)


def _draw_count(axes: Axes, predicted: list[int], counted: list[int]) -> None:
    """Draw the number of tensors in each step: what was counted filled, what was predicted as an outline."""
    edges = list(range(len(predicted) + 1))
    axes.stairs(counted, edges, fill=True, color=style.pale(style.BLUE, 0.45), label="counted")
    axes.stairs(predicted, edges, color=style.INK, lw=1.4, label="predicted")
    top = max(counted)
    beside(axes, (counted.index(top) + 0.5, top), str(top), (0, 8), ha="center", fontweight="bold")
    axes.set(xlim=(0, len(predicted)), ylim=(0, 1.25 * top), ylabel="tensors held")
    axes.set_xlabel("step: one layer forward (F), recomputed (R) or backward (B)")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", ncols=2, borderaxespad=0.1)


@style.styled
def draw_staircases(layers: int, segments: tuple[int, ...] = (4,)) -> Figure:
    """Draw the tensors held over the steps: without checkpoint, and below with so many segments; each its own row."""
    ways: list[tuple[str, int, Mode]] = [("without", 1, "never")]
    ways += [(plural(s, "segment"), s, "always") for s in segments]
    figure, panels = style.new_figure(9, 0.9 + 1.45 * len(ways), rows=len(ways), sharex=True, sharey=True)
    said = []
    peaks = {}
    for axes, (name, count, mode) in zip(panels, ways, strict=True):
        expected = predict(layers, count, 1, mode)
        log = measure_held(layers, count, 1, mode)
        edges = list(range(len(log) + 1))
        for kind, color in KIND_COLORS.items():
            # one filled step function a kind; nan leaves out the steps of the others
            values = [n if k == kind else math.nan for k, *_, n in log]
            look = {"facecolor": style.pale(color, 0.75), "hatch": "////" if kind == "recompute" else ""}
            axes.stairs(values, edges, fill=True, edgecolor=style.PAPER, lw=0, label=kind, **look)
        axes.stairs([len(step.held) for step in expected], edges, color=style.INK, lw=1.3)
        counts = [n for *_, n in log]
        peaks[name] = top = max(counts)
        beside(axes, (counts.index(top) + 0.5, top), f"{top}", (0, 7), ha="center", fontweight="bold")
        axes.text(0.995, 0.93, name, transform=axes.transAxes, ha="right", va="top", fontweight="bold")
        axes.set_ylabel("tensors")
        said.append(f"{name}: peak {top} over {len(log)} steps")
    panels[0].set(ylim=(0, 1.2 * max(peaks.values())), xlim=(0, 3 * layers))
    panels[-1].set_xlabel("step: one layer forward, recomputed or backward")
    panels[0].stairs([0], [0, 0], color=style.INK, label="outline: predicted")
    panels[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
    best = min(peaks, key=lambda name: peaks[name])
    finding = f"{layers} layers: {peaks['without']} tensors at the peak without, {peaks[best]} with {best}"
    with matplotlib.rc_context({"axes.titlepad": 30}):
        style.title(panels[0], finding)
    return style.describe(figure, f"Memory staircases, counted in real runs. {finding}. {'; '.join(said)}.")


# ---- What is alive while blocks are trained, and what ways of keeping less weigh and cost.


@style.styled
def draw_course(blocks: int = 1, positions: int = 256) -> Figure:
    """Draw the units alive after each operation of a step, a row for each way of keeping less."""
    courses = {way: course_of(way, blocks, positions) for way in WAYS}
    figure, panels = style.new_figure(9, 7.6, rows=len(WAYS), sharex=True, sharey=True)
    peaks = {way: course.peak for way, course in courses.items()}
    said = []
    for axes, (way, course) in zip(panels, courses.items(), strict=True):
        edges = list(range(len(course.alive) + 1))
        for kind, color in KIND_COLORS.items():
            # nan leaves out the operations of the other kinds
            values = [n if k == kind else math.nan for n, k in zip(course.alive, course.kinds, strict=True)]
            look = {"facecolor": style.pale(color, 0.75), "hatch": "////" if kind == "recompute" else ""}
            axes.stairs(values, edges, fill=True, edgecolor=style.PAPER, lw=0, label=kind, **look)
        at = course.alive.index(course.peak)
        top = f"{course.peak:.0f} u, {course.top}"
        beside(axes, (at + 0.5, course.peak), top, (0, 8), ha="center", fontweight="bold")
        name = axes.text(0.01, 0.93, way, transform=axes.transAxes, ha="left", va="top", fontweight="bold")
        name.set_bbox({"facecolor": style.PAPER, "edgecolor": "none", "pad": 1})
        axes.set_ylabel("u alive")
        said.append(
            f"{way}: {course.held:.0f} u after forward, {course.peak:.0f} u at the peak, in {course.top}"
        )
    panels[0].set(ylim=(0, 1.6 * max(peaks.values())), xlim=(0, max(len(c.alive) for c in courses.values())))
    panels[-1].set_xlabel("operations of a step, in the order in which they ran")
    panels[0].legend(loc="upper right", ncols=3)
    plain, attention, *_ = peaks.values()
    moved = "lowers" if attention < plain else "raises"
    finding = f"{plural(blocks, 'block')}, {positions} positions: to recompute attention {moved} the peak"
    style.headline(figure, f"{finding}, {plain:.0f} → {attention:.0f} u")
    return style.describe(figure, f"{finding}. {'; '.join(said)}.")


@style.styled
def draw_ways(
    peaks: Mapping[str, tuple[float, float]],
    flops: Mapping[str, float],
    times: Mapping[str, float],
    what: str,
) -> Figure:
    """Draw for each way the peak, predicted and measured, and the shares of FLOPs and of time that it adds.

    flops: nan where nobody counted them. times: of a way without a peak, a control, it is drawn as a line.
    """
    figure, (left, middle, right) = style.new_figure(9.6, 1.2 + 0.42 * len(peaks), cols=3)
    predicted, measured = zip(*peaks.values(), strict=True)
    bars(left, predicted, measured, style.BLUE, across=True, write="{:.0f}".format)
    left.set_yticks(range(len(peaks)), list(peaks), color=style.INK)
    left.set(xlabel=f"peak ({what})", xlim=(0, 1.3 * max(*predicted, *measured)))
    every = [share for share in (*flops.values(), *times.values()) if not math.isnan(share)]
    for axes, shares, name in ((middle, flops, "FLOPs added"), (right, times, "time added, measured")):
        values = [0.0 if math.isnan(shares[way]) else shares[way] for way in peaks]
        axes.barh(range(len(values)), values, height=0.5, color=style.PINK)
        for place, (way, value) in enumerate(zip(peaks, values, strict=True)):
            beside(axes, (max(0.0, value), place), _share(shares[way]), (5, 0), ha="left", color=style.INK)
        # one scale for both, so that a bar of time is as long as one of FLOPs
        axes.set(yticks=[], xlabel=name, xlim=(1.15 * min(0.0, *every), 1.5 * max(0.2, *every)))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.axvline(0, color=style.INK, lw=0.8)
        axes.invert_yaxis()
    controls = {way: share for way, share in times.items() if way not in peaks}
    for way, share in controls.items():
        right.axvline(share, color=style.INK, lw=1.2, ls=(0, (3, 3)), zorder=0)
        right.set_title(f"dashed: {way}, {share:+.0%}", fontsize=9.5)
    rows = [
        f"{way}: peak {measured:.0f} (predicted {predicted:.0f}), FLOPs {_share(flops[way])}, time {times[way]:+.0%}"
        for way, (predicted, measured) in peaks.items()
    ]
    rows += [f"{way}, a control: time {share:+.0%}" for way, share in controls.items()]
    off = max(abs(measured / predicted - 1) for predicted, measured in peaks.values())
    within = max(1, math.ceil(100 * off))
    counted = [way for way in peaks if not math.isnan(flops[way])]
    apart = max(counted, key=lambda way: times[way] - flops[way])
    finding = f"{apart}: {flops[apart]:+.0%} FLOPs, {times[apart]:+.0%} time"
    style.headline(figure, f"Peaks within {within}% of what one block predicts; {finding}")
    return style.describe(
        figure, f"Ways of keeping less, {what}. Furthest apart, {finding}. {'; '.join(rows)}."
    )


def _share(value: float) -> str:
    return "not counted" if math.isnan(value) else f"{value:+.0%}"


# ---- What goes wrong in a second forward: a table of faults.

LOOK: Mapping[Outcome, tuple[str, str, str]] = {  # colour, sign, words
    "same": (style.GREEN, "✓", "same gradients"),
    "warned": (style.ORANGE, "△", "warned"),
    "error": (style.BLUE, "!", "refused"),
    "counted twice": (style.RED, "2×", "counted twice"),
    "no gradient": (style.RED, "∅", "no gradient"),
    "wrong": (style.RED, "✗", "wrong"),
}


@style.styled
def draw_faults(table: Mapping[str, Mapping[str, Outcome]]) -> Figure:
    """Draw outcomes, a row a case and a column a checkpoint."""
    columns = list(next(iter(table.values())))
    figure, axes = style.new_figure(9, 1.2 + 0.42 * len(table))
    for (row, outcomes), (column, name) in itertools.product(enumerate(table.values()), enumerate(columns)):
        color, sign, words = LOOK[outcomes[name]]
        face = color if color == style.RED else style.pale(color, 0.30)
        axes.add_patch(Rectangle((column + 0.02, row + 0.06), 0.96, 0.88, fc=face, ec=style.PAPER))
        ink = style.ink_on(face) if color == style.RED else style.INK
        look = {"ha": "center", "va": "center", "fontsize": 9, "color": ink}
        axes.text(column + 0.5, row + 0.5, f"{sign}  {words}", **look)
    axes.set(xlim=(0, len(columns)), ylim=(len(table), 0))
    axes.set_yticks([row + 0.5 for row in range(len(table))], list(table), color=style.INK, fontsize=10)
    names = [column.replace("torch ", "torch,\n") for column in columns]
    axes.set_xticks([column + 0.5 for column in range(len(columns))], names, color=style.INK, fontsize=10)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    faults = {name: sum(LOOK[row[name]][0] == style.RED for row in table.values()) for name in columns}
    said = ", ".join(f"{name} {n}" for name, n in faults.items())
    counted = f"Silent faults, of {len(table)} cases: {said}"
    always = [case for case, row in table.items() if all(LOOK[row[name]][0] == style.RED for name in columns)]
    fewest = min(faults, key=faults.__getitem__)
    finding = f"Silent in every column: {', '.join(always) or 'none'}"
    finding += f"; fewest: {fewest}, {faults[fewest]} of {len(table)}"
    style.headline(figure, finding)
    rows = (f"{case}: {', '.join(f'{n} {what}' for n, what in row.items())}" for case, row in table.items())
    return style.describe(figure, f"{counted}. {finding}. {'; '.join(rows)}.")
