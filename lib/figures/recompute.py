"""Checkpoint and Recompute, the two autograd functions, drawn: their graph step by step, and what the second one gains.

draw_two_functions   the graph of one checkpointed segment while forward and backward pass through it
draw_early           backward of a pipeline whose Recompute does, or does not, wait for the gradient (an ideal)
"""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.experiments.recompute import predict_early
from lib.experiments.staircase import Mode
from lib.show.explore import Control, choice, switch, whole
from lib.show.sheet import arrow, box
from lib.show.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    PINK,
    describe,
    new_figure,
    pale,
    styled,
    title,
)
from lib.show.timeline import draw_timeline

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
