"""Figures of notebook 10, checkpoint and recompute: held tensors, time and memory, faults."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lib._values import plural
from lib.show.charts import bars
from lib.show.explore import Control, choice, switch, whole
from lib.show.sheet import arrow, box
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PALETTE,
    PAPER,
    PINK,
    RED,
    describe,
    headline,
    ink_on,
    new_figure,
    pale,
    rank_color,
    source_note,
    styled,
    title,
)
from lib.show.timeline import draw_timeline
from lib.timeline import Trace
from support.n10.runs import (
    MODES,
    Mode,
    Outcome,
    Step,
    checkpointed,
    measure,
    peak,
    predict,
    predict_early,
    predict_step,
    segments_of,
)

# ---- The memory staircase drawn: when each tensor is held, how many there are in each step, step by step.
#
# Bars and lines are predicted (support.n10.runs: predict); what is filled is counted in a real run (measure).

LETTER = {"forward": "F", "recompute": "R", "backward": "B"}
LIVES = {  # why a tensor is held: colour, hatch, words
    "boundary": (BLUE, "", "kept: input of a segment"),
    "inside": (ORANGE, "....", "kept: no checkpoint"),
    "recomputed": (PINK, "////", "recomputed"),
}
HELD_CONTROLS: dict[str, Control] = {
    "layers": whole(2, 16, 12, "L · layers"),
    "segments": whole(1, 8, 3, "segments"),
    "micro_batches": whole(1, 4, 2, "m · micro-batches"),
    "mode": choice(MODES, "always", "checkpoint"),
}


def lives(
    steps: list[Step], layers: int, segments: int, stop: int
) -> Iterator[tuple[tuple[int, int], int, int, str]]:
    """Yield (tensor, first step, step after the last, why it is held) of every life of every tensor."""
    starts = {part[0] - 1 for part in segments_of(layers, segments)}
    tensors = sorted({tensor for step in steps for tensor in step.held})
    for tensor in tensors:
        i, k = tensor
        begun: int | None = None
        for t, step in enumerate((*steps, None)):
            here = step is not None and tensor in step.held
            again = step is not None and step[:3] == ("recompute", i, k)  # a second copy: another life
            if begun is not None and (again or not here):
                if i >= stop:
                    why = "inside"
                else:
                    why = (
                        "boundary"
                        if k in starts and steps[begun][:3] != ("recompute", i, k)
                        else "recomputed"
                    )
                yield tensor, begun, t, why
                begun = None
            if here and begun is None:
                begun = t


@styled
def draw_held(layers: int = 12, segments: int = 3, micro_batches: int = 1, mode: Mode = "always") -> Figure:
    """Draw when each tensor is held for backward, and their number in each step: predicted and counted."""
    segments = min(segments, layers)
    steps, stop = predict(layers, segments, micro_batches, mode), checkpointed(micro_batches, mode)
    counted = [count for *_, count in measure(layers, segments, micro_batches, mode)]
    rows = micro_batches * (layers + 1)
    tall = min(0.17 * rows, 4.6)
    figure, (top, strip, bottom) = new_figure(
        9, tall + 3.0, rows=3, sharex=True, height_ratios=(tall, 0.28, 1.7)
    )
    seen: dict[str, None] = {}
    # a bar for each life of a tensor, from the step that makes it to the one after which it is dropped
    for (i, k), start, end, why in lives(steps, layers, segments, stop):
        color, hatch, _ = LIVES[why]
        seen[why] = None
        place = (i * (layers + 1) + k - 0.4, 0.8)
        edge = PAPER if hatch else color
        top.broken_barh([(start, end - start)], place, facecolor=color, edgecolor=edge, hatch=hatch, lw=0.4)
    _name_tensors(top, layers, micro_batches, dense=rows / tall)
    _draw_strip(strip, steps, micro_batches)
    _draw_count(bottom, [len(step.held) for step in steps], counted)
    handles = [
        Patch(facecolor=LIVES[why][0], edgecolor=PAPER, hatch=LIVES[why][1], label=LIVES[why][2])
        for why in LIVES
        if why in seen
    ]
    top.legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
    highest, without = peak(steps), micro_batches * (layers + 1)
    batches = f" × {micro_batches} micro-batches" if micro_batches > 1 else ""
    parts = f", {plural(segments, 'segment')}" if stop else ""
    against = f" instead of {without}" if stop else ", no checkpoint"
    finding = f"{layers} layers{parts}{batches}: peak of {max(counted)} tensors{against}"
    with matplotlib.rc_context({"axes.titlepad": 30}):  # above the legend
        title(top, finding)
    same = (
        "in every step as predicted"
        if counted == [len(s.held) for s in steps]
        else f"predicted peak {highest}"
    )
    return describe(
        figure,
        f"Life lines of {rows} tensors over {len(steps)} steps, checkpoint {mode}. {finding}. "
        f"Counted in a real run: {counted[sum(s.kind == 'forward' for s in steps) - 1]} in the last step of forward, "
        f"{same}.",
    )


def _name_tensors(axes: Axes, layers: int, micro_batches: int, *, dense: float) -> None:
    """Name the rows: every tensor where there is room, else every fourth; a line between micro-batches."""
    every = 1 if dense < 6.5 else 4 if dense < 20 else layers
    last = layers + 1 if every == 1 else layers + 2 - every  # not so near to the next x0
    places = [(i, k) for i in range(micro_batches) for k in range(0, max(1, last), every)]
    names = [f"x{k}" + (f" of {i}" if micro_batches > 1 and k == 0 else "") for i, k in places]
    axes.set_yticks([i * (layers + 1) + k for i, k in places], names, fontsize=9)
    axes.set_ylim(micro_batches * (layers + 1) - 0.5, -0.5)
    for i in range(1, micro_batches):
        axes.axhline(i * (layers + 1) - 0.5, color=GREY, lw=0.8)
    axes.tick_params(axis="both", length=0, labelbottom=False)
    axes.spines["bottom"].set_visible(False)


def _draw_strip(axes: Axes, steps: list[Step], micro_batches: int) -> None:
    """Draw what the device does: a block for every run of steps of one kind and micro-batch."""
    for (kind, i), run in itertools.groupby(
        enumerate(steps), lambda pair: (pair[1].kind, pair[1].micro_batch)
    ):
        places = [t for t, _ in run]
        color = PALETTE[kind]
        axes.broken_barh([(places[0], len(places))], (0, 1), facecolor=color, edgecolor=PAPER, lw=1)
        label = LETTER[kind] + (str(i) if micro_batches > 1 else "")
        if 560 * len(places) / len(steps) > 7 * len(label):
            x = places[0] + len(places) / 2
            axes.text(x, 0.5, label, ha="center", va="center_baseline", fontsize=9, color=ink_on(color))
    axes.set(ylim=(0, 1), yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(axis="x", length=0, labelbottom=False)
    axes.set_ylabel("runs", rotation=0, ha="right", va="center", fontsize=9)


def _draw_count(axes: Axes, predicted: list[int], counted: list[int]) -> None:
    """Draw the number of tensors in each step: what was counted filled, what was predicted as an outline."""
    edges = list(range(len(predicted) + 1))
    axes.stairs(counted, edges, fill=True, color=pale(BLUE, 0.45), label="counted")
    axes.stairs(predicted, edges, color=INK, lw=1.4, label="predicted")
    top = max(counted)
    where = counted.index(top)
    axes.annotate(
        str(top),
        (where + 0.5, top),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
        fontweight="bold",
    )
    axes.set(xlim=(0, len(predicted)), ylim=(0, 1.25 * top), ylabel="tensors held")
    axes.set_xlabel("step: one layer forward (F), recomputed (R) or backward (B)")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", ncols=2, borderaxespad=0.1)


@styled
def draw_staircases(layers: int, segments: tuple[int, ...] = (4,)) -> Figure:
    """Draw the tensors held over the steps: without checkpoint, and below with so many segments; each its own row."""
    ways: list[tuple[str, int, Mode]] = [("without", 1, "never")]
    ways += [(plural(s, "segment"), s, "always") for s in segments]
    figure, panels = new_figure(9, 0.9 + 1.45 * len(ways), rows=len(ways), sharex=True, sharey=True)
    said, peaks = [], {}
    for axes, (name, count, mode) in zip(panels, ways, strict=True):
        steps, log = predict(layers, count, 1, mode), measure(layers, count, 1, mode)
        edges = list(range(len(log) + 1))
        for kind, color in (
            ("forward", PALETTE["forward"]),
            ("recompute", PINK),
            ("backward", PALETTE["backward"]),
        ):
            # one filled step function a kind; nan leaves out the steps of the others
            values = [n if k == kind else math.nan for k, *_, n in log]
            hatch = "////" if kind == "recompute" else ""
            axes.stairs(
                values, edges, fill=True, facecolor=pale(color, 0.75), edgecolor=PAPER, hatch=hatch, lw=0
            )
        axes.stairs([len(step.held) for step in steps], edges, color=INK, lw=1.3)
        peaks[name] = top = max(n for *_, n in log)
        where = [n for *_, n in log].index(top)
        axes.annotate(
            f"{top}",
            (where + 0.5, top),
            xytext=(0, 2),
            textcoords="offset points",
            ha="center",
            fontweight="bold",
        )
        axes.text(0.995, 0.93, name, transform=axes.transAxes, ha="right", va="top", fontweight="bold")
        axes.set_ylabel("tensors")
        said.append(f"{name}: peak {top} over {len(log)} steps")
    panels[0].set_ylim(0, 1.2 * max(peaks.values()))
    panels[0].set_xlim(0, 3 * layers)
    panels[-1].set_xlabel("step: one layer forward, recomputed or backward")
    handles = [
        Patch(facecolor=pale(PALETTE["forward"], 0.75), label="forward"),
        Patch(facecolor=pale(PINK, 0.75), edgecolor=PAPER, hatch="////", label="recompute"),
        Patch(facecolor=pale(PALETTE["backward"], 0.75), label="backward"),
        Patch(facecolor=PAPER, edgecolor=INK, label="outline: predicted"),
    ]
    panels[0].legend(handles=handles, loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
    best = min(peaks, key=lambda name: peaks[name])
    finding = f"{layers} layers: {peaks['without']} tensors at the peak without, {peaks[best]} with {best}"
    with matplotlib.rc_context({"axes.titlepad": 30}):
        title(panels[0], finding)
    return describe(figure, f"Memory staircases, counted in real runs. {finding}. {'; '.join(said)}.")


# ---- Checkpoint and Recompute, the two autograd functions: their graph, and what the second gains.

STEPS_CONTROLS: dict[str, Control] = {"step": whole(1, 6, 1, "step")}
EARLY_CONTROLS: dict[str, Control] = {
    "partitions": whole(1, 6, 4, "n · partitions"),
    "micro_batches": whole(1, 8, 4, "m · micro-batches"),
    "early": switch(False, "recompute before the gradient arrives"),
    "mode": choice(("except_last", "always"), "always", "checkpoint"),
}

BOXES = {  # centre x, y, width, words under the name
    "x": (0.75, 2.6, 0.9, ""),
    "Checkpoint": (3.2, 2.6, 2.0, "function(x), no graph"),
    "Recompute": (3.2, 0.8, 2.0, "keeps x, waits"),
    "Join": (6.2, 2.6, 1.1, ""),
    "y": (8.1, 2.6, 0.9, ""),
}
EDGES = {  # from, to, bend
    "in": ("x", "Checkpoint"),
    "in beside": ("x", "Recompute"),
    "out": ("Checkpoint", "Join"),
    "phony": ("Recompute", "Join"),
    "y": ("Join", "y"),
}
STEPS = (  # what lights up, boxes and edges; whether backward; what the shared memory holds; what happens
    (
        ("x", "Checkpoint", "in", "out", "y"),
        False,
        "random state",
        "checkpoint(): y is computed without a graph; x is all that stays",
    ),
    (
        ("x", "Recompute", "Join", "in beside", "phony"),
        False,
        "random state",
        "recompute(): a second node is hung beside, tied to y by an empty tensor",
    ),
    (
        ("Join", "phony", "Recompute"),
        True,
        "random state",
        "backward reaches Join: Recompute starts, the gradient may still be on its way",
    ),
    (
        ("Recompute", "x"),
        True,
        "outputs and inputs, with graph",
        "Recompute runs function(x) again with a graph, and leaves it in shared memory",
    ),
    (
        ("y", "Join", "out", "Checkpoint"),
        True,
        "outputs and inputs, with graph",
        "the gradient of y arrives at Checkpoint, which takes that graph",
    ),
    (
        ("Checkpoint", "in", "x"),
        True,
        "empty",
        "backward through the graph: parameters get theirs, x gets its gradient",
    ),
)


@styled
def draw_two_functions(step: int = 1) -> Figure:
    """Draw the graph of a checkpointed segment in one of six steps: what is at work is coloured."""
    active, back, memory, words = STEPS[step - 1]
    figure, axes = new_figure(9, 3.5)
    axes.set(xlim=(0, 9), ylim=(0.3, 3.2))
    axes.axis("off")
    hue = GREEN if back else BLUE
    for name, (start, end) in EDGES.items():
        _arrow(axes, start, end, back, hue if name in active else None, dashed=name == "phony")
    for name, (x, y, width, below) in BOXES.items():
        color = PINK if name == "Recompute" and back else hue
        _box(axes, x, y, width, name, below, color if name in active else None)
    _memory(axes, memory, step)
    axes.text(5.1, 1.15, "phony: an empty\ntensor, an edge only", fontsize=9.5, color=MUTED, va="center")
    title(axes, f"{step}. {words}")
    direction = "backward, right to left" if back else "forward, left to right"
    return describe(
        figure,
        f"Graph x, Checkpoint, Join, y, with Recompute beside Checkpoint, in step {step} of {len(STEPS)} "
        f"({direction}): {words}. At work: {', '.join(a for a in active if a in BOXES)}. Shared memory: {memory}.",
    )


def _box(axes: Axes, x: float, y: float, width: float, name: str, below: str, color: str | None) -> None:
    face = pale(color, 0.35) if color else PAPER
    box(
        axes,
        x,
        y,
        width,
        0.72,
        face=face,
        edge=color or GREY,
        line=2.2 if color else 1.2,
        radius=0.1,
        zorder=1,
    )
    axes.text(x, y + (0.11 if below else 0), name, ha="center", va="center", fontweight="bold", fontsize=11)
    if below:
        axes.text(x, y - 0.17, below, ha="center", va="center", fontsize=9, color=MUTED)


def _arrow(axes: Axes, start: str, end: str, back: bool, color: str | None, *, dashed: bool) -> None:
    """Draw an edge in the direction in which data runs now."""
    (x0, y0, w0, _), (x1, y1, w1, _) = BOXES[start], BOXES[end]
    a, b = (x0 + w0 / 2, y0), (x1 - w1 / 2, y1)
    if y0 != y1:  # to or from Recompute
        a, b = ((x0, y0 - 0.36), b) if start == "x" else (a, (x1, y1 - 0.36))
    if back:
        a, b = b, a
    width, line = 2.6 if color else 1.2, "--" if dashed else "-"
    arrow(axes, a, b, color=color or GREY, width=width, head=15, gap=3, linestyle=line)


def _memory(axes: Axes, held: str, step: int) -> None:
    """Draw what the two functions share, between them."""
    axes.plot([3.2, 3.2], [2.2, 1.2], color=ORANGE, lw=1.4, ls=":", zorder=0)
    empty = held == "empty"
    axes.text(
        3.2,
        1.7,
        f"shared: {held}",
        ha="center",
        va="center",
        fontsize=9.5,
        color=MUTED if empty else INK,
        bbox=dict(
            boxstyle="round,pad=0.35",
            facecolor=PAPER if empty else pale(ORANGE, 0.45),
            edgecolor=ORANGE,
            lw=1.2,
        ),
    )


@styled
def draw_early(
    partitions: int = 4, micro_batches: int = 4, early: bool = True, mode: Mode = "always"
) -> Figure:
    """Draw backward of a pipeline, one forward as unit, a backward two: with Recompute early, or after the gradient."""
    trace = predict_early(partitions, micro_batches, early=early, mode=mode)
    other = predict_early(partitions, micro_batches, early=not early, mode=mode)
    saved = abs(other.makespan - trace.makespan)
    when = "before" if early else "after"
    finding = f"Recompute {when} the gradient: {trace.makespan:.0f} ticks of one forward, "
    finding += "either way" if not saved else f"{saved:.0f} {'fewer' if early else 'more'}"
    return draw_timeline(predicted=trace, title=finding, unit="clock", bubbles=True)


# ---- What recompute costs in time and saves in memory, drawn: predicted outlines above what was measured.


@styled
def draw_steps(measured: Mapping[Mode, Trace], forward: float, backward: float, micro_batches: int) -> Figure:
    """Draw a measured step in each mode under its prediction from one forward and one backward, in seconds."""
    predicted = Trace(
        (span for mode in MODES for span in predict_step(forward, backward, micro_batches, mode)), MODES
    )
    whole = Trace((span for mode in MODES for span in measured[mode]), MODES)
    ratio = {mode: measured[mode].makespan / measured["never"].makespan for mode in MODES}
    finding = f"always takes {ratio['always']:.2f} × never, except_last {ratio['except_last']:.2f} ×"
    return draw_timeline(whole, predicted, title=finding)


@styled
def draw_gpu(rows: Sequence[Mapping[str, Any]], source: str) -> Figure:
    """Draw peak memory (MiB) and time (ms) by segments: outlines are predicted, filled bars measured.

    rows: segments (0: no checkpoint), predicted_mib, predicted_ratio, and mib, ms where measured. source: by whom.
    """
    figure, (left, right) = new_figure(9, 3.6, cols=2)
    places = range(len(rows))
    names = ["none" if not row["segments"] else str(row["segments"]) for row in rows]
    have = rows[0].get("mib") is not None
    base = rows[0]["ms"] if have else 1.0
    time = "time of a step (ms)" if have else "time of a step (× without)"
    panels: list[tuple[Any, list[float], list[float], str, str]] = [
        (
            left,
            [r["predicted_mib"] for r in rows],
            [r.get("mib") or 0.0 for r in rows],
            "peak memory (MiB)",
            BLUE,
        ),
        (right, [base * r["predicted_ratio"] for r in rows], [r.get("ms") or 0.0 for r in rows], time, PINK),
    ]
    for axes, predicted, measured, label, color in panels:
        bars(axes, predicted, measured if have else None, color, write=_number)
        axes.set_xticks(list(places), names)
        axes.set(xlabel="segments", ylabel=label)
        axes.margins(y=0.28)
    left.legend(loc="upper center", ncols=2)
    best = min(rows[1:], key=lambda r: r["mib"] if have else r["predicted_mib"])
    key = "mib" if have else "predicted_mib"
    share = best[key] / rows[0][key]
    one = best["segments"] == 1
    verb = ("needs" if one else "need") if have else "should need"
    finding = f"{best['segments']} segment{'' if one else 's'} {verb} {share:.0%} of the memory"
    headline(figure, finding)
    source_note(figure, source)
    numbers = ", ".join(f"{name}: {row[key]:.0f} MiB" for name, row in zip(names, rows, strict=True))
    return describe(figure, f"{finding}. {source}. Peak by segments, {numbers}.")


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}"


# ---- The peak of held tensors over the segments: few segments are long, many leave many inputs.

SEGMENTS_CONTROLS: dict[str, Control] = {"layers": whole(2, 64, 16, "L · layers")}


@styled
def draw_segments(layers: int = 16) -> Figure:
    """Draw the peak for every number of segments: predicted line, counted points, and 2√L."""
    figure, axes = new_figure(9, 3.6)
    numbers = range(1, layers + 1)
    predicted = [peak(predict(layers, s)) for s in numbers]
    tried = sorted({*range(1, min(layers, 9) + 1), *range(10, layers + 1, 6), layers})
    counted = {s: max(n for *_, n in measure(layers, s)) for s in tried}
    least = min(predicted)
    best = [s for s, value in zip(numbers, predicted, strict=True) if value == least]
    axes.plot(numbers, predicted, color=INK, lw=1.3, label="predicted: s + ⌊L / s⌋")
    axes.plot(list(counted), list(counted.values()), "o", color=BLUE, ms=7, label="counted in a run")
    axes.fill_between(
        numbers, 0, list(numbers), color=pale(BLUE, 0.30), lw=0, label="of them inputs of segments: s"
    )
    axes.axhline(layers + 1, color=MUTED, ls="--", lw=1.2)
    axes.text(layers, layers + 1, "without checkpoint", ha="right", va="bottom", fontsize=9.5, color=MUTED)
    axes.axhline(2 * math.sqrt(layers), color=ORANGE, ls=":", lw=1.8)
    axes.text(
        layers,
        2 * math.sqrt(layers),
        f"2√L = {2 * math.sqrt(layers):.1f}",
        ha="right",
        va="bottom",
        fontsize=9.5,
    )
    axes.axvspan(best[0] - 0.3, best[-1] + 0.3, color=pale(ORANGE, 0.30), lw=0, zorder=0)
    axes.set(xlim=(0.5, layers + 0.5), ylim=(0, 1.22 * (layers + 1)))
    axes.set(xlabel="s · segments", ylabel="tensors at the peak")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper center", ncols=3)
    which = f"{best[0]} to {best[-1]} segments" if len(best) > 1 else plural(best[0], "segment")
    finding = f"{layers} layers need least, {least} tensors, in {which}"
    title(axes, finding)
    points = ", ".join(f"{s}: {n}" for s, n in counted.items())
    return describe(figure, f"{finding}. Counted peaks by segments: {points}.")


# ---- What goes wrong in a second forward: dropout masks, statistics that move twice, a table of faults.


@styled
def draw_masks(first: Tensor, second: Tensor) -> Figure:
    """Draw two boolean masks (rows, units), True where a unit is kept, and red where they differ."""
    figure, panels = new_figure(9, 2.35, cols=3)
    differ = first != second
    share = differ.double().mean().item()
    pictures = (("forward", first, BLUE), ("recompute", second, PINK), (f"differ: {share:.0%}", differ, RED))
    rows, columns = first.shape
    for axes, (name, mask, color) in zip(panels, pictures, strict=True):
        cells = mask.int().tolist()
        for r in range(rows):
            on = [(c, 0.9) for c in range(columns) if cells[r][c]]
            off = [(c, 0.9) for c in range(columns) if not cells[r][c]]
            axes.broken_barh(on, (r, 0.9), facecolor=color, lw=0)
            axes.broken_barh(off, (r, 0.9), facecolor=pale(INK, 0.07), lw=0)
        axes.set(xlim=(-0.1, columns), ylim=(rows, -0.1), aspect="equal", xlabel=name)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_visible(False)
    panels[0].set_ylabel("sample")
    finding = (
        "The same mask twice: gradients fit the output"
        if not share
        else f"{share:.0%} of the units differ: gradients of a network that never ran"
    )
    headline(figure, finding)
    return describe(
        figure,
        f"Dropout masks of {rows} samples × {columns} units: kept in forward {first.double().mean():.0%}, "
        f"in recompute {second.double().mean():.0%}. {finding}.",
    )


@styled
def draw_running(means: Mapping[str, Sequence[float]], true_mean: float = 1.0) -> Figure:
    """Draw running means over the steps; ways that agree lie on one another and are drawn as line and dots."""
    figure, axes = new_figure(9, 3.2)
    looks = (dict(lw=2.4), dict(ls="", marker="s", ms=6), dict(ls="", marker="o", ms=6))
    for number, (name, values) in enumerate(means.items()):
        axes.plot(
            range(len(values)),
            values,
            color=rank_color((0, 5, 1)[number % 3]),
            label=name,
            **looks[number % 3],
        )
    axes.axhline(true_mean, color=MUTED, ls="--", lw=1.2)
    axes.text(0, true_mean, "mean of the data", va="bottom", fontsize=9.5, color=MUTED)
    axes.set(xlabel="training steps", ylabel="running mean", ylim=(0, 1.2 * true_mean), xlim=(-0.3, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right")
    once = {name: values[1] / true_mean for name, values in means.items()}
    plain, *others = once.items()
    off = {name: momentum for name, momentum in others if abs(momentum - plain[1]) > 0.01}
    finding = f"Momentum {plain[1]:.2f} everywhere"
    if off:
        finding = f"Momentum {plain[1]:.2f} acts as {next(iter(off.values())):.2f} where recompute counts too"
    title(axes, finding)
    ends = ", ".join(f"{name} {values[-1]:.2f}" for name, values in means.items())
    return describe(
        figure, f"{finding}. Running mean after {len(next(iter(means.values()))) - 1} steps: {ends}."
    )


LOOK: Mapping[Outcome, tuple[str, str, str]] = {  # colour, sign, words
    "same": (GREEN, "✓", "same gradients"),
    "counted twice": (ORANGE, "2×", "counted twice"),
    "error": (BLUE, "!", "refused with an error"),
    "no gradient": (RED, "∅", "no gradient, silently"),
    "wrong": (RED, "✗", "wrong, silently"),
}


@styled
def draw_faults(table: Mapping[str, Mapping[str, Outcome]]) -> Figure:
    """Draw outcomes, a row a case and a column a checkpoint."""
    columns = list(next(iter(table.values())))
    figure, axes = new_figure(9, 1.2 + 0.42 * len(table))
    for row, outcomes in enumerate(table.values()):
        for column, name in enumerate(columns):
            color, sign, words = LOOK[outcomes[name]]
            silent = color == RED
            face = color if silent else pale(color, 0.30)
            axes.add_patch(
                Rectangle((column + 0.02, row + 0.06), 0.96, 0.88, facecolor=face, edgecolor=PAPER)
            )
            ink = ink_on(face) if silent else INK
            axes.text(
                column + 0.5, row + 0.5, f"{sign}  {words}", ha="center", va="center", fontsize=9.5, color=ink
            )
    axes.set(xlim=(0, len(columns)), ylim=(len(table), 0))
    axes.set_yticks([row + 0.5 for row in range(len(table))], list(table), color=INK, fontsize=10.5)
    axes.set_xticks([column + 0.5 for column in range(len(columns))], columns, color=INK, fontsize=10.5)
    axes.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    faults = {name: sum(LOOK[row[name]][0] == RED for row in table.values()) for name in columns}
    finding = f"Silent faults in {len(table)} cases: " + ", ".join(
        f"{name} {n}" for name, n in faults.items()
    )
    headline(figure, finding)
    said = "; ".join(
        f"{case}: " + ", ".join(f"{name} {outcome}" for name, outcome in outcomes.items())
        for case, outcomes in table.items()
    )
    return describe(figure, f"{finding}. {said}.")


def kept(output: Tensor) -> Tensor:
    """Return where dropout has kept a unit: True where the output is not zero."""
    return output.detach() != torch.zeros(())
