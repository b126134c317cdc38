"""One micro-batch in one partition, between two streams: what fence and compute put there.

draw_fence   the six nodes with the numbers of the code, forward or backward, one step marked: what the explorer wraps

    copy stream      ── Copy ──┐                          ┌── Copy ──
    compute stream             └ Wait ─ Checkpoint ─ Wait ┘
                                 [1]       [2]       [3]  Recompute [4]
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle

from lib.show.explore import choice, whole
from lib.show.sheet import arrow, box
from lib.show.style import (
    BLUE,
    GREY,
    INK,
    MUTED,
    ORANGE,
    PINK,
    describe,
    new_figure,
    pale,
    styled,
    title,
)

DIRECTIONS = ("forward", "backward")


@dataclass(frozen=True)
class Stop:
    """A node on the way: the line of lib/pipeline/pipeline.py that makes it, and what it does either way."""

    name: str
    tag: str
    x: float
    code: str
    forward: str
    backward: str


STOPS = (
    Stop(
        "Copy",
        "",
        1.45,
        "copy(batch, copy_streams[j - 1][i], next_stream)",
        "brings the output of partition j - 1 here, on the copy streams",
        "brings the gradient to partition j - 1, on the copy streams",
    ),
    Stop(
        "Wait",
        "[1]",
        2.75,
        "wait(batch, copy_streams[j][i], streams[j])",
        "the compute stream waits for the copied input",
        "the copy stream waits for the gradient that was computed",
    ),
    Stop(
        "Checkpoint",
        "[2]",
        4.3,
        "Task(streams[j], compute=compute, finalize=finalize)",
        "the worker computes the layers, without their inside",
        "goes back through the recomputed inside, with the gradient",
    ),
    Stop(
        "Wait",
        "[3]",
        5.85,
        "wait(batch, streams[j], copy_streams[j][i])",
        "the copy stream waits for the output",
        "the compute stream waits for the gradient that is copied",
    ),
    Stop(
        "Recompute",
        "[4]",
        6.9,
        "task.finalize(batch)",
        "is tied in beside, and does nothing yet",
        "computes the inside, while the gradient is still being copied",
    ),
    Stop(
        "Copy",
        "",
        8.2,
        "copy(batch, copy_streams[j][i], copy_streams[j + 1][i])",
        "brings the output to partition j + 1, on the copy streams",
        "brings the gradient from partition j + 1, on the copy streams",
    ),
)
"""In the order of forward. `code` is shortened: `self.` and the Python names of the neighbours are left out."""

BACKWARD = (5, 4, 3, 2, 1, 0)
WAYS = {
    "forward": ((0, 1, 2, 3, 5), ((3, 4),)),
    "backward": ((5, 3, 2, 1, 0), ((5, 4), (4, 2))),
}
"""Which stops an arrow connects: on the main way, and to and from Recompute."""

FENCE_CONTROLS = {
    "direction": choice(DIRECTIONS, "forward", "direction"),
    "step": whole(1, len(STOPS), 3, "step"),
}
COPY_LANE, COMPUTE_LANE = 1.55, 2.65  # inches from the top


@styled
def draw_fence(direction: str, step: int) -> Figure:
    """Draw the way of a micro-batch through partition j, at one of its six steps. Raises ValueError for a direction."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction must be one of {', '.join(DIRECTIONS)}, not {direction!r}")
    now = order_of(direction)[step - 1]
    stop = STOPS[now]
    figure, axes = new_figure(9, 4.1)
    axes.set(xlim=(0, 9), ylim=(3.85, 0.4), aspect="equal")
    axes.axis("off")
    _draw_lanes(axes)
    nodes = [_node(axes, k, k == now) for k in range(len(STOPS))]
    way, beside = WAYS[direction]
    for start, end in itertools.pairwise(way):
        arrow(axes, _center(start), _center(end), gap=2, patchA=nodes[start], patchB=nodes[end], zorder=2)
    for start, end in beside:
        look: Any = {"patchA": nodes[start], "patchB": nodes[end], "zorder": 2}
        arrow(axes, _center(start), _center(end), color=PINK, gap=2, **look)
    says = getattr(stop, direction)
    title(
        axes,
        f"{direction.capitalize()}, step {step} of {len(STOPS)}, {f'{stop.name} {stop.tag}'.strip()}: {says}",
    )
    axes.text(0.1, 3.72, stop.code, family="DejaVu Sans Mono", fontsize=11, va="center")
    words = "; ".join(f"{STOPS[k].name} {STOPS[k].tag}".strip() for k in order_of(direction))
    return describe(
        figure, f"{axes.get_title('left')}. Code: {stop.code}. Order {direction}: {words}.".replace("\n", " ")
    )


def order_of(direction: str) -> tuple[int, ...]:
    """Return the indices of the stops in the order in which they come."""
    return tuple(range(len(STOPS))) if direction == "forward" else BACKWARD


def _center(k: int) -> tuple[float, float]:
    stop = STOPS[k]
    if stop.name == "Wait":
        return stop.x, (COPY_LANE + COMPUTE_LANE) / 2
    return stop.x, {"Copy": COPY_LANE, "Checkpoint": COMPUTE_LANE, "Recompute": COMPUTE_LANE}[stop.name]


def _draw_lanes(axes: Axes) -> None:
    for y, name, color in ((COPY_LANE, "copy\nstream", ORANGE), (COMPUTE_LANE, "compute\nstream", BLUE)):
        axes.add_patch(Rectangle((0.85, y - 0.36), 8.1, 0.72, facecolor=pale(color, 0.1), zorder=0))
        axes.text(0.05, y, name, va="center", fontsize=10.5, color=MUTED)
    for left, right, name in ((0.9, 2.0, "fence"), (2.2, 7.45, "compute"), (7.65, 8.8, "next fence")):
        axes.plot([left, left, right, right], [0.86, 0.76, 0.76, 0.86], color=INK, linewidth=1.2)
        axes.text((left + right) / 2, 0.58, name, ha="center", va="center", weight="bold")


def _node(axes: Axes, k: int, now: bool) -> FancyBboxPatch:
    (x, y), stop = _center(k), STOPS[k]
    hue = {"Copy": ORANGE, "Checkpoint": BLUE, "Recompute": PINK}.get(stop.name, GREY)
    look: Any = {
        "face": pale(hue, 0.55 if now else 0.25),
        "edge": INK if now else hue,
        "line": 2.6 if now else 1.5,
    }
    weight = {"weight": "bold" if now else "normal"}
    node = box(axes, x, y, 0.2 + 0.095 * len(stop.name), 0.42, stop.name, size=11, ink=INK, zorder=3, writing=weight,
               **look)  # fmt: skip
    if stop.tag:
        place = (x, y + 0.52 if stop.name in ("Checkpoint", "Recompute") else y - 0.34)
        axes.text(*place, stop.tag, ha="center", va="center", fontsize=10.5, color=MUTED, zorder=4)
    return node
