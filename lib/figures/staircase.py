"""The memory staircase drawn: when each tensor is held, how many there are in each step, step by step.

draw_held         each tensor's life as a bar over the steps of forward and backward, and their number below
draw_staircases   that number over the steps, for several ways side by side

Bars and lines are predicted (lib.experiments.staircase: predict); what is filled is counted in a real run (measure).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from lib.experiments.staircase import MODES, Mode, Step, checkpointed, measure, peak, predict, segments_of
from lib.show.explore import Control, choice, whole
from lib.show.style import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALETTE,
    PAPER,
    PINK,
    describe,
    ink_on,
    new_figure,
    pale,
    styled,
    title,
)

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
    parts = f", {segments} segment{'s' * (segments != 1)}" if stop else ""
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
    ways += [(f"{s} segment{'s' * (s != 1)}", s, "always") for s in segments]
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
